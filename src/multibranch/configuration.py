"""Typed configuration: dataclasses filled from YAML and from the command line.

A section of the file is a dataclass, a key one of its fields. What does not fit is an error that
names the file, the key and, for an unknown key, the nearest known one.
"""

import dataclasses
import math
import re
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml

from multibranch.errors import UserError, nearest

Section = TypeVar("Section")

ABOVE_0 = math.nextafter(0, 1)  # the least of a range without its 0
LARGEST = {int: 2**31, float: 1e38}  # what is larger overflows somewhere in PyTorch


def load(kind: type[Section], path: str | Path, overrides: Sequence[str] = ()) -> Section:
    """Read a YAML file into the dataclass `kind`, then apply `--section.key value` overrides."""
    content = _read(Path(path))
    config = from_dict(kind, {} if content is None else content, where=str(path))
    return override(config, overrides)


def peek(path: str | Path, key: str) -> Any:
    """The value of a key at the file's top, which may decide what dataclass the file is for."""
    content = _read(Path(path))
    return content.get(key) if isinstance(content, dict) else None


def _read(path: Path) -> Any:
    """What the YAML file holds."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"there is no configuration file {path}{_nearest_file(path)}") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is no text in UTF-8: {error}") from None
    return _parse(text, where=str(path))


def from_dict(kind: type[Section], content: Any, *, where: str, prefix: str = "") -> Section:
    """Fill the dataclass `kind` from nested dictionaries."""
    if not isinstance(content, dict):
        raise UserError(f"{where}: {prefix.rstrip('.') or 'the file'} must be a section of keys")
    hints = typing.get_type_hints(kind)
    values = {}
    for key, value in content.items():
        if key not in hints:
            raise UserError(f"{where}: there is no key {prefix}{key}{_nearest(key, hints, prefix)}")
        values[key] = _convert(hints[key], value, where=where, name=f"{prefix}{key}")
    for one in dataclasses.fields(kind):  # type: ignore[arg-type]
        if one.name not in values and one.default is one.default_factory is dataclasses.MISSING:
            raise UserError(f"{where}: the key {prefix}{one.name} is missing")
    return kind(**values)


def override(config: Section, words: Sequence[str]) -> Section:
    """Apply `--section.key value` or `--section.key=value`, as given on a command line."""
    content = dataclasses.asdict(config)  # type: ignore[call-overload]
    words = list(words)
    while words:
        word = words.pop(0)
        if not word.startswith("--"):
            raise UserError(f"{word!r} is no option: overrides are written --section.key value")
        name, equals, text = word[2:].partition("=")
        if not equals and words:
            text = words.pop(0)
        elif not equals:
            raise UserError(f"--{name} needs a value")
        _set(type(config), content, name, text)
    return from_dict(type(config), content, where="the command line")


def to_yaml(config: Any) -> str:
    """The whole configuration as YAML."""
    content = dataclasses.asdict(config)
    text = yaml.dump(content, Dumper=_Dumper, sort_keys=False, allow_unicode=True)
    if yaml.load(text, Loader=_Loader) != content:  # PyYAML loses some control characters
        text = yaml.dump(content, Dumper=_Dumper, sort_keys=False)
    return text


def differences(one: Any, other: Any) -> list[tuple[str, Any, Any]]:
    """What differs between two configurations: the key and both values."""
    first, second = _flat(dataclasses.asdict(one)), _flat(dataclasses.asdict(other))
    return [
        (key, first.get(key), second.get(key))
        for key in {**first, **second}
        if first.get(key) != second.get(key)
    ]


def check_ranges(config: Any, ranges: Mapping[str, tuple[float, float]]) -> None:
    """`check_range` of all values that have one, by their sections and keys."""
    for name, limits in ranges.items():
        section, key = name.split(".")
        check_range(name, getattr(getattr(config, section), key), limits)


def check_range(name: str, value: Any, limits: tuple[float, float]) -> None:
    """Refuse a number, or one in a list, that is not at least the first and below the second.

    Where there is no second, LARGEST is.
    """
    least, below = limits
    for number in value if isinstance(value, list) else [value]:
        if number is None:
            continue
        largest = (
            LARGEST[float if isinstance(number, float) else int] if below == math.inf else below
        )
        if least <= number < largest:
            continue
        from_here = "above 0" if least == ABOVE_0 else f"at least {least:g}"
        # One just above a round number is there to let that number in.
        word = "at most" if float(f"{below:g}") < below else "below"
        limit = f" and {word} {below:g}"
        if below == math.inf:
            limit = f" and below {largest:,}" if number >= largest else ""
        raise UserError(f"{name} must be {from_here}{limit}, not {number}")


def _parse(text: str, *, where: str) -> Any:
    """The content of a YAML text."""
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = "" if mark is None else f", line {mark.line + 1}"
        raise UserError(f"{where}{line} is no YAML: {error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise UserError(f"{where} is no YAML: {' '.join(str(error).split())}") from None
    except ValueError as error:  # a date that no calendar has, or a number with too many digits
        raise UserError(f"{where} holds what cannot be read: {error}") from None
    except RecursionError:
        raise UserError(f"{where} is nested too deeply") from None


def _set(kind: type, content: dict[str, Any], name: str, text: str) -> None:
    """Set the key with the dotted name `name` to what `text` says."""
    *sections, key = name.split(".")
    here, section_kind = content, kind
    for section in sections:
        hints = typing.get_type_hints(section_kind)
        if section not in hints or not dataclasses.is_dataclass(hints[section]):
            raise UserError(f"there is no option --{name}{_nearest_path(kind, name)}")
        section_kind = typing.cast(type, hints[section])
        here = here[section]
    hint = typing.get_type_hints(section_kind).get(key)
    if hint is None or dataclasses.is_dataclass(hint):
        raise UserError(f"there is no option --{name}{_nearest_path(kind, name)}")
    options = _options(hint)
    listed = text.startswith("[") and any(typing.get_origin(each) is list for each in options)
    if str in options and text != "null" and not listed:
        here[key] = text  # a folder may well be called 2024, or on
    else:
        here[key] = _parse(text, where=f"--{name}")


def _nearest_file(path: Path) -> str:
    """The configuration that was probably meant: beside the path, or in the folder `configs`."""
    folders = dict.fromkeys((path.parent, Path("configs")))
    found = {file.stem: file for folder in folders for file in sorted(folder.glob("*.yaml"))}
    near = nearest(path.stem, found)
    return f"; did you mean {found[near]}?" if near else ""


def _nearest(key: str, known: dict[str, Any], prefix: str) -> str:
    near = nearest(str(key), known)
    return f"; did you mean {prefix}{near}?" if near else f"; known are {', '.join(known)}"


def _nearest_path(kind: type, name: str) -> str:
    paths = _paths(kind)
    by_end = {path.split(".")[-1]: path for path in paths}
    near = nearest(name, paths)
    if near is None:
        end = nearest(name.split(".")[-1], by_end)
        near = by_end[end] if end else None
    return f"; did you mean --{near}?" if near else ""


def _paths(kind: type, prefix: str = "") -> list[str]:
    paths = []
    for key, hint in typing.get_type_hints(kind).items():
        if dataclasses.is_dataclass(hint):
            paths += _paths(typing.cast(type, hint), f"{prefix}{key}.")
        else:
            paths.append(f"{prefix}{key}")
    return paths


def _flat(content: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in content.items():
        if isinstance(value, dict):
            flat.update(_flat(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _convert(hint: Any, value: Any, *, where: str, name: str) -> Any:
    """`value` as the type `hint`, or a UserError that says what was wanted."""
    section = next(filter(dataclasses.is_dataclass, _options(hint)), None)
    if section is not None and not (value is None and section is not hint):  # one may be left out
        return from_dict(typing.cast(type, section), value, where=where, prefix=f"{name}.")
    if typing.get_origin(hint) is list and isinstance(value, list):
        (inner,) = typing.get_args(hint)
        if dataclasses.is_dataclass(inner):  # a list of sections, which are counted from 1
            return [
                _convert(inner, section, where=where, name=f"{name}[{number}]")
                for number, section in enumerate(value, 1)
            ]
    for option in _options(hint):
        fits, converted = _fit(option, value)
        if fits:
            return converted
    raise UserError(f"{where}: {name} must be {_describe(hint)}, not {value!r}")


def _options(hint: Any) -> tuple[Any, ...]:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return typing.get_args(hint)
    return (hint,)


def _fit(hint: Any, value: Any) -> tuple[bool, Any]:
    """Whether `value` is of the type `hint`, and the value so converted."""
    origin = typing.get_origin(hint)
    if hint is type(None):
        return value is None, None
    if origin is typing.Literal:
        return value in typing.get_args(hint), value
    if origin is list:
        if not isinstance(value, list):
            return False, None
        (inner,) = typing.get_args(hint)
        fitted = [_fit(inner, item) for item in value]
        return all(fits for fits, _ in fitted), [item for _, item in fitted]
    if hint is float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False, None
        try:
            return True, float(value)
        except OverflowError:  # a whole number with hundreds of digits
            return False, None
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool), value
    if hint is str:
        return isinstance(value, str) and "\0" not in value, value  # which no file's name can have
    return isinstance(value, hint), value


def _describe(hint: Any) -> str:
    words = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
    words[dict] = "a section of keys"
    many = {"a whole number": "whole numbers", "a number": "numbers", "a text": "texts"}
    described = []
    for option in _options(hint):
        if option is type(None):
            described.append("null")
        elif typing.get_origin(option) is typing.Literal:
            described.extend(str(value) for value in typing.get_args(option))
        elif typing.get_origin(option) is list:
            of_one = _describe(typing.get_args(option)[0])
            described.append(f"a list of {many.get(of_one, of_one)}")
        else:
            described.append(words.get(option, str(option)))
    return " or ".join(described)


class _Loader(yaml.SafeLoader):
    """YAML as people write it: 5e-4 is a number, and a key given twice is an error."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise yaml.MarkedYAMLError(problem="a key is no word", problem_mark=node.start_mark)
            if key_node.value in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"the key {key_node.value} is given twice",
                    problem_mark=key_node.start_mark,
                )
            seen.add(key_node.value)
        return super().construct_mapping(node, deep)


_FLOAT = r"^[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)$"


class _Dumper(yaml.SafeDumper):
    """Writes in quotes what `_Loader` would take for a number: a text such as 1e3."""


for _kind in (_Loader, _Dumper):
    _kind.add_implicit_resolver(
        "tag:yaml.org,2002:float", re.compile(_FLOAT), list("-+0123456789.")
    )
