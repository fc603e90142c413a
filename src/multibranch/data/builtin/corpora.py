"""The built-in corpora by name: streams of pairs, each pair in a split of its own."""

import hashlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from multibranch.data.builtin import code, entailment, translation
from multibranch.data.store import SPLITS
from multibranch.errors import UserError, nearest

ZONES = 16  # of which one is the test's and one validation's


@dataclass(frozen=True)
class Corpus:
    """A stream of pairs, and what in a pair decides its split.

    For translation and code that is the target, which follows from the source: so no sentence of
    either side is in two splits. For entailment it is the first sentence.
    """

    title: str
    stream: Callable[[int], Iterator[tuple[str, str]]]
    decides: Callable[[str, str], str]


CORPORA = {
    "translation": Corpus(
        "sentences in Valdish, a German-like language of our own grammar, and in English",
        translation.pairs,
        lambda source, target: target,
    ),
    "code": Corpus(
        "Python functions and what they do",
        code.pairs,
        lambda source, target: target,
    ),
    "entailment": Corpus(
        "pairs of English sentences and whether the first implies the second",
        entailment.pairs,
        lambda source, target: source.partition("\t")[0],
    ),
}


def generate(
    name: str, *, seed: int = 1, pairs: int | None = None, split: str = "train"
) -> Iterator[tuple[str, str]]:
    """Different pairs (source, target) of one split, without end if ``pairs`` is not given."""
    if split not in SPLITS:
        raise ValueError(f"split is one of {', '.join(SPLITS)}, not {split!r}")
    chosen = (pair for where, pair in placed(name, seed) if where == split)
    return itertools.islice(chosen, pairs)


def placed(name: str, seed: int) -> Iterator[tuple[str, tuple[str, str]]]:
    """Every pair of the stream once, with its split."""
    corpus = corpus_named(name)
    seen: set[bytes] = set()
    for pair in corpus.stream(seed):
        mark = hashlib.blake2b("\n".join(pair).encode(), digest_size=12).digest()
        if mark not in seen:
            seen.add(mark)
            yield _split(corpus.decides(*pair)), pair


def _split(text: str) -> str:
    zone = hashlib.blake2b(text.encode(), digest_size=8).digest()[0] % ZONES
    return {0: "test", 1: "valid"}.get(zone, "train")


def corpus_named(name: str) -> Corpus:
    if name not in CORPORA:
        near = nearest(name, CORPORA)
        hint = f"did you mean '{near}'?" if near else f"there are {', '.join(CORPORA)}."
        raise UserError(f"there is no built-in corpus '{name}'; {hint}")
    return CORPORA[name]
