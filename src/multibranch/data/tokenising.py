"""The first pass over one lot of pairs: collapse white space, tokenise, clean."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from multibranch.data.readers import Lot
from multibranch.data.recipes import Cleaning
from multibranch.text import TextSettings
from multibranch.text.pipeline import SIDES, tokeniser


@dataclass
class Tokenised:
    """A lot after the first pass.

    ``texts`` and ``words`` hold the source lines and the target lines: as they were read, and as
    words separated by blanks. ``dropped`` counts the pairs that are not among them, by reason.
    """

    texts: tuple[list[str], list[str]]
    words: tuple[list[str], list[str]]
    read: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    notices: Counter[str] = field(default_factory=Counter)

    def __len__(self) -> int:
        return len(self.words[0])

    def select(self, indices: Sequence[int]) -> "Tokenised":
        """Only the pairs at ``indices``."""
        if len(indices) == len(self):
            return self
        texts, words = (
            ([side[0][i] for i in indices], [side[1][i] for i in indices])
            for side in (self.texts, self.words)
        )
        return Tokenised(texts, words)


class Tokenise:
    """A function of lots. ``cleaning`` is given for training pairs only: others are all kept."""

    def __init__(
        self, settings: TextSettings, *, cleaning: Cleaning | None, normalise_code: bool = False
    ) -> None:
        self.settings = settings
        self.cleaning = cleaning
        self.normalise_code = normalise_code

    def __call__(self, lot: Lot) -> Tokenised:
        texts = ([_collapse(line) for line in lot.source], [_collapse(line) for line in lot.target])
        words = tuple(
            [split(line) for line in lines] for split, lines in zip(self._tokenisers, texts)
        )
        made = Tokenised(texts, (words[0], words[1]))
        cleaned = made.select(self._clean(made)) if self.cleaning else made
        read = len(made) + lot.bad
        dropped = made.dropped + Counter({"unreadable": lot.bad})
        return Tokenised(cleaned.texts, cleaned.words, read, dropped)

    @cached_property
    def _tokenisers(self) -> list[Callable[[str], str]]:
        return [tokeniser(self.settings, side) for side in SIDES]

    def _clean(self, lot: Tokenised) -> list[int]:
        assert self.cleaning is not None
        kept = []
        for index, (source, target) in enumerate(zip(*lot.words)):
            if not source or not target:
                why: str | None = "empty"
            elif self.cleaning.unit == "words":
                why = too_different(source.count(" ") + 1, target.count(" ") + 1, self.cleaning)
            else:
                why = None
            if why is None:
                kept.append(index)
            else:
                lot.dropped[why] += 1
        return kept


def too_different(source: int, target: int, cleaning: Cleaning) -> str | None:
    """Why a pair of these lengths is dropped, or None if it is kept."""
    longest = cleaning.max_length
    if longest is not None and (source > longest or target > longest):
        return "too long"
    ratio = cleaning.max_ratio
    if ratio is not None and max(source, target) > ratio * min(source, target):
        return "too different in length"
    return None


def _collapse(line: str) -> str:
    return " ".join(line.split())
