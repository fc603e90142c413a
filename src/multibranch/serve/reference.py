"""The OpenAPI description as a page that people read: no script, no other host."""

from collections.abc import Iterator
from html import escape
from http import HTTPStatus
from typing import Any

_HEAD = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>multibranch: the API</title>
<link rel="icon" href="/icon.svg" type="image/svg+xml">
<link rel="stylesheet" href="/style.css">
</head>
<body class="reference">
<header class="top">
<a class="brand" href="/"><img src="/icon.svg" alt="" width="22" height="22">multibranch</a>
<nav><a href="/">Translate</a> <a href="/openapi.json">openapi.json</a></nav></header>
<main>
"""


def reference_page(description: dict[str, Any]) -> str:
    """The page for an OpenAPI description."""
    return _HEAD + "\n".join(_body(description)) + "\n</main>\n</body>\n</html>\n"


def _body(description: dict[str, Any]) -> Iterator[str]:
    about = description["info"]
    yield f"<h1>The API <small>version {escape(about['version'])}</small></h1>"
    for paragraph in about.get("description", "").split("\n\n"):
        yield f"<p>{_prose(paragraph)}</p>"
    if description.get("components", {}).get("securitySchemes"):
        yield "<p>Requests marked <em>token</em> need the header "
        yield "<code>Authorization: Bearer …</code>.</p>"
    for path, operations in description["paths"].items():
        for method, operation in operations.items():
            yield from _operation(path, method, operation)
    yield '<h2 id="shapes">Shapes</h2>'
    for name, schema in description.get("components", {}).get("schemas", {}).items():
        yield from _schema(name, schema)


def _operation(path: str, method: str, operation: dict[str, Any]) -> Iterator[str]:
    token = " <em>token</em>" if operation.get("security") else ""
    yield '<section class="card">'
    verb = f'<span class="method">{method.upper()}</span>'
    yield f"<h2>{verb} <code>{escape(path)}</code>{token}</h2>"
    for paragraph in operation.get("description", "").split("\n\n"):
        yield f"<p>{_prose(paragraph)}</p>"
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    if body:
        yield f"<p>Body: {_type(body['schema'])}</p>"
    yield '<div class="scroll"><table><tbody>'
    for status, answer in operation["responses"].items():
        kinds = [
            f"{_type(shape.get('schema', {}))} <small>{escape(kind)}</small>"
            for kind, shape in answer.get("content", {}).items()
        ]
        what = escape(answer.get("description") or "")
        if what == "Successful Response":
            what = ""
        headers = ", ".join(
            f"header <code>{escape(name)}</code>" for name in answer.get("headers", {})
        )
        cells = "<br>".join(part for part in (what, ", ".join(kinds), headers) if part)
        phrase = HTTPStatus(int(status)).phrase
        yield f"<tr><th>{escape(status)} <small>{phrase}</small></th><td>{cells}</td></tr>"
    yield "</tbody></table></div></section>"


def _schema(name: str, schema: dict[str, Any]) -> Iterator[str]:
    yield f'<section class="card" id="{escape(name)}"><h3>{escape(name)}</h3>'
    yield f"<p>{_prose(schema.get('description', ''))}</p>"
    required = schema.get("required", [])
    yield '<div class="scroll"><table><tbody>'
    for field, shape in schema.get("properties", {}).items():
        must = " <small>required</small>" if field in required else ""
        default = shape.get("default")
        said = _prose(shape.get("description", ""))
        if default is not None:
            said += f" <small>default {escape(str(default))}</small>"
        kind = _type(shape)
        yield f"<tr><th><code>{escape(field)}</code>{must}</th><td>{kind}</td><td>{said}</td></tr>"
    yield "</tbody></table></div></section>"


def _type(schema: dict[str, Any]) -> str:
    """A schema in a few words, with links to those that have a name."""
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        return f'<a href="#{name}">{name}</a>'
    if "anyOf" in schema:
        kinds = [_type(one) for one in schema["anyOf"] if one.get("type") != "null"]
        return " or ".join(kinds)
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}{_bounds(schema)}"
    if "enum" in schema:
        return " or ".join(f"<code>{escape(str(one))}</code>" for one in schema["enum"])
    return escape(str(schema.get("const", schema.get("type", "any")))) + _bounds(schema)


def _bounds(schema: dict[str, Any]) -> str:
    words = {"minimum": "from", "maximum": "to", "maxLength": "at most", "maxItems": "at most"}
    said = [f"{word} {schema[name]:,.15g}" for name, word in words.items() if name in schema]
    return f" <small>{' '.join(said)}</small>" if said else ""


def _prose(text: str) -> str:
    """Escaped text, with what stands in backquotes as code."""
    parts = escape(" ".join(text.split())).split("`")
    return "".join(
        f"<code>{part}</code>" if number % 2 else part for number, part in enumerate(parts)
    )
