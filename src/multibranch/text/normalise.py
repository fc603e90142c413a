"""Punctuation made uniform before tokenising: Moses' `normalize-punctuation.perl` and
`remove-non-printing-char.perl`, which the WMT corpora go through.

Typographic quotation marks become plain ones, dashes become hyphens, blanks around brackets and
before signs are set in one way, and control characters become blanks.
"""

import re
import unicodedata

_NBSP = "\u00a0"
# The controls of ASCII that are not white space.
_CONTROLS = re.compile("[\x00-\x08\x0e-\x1f\x7f]")
_Rule = tuple[re.Pattern[str], str]


def _rules(*pairs: tuple[str, str]) -> list[_Rule]:
    return [(re.compile(pattern), replacement) for pattern, replacement in pairs]


_BRACKETS = _rules(
    (r"\(", " ("),
    (r"\)", ") "),
    (" +", " "),
    (r"\) ([.!:?;,])", r")\1"),
    (r"\( ", "("),
    (r" \)", ")"),
)
_SIGNS = _rules((r"(\d) %", r"\1%"), (" ([:;])", r"\1"))
_ACCENTS = _rules(("`", "'"), ("''", ' " '))
# In this order: an apostrophe inside a word first, then what is left of the quotation marks.
_QUOTES = _rules(
    ("[„“”]", '"'),
    ("–", "-"),
    ("—", " - "),
    (" +", " "),
    ("´", "'"),
    ("(?i)([a-z])[‘]([a-z])", r"\1'\2"),
    ("(?i)([a-z])[’]([a-z])", r"\1'\2"),
    ("[‘‚]", "'"),
    ("’", '"'),
    ("''", '"'),
    ("…", "..."),
    (f"{_NBSP}«{_NBSP}", ' "'),
    (f"«{_NBSP}?", '"'),
    (f"{_NBSP}»{_NBSP}", '" '),
    (f"{_NBSP}?»", '"'),
    (f"{_NBSP}([%:?!;])", r"\1"),
    (f"nº{_NBSP}", "nº "),
    (f"{_NBSP}(ºC|cm)", r" \1"),
    (f",{_NBSP}", ", "),
    (" +", " "),
)
_ENGLISH_COMMA = _rules(('"([,.]+)', r'\1"'))
_OTHER_COMMA = _rules((',"', '",'), (r'(\.+)"(\s*[^<])', r'"\1\2'))
_THOUSANDS = re.compile(rf"(\d){_NBSP}(\d)")


class PunctuationNormaliser:
    """Makes the punctuation of one language's lines uniform."""

    def __init__(self, language: str) -> None:
        self.language = language
        self._thousands = r"\1,\2" if language in ("de", "es", "cs", "cz", "fr") else r"\1.\2"
        self._commas: list[_Rule] = []
        if language == "en":
            self._commas = _ENGLISH_COMMA
        elif language not in ("cs", "cz"):
            self._commas = _OTHER_COMMA

    def __call__(self, line: str) -> str:
        """One line with uniform punctuation."""
        line = line.replace("\r", "")
        if "(" in line or ")" in line or "  " in line:
            line = _apply(_BRACKETS, line)
        line = _apply(_SIGNS, line)
        if "`" in line or "''" in line:
            line = _apply(_ACCENTS, line)
        if not line.isascii() or "''" in line or "  " in line:
            line = _apply(_QUOTES, line)
        if '"' in line:
            line = _apply(self._commas, line)
        if not line.isascii():
            line = _THOUSANDS.sub(self._thousands, line)
        return line if line.isprintable() else _printable(line)


def collapse(line: str) -> str:
    """One line with single blanks between its words and without control characters."""
    if not line.isprintable():
        line = _CONTROLS.sub("", line)
    return " ".join(line.split())


def _apply(rules: list[_Rule], line: str) -> str:
    for pattern, replacement in rules:
        line = pattern.sub(replacement, line)
    return line


def _printable(line: str) -> str:
    return "".join(" " if unicodedata.category(c)[0] == "C" else c for c in line)
