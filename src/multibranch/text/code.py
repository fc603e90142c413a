"""Code as a line of tokens and code as text, and the way between the two.

A model reads and writes one line of tokens separated by blanks. In Python the layout is part of
it, as NEWLINE, INDENT and DEDENT. `code_to_text` turns such a line into formatted text;
`text_to_code` tokenises text, formatted by us or by anybody else, and undoes `code_to_text`.

Some public corpora write Python's layout as DCNL (a new line) and DCSP (one level of indentation)
around lines of source left as they are; `code_to_text` knows them, and `text_to_code` writes them
when asked for `layout="dcnl"`.
"""

import keyword
import re
from collections.abc import Iterator
from functools import lru_cache

from multibranch.errors import UserError

LANGUAGES = ("java", "python")
INDENTATION = "    "


def code_to_text(tokens: str, language: str) -> str:
    """A line of tokens as formatted text.

    Every line of tokens has a text, the broken ones that models write included: a layout token
    where no layout can be stays a word, and so a syntax error.
    """
    _check(language)
    if language == "java":
        return _java_text(_lex(tokens, language))
    words = tokens.split(" ")
    if "DCNL" in words or "DCSP" in words:
        return _from_dcnl(words)
    return _python_text(_lex(tokens, language))


def text_to_code(
    text: str, language: str, *, layout: str = "words", placeholders: bool = False
) -> str:
    """Text as one line of tokens; a line of tokens is its own.

    Comments and blank lines go; blanks and line ends inside a string become one blank, since a
    line of tokens is one line. `layout` says how Python's is written: "words" (NEWLINE, INDENT,
    DEDENT) or "dcnl" (DCNL, DCSP). With `placeholders`, Java's literals become _STR, _NUM, _BOOL.
    """
    _check(language)
    if language == "java":
        return " ".join(_lex(text, language, placeholders=placeholders))
    if layout == "dcnl":
        return _to_dcnl(text)
    return " ".join(_python_tokens(text))


def _check(language: str) -> None:
    if language not in LANGUAGES:
        known = " and ".join(LANGUAGES)
        raise UserError(f"Code in {language!r} is not known here; the languages are {known}.")


# Lexing. Both languages share the shape of it: what to skip, strings, numbers, names, operators,
# and any other character by itself, so that nothing is ever lost.

_STRING = r"""(?:"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')"""
_EXPONENT = r"(?:[eE][+-]?\d[\d_]*)?"
_DECIMAL = rf"(?:\d[\d_]*\.?(?:\d[\d_]*)?|\.\d[\d_]*){_EXPONENT}"
_PYTHON = re.compile(
    r"""
    (?P<skip>[^\S\n]+|\#[^\n]*|\\\n)
    |(?P<newline>\n)
    |(?P<string>(?:[rRbBuUfFtT]{1,2})?(?:\"\"\"(?:[^\\]|\\.)*?\"\"\"|'''(?:[^\\]|\\.)*?'''|STRING))
    |(?P<number>0[xX][\da-fA-F_]+[lL]?|0[oO][0-7_]+[lL]?|0[bB][01_]+[lL]?|DECIMAL[jJlL]?)
    |(?P<name>[^\W\d]\w*)
    |(?P<operator>\*\*=|//=|>>=|<<=|\.\.\.|->|:=|==|!=|<=|>=|<>|\*\*|//|<<|>>|[-+*/%&|^@]=)
    |(?P<other>\S)
    """.replace("STRING", _STRING).replace("DECIMAL", _DECIMAL),
    re.VERBOSE | re.DOTALL,
)
# A closing > is never joined to the next one: List<List<String>> and a >> 2 are the same tokens
# to a lexer that does not parse, and the public corpora write both as "> >".
_JAVA = re.compile(
    r"""
    (?P<skip>\s+|//[^\n]*|/\*.*?\*/)
    |(?P<string>\"\"\"(?:[^\\]|\\.)*?\"\"\"|STRING)
    |(?P<number>0[xX][\da-fA-F_.]+(?:[pP][+-]?\d+)?[lLfFdD]?|0[bB][01_]+[lL]?|DECIMAL[lLfFdD]?)
    |(?P<name>[^\W\d$]?[\w$]+)
    |(?P<operator>>>>=|>>=|<<=|\.\.\.|->|::|\+\+|--|&&|\|\||==|!=|<=|>=|<<|[-+*/%&|^]=)
    |(?P<other>\S)
    """.replace("STRING", _STRING).replace("DECIMAL", _DECIMAL),
    re.VERBOSE | re.DOTALL,
)
_PLACEHOLDERS = {"string": "_STR", "number": "_NUM"}
_OPENING, _CLOSING = frozenset("([{"), frozenset(")]}")


def _lex(text: str, language: str, *, placeholders: bool = False) -> list[str]:
    """The tokens of a text without regard to its lines."""
    pattern = _JAVA if language == "java" else _PYTHON
    tokens = []
    for match in pattern.finditer(text):
        kind, token = match.lastgroup, match[0]
        if kind in ("skip", "newline"):
            continue
        if placeholders and (kind in _PLACEHOLDERS or token in ("true", "false")):
            token = _PLACEHOLDERS.get(str(kind), "_BOOL")
        tokens.append(re.sub(r"\s+", " ", token) if kind == "string" else token)
    return tokens


# Python: layout. After these a line end would be no line end, or make them another token.

_GO_ON = frozenset([".", "\\"])


def _python_text(tokens: list[str]) -> str:
    lines: list[str] = []
    line: list[str] = []
    level = depth = 0
    last = len(tokens)
    while last and tokens[last - 1] == "DEDENT":
        last -= 1  # closing the blocks that are open at the end changes no line
    for token in tokens[:last]:
        if token == "NEWLINE" and not depth and not (line and line[-1] in _GO_ON):
            lines.append(INDENTATION * level + _spaced(line, "python") if line else "")
            line = []
        elif token == "INDENT" and not line:
            level += 1
        elif token == "DEDENT" and not line and level:
            level -= 1
        else:
            depth += (token in _OPENING) - (token in _CLOSING and depth > 0)
            line.append(token)
    if line:
        return "\n".join([*lines, INDENTATION * level + _spaced(line, "python")])
    return "".join(line + "\n" for line in lines)


def _python_tokens(text: str) -> Iterator[str]:
    """Tokens with the layout as words: what Python's own tokeniser says, for Python 2 as well."""
    indents = [0]
    depth, fresh = 0, True
    for match in _PYTHON.finditer(text):
        kind, token = match.lastgroup, match[0]
        if kind == "skip":
            continue
        if kind == "newline":
            if not depth and not fresh:
                yield "NEWLINE"
                fresh = True
            continue
        if fresh:
            yield from _indentation(text, match.start(), indents)
            fresh = False
        depth += (token in _OPENING) - (token in _CLOSING and depth > 0)
        yield re.sub(r"\s+", " ", token) if kind == "string" else token
    for _ in indents[1:]:
        yield "DEDENT"


def _indentation(text: str, position: int, indents: list[int]) -> Iterator[str]:
    """The INDENT or DEDENT tokens before the line whose first token stands at `position`."""
    width = len(text[text.rfind("\n", 0, position) + 1 : position].expandtabs(8))
    if width > indents[-1]:
        indents.append(width)
        yield "INDENT"
    while width < indents[-1]:
        indents.pop()
        yield "DEDENT"


def _from_dcnl(words: list[str]) -> str:
    lines: list[list[str]] = [[]]
    for word in words:
        if word == "DCNL":
            lines.append([])
        else:
            at_start = word == "DCSP" and all(before == INDENTATION for before in lines[-1])
            lines[-1].append(INDENTATION if at_start else word)
    return "\n".join(
        "".join(word for word in line if word == INDENTATION)
        + " ".join(word for word in line if word != INDENTATION)
        for line in lines
    )


def _to_dcnl(text: str) -> str:
    words: list[str] = []
    for line in text.split("\n"):
        content = line.lstrip(" ")
        level = (len(line) - len(content)) // len(INDENTATION)
        words += ["DCNL", *["DCSP"] * level, *([content] if content else [])]
    return " ".join(words[1:])


# Java: layout is for people only, so it is made up here.

_GOES_ON = frozenset(["else", "catch", "finally", "while", ")", ",", ";", ".", "]"])


def _java_text(tokens: list[str]) -> str:
    """One statement a line, blocks indented, array initialisers left in their line."""
    lines: list[tuple[int, list[str]]] = []
    line: list[str] = []
    blocks: list[bool] = []  # for every open brace, whether it is a block
    depth = 0  # parentheses open since the last brace
    depths: list[int] = []

    def finish() -> None:
        nonlocal line
        if line:
            indented = line[0] not in ("case", "default") or "->" in line
            level = sum(blocks) - (not indented and bool(blocks))
            lines.append((max(level, 0), line))
            line = []

    for index, token in enumerate(tokens):
        following = tokens[index + 1] if index + 1 < len(tokens) else ""
        if token == "}" and blocks and blocks[-1] and line[-1:] != ["{"]:
            finish()
        depth += (token in "([") - (token in ")]")
        if token == "{":
            block = _opens_block(line)
            line.append(token)
            if block and following != "}":
                finish()
            blocks.append(block)
            depths.append(depth)
            depth = 0
        elif token == "}":
            block = blocks.pop() if blocks else True
            depth = depths.pop() if depths else 0
            line.append(token)
            if block and following not in _GOES_ON:
                finish()
        else:
            line.append(token)
            label = token == ":" and line[0] in ("case", "default") and "?" not in line
            if (token == ";" or label) and depth <= 0:
                finish()
    finish()
    return "\n".join(INDENTATION * level + _spaced(line, "java") for level, line in lines)


def _opens_block(line: list[str]) -> bool:
    """Whether a brace after these tokens opens a block, not an array initialiser."""
    before = line[-1] if line else ""
    return before not in ("=", "]", ",", "{", "return") and not (before == "(" and "@" in line)


# Spacing within a line.

# fmt: off
_KEYWORDS = {
    "python": frozenset(keyword.kwlist) - {"None", "True", "False"},
    "java": frozenset([
        "assert", "case", "catch", "do", "else", "extends", "for", "if", "implements", "instanceof",
        "new", "return", "switch", "synchronized", "throw", "throws", "try", "while",
    ]),
}
_BEFORE_GENERICS = _KEYWORDS["java"] | {
    ">", "&", ",", "public", "protected", "private", "static", "final", "abstract", "default",
}
# fmt: on
_SIGNS = frozenset(["-", "+", "*", "**", "~", "!", "&", "++", "--"])


def _spaced(tokens: list[str], language: str) -> str:
    """The tokens of one line with blanks where people write them."""
    tight = _python_tight if language == "python" else _java_tight
    text = _joined(tokens, tight(tokens), language)
    # Joining by pairs cannot foresee everything; the tokens with a blank between all are always
    # themselves.
    return text if _lex(text, language) == tokens else " ".join(tokens)


def _joined(tokens: list[str], tight: list[bool], language: str) -> str:
    """tight[i] says whether token i may follow token i-1 without a blank."""
    parts = tokens[:1]
    for index in range(1, len(tokens)):
        if not (tight[index] and _separable(tokens[index - 1], tokens[index], language)):
            parts.append(" ")
        parts.append(tokens[index])
    return "".join(parts)


@lru_cache(maxsize=1 << 16)
def _separable(first: str, second: str, language: str) -> bool:
    """Whether two tokens written without a blank are still those two tokens."""
    return _lex(first + second, language) == [first, second]


def _ends_operand(token: str, keywords: frozenset[str]) -> bool:
    word = token[0].isalnum() or token[0] in "_$" or token[-1] in "\"'"
    return (word and token not in keywords) or token in _CLOSING


def _tight_everywhere(before: str, token: str, keywords: frozenset[str]) -> bool:
    """The rules that both languages share."""
    if token in (",", ";", ")", "]", ".") or before in ("(", "[", ".", "~"):
        return not (token == "." and before in keywords)
    return token in ("(", "[") and _ends_operand(before, keywords)


def _python_tight(tokens: list[str]) -> list[bool]:
    keywords = _KEYWORDS["python"]
    tight = [True]
    stack: list[tuple[str, bool]] = []  # open brackets, and whether an annotation came in this item
    for index in range(1, len(tokens)):
        before, token = tokens[index - 1], tokens[index]
        if before in _OPENING:
            stack.append((before, False))
        elif before in _CLOSING and stack:
            stack.pop()
        elif before in (",", ":") and stack:
            stack[-1] = (stack[-1][0], before == ":")
        bracket, annotated = stack[-1] if stack else ("", False)
        argument = bracket == "(" and not annotated  # f(x=1), but f(x: int = 1)
        sign = before in _SIGNS and not (index > 1 and _ends_operand(tokens[index - 2], keywords))
        tight.append(
            _tight_everywhere(before, token, keywords)
            or token == "}"
            or (token == ":" and before != ",")
            or before == "{"
            or (before == "@" and index == 1)
            or (before == ":" and bracket == "[")
            or (argument and "=" in (before, token))
            or sign
        )
    return tight


def _java_tight(tokens: list[str]) -> list[bool]:
    keywords = _KEYWORDS["java"]
    generic = _generics(tokens)
    tight = [True]
    for index in range(1, len(tokens)):
        before, token = tokens[index - 1], tokens[index]
        sign = before in _SIGNS and not (index > 1 and _ends_operand(tokens[index - 2], keywords))
        tight.append(
            _tight_everywhere(before, token, keywords)
            or (index in generic and (token == ">" or before not in _BEFORE_GENERICS))
            or (index - 1 in generic and (before == "<" or token in ("(", "[")))
            or (before == ">" == token)
            or before == "@"
            or "::" in (before, token)
            or (token in ("++", "--") and _ends_operand(before, keywords))
            or (token == "..." or (token == ":" and tokens[0] in ("case", "default")))
            or (before == "{" and token == "}")
            or sign
        )
    return tight


_IN_GENERICS = re.compile(r"[\w$]+|[,?.&@\[\]]")


def _generics(tokens: list[str]) -> set[int]:
    """Where < and > hold type arguments rather than compare."""
    found: set[int] = set()
    opened: list[int] = []
    for index, token in enumerate(tokens):
        if token == "<":
            opened.append(index)
        elif token == ">" and opened:
            found |= {opened.pop(), index}
        elif not _IN_GENERICS.fullmatch(token):
            opened.clear()
    return found
