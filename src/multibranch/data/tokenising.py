"""The first pass over one lot of pairs: collapse white space, tokenise, clean."""

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from multibranch.data.readers import Lot
from multibranch.data.recipe import Cleaning
from multibranch.text import TextSettings
from multibranch.text.pipeline import SIDES, tokeniser
from multibranch.text.programs import normalise_python

Sides = tuple[list[str], list[str]]


@dataclass
class Tokenised:
    """A lot after the first pass.

    ``texts`` and ``words`` hold the source lines and the target lines: as people wrote them, and as
    words separated by blanks. ``dropped`` counts the pairs that are not among them, by reason;
    ``normalised`` counts the functions that were rewritten through their syntax tree.
    """

    texts: Sides
    words: Sides
    read: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    normalised: int = 0

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
        return dataclasses.replace(self, texts=texts, words=words)


class Tokenise:
    """A function of lots. ``cleaning`` is given for training pairs only: others are all kept.

    With ``tokenised`` the lines are words already, and a language of code keeps them as its text.
    """

    def __init__(
        self,
        settings: TextSettings,
        *,
        cleaning: Cleaning | None,
        tokenised: bool = False,
        normalise_code: bool = False,
    ) -> None:
        self.settings = settings
        self.cleaning = cleaning
        self.tokenised = tokenised
        self.normalise_code = normalise_code

    def __call__(self, lot: Lot) -> Tokenised:
        lines = (lot.source, lot.target)
        made = Tokenised((list(map(_collapse, lines[0])), list(map(_collapse, lines[1]))), lines)
        if self.normalise_code:
            self._normalise(made)
        if not self.tokenised:
            made.words = self._split(lines)
        elif self.settings.kind == "words":
            # Words of code pass through their tokeniser too, as they do when a model decodes.
            made.words = self._split(made.texts)
        else:
            made.words = made.texts
        made.read = len(made) + lot.bad
        if lot.bad:
            made.dropped["unreadable"] = lot.bad
        return made.select(self._clean(made)) if self.cleaning else made

    def _split(self, lines: Sides) -> Sides:
        source, target = self._tokenisers
        return [source(line) for line in lines[0]], [target(line) for line in lines[1]]

    @cached_property
    def _tokenisers(self) -> list[Callable[[str], str]]:
        return [tokeniser(self.settings, side) for side in SIDES]

    def _normalise(self, lot: Tokenised) -> None:
        for side, lines in zip(SIDES, lot.texts):
            if self.settings.language(side) != "python":
                continue
            for index, line in enumerate(lines):
                normal = normalise_python(line)
                if normal is not None:
                    lines[index] = normal
                    lot.normalised += 1

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


def percent_signs(lines: Sequence[str]) -> dict[str, int]:
    """How many percent signs of texts are joined to their number, and how many stand apart."""
    text = "\n".join(lines)
    apart = text.count(" %")
    return {"joined": text.count("%") - apart, "apart": apart}


def _collapse(line: str) -> str:
    return " ".join(line.split())
