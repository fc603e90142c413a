"""The corpora that `multibranch prepare` knows, each a short declaration.

A recipe says where the files of each split are (by the ends of their paths, with ``{language}`` for
the side), in which format, and how they are cleaned, split and turned into ids. To add a corpus,
add a declaration to ``RECIPES``.
"""

import dataclasses
import difflib
from dataclasses import dataclass

from multibranch.data.fetch import Download
from multibranch.errors import UserError
from multibranch.text import TextSettings


@dataclass(frozen=True)
class Part:
    """Two corresponding files of a split, one a side.

    ``paths`` are the names the pair is known under; the first that is found is taken.
    """

    paths: tuple[str, ...]
    format: str = "plain"

    def names(self, language: str) -> list[str]:
        """The paths of one side."""
        return [path.replace("{language}", language) for path in self.paths]


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
class Recipe:
    """One corpus: where it comes from, what is in it, and how it is prepared."""

    name: str
    title: str
    pairs: str
    licence: str
    home: str
    text: TextSettings
    vocabulary: Vocabulary
    train: tuple[Part, ...]
    valid: tuple[Part, ...] = ()
    test: tuple[Part, ...] = ()
    cleaning: Cleaning = Cleaning()
    valid_every: int | None = None
    test_every: int | None = None
    normalise_code: bool = False
    downloads: tuple[Download, ...] = ()

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
            vocabulary=dataclasses.replace(
                vocabulary, source=vocabulary.target, target=vocabulary.source
            ),
        )


_TED = {
    "licence": "CC BY-NC-ND 4.0",
    "home": "https://wit3.fbk.eu",
    "cleaning": Cleaning(max_length=175, max_ratio=1.5),
    "vocabulary": Vocabulary(merges=10_000),
}


def _translation(source: str, target: str, **options: bool) -> TextSettings:
    return TextSettings(kind="moses-bpe", source=source, target=target, **options)


RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe(
            name="multi30k-de-en",
            title="captions of photographs",
            pairs="29,000 / 1,014 / 1,000",
            licence="CC BY-NC-SA 4.0",
            home="https://github.com/multi30k/dataset",
            text=_translation("de", "en", lowercase=True),
            vocabulary=Vocabulary(size=8000),
            train=(Part(("train.{language}",)),),
            valid=(Part(("valid.{language}", "val.{language}")),),
            test=(Part(("test.{language}", "test_2016_flickr.{language}", "test2016.{language}")),),
        ),
    )
}
