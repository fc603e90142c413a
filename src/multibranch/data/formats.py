"""The formats that corpora come in: functions from one line of a file to the text in it.

A function gives back None where a line is not part of the corpus (``<url>`` and the like), and
raises BadLine where it should be and cannot be read.
"""

import re
from collections.abc import Callable

from multibranch.text.code import code_to_text
from multibranch.text.programs import tokenise_python, tokenise_sentence

Format = Callable[[str], str | None]

_SEGMENT = re.compile(r"\s*<seg\b[^>]*>\s*(.*?)\s*</seg>\s*", re.IGNORECASE)
_SEGMENT_START = re.compile(r"\s*<seg\b", re.IGNORECASE)
_HEADING = re.compile(r"</?(?:title|description)>")
_NOT_TEXT = re.compile(r"<(?:url|talkid|keywords|speaker)>|<(?:reviewer|translator|doc)\b|</doc>")
_NUMBER = re.compile(r"[0-9]+\t")


class BadLine(ValueError):
    """A line that its format cannot read."""


def plain(line: str) -> str | None:
    """One sentence a line."""
    return line


def tagged(line: str) -> str | None:
    """TED's ``train.tags.*``: headings lose their tags, lines about the talk are left out."""
    if "<" not in line:
        return line
    return None if _NOT_TEXT.search(line) else _HEADING.sub("", line)


def segments(line: str) -> str | None:
    """The ``<seg>`` lines of evaluation sets in XML or SGML.

    A typographic apostrophe becomes a plain one, and entities stay as they are: so did the
    preparation that the published scores stand on.
    """
    if not _SEGMENT_START.match(line):
        return None
    found = _SEGMENT.fullmatch(line)
    if not found:
        raise BadLine("a <seg> that is not closed on its line")
    return found[1].replace("’", "'")


def numbered(line: str) -> str | None:
    """TL-CodeSum's lines: a number and a tab before the words, or the words alone."""
    found = _NUMBER.match(line)
    return line[found.end() :] if found else line


def docstring(line: str) -> str | None:
    """A description of the code-docstring corpus (a quoted string, line ends as DCNL), or words."""
    text = line.strip()
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" and text[1] != " ":
        text = text[1:-1]
    return tokenise_sentence(" ".join(w for w in text.split() if w not in ("DCNL", "DCSP")))


def declaration(line: str) -> str | None:
    """A function of the code-docstring corpus (layout as DCNL and DCSP), or words already."""
    if " DCNL " not in line:
        return line
    # A DCSP that does not begin a line is a blank inside a string.
    text = code_to_text(" ".join(line.split()), "python").replace(" DCSP ", " ")
    return tokenise_python(text + "\n")


def column(number: int) -> Format:
    """One column of a table of two; a line without it is an empty sentence."""

    def extract(line: str) -> str | None:
        cells = line.split("\t")
        return cells[number] if len(cells) > number else ""

    return extract


_FORMATS: dict[str, Format] = {
    "plain": plain,
    "tagged": tagged,
    "segments": segments,
    "numbered": numbered,
}


def format_of(name: str, language: str) -> Format:
    """The function for one side.

    ``name`` is a key of the table above, "docstrings", or the languages of a table's columns
    ("de|en").
    """
    if name == "docstrings":
        return docstring if language == "nl" else declaration
    if "|" in name:
        return column(name.split("|").index(language))
    return _FORMATS[name]
