"""Labelled text from TSV, CSV and JSONL files with named columns, compressed or not.

TSV is GLUE's: fields end at tabs and line ends, and a quotation mark is a character like any other.
CSV is what spreadsheets write, with quotation marks around fields. JSONL has one object a line.
"""

import bz2
import csv
import gzip
import io
import json
import lzma
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from multibranch.errors import UserError, counted

_OPENERS: dict[str, Any] = {".xz": lzma.open, ".gz": gzip.open, ".bz2": bz2.open}
_FORMATS = (".tsv", ".csv", ".jsonl", ".json", ".txt")


@dataclass
class Examples:
    """Texts, each of one or two pieces, and their labels as numbers."""

    texts: list[tuple[str, ...]]
    labels: list[int]

    def __len__(self) -> int:
        return len(self.texts)


@dataclass(frozen=True)
class Columns:
    """What to read of a table: the columns of text, the label's, and names where it has none."""

    text: tuple[str, ...]
    label: str
    header: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if not 1 <= len(self.text) <= 2:
            raise UserError(f"data.text must name one or two columns of text, not {len(self.text)}")


@dataclass(frozen=True)
class Corpus:
    """Labelled text: the file of each split, its columns, its labels and what it is scored by.

    `labels` has what stands in the label column, in the order of the classes, and what each is
    called; None where they are those that occur in the training file.
    """

    files: dict[str, Path]
    columns: Columns
    labels: dict[str, str] | None
    scores: tuple[str, ...]

    def named_labels(self) -> dict[str, str]:
        """The labels, read from the training file where they are not given."""
        if self.labels is not None:
            return self.labels
        return {label: label for label in read_labels(self.files["train"], self.columns)}

    def examples(self, split: str, labels: Mapping[str, str]) -> Examples:
        """The examples of a split."""
        if split not in self.files:
            raise UserError(
                f"there is no split {split!r}; those of this data are {', '.join(self.files)}"
            )
        return read_examples(self.files[split], self.columns, number(labels))


def number(labels: Mapping[str, str]) -> dict[str, int]:
    """The number of each label, by what stands in the label column."""
    return {value: index for index, value in enumerate(labels)}


def find_file(path: str | Path) -> Path:
    """The file of this name, or a compressed form of it."""
    path = Path(path)
    for candidate in (path, *(path.with_name(path.name + end) for end in _OPENERS)):
        if candidate.is_file():
            return candidate
    raise UserError(
        f"there is no file {path}, nor a compressed one ({', '.join(_OPENERS)}): say where it is "
        "with data.folder, or evaluate's --data"
    )


def read_examples(path: str | Path, columns: Columns, labels: Mapping[str, int]) -> Examples:
    """The labelled texts of a table; `labels` gives each label its number."""
    path = find_file(path)
    texts, numbers = [], []
    for line, row in read_rows(path, (*columns.text, columns.label), columns.header):
        label = row[columns.label]
        if label not in labels:
            raise UserError(
                f"{path}, line {line}: the label {label!r} in the column {columns.label!r} is "
                f"unknown; those known are {', '.join(map(repr, labels))}"
            )
        texts.append(tuple(row[name] for name in columns.text))
        numbers.append(labels[label])
    if not texts:
        raise UserError(f"{path} has no examples")
    return Examples(texts, numbers)


def read_labels(path: str | Path, columns: Columns) -> list[str]:
    """The labels that occur in a table: numbers by size, words by the alphabet."""
    path = find_file(path)
    found = {row[columns.label] for _, row in read_rows(path, (columns.label,), columns.header)}
    if len(found) < 2:
        raise UserError(
            f"{path} has {counted(len(found), 'label', 'different labels')} in the column "
            f"{columns.label!r}: classification needs at least two"
        )
    whole = all(re.fullmatch("-?[0-9]+", label) for label in found)
    return sorted(found, key=int) if whole else sorted(found)


def read_rows(
    path: Path, wanted: Sequence[str], header: Sequence[str] | None = None
) -> Iterator[tuple[int, dict[str, str]]]:
    """Line number and wanted columns of every row."""
    kind = next((end for end in reversed(path.suffixes) if end not in _OPENERS), "")
    if kind not in _FORMATS:
        raise UserError(f"{path}: what ends in {kind!r} is no table; use .tsv, .csv or .jsonl")
    with _open(path) as stream:
        try:
            if kind in (".jsonl", ".json"):
                yield from _objects(path, stream, wanted)
            else:
                yield from _table(path, stream, wanted, header, comma=kind == ".csv")
        except (UnicodeDecodeError, csv.Error, EOFError, lzma.LZMAError, OSError) as error:
            raise UserError(f"{path} cannot be read: {error}") from None


def _open(path: Path) -> IO[str]:
    # Only line feeds end lines: other separators of Unicode occur inside GLUE's sentences.
    raw = _OPENERS.get(path.suffix, open)(path, "rb")
    return io.TextIOWrapper(raw, encoding="utf-8-sig", newline="\n")


def _table(
    path: Path,
    stream: IO[str],
    wanted: Sequence[str],
    header: Sequence[str] | None,
    *,
    comma: bool,
) -> Iterator[tuple[int, dict[str, str]]]:
    rows = _csv_rows(stream) if comma else _tsv_rows(stream)
    names = header or next(rows, (1, []))[1]
    _check_columns(path, wanted, names)
    for line, fields in rows:
        if len(fields) != len(names):
            raise UserError(
                f"{path}, line {line}: {counted(len(fields), 'field')} under "
                f"{counted(len(names), 'column')}"
            )
        row = dict(zip(names, fields))
        yield line, {name: row[name] for name in wanted}


def _csv_rows(stream: IO[str]) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader(stream, strict=True)
    for fields in reader:
        if fields:
            yield reader.line_num, fields


def _tsv_rows(stream: IO[str]) -> Iterator[tuple[int, list[str]]]:
    for number, line in enumerate(stream, 1):
        line = line.rstrip("\r\n")
        if line:
            yield number, line.split("\t")


def _objects(
    path: Path, stream: IO[str], wanted: Sequence[str]
) -> Iterator[tuple[int, dict[str, str]]]:
    for number, line in enumerate(stream, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise UserError(f"{path}, line {number}: no JSON: {error}") from None
        if not isinstance(row, dict):
            raise UserError(f"{path}, line {number}: a JSON object is needed, with named values")
        _check_columns(path, wanted, list(row))
        for name in wanted:
            if row[name] is None or isinstance(row[name], list | dict):
                raise UserError(
                    f"{path}, line {number}: {name!r} is {json.dumps(row[name])[:40]}, which is "
                    "neither text nor a number"
                )
        yield number, {name: str(row[name]) for name in wanted}


def _check_columns(path: Path, wanted: Sequence[str], present: Sequence[str]) -> None:
    for name in wanted:
        if name not in present:
            raise UserError(
                f"{path} has no column {name!r}; its columns are {', '.join(map(repr, present))}"
            )
