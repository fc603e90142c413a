"""Configuration: what does not fit is an error that names the file, the key and what to do."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from multibranch import configuration
from multibranch.errors import UserError
from multibranch.training import Config


@dataclass
class Inner:
    number: int = 1
    share: float = 0.5
    name: str | None = None
    kind: Literal["one", "two"] = "one"
    many: int | list[int] = 3
    flag: bool = False


@dataclass
class Outer:
    title: str = "x"
    inner: Inner = field(default_factory=Inner)


def read(tmp_path: Path, text: str, overrides: list[str] | None = None) -> Outer:
    path = tmp_path / "some.yaml"
    path.write_text(text)
    return configuration.load(Outer, path, overrides or [])


def refusal(tmp_path: Path, text: str, overrides: list[str] | None = None) -> str:
    with pytest.raises(UserError) as caught:
        read(tmp_path, text, overrides)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_values_and_defaults(tmp_path: Path) -> None:
    found = read(tmp_path, "inner: {number: 7, share: 1, many: [1, 2], name: null}\n")
    assert found == Outer(inner=Inner(number=7, share=1.0, many=[1, 2]))
    assert isinstance(found.inner.share, float)
    assert read(tmp_path, "") == Outer()
    assert read(tmp_path, "# nothing\n") == Outer()


@dataclass
class Several:
    parts: list[Inner] = field(default_factory=list)


def test_a_list_of_sections_counts_them_in_its_errors(tmp_path: Path) -> None:
    path = tmp_path / "some.yaml"
    path.write_text("parts: [{number: 2}, {many: [4]}]")
    assert configuration.load(Several, path).parts == [Inner(number=2), Inner(many=[4])]
    path.write_text("parts: [{number: 2}, {nunber: 4}]")
    with pytest.raises(
        UserError, match=r"no key parts\[2\].nunber; did you mean parts\[2\].number"
    ):
        configuration.load(Several, path)
    path.write_text("parts: [3]")
    with pytest.raises(UserError, match=r"parts\[1\] must be a section of keys"):
        configuration.load(Several, path)


@dataclass
class Named:
    name: str
    parts: list["Named"] = field(default_factory=list)


@pytest.mark.parametrize(
    ("text", "key"), [("parts: []", "name"), ("{name: a, parts: [{name: b}, {}]}", "parts[2].name")]
)
def test_a_key_that_has_no_default_and_is_not_given(tmp_path: Path, text: str, key: str) -> None:
    path = tmp_path / "some.yaml"
    path.write_text(text)
    with pytest.raises(UserError) as caught:
        configuration.load(Named, path)
    assert str(caught.value) == f"{path}: the key {key} is missing"


@pytest.mark.parametrize(
    ("text", "value"), [("5e-4", 5e-4), ("1E3", 1e3), ("-2.5e+1", -25.0), ("0.1", 0.1), (".5", 0.5)]
)
def test_numbers_as_people_write_them(tmp_path: Path, text: str, value: float) -> None:
    assert read(tmp_path, f"inner: {{share: {text}}}").inner.share == value


def test_an_unknown_key_names_the_nearest(tmp_path: Path) -> None:
    message = refusal(tmp_path, "inner: {numbr: 3}")
    assert message == (
        f"{tmp_path / 'some.yaml'}: there is no key inner.numbr; did you mean inner.number?"
    )
    assert "known are title, inner" in refusal(tmp_path, "zzz: 3")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("inner: {number: many}", "inner.number must be a whole number, not 'many'"),
        ("inner: {number: 1.5}", "inner.number must be a whole number, not 1.5"),
        ("inner: {number: true}", "inner.number must be a whole number, not True"),
        ("inner: {share: x}", "inner.share must be a number, not 'x'"),
        (f"inner: {{share: {'9' * 400}}}", "inner.share must be a number, not 999"),
        ('inner: {name: "a\\0b"}', "inner.name must be a text or null, not 'a\\x00b'"),
        ("inner: {flag: 1}", "inner.flag must be true or false, not 1"),
        ("inner: {kind: three}", "inner.kind must be one or two, not 'three'"),
        ("inner: {many: [1, x]}", "inner.many must be a whole number or a list of whole numbers"),
        ("inner: {name: 5}", "inner.name must be a text or null, not 5"),
        ("inner: 5", "inner must be a section of keys"),
        ("[1, 2]", "the file must be a section of keys"),
    ],
)
def test_wrong_types_say_what_was_wanted(tmp_path: Path, text: str, words: str) -> None:
    message = refusal(tmp_path, text)
    assert message.startswith(str(tmp_path / "some.yaml"))
    assert words in message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("title: a\ninner: {number: [1\n", "line 3 is no YAML"),
        ("title: a\n\ttitle: b\n", "line 2 is no YAML"),
        ("title: a\ntitle: b\n", "line 2 is no YAML: the key title is given twice"),
        ("? [1, 2]\n: 3\n", "line 1 is no YAML: a key is no word"),
        ("title: !!python/object/apply:os.system ['true']\n", "line 1 is no YAML"),
        ("title: *nowhere\n", "line 1 is no YAML"),
        ("\x00", "is no YAML"),
        ("title: 2020-13-45\n", "holds what cannot be read: month must be in 1..12"),
        (f"title: {'9' * 5000}\n", "holds what cannot be read: Exceeds the limit (4300 digits)"),
        (f"title: {'[' * 5000}\n", "is nested too deeply"),
    ],
)
def test_what_is_no_yaml(tmp_path: Path, text: str, words: str) -> None:
    assert words in refusal(tmp_path, text)


def test_the_configuration_that_was_meant_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("configs").mkdir()
    for name in ("builtin", "glue-mrpc", "glue-rte"):
        Path("configs", f"{name}.yaml").touch()
    for name in ("builtin", "builtin.yaml", "configs/builtn.yaml"):
        with pytest.raises(UserError, match=rf"{name}; did you mean configs/builtin\.yaml\?$"):
            configuration.load(Outer, name)
    with pytest.raises(UserError, match=r"there is no configuration file mine\.yaml$"):
        configuration.load(Outer, "mine.yaml")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no configuration file"):
        configuration.load(Outer, tmp_path / "absent.yaml")
    with pytest.raises(UserError, match="cannot be read: Is a directory"):
        configuration.load(Outer, tmp_path)
    (tmp_path / "latin.yaml").write_bytes(b"title: caf\xe9")
    with pytest.raises(UserError, match="is no text in UTF-8"):
        configuration.load(Outer, tmp_path / "latin.yaml")


def test_overrides(tmp_path: Path) -> None:
    words = [
        "--inner.number",
        "9",
        "--inner.share=2e-3",
        "--title",
        "new",
        "--inner.many",
        "[4, 5]",
    ]
    found = read(tmp_path, "inner: {number: 7, flag: true}", words)
    assert found == Outer("new", Inner(number=9, share=2e-3, many=[4, 5], flag=True))
    assert read(tmp_path, "inner: {number: 7}", ["--inner.number", "-3"]).inner.number == -3


@pytest.mark.parametrize("text", ["2024", "on", "1e5", "a: b", "[x", ""])
def test_a_text_on_the_command_line_is_that_text(tmp_path: Path, text: str) -> None:
    assert read(tmp_path, "", [f"--inner.name={text}"]).inner.name == text


def test_null_on_the_command_line(tmp_path: Path) -> None:
    assert read(tmp_path, "inner: {name: a}", ["--inner.name", "null"]).inner.name is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--inner.numbr", "3"], "no option --inner.numbr; did you mean --inner.number?"),
        (["--number", "3"], "no option --number; did you mean --inner.number?"),
        (["--inner", "3"], "no option --inner"),
        (["--inner.number.more", "3"], "no option --inner.number.more"),
        (["--inner.number"], "--inner.number needs a value"),
        (["inner.number", "3"], "'inner.number' is no option"),
        (["--inner.number", "x"], "the command line: inner.number must be a whole number"),
        (["--inner.many", "[1"], "--inner.many, line 1 is no YAML"),
    ],
)
def test_overrides_that_do_not_fit(tmp_path: Path, words: list[str], message: str) -> None:
    assert message in refusal(tmp_path, "", words)


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    config = Config()
    config.train.learning_rate = 7e-5
    config.model.drop_branch = [0.1, 0.2]
    config.data.folder = "données/été"
    path = tmp_path / "config.yaml"
    path.write_text(configuration.to_yaml(config), encoding="utf-8")
    assert configuration.load(Config, path) == config


@settings(max_examples=60, deadline=None)
@example(name="\x85", share=0.0, number=0)
@example(name="1e3", share=1e-7, number=0)
@given(
    name=st.text(st.characters(codec="utf-8", exclude_characters="\0")),
    share=st.floats(allow_nan=False, allow_infinity=False),
    number=st.integers(),
)
def test_any_value_survives(name: str, share: float, number: int) -> None:
    config = Outer(title=name, inner=Inner(share=share, number=number))
    content = yaml.load(configuration.to_yaml(config), Loader=configuration._Loader)
    assert configuration.from_dict(Outer, content, where="here") == config


def test_differences() -> None:
    one, other = Config(), Config()
    other.train.seed, other.model.branches = 2, [1, 2]
    assert configuration.differences(one, other) == [
        ("model.branches", 3, [1, 2]),
        ("train.seed", 1, 2),
    ]


# -- The ranges of the training configuration --------------------------------------------------


def config(**changes: object) -> Config:
    made = Config()
    made.train.max_updates = 10
    for name, value in changes.items():
        section, key = name.split("__")
        assert hasattr(getattr(made, section), key)
        setattr(getattr(made, section), key, value)
    return made


def test_the_defaults_need_only_an_end() -> None:
    assert config().check() == config()
    with pytest.raises(UserError, match=r"never end: set train\.max_epochs"):
        Config().check()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"train__tokens": 0}, "train.tokens must be at least 1, not 0"),
        ({"train__learning_rate": -1e-3}, "train.learning_rate must be above 0, not -0.001"),
        ({"train__learning_rate": 0.0}, "train.learning_rate must be above 0, not 0.0"),
        ({"train__learning_rate": float("nan")}, "train.learning_rate must be above 0, not nan"),
        ({"train__learning_rate": float("inf")}, "must be above 0 and below 1e+38, not inf"),
        ({"train__epsilon": -1.0}, "train.epsilon must be above 0, not -1.0"),
        ({"train__tokens": 10**24}, "at least 1 and below 2,147,483,648, not 1000000"),
        (
            {"model__branches": [2**31, 1]},
            "model.branches must be at least 1 and below 2,147,483,64",
        ),
        ({"train__tokens": -(10**400)}, "train.tokens must be at least 1, not -1000"),
        ({"train__label_smoothing": 1.0}, "must be at least 0 and below 1, not 1.0"),
        ({"train__betas": [0.9, 1.0]}, "train.betas must be at least 0 and below 1"),
        ({"train__betas": [0.9]}, "train.betas must be two numbers"),
        ({"train__max_updates": 0}, "train.max_updates must be at least 1, not 0"),
        ({"train__max_minutes": 0.0}, "train.max_minutes must be above 0, not 0.0"),
        ({"train__max_minutes": -1.0}, "train.max_minutes must be above 0, not -1.0"),
        ({"train__patience": -2}, "train.patience must be at least 1"),
        ({"train__validate_every": 0}, "train.validate_every must be at least 1"),
        ({"train__checkpoint_minutes": -1.0}, "train.checkpoint_minutes must be at least 0"),
        ({"train__keep_checkpoints": 0}, "train.keep_checkpoints must be at least 1"),
        ({"train__threads": 0}, "train.threads must be at least 1"),
        ({"train__threads": 5000}, "train.threads must be at least 1 and at most 1024, not 5000"),
        ({"train__average_best": True}, "train.average_best chooses among averages: set"),
        ({"train__stop_on": "score"}, "needs train.validate_score: true"),
        ({"model__dropout": 1.0}, "model.dropout must be at least 0 and below 1"),
        ({"model__drop_branch": [0.1, 1.5]}, "model.drop_branch must be"),
        ({"model__branches": [2, 0]}, "model.branches must be at least 1, not 0"),
        ({"model__encoder_layers": 0}, "model.encoder_layers must be at least 1"),
        ({"decode__beam": 0}, "decode.beam must be at least 1"),
        (
            {"decode__beam": 1_000_001},
            "decode.beam must be at least 1 and at most 1e+06, not 1000001",
        ),
        (
            {"decode__max_length": 1_000_001},
            "decode.max_length must be at least 1 and at most 1e+06",
        ),
        (
            {"data__layout": "padded", "train__compile": True},
            "train.compile needs data.layout: packed",
        ),
        (
            {"train__sharding": "full", "train__compile": True},
            "train.compile is not for train.sharding: full",
        ),
        (
            {"train__skip_dropped": True, "model__drop_kind": "head"},
            "not for model.drop_kind: head",
        ),
        ({"decode__length_penalty": 11.0}, "decode.length_penalty must be at least -10"),
    ],
)
def test_values_out_of_range_are_refused(changes: dict[str, object], words: str) -> None:
    with pytest.raises(UserError) as caught:
        config(**changes).check()
    assert words in str(caught.value)
