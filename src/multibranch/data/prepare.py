"""From a recipe and its files to a prepared folder.

Two passes over the text, both in lots, so that memory does not depend on the corpus. The first
reads, tokenises and cleans (on all processors) and counts words; the vocabulary is learned from the
counts; the second turns the words into ids. Everything is written into a folder beside the output,
which takes the output's name only when it is complete.
"""

import dataclasses
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from multibranch.data.fetch import cache_folder, fetch
from multibranch.data.files import Library, Source
from multibranch.data.formats import format_of
from multibranch.data.glue import prepare_glue
from multibranch.data.output import Workshop, describe_inputs, finished, write_manifest
from multibranch.data.progress import Progress, silent
from multibranch.data.readers import LOT, Lot, read_pairs
from multibranch.data.recipe import Cleaning, Corpus, Part, Recipe
from multibranch.data.store import SPLITS, StoreWriter
from multibranch.data.tokenising import Tokenise, Tokenised, percent_signs, too_different
from multibranch.data.workers import MOST_JOBS, default_jobs, map_lots
from multibranch.disk import check_place
from multibranch.errors import UserError, counted
from multibranch.text import UNK, TextPipeline, TextSettings, WordCounter, learn_bpe, learn_words
from multibranch.text.pipeline import SIDES

Files = dict[str, list[tuple[Part, Source, Source]]]


def prepare(
    recipe: Corpus,
    output: str | Path,
    *,
    places: Sequence[str | Path] = (),
    tasks: Sequence[str] = (),
    cache: str | Path | None = None,
    skip_bad_lines: bool = False,
    overwrite: bool = False,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> tuple[dict[str, Any], bool]:
    """Prepare ``recipe`` from the files under ``places`` into the folder ``output``.

    Without ``places`` the files are fetched into ``cache`` (by default the user's). ``tasks``
    chooses among GLUE's. Gives back the manifest, and whether the work was done now (False: the
    folder was there).
    """
    if jobs is not None and not 1 <= jobs <= MOST_JOBS:
        raise UserError(f"--jobs must be at least 1 and at most {MOST_JOBS:,}, not {jobs:,}.")
    if tasks and isinstance(recipe, Recipe):
        raise UserError(f"--tasks chooses among those of glue, and {recipe.name} has none.")
    output = Path(output)
    progress = progress or silent
    if isinstance(recipe, Recipe) and not places and not overwrite:
        # What was fetched need not be there any more for the folder to be recognised.
        done = finished(output, _request(recipe, skip_bad_lines=skip_bad_lines))
        if done is not None:
            return done, False
    if not places:
        check_place(output, "--output")  # fetching may take hours
    places = places or _fetched(recipe, cache, progress)
    if not isinstance(recipe, Recipe):
        return prepare_glue(
            output,
            places=places,
            tasks=tasks,
            skip_bad_lines=skip_bad_lines,
            overwrite=overwrite,
            progress=progress,
        )
    progress("checking the files", 0, None)
    files = find_files(recipe, Library([Path(place) for place in places]))
    used = {source for parts in files.values() for _, *sides in parts for source in sides}
    request = _request(recipe, skip_bad_lines=skip_bad_lines) | {"inputs": describe_inputs(used)}
    if not overwrite:
        done = finished(output, request)
        if done is not None:
            return done, False
    work = _Work(recipe, files, skip_bad_lines, default_jobs() if jobs is None else jobs, progress)
    with Workshop(output, overwrite=overwrite) as folder:
        results = work.run(folder)
        return write_manifest(folder, request=request, results=results), True


def _fetched(recipe: Corpus, cache: str | Path | None, progress: Progress) -> list[Path]:
    if not recipe.downloads:
        raise UserError(
            f"{recipe.name} has no public place to fetch from; name your files, or their folder "
            "with --from."
        )
    folder = Path(cache) if cache else cache_folder(recipe.name)
    return fetch(
        recipe.downloads,
        folder,
        home=recipe.home,
        progress=lambda name, have, total: progress(f"fetching {name}", have, total),
    )


def find_files(recipe: Recipe, library: Library) -> Files:
    """The files of every split; a split whose files are not there is a UserError."""
    found: Files = {}
    for split in SPLITS:
        found[split] = []
        for part in recipe.split(split):
            sides = [_find(recipe, split, part, side, library) for side in SIDES]
            found[split].append((part, sides[0], sides[1]))
    return {split: parts for split, parts in found.items() if parts}


def _find(recipe: Recipe, split: str, part: Part, side: str, library: Library) -> Source:
    names = part.names(recipe.text, side)
    source = library.find(*names)
    if source is None:
        places = ", ".join(str(place) for place in library.places)
        raise UserError(
            f"the {split} split of {recipe.name} needs {' or '.join(names)}, and {places} does not "
            f"hold it (there: {library.names()}); add it, or name its place with --from."
        )
    return source


class _Work:
    """One preparation under way."""

    def __init__(
        self, recipe: Recipe, files: Files, skip_bad_lines: bool, jobs: int, progress: Progress
    ) -> None:
        self.recipe = recipe
        self.files = files
        self.skip_bad_lines = skip_bad_lines
        self.jobs = jobs
        self.progress = progress
        held_out = {"valid": recipe.valid_every, "test": recipe.test_every}
        self.splits = [s for s in SPLITS if s in files or held_out.get(s)]
        self.percent = {side: Counter[str]() for side in SIDES}
        self.clean_pairs = 0  # of the training files, held out or not
        self.counters = {side: WordCounter() for side in SIDES}
        self.facts: dict[str, dict[str, Any]] = {
            split: {"read": 0, "pairs": 0, "dropped": Counter()} for split in self.splits
        }

    def run(self, folder: Path) -> dict[str, Any]:
        self._tokenise(folder)
        text = self._learn()
        text.save(folder)
        for split in self.splits:
            self._encode(folder, split, text)
        return self._results(text)

    def _tokenise(self, folder: Path) -> None:
        with ExitStack() as stack:
            outputs = {split: _TextFiles(folder, split, stack) for split in self.splits}
            for split in self.files:
                self._tokenise_split(split, outputs)

    def _tokenise_split(self, split: str, outputs: "Mapping[str, _TextFiles]") -> None:
        training = split == "train"
        function = Tokenise(
            self.recipe.text,
            cleaning=self.recipe.cleaning if training else None,
            tokenised=self.recipe.tokenised,
            normalise_code=self.recipe.normalise_code,
        )
        facts = self.facts[split]
        for lot in map_lots(function, self._lots(split), jobs=self.jobs):
            facts["read"] += lot.read
            facts["dropped"].update(lot.dropped)
            if self.recipe.normalise_code:
                facts["normalised"] = facts.get("normalised", 0) + lot.normalised
            if training:
                self._share_out(lot, outputs)
            else:
                self._keep(split, lot, outputs)
            self.progress(f"tokenising {split}", facts["read"], None)
            if training and not self._held_out and self._wanted == 0:
                break
        for name in [split, *(self._held_out if training else [])]:
            self._require(name, facts)

    def _require(self, split: str, facts: dict[str, Any]) -> None:
        """A split without a pair is an error; ``facts`` are of the files that it comes from."""
        if not self.facts[split]["pairs"]:
            raise UserError(
                f"nothing is left for the {split} split of {self.recipe.name}: of "
                f"{counted(facts['read'], 'pair')} {_tell_dropped(facts['dropped'])}; look at the "
                "files, allow more with --max-length and --max-ratio, or hold out more with "
                "--hold-out."
            )

    def _lots(self, split: str) -> Iterator[Lot]:
        text = self.recipe.text
        for part, source, target in self.files[split]:
            formats = (format_of(part.format, text.source), format_of(part.format, text.target))
            yield from read_pairs((source, target), formats, skip_bad_lines=self.skip_bad_lines)

    def _share_out(self, lot: Tokenised, outputs: "Mapping[str, _TextFiles]") -> None:
        """Training pairs, of which some are held out for validation and for the test."""
        before = self.clean_pairs
        self.clean_pairs += len(lot)
        shares: dict[str, list[int]] = {split: [] for split in self.splits}
        for index in range(len(lot)):
            shares[self._destination(before + index + 1)].append(index)
        for split, indices in shares.items():
            if split == "train" and self._wanted is not None:
                indices = indices[: self._wanted]
            if indices:
                self._keep(split, lot.select(indices), outputs)

    @property
    def _wanted(self) -> int | None:
        """How many training pairs are still to be kept; None: all."""
        first = self.recipe.first_pairs
        return None if first is None else first - self.facts["train"]["pairs"]

    @property
    def _held_out(self) -> dict[str, int]:
        recipe = self.recipe
        every = {"valid": recipe.valid_every, "test": recipe.test_every}
        return {split: count for split, count in every.items() if count}

    def _destination(self, number: int) -> str:
        """The split of the ``number``-th clean training pair, counted from 1."""
        valid, test = self.recipe.valid_every, self.recipe.test_every
        if valid and number % valid == 0:
            return "valid"
        if test and number % test == test // 2:
            return "test"
        return "train"

    def _keep(self, split: str, lot: Tokenised, outputs: "Mapping[str, _TextFiles]") -> None:
        outputs[split].write(lot)
        self.facts[split]["pairs"] += len(lot)
        if split == "train":
            for side, texts, words in zip(SIDES, lot.texts, lot.words):
                self.counters[side].update(Counter(" ".join(words).split(" ")))
                self.percent[side].update(percent_signs(texts))

    def _learn(self) -> TextPipeline:
        self.progress("learning the vocabulary", 0, None)
        settings = self._settings()
        wanted = self.recipe.vocabulary
        source, target = (self.counters[side] for side in SIDES)
        if wanted.merges or wanted.size:
            source.update_from(target)
            return TextPipeline(settings, learn_bpe(source, merges=wanted.merges, size=wanted.size))
        assert wanted.source and wanted.target
        return TextPipeline(
            settings,
            learn_words(source, size=wanted.source),
            learn_words(target, size=wanted.target),
        )

    def _settings(self) -> TextSettings:
        """The recipe's, with what the training text shows of how people write."""
        text = self.recipe.text
        if text.kind != "moses-bpe":
            return text
        source, target = (
            signs.most_common(1)[0][0] if any(signs.values()) else ""
            for signs in (self.percent[side] for side in SIDES)
        )
        return dataclasses.replace(text, source_percent=source, target_percent=target)

    def _encode(self, folder: Path, split: str, text: TextPipeline) -> None:
        facts = self.facts[split]
        tokens, unknown = Counter[str](), Counter[str]()
        through, total = 0, facts["pairs"]
        cleaning = self.recipe.cleaning if split == "train" else Cleaning()
        with StoreWriter(folder, split) as store:
            for lines in _reread(folder, split):
                ids = {side: text.encode(lines[side], side=side, tokenised=True) for side in SIDES}
                through += len(lines["source"])
                if cleaning.unit == "subwords":
                    self._drop(ids, cleaning, facts)
                store.add_many(ids["source"], ids["target"])
                for side in SIDES:
                    tokens[side] += sum(map(len, ids[side]))
                    unknown[side] += sum(sequence.count(UNK) for sequence in ids[side])
                self.progress(f"encoding {split}", through, total)
        self._require(split, facts)
        for side in SIDES:
            _words_file(folder, split, side).unlink()
            facts[f"{side}_tokens"] = tokens[side]
            facts[f"{side}_unknown"] = unknown[side]

    def _drop(
        self, ids: dict[str, list[list[int]]], cleaning: Cleaning, facts: dict[str, Any]
    ) -> None:
        """Clean by the number of subwords, EOS not counted."""
        kept: list[int] = []
        for index, (a, b) in enumerate(zip(ids["source"], ids["target"])):
            why = too_different(len(a) - 1, len(b) - 1, cleaning)
            if why is None:
                kept.append(index)
            else:
                facts["dropped"][why] += 1
                facts["pairs"] -= 1
        for side in SIDES:
            ids[side] = [ids[side][index] for index in kept]

    def _results(self, text: TextPipeline) -> dict[str, Any]:
        for facts in self.facts.values():
            facts["dropped"] = dict(sorted(facts["dropped"].items()))
        vocabulary = {
            "shared": text.shared,
            "source_size": text.source_size,
            "target_size": text.target_size,
        }
        return {"vocabulary": vocabulary, "splits": self.facts}


class _TextFiles:
    """The text of one split on its way: words for the second pass, and sentences to keep."""

    def __init__(self, folder: Path, split: str, stack: ExitStack) -> None:
        self._words = [
            stack.enter_context(
                _words_file(folder, split, side).open("w", encoding="utf-8", newline="\n")
            )
            for side in SIDES
        ]
        self._texts = [
            stack.enter_context((folder / f"{split}.{side}.txt").open("w", encoding="utf-8"))
            for side in SIDES
            if split != "train"
        ]

    def write(self, lot: Tokenised) -> None:
        for file, lines in itertools.chain(
            zip(self._words, lot.words), zip(self._texts, lot.texts)
        ):
            if lines:
                file.write("\n".join(lines) + "\n")


def _words_file(folder: Path, split: str, side: str) -> Path:
    return folder / f"{split}.{side}.words"


def _reread(folder: Path, split: str) -> Iterator[dict[str, list[str]]]:
    with ExitStack() as stack:
        files = {
            side: stack.enter_context(
                _words_file(folder, split, side).open(encoding="utf-8", newline="\n")
            )
            for side in SIDES
        }
        while True:
            lines = {
                side: [line[:-1] for line in itertools.islice(file, LOT)]
                for side, file in files.items()
            }
            if not lines["source"]:
                return
            yield lines


def _request(recipe: Recipe, *, skip_bad_lines: bool) -> dict[str, Any]:
    """What decides the contents of the folder, besides the input files."""
    settings = {
        "text": dataclasses.asdict(recipe.text),
        "vocabulary": dataclasses.asdict(recipe.vocabulary),
        "cleaning": dataclasses.asdict(recipe.cleaning),
        "valid_every": recipe.valid_every,
        "test_every": recipe.test_every,
        "tokenised": recipe.tokenised,
        "normalise_code": recipe.normalise_code,
        "skip_bad_lines": skip_bad_lines,
    }
    if recipe.first_pairs is not None:
        settings["first_pairs"] = recipe.first_pairs
    return {"kind": "pairs", "recipe": recipe.name, "settings": settings}


def _tell_dropped(dropped: Mapping[str, int]) -> str:
    told = [f"{counted(count, 'was', 'were')} {why}" for why, count in dropped.items() if count]
    return ", ".join(told) or "none was held out"
