"""What a recipe is: the declaration of a corpus and of how it is prepared."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from multibranch.data.fetch import Download
from multibranch.errors import UserError
from multibranch.text import TextSettings

# Files of code are not named after the language.
_SUFFIXES = {"java": "code", "python": "code"}


@dataclass(frozen=True)
class Part:
    """Two corresponding files of a split, one a side, or one table with a column a side.

    ``paths`` are the names that they are known under, the first that is found being taken: the end
    of a path with ``{language}`` for the side (``{source}`` and ``{target}`` for the direction), or
    the paths of both, by language or by side. ``format`` is one of ``data.formats``.
    """

    paths: tuple[str | dict[str, str], ...]
    format: str = "plain"

    def names(self, text: TextSettings, side: str) -> list[str]:
        """The paths of one side."""
        language = text.language(side)
        names = []
        for path in self.paths:
            if isinstance(path, str):
                template = path
            else:
                template = path[side] if side in path else path[language]
            for name, value in (
                ("{language}", _SUFFIXES.get(language, language)),
                ("{source}", text.source),
                ("{target}", text.target),
            ):
                template = template.replace(name, value)
            names.append(template)
        return names

    def reversed(self) -> "Part":
        """The same files for the other direction: paths by side change sides."""
        turned = {"source": "target", "target": "source"}
        paths = [
            path
            if isinstance(path, str)
            else {turned.get(side, side): name for side, name in path.items()}
            for path in self.paths
        ]
        return Part(tuple(paths), self.format)


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """How the vocabulary is learned.

    ``merges`` or ``size``: joint BPE with that many merges, or entries. ``source`` and ``target``:
    the most frequent words of each side.
    """

    merges: int | None = None
    size: int | None = None
    source: int | None = None
    target: int | None = None


@dataclass(frozen=True, kw_only=True)
class Cleaning:
    """Which training pairs are dropped: too long, or too different in length.

    ``unit`` is what is counted: words, or subwords (after BPE).
    """

    max_length: int | None = None
    max_ratio: float | None = None
    unit: str = "words"


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """What `multibranch prepare --list` shows of a recipe."""

    name: str
    title: str
    pairs: str
    licence: str
    home: str
    downloads: tuple[Download, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Recipe(Corpus):
    """A corpus of pairs: what is in each split, and how it is cleaned, split and encoded.

    ``valid_every`` and ``test_every`` hold out every so many clean training pairs. ``first_pairs``
    keeps so many of the clean training pairs that are not held out, of which cleaning by subwords,
    which needs their vocabulary, may drop some yet. ``tokenised`` says that the files hold words
    already.
    """

    text: TextSettings
    vocabulary: Vocabulary
    train: tuple[Part, ...]
    valid: tuple[Part, ...] = ()
    test: tuple[Part, ...] = ()
    cleaning: Cleaning = Cleaning()
    valid_every: int | None = None
    test_every: int | None = None
    first_pairs: int | None = None
    tokenised: bool = False
    normalise_code: bool = False

    def split(self, name: str) -> tuple[Part, ...]:
        """The parts of one split."""
        return {"train": self.train, "valid": self.valid, "test": self.test}[name]

    def reversed(self) -> "Recipe":
        """The same corpus in the other direction."""
        text, vocabulary = self.text, self.vocabulary
        stem = self.name.removesuffix(f"-{text.source}-{text.target}")
        return dataclasses.replace(
            self,
            name=f"{stem}-{text.target}-{text.source}" if stem != self.name else self.name,
            text=text.reversed(),
            train=tuple(part.reversed() for part in self.train),
            valid=tuple(part.reversed() for part in self.valid),
            test=tuple(part.reversed() for part in self.test),
            vocabulary=dataclasses.replace(
                vocabulary, source=vocabulary.target, target=vocabulary.source
            ),
        )

    def adjusted(
        self,
        *,
        merges: int | None = None,
        vocabulary: Sequence[int] | None = None,
        lowercase: bool | None = None,
        max_length: int | None = None,
        max_ratio: float | None = None,
        first_pairs: int | None = None,
    ) -> "Recipe":
        """The recipe with the user's own settings where they are given; a limit of 0 is none."""
        changes: dict[str, Any] = {}
        if lowercase is not None and self.text.kind == "words":
            raise UserError(
                f"--lowercase is for languages; {self.name} keeps its words as they are."
            )
        if lowercase is not None:
            changes["text"] = dataclasses.replace(self.text, lowercase=lowercase)
        if merges is not None or vocabulary is not None:
            changes["vocabulary"] = self._vocabulary(merges, vocabulary)
        limits: dict[str, Any] = {}
        if max_length is not None:
            limits["max_length"] = max_length or None
        if max_ratio is not None:
            limits["max_ratio"] = max_ratio or None
        if limits:
            changes["cleaning"] = dataclasses.replace(self.cleaning, **limits)
        if first_pairs is not None:
            changes["first_pairs"] = first_pairs
        return dataclasses.replace(self, **changes)

    def _vocabulary(self, merges: int | None, sizes: Sequence[int] | None) -> Vocabulary:
        words = self.text.kind == "words"
        if merges is not None:
            if words or sizes is not None:
                raise UserError(
                    f"--merges is for BPE alone; {self.name} has word vocabularies: give their "
                    "sizes with --vocabulary SOURCE TARGET."
                    if words
                    else "--merges and --vocabulary say the same thing twice; give one of them."
                )
            return Vocabulary(merges=merges)
        assert sizes is not None
        if len(sizes) != (2 if words else 1):
            told = "two sizes, SOURCE TARGET" if words else "one size: it is shared by both sides"
            raise UserError(f"--vocabulary of {self.name} takes {told}.")
        return Vocabulary(source=sizes[0], target=sizes[1]) if words else Vocabulary(size=sizes[0])
