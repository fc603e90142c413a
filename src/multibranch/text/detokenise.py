"""Back from Moses' words to text as people write it.

Moses forgets where blanks stood around the signs that it sets apart. The rules here put them back
the way people mostly write in the language at hand: each sign leans on the word before it, on the
word after it, on both, or on none, and quotation marks open and close. Text without such signs
comes back exactly; with them, more than 99 lines of 100 of news, parliament and captions do.
"""

import re
from collections.abc import Callable

_UNESCAPES = {
    "&bar;": "|",
    "&#124;": "|",
    "&lt;": "<",
    "&gt;": ">",
    "&bra;": "[",
    "&ket;": "]",
    "&quot;": '"',
    "&apos;": "'",
    "&#91;": "[",
    "&#93;": "]",
    "&amp;": "&",
}
_ESCAPED = re.compile("|".join(map(re.escape, _UNESCAPES)))

# Which way a sign leans: on the word before, on the word after, or on both.
_NONE, _LEFT, _RIGHT, _BOTH = 0, 1, 2, 3

_LEANS = {
    **dict.fromkeys(",.?!:;)]}\\™®²³½¼ºª", _LEFT),
    **dict.fromkeys("([{¿¡#", _RIGHT),
    **dict.fromkeys(("/", "_", "@", "\u200b", "\xad"), _BOTH),
}
_RUN = re.compile(r"[.,?!:;]+")
_CURRENCIES = frozenset("$£€¥")
_DOLLARS = frozenset({"US", "C", "A", "HK", "NZ", "S", "R", "NT"})
_ENTITIES = frozenset({"amp", "lt", "gt", "quot", "apos", "nbsp"})
_CONTRACTIONS = frozenset({"s", "t", "re", "ve", "ll", "d", "m", "S"})
_GERMAN_ENDINGS = frozenset({"s", "sche", "schen", "scher", "sches", "n", "ne", "nen", "ner", "m"})
# Words that end in an apostrophe and lean on the next one: d'Estaing, O'Neill, dell'Alba.
_ELIDED = re.compile(r"(?:[cdjlmnot]|qu|(?:de|da|ne|su|a|co)ll|aujourd|jusqu|lorsqu)$", re.I)
_REFERENCES = frozenset({"COM", "KOM", "SEC", "SEK", "CES", "CON"})
_YEAR = re.compile(r"[0-9]0s\b|[0-9]{2}$")
_WORD_END = re.compile(r"[^\W_]$")
_LETTER_START = re.compile(r"[^\W\d_]")
_ENGLISH_CONTRACTION = re.compile(r"'[^\W\d_]")


def unescape(words: str) -> str:
    """Undo Moses' escapes."""
    return _ESCAPED.sub(lambda found: _UNESCAPES[found[0]], words) if "&" in words else words


class MosesDetokeniser:
    """Joins the words of one language.

    ``percent`` says how the corpus writes its percent signs, "joined" (5%) or "apart" (5 %): habits
    differ even within a language. Without it the language decides.
    """

    def __init__(self, language: str, *, percent: str = "") -> None:
        self.language = language
        habit = "apart" if language in ("de", "fr") else "joined"
        self.percent = _NONE if (percent or habit) == "apart" else _LEFT

    def __call__(self, words: str) -> str:
        """Words separated by blanks, with Moses' escapes → one line of text."""
        tokens = unescape(words.replace(" @-@ ", "-")).split()
        return _Line(tokens, self.language, self.percent).text()


class _Line:
    """The words of one line; ``text`` goes through them once, from left to right."""

    def __init__(self, tokens: list[str], language: str, percent: int) -> None:
        self.tokens = tokens
        self.language = language
        self.percent = percent
        self.open: set[str] = set()

    def text(self) -> str:
        pieces: list[str] = []
        joined = True
        for index, token in enumerate(self.tokens):
            lean = self._lean(index, token)
            if not joined and not lean & _LEFT:
                pieces.append(" ")
            pieces.append(token)
            joined = bool(lean & _RIGHT)
        return "".join(pieces)

    def _lean(self, index: int, token: str) -> int:
        if token.isalnum():
            return self._ending(index, token)
        special = _SPECIAL.get(token)
        if special is not None:
            return special(self, index)
        lean = _LEANS.get(token)
        if lean is not None:
            return lean
        if _RUN.fullmatch(token):
            return _LEFT
        if self.language == "en" and index and _ENGLISH_CONTRACTION.match(token):
            return _LEFT
        if self._left_elision(token):
            return _RIGHT
        if token[0] == "-" and len(token) > 1 and self._before(index) in _CLOSERS:
            return _LEFT  # "Cosmic Vision"-Programm
        return _NONE

    def _before(self, index: int) -> str:
        return self.tokens[index - 1] if index else ""

    def _after(self, index: int) -> str:
        return self.tokens[index + 1] if index + 1 < len(self.tokens) else ""

    def _left_elision(self, token: str) -> bool:
        """French and its neighbours keep the apostrophe at the end of a word: l' homme."""
        return self.language in ("fr", "it", "ga", "ca") and len(token) > 1 and token[-1] == "'"

    def _ending(self, index: int, token: str) -> int:
        """A word that belongs to the sign before it: & amp ; → &amp; and 10 % ige → 10 %ige."""
        before = self._before(index)
        if before == "&" and token in _ENTITIES and self._after(index) == ";":
            return _LEFT
        return _LEFT if before == "%" and token.startswith("ig") else _NONE

    def _ampersand(self, index: int) -> int:
        before, after = self._before(index), self._after(index)
        initials = before.isupper() and after.isupper() and len(before) < 3 and len(after) < 3
        return _BOTH if initials else _NONE

    def _colon(self, index: int) -> int:
        before, after = self._before(index), self._after(index)
        return _BOTH if before[-1:].isdecimal() and after[:1].isdecimal() else self._french(index)

    def _french(self, index: int) -> int:
        """French sets a blank before ? ! : ; and %."""
        return _NONE if self.language == "fr" else _LEFT

    def _percent(self, index: int) -> int:
        return self.percent

    def _degree(self, index: int) -> int:
        right = _RIGHT if self._after(index)[:1] in ("C", "F") else _NONE
        return right | (_NONE if self.language == "de" and right else _LEFT)

    def _sign(self, index: int) -> int:
        """+1 and LEADER+, but 1 + 1."""
        before, after = self._before(index), self._after(index)
        if before[-1:].isdecimal():
            return _NONE
        if after[:1].isdecimal():
            return _RIGHT
        return _LEFT if len(before) > 1 and before.isupper() else _NONE

    def _currency(self, index: int) -> int:
        before, after = self._before(index), self._after(index)
        left = _LEFT if before in _DOLLARS and self.tokens[index] == "$" else _NONE
        return left | (_RIGHT if after[:1].isdecimal() else _NONE)

    def _bracket(self, index: int) -> int:
        """An opening bracket: 10(3), COM(1999), otherwise a blank before it."""
        before, after = self._before(index), self._after(index)
        closed = index + 2 < len(self.tokens) and self.tokens[index + 2] == ")"
        if before in _REFERENCES and after.isdecimal():
            return _BOTH
        if closed and before[-1:].isdecimal() and self.language == "en" and len(after) <= 3:
            return _BOTH
        if closed and len(after) == 3 and after.isupper() and "/" in self.tokens[index - 2 : index]:
            return _BOTH
        return _RIGHT

    def _straight(self, index: int) -> int:
        """A plain double quotation mark opens and closes by turns."""
        token = self.tokens[index]
        if token in self.open:
            self.open.discard(token)
            return _LEFT
        if self._closes_alone(index):
            return _LEFT
        self.open.add(token)
        return _RIGHT

    def _closes_alone(self, index: int) -> bool:
        """Whether a quotation that began in another line ends here."""
        token = self.tokens[index]
        if self.tokens.count(token) % 2 == 0 or index == 0:
            return False
        after = self._after(index)
        if not after or (_LEANS.get(after) == _LEFT and after != ":"):
            return True
        # English sets a comma before the mark that closes, German after it.
        ends = (",", ".", "?", "!") if self.language == "en" else (".", "?", "!")
        return self._before(index) in ends and not after[:1].isupper()

    def _apostrophe(self, index: int) -> int:
        """A plain single quotation mark, or an apostrophe that Moses set apart."""
        before, after = self._before(index), self._after(index)
        if self._inside(before, after):
            return _BOTH
        if "'" in self.open:
            self.open.discard("'")
            return _LEFT
        if _YEAR.match(after):
            return _RIGHT
        return _LEFT if self._genitive(index) else self._straight(index)

    def _inside(self, before: str, after: str) -> bool:
        """Whether an apostrophe between these words stands inside one: d'Estaing, geht's."""
        if not (_WORD_END.search(before) and _LETTER_START.match(after)):
            return False
        first = after.partition("-")[0]
        endings = _GERMAN_ENDINGS if self.language == "de" else _CONTRACTIONS
        return first in endings or _ELIDED.match(before) is not None

    def _genitive(self, index: int) -> bool:
        """Whether an apostrophe after an s ends that word: the girls' school."""
        if self._before(index)[-1:] not in ("s", "x", "z", "S"):
            return False
        rest = self.tokens[index + 1 :]
        if "'" not in rest:
            return True
        word = rest[rest.index("'") - 1] if rest[0] != "'" else ""
        return self.language == "en" and word[-1:] == "s"

    def _typographic_apostrophe(self, index: int) -> int:
        """’ ends a word, a quotation, or stands inside a word."""
        if self._inside(self._before(index), self._after(index)):
            return _BOTH
        self.open.discard("‘")
        return _LEFT

    def _low(self, index: int) -> int:
        """„ and ‚ always open."""
        self.open.add(self.tokens[index])
        return _RIGHT

    def _high(self, index: int) -> int:
        """“ and ‘ close what „ and ‚ opened, and open where nothing is open."""
        token = self.tokens[index]
        low = {"“": "„", "‘": "‚"}[token]
        if (
            token == "‘"
            and self.language == "de"
            and self._inside(self._before(index), self._after(index))
        ):
            return _BOTH
        if low in self.open:
            self.open.discard(low)
            return _LEFT
        if self.language == "de" and (token in self.open or self._closes_alone(index)):
            self.open.discard(token)
            return _LEFT
        self.open.add(token)
        return _RIGHT

    def _closing(self, index: int) -> int:
        self.open -= {"„", "“"}
        return _LEFT

    def _guillemet(self, index: int) -> int:
        """« opens and » closes, or the other way round: whichever comes first opens."""
        if self.language == "fr":
            return _NONE
        token = self.tokens[index]
        other = {"«": "»", "»": "«", "‹": "›", "›": "‹"}[token]
        if other in self.open:
            self.open.discard(other)
            return _LEFT
        self.open.add(token)
        return _RIGHT


_CLOSERS = frozenset("\"“”'’‘»«)%")
_SPECIAL: dict[str, Callable[[_Line, int], int]] = {
    "&": _Line._ampersand,
    ":": _Line._colon,
    "?": _Line._french,
    "!": _Line._french,
    ";": _Line._french,
    "%": _Line._percent,
    "°": _Line._degree,
    "+": _Line._sign,
    "(": _Line._bracket,
    '"': _Line._straight,
    "'": _Line._apostrophe,
    "’": _Line._typographic_apostrophe,
    "„": _Line._low,
    "‚": _Line._low,
    "“": _Line._high,
    "‘": _Line._high,
    "”": _Line._closing,
    "«": _Line._guillemet,
    "»": _Line._guillemet,
    "‹": _Line._guillemet,
    "›": _Line._guillemet,
    **dict.fromkeys(_CURRENCIES, _Line._currency),
}
