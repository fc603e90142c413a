"""A built-in corpus as text files and as a prepared folder."""

import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from multibranch.data.builtin.corpora import corpus_named, placed
from multibranch.data.output import Workshop, finished, write_manifest
from multibranch.data.prepare import prepare
from multibranch.data.recipe import Part, Recipe, Vocabulary
from multibranch.disk import check_place, parents_made, umask
from multibranch.errors import UserError
from multibranch.text import TextSettings

# The order of MNLI's labels, so that a model trained on one names the other's alike.
LABELS = ("entailment", "neutral", "contradiction")
LANGUAGES = {"translation": ("va", "en"), "code": ("nl", "python")}
ENDINGS = {"translation": ("va", "en"), "code": ("nl", "code")}


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
    """Generate a corpus and prepare it in ``folder``, as `multibranch prepare` would.

    ``pairs``, ``valid`` and ``test`` are the sizes of the splits. ``merges`` is the number of BPE
    merges of the translation corpus, and ``reverse`` turns its direction to English → Valdish. The
    text of translation and code is left in ``folder`` + ".text"; entailment is prepared as GLUE's
    tasks are, one JSON line an example. A folder that holds just this is not made again.
    """
    corpus_named(name)
    folder = Path(folder)
    sizes = {"train": pairs, "valid": valid, "test": test}
    if min(sizes.values()) < 1:
        raise UserError(f"each split of the built-in corpus '{name}' needs at least one pair.")
    if name == "entailment":
        _prepare_sentences(name, folder, seed=seed, sizes=sizes, overwrite=overwrite)
        return folder
    check_place(folder, "folder")
    recipe = _recipe(name, merges=merges)
    with (
        parents_made(folder),
        tempfile.TemporaryDirectory(prefix=f".{folder.name}.text-", dir=folder.parent) as place,
    ):
        _write_text(name, Path(place), seed=seed, sizes=sizes)
        prepare(
            recipe.reversed() if reverse else recipe,
            folder,
            places=[place],
            overwrite=overwrite,
            jobs=jobs,
        )
        Path(place).chmod(0o777 & ~umask())  # others may read it as they may the prepared folder
        shutil.copytree(place, folder.with_name(folder.name + ".text"), dirs_exist_ok=True)
    return folder


def _filling(name: str, seed: int, sizes: dict[str, int]) -> Iterator[tuple[str, tuple[str, str]]]:
    """The pairs of one stream that the splits take until each has its size."""
    missing = dict(sizes)
    for split, pair in placed(name, seed):
        if missing[split]:
            missing[split] -= 1
            yield split, pair
        elif not any(missing.values()):
            return


def _write_text(name: str, folder: Path, *, seed: int, sizes: dict[str, int]) -> None:
    with ExitStack() as stack:
        files = {
            split: [
                stack.enter_context((folder / f"{split}.{end}").open("w", encoding="utf-8"))
                for end in ENDINGS[name]
            ]
            for split in sizes
        }
        for split, pair in _filling(name, seed, sizes):
            for file, line in zip(files[split], pair):
                file.write(line + "\n")


def _recipe(name: str, *, merges: int) -> Recipe:
    source, target = LANGUAGES[name]
    if name == "code":
        text = TextSettings(kind="words", source=source, target=target)
        vocabulary = Vocabulary(source=5_000, target=5_000)
    else:
        text = TextSettings(kind="moses-bpe", source=source, target=target)
        vocabulary = Vocabulary(merges=merges)
    return Recipe(
        name=f"builtin-{name}",
        title=corpus_named(name).title,
        pairs="as many as wanted",
        licence="as multibranch itself",
        home="generated",
        text=text,
        vocabulary=vocabulary,
        train=(Part(("train.{language}",)),),
        valid=(Part(("valid.{language}",)),),
        test=(Part(("test.{language}",)),),
    )


def _prepare_sentences(
    name: str, folder: Path, *, seed: int, sizes: dict[str, int], overwrite: bool
) -> None:
    """The same files as for a task of GLUE: ``{"text": …, "pair": …, "label": …}`` a line."""
    request = {
        "kind": "classification",
        "recipe": f"builtin-{name}",
        "settings": {"seed": seed, **sizes},
    }
    if not overwrite and finished(folder, request) is not None:
        return
    counts: dict[str, Counter[str]] = {split: Counter() for split in sizes}
    with Workshop(folder, overwrite=overwrite) as place, ExitStack() as stack:
        (place / name).mkdir()
        files = {
            split: stack.enter_context(
                (place / name / f"{split}.jsonl").open("w", encoding="utf-8")
            )
            for split in sizes
        }
        for split, (source, label) in _filling(name, seed, sizes):
            text, _, other = source.partition("\t")
            counts[split][label] += 1
            example = {"text": text, "pair": other, "label": LABELS.index(label)}
            files[split].write(json.dumps(example, ensure_ascii=False) + "\n")
        stack.close()
        splits: dict[str, Any] = {
            split: {"examples": sizes[split], "unreadable": 0, "labels": dict(counts[split])}
            for split in sizes
        }
        task = {"labels": list(LABELS), "splits": splits}
        write_manifest(place, request=request, results={"tasks": {name: task}})
