"""What is wrong with a body, as a sentence: which field, and what would be right.

What would be right is read from the description of the body, which has the limits of the service
at hand. No sentence has the value: it may be anything.
"""

from collections.abc import Mapping, Sequence
from typing import Any

_NOUNS = {
    "string": ("a string", "strings"),
    "integer": ("a whole number", "whole numbers"),
    "number": ("a number", "numbers"),
}
# Of the types that a field may have, the one that these errors are about.
_MEANT = {"too_short": "array", "too_long": "array", "string_too_long": "string"}


def mistake(body: Mapping[str, Any], errors: Sequence[Any]) -> str:
    """The sentence for the errors that pydantic found.

    body: the schema that the OpenAPI description has for it.
    """
    fields = body["properties"]
    # Where a field may be of several types each has an error; the deepest is of the one meant, and
    # so is that of a list which is too short.
    places = [[p for p in e["loc"][1:] if isinstance(p, int) or p in fields] for e in errors]
    first, place = max(
        zip(errors, places), key=lambda pair: (len(pair[1]), pair[0]["type"] in _MEANT)
    )
    if first["type"] == "extra_forbidden":
        return f"the body has a field that is not known here; known are {', '.join(fields)}"
    if not place:
        return "the body must be a JSON object"
    name, schema = _found(fields, place)
    if first["type"] == "string_unicode":
        return f"{name} holds half of a surrogate pair, which is no character"
    if first["type"] == "missing":
        return f"{name} is missing: it must be {_wanted(schema)}"
    kinds = [kind for kind in _kinds(schema) if kind.get("type") == _MEANT.get(first["type"])]
    wanted = _wanted(kinds[0] if kinds else schema)
    if first["type"] == "string_too_long":
        wanted += f" of at most {kinds[0]['maxLength']:,} characters"
    return f"{name} must be {wanted}"


def _found(fields: Mapping[str, Any], place: Sequence[Any]) -> tuple[str, Any]:
    """A field, or an entry of one that is a list: what it is called, and its schema."""
    name, *numbers = place
    schema = fields[name]
    for number in numbers:
        [schema] = [kind["items"] for kind in _kinds(schema) if kind.get("type") == "array"]
        name = f"entry {number + 1} of {name}"
    return name, schema


def _kinds(schema: Mapping[str, Any]) -> list[Any]:
    """The types that a value may have; that null is one of them goes without saying."""
    return [kind for kind in schema.get("anyOf", [schema]) if kind.get("type") != "null"]


def _wanted(schema: Mapping[str, Any], *, many: bool = False) -> str:
    """A schema in words."""
    if "anyOf" in schema:
        return " or ".join(_wanted(kind) for kind in _kinds(schema))
    if "enum" in schema:
        *others, last = schema["enum"]
        return f"{', '.join(others)} or {last}"
    if schema["type"] == "array":
        count = _range(schema, "minItems", "maxItems")
        return f"a list of {count} {_wanted(schema['items'], many=True)}"
    noun = _NOUNS[schema["type"]][many]
    if "minimum" not in schema:
        return noun
    word = "from" if "maximum" in schema else "of"
    return f"{noun} {word} {_range(schema, 'minimum', 'maximum')}"


def _range(schema: Mapping[str, Any], least: str, most: str) -> str:
    if most not in schema:
        return f"at least {schema[least]:g}"
    return f"{schema[least]:g} to {schema[most]:,g}"
