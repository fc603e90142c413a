"""Moses tokenisation: `tokenizer.perl`, line for line, and fast enough for millions of them.

The rules are Moses' (and so are the lists of non-breaking prefixes and the character classes, which
come with sacremoses); the code is our own. It differs from sacremoses where sacremoses differs from
the original script: a period that ends the line is always a word of its own, Finnish and Swedish
keep a colon inside a word, Catalan keeps its middle dot, and Irish and Catalan split an apostrophe
as French does.
"""

import importlib
import re
from collections.abc import Callable
from functools import cache
from types import ModuleType

from multibranch.errors import UserError
from multibranch.text.normalise import collapse

# Stands for each period of a run of periods while single periods are looked at. As a control
# character it has just been removed from the text.
_DOT = "\x01"
_DOTS = re.compile(r"\.\.+")
_DIGIT_FIRST = re.compile("[0-9]")
_NUMERIC_ONLY = "#NUMERIC_ONLY#"

_ESCAPES = str.maketrans(
    {
        "&": "&amp;",
        "|": "&#124;",
        "<": "&lt;",
        ">": "&gt;",
        "'": "&apos;",
        '"': "&quot;",
        "[": "&#91;",
        "]": "&#93;",
    }
)
_ESCAPED = re.compile("[&|<>'\"\\[\\]]")

_Substitution = tuple[re.Pattern[str], str]


class MosesTokeniser:
    """Splits the lines of one language into words, as `tokenizer.perl -l LANGUAGE` does.

    ``split_hyphens`` is the script's ``-a`` (well-known → well @-@ known).
    """

    def __init__(self, language: str, *, split_hyphens: bool = False) -> None:
        self.language = language
        rules = _rules(language)
        self._pad = rules.pad
        self._keep_inside = rules.keep_inside
        self._hyphens = rules.hyphens if split_hyphens else None
        self._commas = rules.commas
        self._apostrophes = rules.apostrophes
        self._alpha = rules.alpha
        self._lower = rules.lower
        self._prefixes, self._numeric_prefixes = abbreviations(language)

    def __call__(self, line: str) -> str:
        """The words of one line, separated by blanks, with Moses' escapes (&apos; and so on)."""
        text = self._pad(r" \g<0> ", collapse(line))
        for pattern, replacement in self._keep_inside:
            text = pattern.sub(replacement, text)
        if self._hyphens is not None and "-" in text:
            text = self._hyphens.sub(" @-@ ", text)
        if ".." in text:
            text = _DOTS.sub(lambda dots: f" {_DOT * len(dots[0])} ", text)
        if "," in text:
            for pattern, replacement in self._commas:
                text = pattern.sub(replacement, text)
        if "'" in text:
            for pattern, replacement in self._apostrophes:
                text = pattern.sub(replacement, text)
        words = text.split()
        if ". " in text or text.endswith("."):
            self._split_periods(words)
        text = " ".join(words)
        if text.endswith(".'"):
            text = f"{text[:-2].rstrip()} . '".lstrip()
        if _DOT in text:
            text = text.replace(_DOT, ".")
        return text.translate(_ESCAPES) if _ESCAPED.search(text) else text

    def _split_periods(self, words: list[str]) -> None:
        """Give a period a word of its own, unless it belongs to an abbreviation or an ordinal."""
        last = len(words) - 1
        for index, word in enumerate(words):
            if word[-1] != "." or word == ".":
                continue
            stem = word[:-1]
            if index == last or not self._is_prefix(stem, words[index + 1]):
                words[index] = stem + " ."

    def _is_prefix(self, stem: str, following: str) -> bool:
        if "." in stem and self._alpha(stem):
            return True
        if stem in self._prefixes or self._lower(following):
            return True
        return stem in self._numeric_prefixes and _DIGIT_FIRST.match(following) is not None


class _Rules:
    """The substitutions of one language, compiled."""

    pad: Callable[[str, str], str]
    keep_inside: list[_Substitution]
    hyphens: re.Pattern[str]
    commas: list[_Substitution]
    apostrophes: list[_Substitution]
    alpha: Callable[[str], re.Match[str] | None]
    lower: Callable[[str], re.Match[str] | None]


@cache
def _rules(language: str) -> _Rules:
    letters, numbers = _characters("IsAlpha"), _characters("IsN")
    alnum, lower = _characters("IsAlnum"), _characters("IsLower")
    # A character that may stand inside a word: apart, unless a lower-case letter follows it.
    inside = {"fi": ":", "sv": ":", "tdt": "'", "ca": "·"}.get(language, "")
    small = _characters("Lowercase_Letter")
    rules = _Rules()
    rules.pad = re.compile(rf"[^{alnum}{inside}\s.'`,\-]").sub
    rules.keep_inside = [(re.compile(rf"{inside}(?![{small}])"), r" \g<0> ")] if inside else []
    rules.hyphens = re.compile(rf"(?<=[{alnum}])-(?=[{alnum}])")
    rules.commas = [
        (re.compile(rf"([^{numbers}]),"), r"\1 , "),
        (re.compile(rf",([^{numbers}])"), r" , \1"),
        (re.compile(rf"(?<=[{numbers}]),$"), " ,"),
    ]
    rules.apostrophes = _apostrophe_rules(language, letters, numbers)
    rules.alpha = re.compile(f"[{letters}]").search
    rules.lower = re.compile(f"[{lower}]").match
    return rules


def _apostrophe_rules(language: str, letters: str, numbers: str) -> list[_Substitution]:
    if language == "en":
        return [
            (re.compile(rf"([^{letters}])'([^{letters}])"), r"\1 ' \2"),
            (re.compile(rf"([^{letters}{numbers}])'([{letters}])"), r"\1 ' \2"),
            (re.compile(rf"([{letters}])'([^{letters}])"), r"\1 ' \2"),
            (re.compile(rf"([{letters}])'([{letters}])"), r"\1 '\2"),
            (re.compile(rf"([{numbers}])'s"), r"\1 's"),
        ]
    if language in ("fr", "it", "ga", "ca", "so", "tdt"):
        apart = [
            (re.compile(rf"([^{letters}])'([^{letters}])"), r"\1 ' \2"),
            (re.compile(rf"([^{letters}])'([{letters}])"), r"\1 ' \2"),
            (re.compile(rf"([{letters}])'([^{letters}])"), r"\1 ' \2"),
        ]
        if language in ("so", "tdt"):
            return apart
        return [*apart, (re.compile(rf"([{letters}])'([{letters}])"), r"\1' \2")]
    return [(re.compile("'"), " ' ")]


@cache
def _characters(category: str) -> str:
    """A Perl character class as the inside of a bracket expression, written in ranges."""
    indic = _sacremoses("indic")
    marks = {*indic.VIRAMAS, *indic.NUKTAS} if category in ("IsAlnum", "IsAlpha") else set()
    properties = _sacremoses("corpus").Perluniprops()
    codes = sorted({ord(mark) for mark in marks} | {ord(c) for c in properties.chars(category)})
    ranges: list[list[int]] = []
    for code in codes:
        if ranges and ranges[-1][1] == code - 1:
            ranges[-1][1] = code
        else:
            ranges.append([code, code])
    return "".join(f"\\U{first:08x}-\\U{last:08x}" for first, last in ranges)


@cache
def abbreviations(language: str) -> tuple[frozenset[str], frozenset[str]]:
    """The abbreviations that keep their period, and those that keep it before a number."""
    always: set[str] = set()
    before_numbers: set[str] = set()
    for line in _sacremoses("corpus").NonbreakingPrefixes().words(language):
        word, _, mark = line.strip().partition(" ")
        (before_numbers if mark.strip() == _NUMERIC_ONLY else always).add(word)
    return frozenset(always - before_numbers), frozenset(before_numbers)


def _sacremoses(module: str) -> ModuleType:
    try:
        return importlib.import_module(f"sacremoses.{module}")
    except ImportError as error:
        raise UserError(
            "tokenising raw text takes the package sacremoses (its character classes and lists of "
            "abbreviations): install it with `pip install sacremoses`, or give text that is "
            "tokenised already."
        ) from error
