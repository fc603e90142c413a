"""GLUE's tasks: from their TSV files to one JSON line an example.

Each task becomes a folder with ``train.jsonl``, ``valid.jsonl`` and, where the files are there,
``test.jsonl`` (without labels; MNLI has ``valid_mismatched`` and ``test_mismatched`` too). A line
is ``{"text": …, "pair": …, "label": …}``: ``pair`` for tasks of two sentences, ``label`` an index
into the names that the manifest lists.

The files are read as they are: a tab ends a cell and nothing else does. MRPC's sentences hold
quotation marks that a CSV reader would swallow lines by, and CoLA has no header.
"""

import itertools
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from multibranch.data.files import Library, Source
from multibranch.data.formats import BadLine, plain
from multibranch.data.output import Workshop, describe_inputs, finished, write_manifest
from multibranch.data.progress import Progress, silent
from multibranch.data.readers import Lines
from multibranch.data.recipes import GLUE
from multibranch.errors import UserError, counted


@dataclass(frozen=True, kw_only=True)
class Task:
    """One task: its folder, its columns, and its labels in the order of their numbers.

    ``labels`` pairs what the file says with the label's name. ``columns`` is given where the files
    have no header.
    """

    folder: str
    text: str
    pair: str | None = None
    label: str = "label"
    labels: tuple[tuple[str, str], ...]
    columns: tuple[str, ...] = ()
    splits: tuple[tuple[str, str], ...] = (("train", "train"), ("valid", "dev"), ("test", "test"))


def _same(*names: str) -> tuple[tuple[str, str], ...]:
    return tuple((name, name) for name in names)


_MNLI_SPLITS = (
    ("train", "train"),
    ("valid", "dev_matched"),
    ("valid_mismatched", "dev_mismatched"),
    ("test", "test_matched"),
    ("test_mismatched", "test_mismatched"),
)
TASKS = {
    "mnli": Task(
        folder="MNLI",
        text="sentence1",
        pair="sentence2",
        label="gold_label",
        labels=_same("entailment", "neutral", "contradiction"),
        splits=_MNLI_SPLITS,
    ),
    "mrpc": Task(
        folder="MRPC",
        text="#1 String",
        pair="#2 String",
        label="Quality",
        labels=(("0", "not_equivalent"), ("1", "equivalent")),
    ),
    "qnli": Task(
        folder="QNLI",
        text="question",
        pair="sentence",
        labels=_same("entailment", "not_entailment"),
    ),
    "sst2": Task(folder="SST-2", text="sentence", labels=(("0", "negative"), ("1", "positive"))),
    "rte": Task(
        folder="RTE",
        text="sentence1",
        pair="sentence2",
        labels=_same("entailment", "not_entailment"),
    ),
    "cola": Task(
        folder="CoLA",
        text="sentence",
        labels=(("0", "unacceptable"), ("1", "acceptable")),
        columns=("source", "label", "mark", "sentence"),
    ),
}


def prepare_glue(
    output: str | Path,
    *,
    places: Sequence[str | Path],
    tasks: Sequence[str] = (),
    skip_bad_lines: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> tuple[dict[str, Any], bool]:
    """Prepare ``tasks`` (all that are found, if none is named) into the folder ``output``.

    Gives back the manifest, and whether the work was done now (False: the folder was there).
    """
    output = Path(output)
    library = Library([Path(place) for place in places])
    files = _find(library, tasks)
    request = {
        "kind": "classification",
        "recipe": GLUE.name,
        "settings": {"tasks": sorted(files), "skip_bad_lines": skip_bad_lines},
        "inputs": describe_inputs(
            source for splits in files.values() for table in splits.values() for source in table
        ),
    }
    if not overwrite:
        done = finished(output, request)
        if done is not None:
            return done, False
    with Workshop(output, overwrite=overwrite) as folder:
        results: dict[str, Any] = {}
        for name, splits in files.items():
            results[name] = _prepare_task(
                name, splits, folder / name, skip_bad_lines, progress or silent
            )
        return write_manifest(folder, request=request, results={"tasks": results}), True


def _find(library: Library, wanted: Sequence[str]) -> dict[str, dict[str, tuple[Source, ...]]]:
    """The files of each task's splits."""
    for name in wanted:
        if name not in TASKS:
            raise UserError(f"unknown task '{name}'; the tasks are {', '.join(TASKS)}.")
    found: dict[str, dict[str, tuple[Source, ...]]] = {}
    for name in wanted or TASKS:
        splits = _files_of(library, TASKS[name])
        if "valid" in splits and ("train" in splits or not wanted):
            found[name] = splits
        elif wanted or splits:
            folder = TASKS[name].folder
            missing = "train" if "valid" in splits else "valid"
            raise UserError(
                f"the {missing} split of {name} needs {folder}/{_file(TASKS[name], missing)}, and "
                f"{', '.join(map(str, library.places))} does not hold it (there: "
                f"{library.names()}); add it, or name its place with --from."
            )
    if not found:
        raise UserError(
            f"no task of GLUE is in {', '.join(map(str, library.places))} (there: "
            f"{library.names()}); give a folder that holds MRPC/train.tsv and the like."
        )
    return found


def _file(task: Task, split: str) -> str:
    return dict(task.splits)[split] + ".tsv"


def _files_of(library: Library, task: Task) -> dict[str, tuple[Source, ...]]:
    found: dict[str, tuple[Source, ...]] = {}
    for split, _ in task.splits:
        source = library.find(f"{task.folder}/{_file(task, split)}")
        if source is not None:
            found[split] = (source,)
    if task.folder == "MRPC" and "train" not in found:
        # Microsoft's own file, with the list of the pairs that GLUE takes for validation.
        pairs = library.find("msr_paraphrase_train.txt")
        held_out = library.find("mrpc_dev_ids.tsv", "dev_ids.tsv")
        if pairs is not None and held_out is not None:
            found["train"] = found["valid"] = (pairs, held_out)
    return found


def _prepare_task(
    name: str,
    splits: dict[str, tuple[Source, ...]],
    folder: Path,
    skip_bad_lines: bool,
    progress: Progress,
) -> dict[str, Any]:
    task = TASKS[name]
    folder.mkdir()
    facts: dict[str, Any] = {}
    for split, sources in splits.items():
        counts: Counter[str] = Counter()
        labels: Counter[str] = Counter()
        with (folder / f"{split}.jsonl").open("w", encoding="utf-8") as file:
            for example in _examples(task, split, sources, skip_bad_lines, counts):
                if "label" in example:
                    labels[task.labels[example["label"]][1]] += 1
                file.write(json.dumps(example, ensure_ascii=False) + "\n")
        progress(f"{name} {split}", counts["examples"], counts["examples"])
        if not counts["examples"]:
            raise UserError(f"{sources[0]} holds no example; give a file that does.")
        facts[split] = {
            "examples": counts["examples"],
            "unreadable": counts["unreadable"],
            "labels": dict(labels),
        }
    return {"labels": [label for _, label in task.labels], "splits": facts}


def _examples(
    task: Task, split: str, sources: tuple[Source, ...], skip: bool, counts: Counter[str]
) -> Iterator[dict[str, Any]]:
    table = _Table(task, sources[0], skip, labelled=not split.startswith("test"))
    held_out = _held_out(sources[1], skip) if len(sources) > 1 else None
    for cells in table:
        if cells is None:
            counts["unreadable"] += 1
            continue
        if held_out is not None:
            inside = (cells["#1 ID"], cells["#2 ID"]) in held_out
            if inside != (split == "valid"):
                continue
        counts["examples"] += 1
        yield table.example(cells)


def _held_out(source: Source, skip: bool) -> set[tuple[str, ...]]:
    lines = Lines(source, plain, skip)
    return {tuple(line.split("\t")) for line in _all(lines) if line is not None}


def _all(lines: Lines) -> Iterator[str | None]:
    while lot := lines.take(1000):
        yield from lot


class _Table:
    """The rows of a TSV file, by the names of their columns."""

    def __init__(self, task: Task, source: Source, skip: bool, *, labelled: bool) -> None:
        self.task = task
        self.source = source
        self.skip = skip
        self.labelled = labelled
        self.labels = {told: number for number, (told, _) in enumerate(task.labels)}
        self.needed = [c for c in (task.text, task.pair, task.label if labelled else None) if c]

    def __iter__(self) -> Iterator[dict[str, str] | None]:
        lines = _all(Lines(self.source, plain, self.skip))
        columns: Sequence[str] = self.task.columns
        first = 1
        # CoLA's test file has a header, though its other files have none.
        if not columns or not self.labelled:
            columns, first = (next(lines, None) or "").split("\t"), 2
            missing = [name for name in self.needed if name not in columns]
            if missing:
                raise UserError(
                    f"{self.source} has no column '{missing[0]}' in its first line (it has: "
                    f"{', '.join(columns)}); give GLUE's own file."
                )
        for number, line in zip(itertools.count(first), lines):
            yield None if line is None else self._row(number, line, columns)

    def _row(self, number: int, line: str, columns: Sequence[str]) -> dict[str, str] | None:
        cells = line.split("\t")
        row = dict(zip(columns, cells))
        try:
            if len(cells) < len(columns):
                raise BadLine(f"{counted(len(cells), 'cell')} instead of {len(columns)}")
            if self.labelled and row[self.task.label] not in self.labels:
                raise BadLine(f"the unknown label '{row[self.task.label]}'")
        except BadLine as error:
            if self.skip:
                return None
            raise UserError(
                f"line {number} of {self.source} holds {error}; correct it, or leave such lines "
                "out with --skip-bad-lines."
            ) from error
        return row

    def example(self, cells: dict[str, str]) -> dict[str, Any]:
        """A row as it is written: its sentences, and its label by number."""
        made: dict[str, Any] = {"text": cells[self.task.text].strip()}
        if self.task.pair is not None:
            made["pair"] = cells[self.task.pair].strip()
        if self.labelled:
            made["label"] = self.labels[cells[self.task.label]]
        return made
