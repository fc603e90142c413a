"""The built-in corpora by name: streams of pairs, split, written to files, and prepared."""

import difflib
import hashlib
import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from multibranch.data.builtin import code, entailment, translation
from multibranch.data.recipe import Part, Recipe, Vocabulary
from multibranch.data.store import SPLITS
from multibranch.errors import UserError
from multibranch.text import TextSettings

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
    languages: tuple[str, str]
    endings: tuple[str, str]  # of the text files


CORPORA = {
    "translation": Corpus(
        "sentences in Valdish, a German-like language of our own grammar, and in English",
        translation.pairs,
        lambda source, target: target,
        languages=("va", "en"),
        endings=("va", "en"),
    ),
    "code": Corpus(
        "Python functions and what they do",
        code.pairs,
        lambda source, target: target,
        languages=("nl", "python"),
        endings=("nl", "code"),
    ),
    "entailment": Corpus(
        "pairs of English sentences and whether the first implies the second",
        entailment.pairs,
        lambda source, target: source.partition("\t")[0],
        languages=("en", "label"),
        endings=("en", "label"),
    ),
}


def generate(
    name: str, *, seed: int = 1, pairs: int | None = None, split: str = "train"
) -> Iterator[tuple[str, str]]:
    """Different pairs (source, target) of one split, without end if ``pairs`` is not given."""
    if split not in SPLITS:
        raise ValueError(f"split is one of {', '.join(SPLITS)}, not {split!r}")
    chosen = (pair for where, pair in _placed(name, seed) if where == split)
    return itertools.islice(chosen, pairs)


def _placed(name: str, seed: int) -> Iterator[tuple[str, tuple[str, str]]]:
    """Every pair of the stream once, with its split."""
    corpus = _corpus(name)
    seen: set[bytes] = set()
    for pair in corpus.stream(seed):
        mark = hashlib.blake2b("\n".join(pair).encode(), digest_size=12).digest()
        if mark not in seen:
            seen.add(mark)
            yield _split(corpus.decides(*pair)), pair


def _split(text: str) -> str:
    zone = hashlib.blake2b(text.encode(), digest_size=8).digest()[0] % ZONES
    return {0: "test", 1: "valid"}.get(zone, "train")


def _corpus(name: str) -> Corpus:
    if name not in CORPORA:
        near = difflib.get_close_matches(name, CORPORA, n=1, cutoff=0.0)
        raise UserError(
            f"there is no built-in corpus '{name}'; the nearest name is '{near[0]}' "
            f"(all: {', '.join(CORPORA)})."
        )
    return CORPORA[name]


def builtin(
    name: str,
    folder: str | Path,
    *,
    seed: int = 1,
    pairs: int = 20_000,
    valid: int = 1_000,
    test: int = 1_000,
    merges: int = 1_500,
    reverse: bool = False,
    overwrite: bool = False,
    jobs: int | None = None,
) -> Path:
    """Generate a corpus and prepare it in ``folder``; its text is left in ``folder`` + ".text".

    ``pairs``, ``valid`` and ``test`` are the sizes of the splits, ``merges`` the BPE merges of the
    translation corpus, which ``reverse`` turns round to English → Valdish. A folder that holds just
    this is not made again.
    """
    from multibranch.data.prepare import prepare

    corpus, folder = _corpus(name), Path(folder)
    sizes = {"train": pairs, "valid": valid, "test": test}
    if min(sizes.values()) < 1:
        raise UserError(f"each split of the built-in corpus '{name}' needs at least one pair.")
    text = folder.with_name(folder.name + ".text")
    _write(name, text, seed=seed, sizes=sizes)
    recipe = _recipe(name, corpus, merges=merges)
    prepare(
        recipe.reversed() if reverse else recipe,
        folder,
        places=[text],
        overwrite=overwrite,
        jobs=jobs,
    )
    return folder


def _write(name: str, folder: Path, *, seed: int, sizes: dict[str, int]) -> None:
    """Write the splits side by side from one stream, until each has its size."""
    endings = CORPORA[name].endings
    missing = dict(sizes)
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        files = {
            split: [
                stack.enter_context((folder / f"{split}.{end}").open("w", encoding="utf-8"))
                for end in endings
            ]
            for split in sizes
        }
        for split, pair in _placed(name, seed):
            if not missing[split]:
                if not any(missing.values()):
                    break
                continue
            missing[split] -= 1
            for file, line in zip(files[split], pair):
                file.write(line + "\n")


def _recipe(name: str, corpus: Corpus, *, merges: int) -> Recipe:
    source, target = corpus.languages
    if name == "code":
        text = TextSettings(kind="words", source=source, target=target)
        vocabulary = Vocabulary(source=5_000, target=5_000)
    else:
        text = TextSettings(kind="moses-bpe", source=source, target=target)
        vocabulary = Vocabulary(merges=merges)
    return Recipe(
        name=f"builtin-{name}",
        title=corpus.title,
        pairs="as many as wanted",
        licence="as multibranch itself",
        home="generated",
        text=text,
        vocabulary=vocabulary,
        train=(Part(("train.{language}",)),),
        valid=(Part(("valid.{language}",)),),
        test=(Part(("test.{language}",)),),
    )
