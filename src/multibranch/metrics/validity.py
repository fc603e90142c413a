"""Whether generated code parses, and the percentage that does (the paper's PoV).

Java methods are parsed by tree-sitter inside a class shell. Python is parsed by Python's own `ast`;
what that refuses is valid all the same where tree-sitter's grammar accepts it and it uses something
that only Python 2 has. The placeholders of literals (_STR, _NUM, _BOOL) are names, and so valid
expressions as they stand.
"""

import ast
import platform
import re
import warnings
from collections.abc import Iterator, Sequence
from functools import cache
from importlib import metadata
from typing import Any

from multibranch.errors import UserError, needed
from multibranch.metrics.score import Score
from multibranch.text.code import code_to_text


def parses(code: str, language: str) -> bool:
    """Whether code parses: a line of tokens with the layout as tokens, or text of several lines."""
    text = code if "\n" in code.strip() else code_to_text(code, language)
    if language == "java":
        return _java(text)
    if language == "python":
        return _python(text)
    raise UserError(
        f"Code in {language!r} cannot be parsed here; the languages are java and python."
    )


def pov(codes: Sequence[str], language: str) -> Score:
    """The percentage of valid code: how many of these parse, and by which parsers."""
    if not codes:
        raise UserError("There is no code to parse; give at least one line.")
    valid = sum(parses(code, language) for code in codes)
    grammar = f"tree-sitter-{language}-{_version(f'tree-sitter-{language}')}"
    parsers = grammar if language == "java" else f"ast-{platform.python_version()}+{grammar}"
    return Score(100 * valid / len(codes), f"pov|{language}:{parsers}")


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "none"


def _java(text: str) -> bool:
    root = _tree(f"class Shell {{ {text}\n}}", "java")
    if root.has_error or [child.type for child in root.named_children] != ["class_declaration"]:
        return False
    body = root.named_children[0].child_by_field_name("body")
    members = {child.type for child in body.named_children} - {"line_comment", "block_comment"}
    return bool(members) and members <= {"method_declaration", "constructor_declaration"}


def _python(text: str) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "\d" is bad style, not an error
            return bool(ast.parse(text).body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        root = _tree(text, "python")
    if root.has_error:
        return False
    nodes = list(_nodes(root))
    # The grammar forgives blocks without a statement; Python does not.
    empty = any(node.type == "block" and not node.named_children for node in nodes)
    return not empty and any(_only_in_python_2(node) for node in nodes)


def _tree(text: str, language: str) -> Any:
    return _parser(language).parse(text.encode("utf-8", "replace")).root_node


@cache
def _parser(language: str) -> Any:
    purpose, install = "Checking whether code parses", "'multibranch[code]'"
    tree_sitter = needed("tree_sitter", install=install, purpose=purpose)
    grammar = needed(f"tree_sitter_{language}", install=install, purpose=purpose)
    return tree_sitter.Parser(tree_sitter.Language(grammar.language()))


def _nodes(root: Any) -> Iterator[Any]:
    waiting = [root]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += node.children


def _only_in_python_2(node: Any) -> bool:
    children = [child.type for child in node.children]
    match node.type:
        case "print_statement" | "exec_statement" | "<>":
            return True
        case "except_clause" | "for_in_clause":  # except Error, error / for x in 1, 2
            return "," in children
        case "raise_statement":  # raise Error, "message"
            return "expression_list" in children
        case "parameters" | "lambda_parameters":  # def f((a, b)):
            return "tuple_pattern" in children
        case "integer":  # 0777, 1L
            return bool(re.fullmatch(rb"0[0-7]+[lL]?|(?!0\d)\w+[lL]", node.text))
        case "string_start":  # ur"…", `x`
            return bool(re.match(rb"[uU][rR]|`", node.text))
    return False
