"""The paper's tables as data: every number in print with the settings that it was obtained with.

The numbers lie in paper_main.yaml (Tables 1 to 13) and paper_appendix.yaml (Tables 14 to 27);
paper_text.yaml has the few scores that stand outside the tables. Here they become one uniform kind
of record, the `Cell`: one score of one experiment.
"""

from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import yaml


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One score in print, and everything the paper says about how it came about."""

    table: int
    part: str | None  # the heading over this part of the table
    row: str  # the first column as printed, without the size
    column: str  # the heading of the column, corrected where the print is wrong
    value: float
    decimals: int = 2  # digits in print after the point
    bold: bool = False
    triangle: bool = False  # the paper's mark for the usual baseline
    task: str
    test: str | None = None  # the test set, where one model is scored on several
    metric: str  # multi-bleu, sacrebleu, sentence-bleu, pov or accuracy
    cited: bool = False  # taken by the paper from earlier work, not an experiment of its own
    system: str | None = None
    branches: int | None = None  # N_a; None where the paper gives no architecture
    width: int | None = None  # d
    hidden: int | None = None  # d_h, of each FFN branch
    ffn_branches: int = 1  # N_f
    heads: int | None = None  # M, in each branch
    encoder_layers: int | None = None
    decoder_layers: int | None = None
    vocabulary: int | None = None  # joint, or the target's beside a source_vocabulary
    source_vocabulary: int | None = None
    vocabulary_source: str = "notes"
    positions: int = 0  # learned positions; 0 for sinusoidal ones
    drop_branch: float | None = None  # ρ; None where the paper does not say
    drop_kind: str = "branch"
    proximal: bool | None = False  # None where the paper does not say
    millions: float | None = None  # the size in print

    @property
    def printed(self) -> str:
        """The number as the paper prints it."""
        return f"{self.value:.{self.decimals}f}"

    def settings(self) -> dict[str, Any]:
        """What must be trained for this cell; cells with equal settings are scores of one model."""
        names = (
            "task branches width hidden ffn_branches heads encoder_layers decoder_layers "
            "drop_branch drop_kind proximal"
        )
        return {name: getattr(self, name) for name in names.split()}


@dataclass(frozen=True)
class Row:
    """One line of a table: its cells from left to right, and the printed change if there is one."""

    label: str
    cells: tuple[Cell, ...]
    millions: float | None
    delta: float | None
    delta_recomputed: float | None  # what delta should be, where the print is wrong


@dataclass(frozen=True)
class Part:
    """A block of rows under one heading, with the headings of its columns."""

    heading: str | None
    columns: tuple[str, ...]
    printed_columns: tuple[str, ...]  # the headings as printed, mistakes included
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Table:
    """One table of the paper, in the paper's layout."""

    number: int
    label: str
    caption: str
    appendix: bool
    errata: tuple[str, ...]  # what is evidently wrong in print
    remarks: tuple[str, ...]  # what the paper leaves unsaid and how it was taken
    parts: tuple[Part, ...]

    @property
    def cells(self) -> tuple[Cell, ...]:
        return tuple(cell for part in self.parts for row in part.rows for cell in row.cells)


@cache
def tables() -> tuple[Table, ...]:
    """All tables, in the paper's order."""
    entries = _read("paper_main.yaml") + _read("paper_appendix.yaml")
    return tuple(_table(entry) for entry in entries)


def cells(table: int | None = None) -> list[Cell]:
    """Every cell of one table, or of all."""
    return [cell for each in tables() if table in (None, each.number) for cell in each.cells]


def experiments(table: int | None = None) -> list[tuple[dict[str, Any], list[Cell]]]:
    """What has to be trained for a table (or for all), each with the cells it gives a score for.

    Cited scores are left out: they are nobody's experiment here.
    """
    groups: dict[tuple[Any, ...], tuple[dict[str, Any], list[Cell]]] = {}
    for cell in cells(table):
        if not cell.cited:
            settings = cell.settings()
            groups.setdefault(tuple(settings.values()), (settings, []))[1].append(cell)
    return list(groups.values())


@cache
def in_text() -> tuple[dict[str, Any], ...]:
    """The scores that the paper gives in its text only."""
    return tuple(_read("paper_text.yaml"))


def _read(name: str) -> list[dict[str, Any]]:
    text = resources.files("multibranch.study").joinpath(name).read_text(encoding="utf-8")
    # The C loader reads the same YAML ten times faster, where PyYAML was built with it.
    entries: list[dict[str, Any]] = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return entries


def _table(entry: dict[str, Any]) -> Table:
    return Table(
        number=entry["number"],
        label=entry["label"],
        caption=entry["caption"],
        appendix=entry["appendix"],
        errata=tuple(entry.get("errata", ())),
        remarks=tuple(entry.get("remarks", ())),
        parts=tuple(_part(entry, part) for part in entry["parts"]),
    )


def _part(table: dict[str, Any], part: dict[str, Any]) -> Part:
    columns = _columns(part.get("columns", table.get("columns")))
    return Part(
        heading=part.get("heading"),
        columns=tuple(column["label"] for column in columns),
        printed_columns=tuple(column["printed"] for column in columns),
        rows=tuple(_row(table, part, columns, row) for row in part["rows"]),
    )


def _columns(columns: Any) -> list[dict[str, Any]]:
    """Columns as a list of settings, whether given so or as the values of one setting."""
    if isinstance(columns, dict):
        ((name, values),) = columns.items()
        columns = [{"label": str(value), name: value} for value in values]
    return [{"printed": column["label"], **column} for column in columns]


def _row(
    table: dict[str, Any], part: dict[str, Any], columns: list[dict[str, Any]], row: dict[str, Any]
) -> Row:
    own = {"values", "bold", "triangle", "delta", "delta_recomputed"}
    settings = {name: value for name, value in row.items() if name not in own}
    made = []
    for index, (column, value) in enumerate(zip(columns, row["values"], strict=True)):
        merged = {**table["settings"], **part.get("settings", {}), **column, **settings}
        if isinstance(merged.get("drop_branch"), list):
            merged["drop_branch"] = merged["drop_branch"][index]
        label = table["row"].format(**merged)
        merged.pop("printed")
        made.append(
            Cell(
                table=table["number"],
                part=part.get("heading"),
                row=label,
                column=merged.pop("label"),
                value=float(value),
                bold=index in row.get("bold", ()),
                triangle=index in row.get("triangle", ()),
                **merged,
            )
        )
    return Row(
        label=made[0].row,
        cells=tuple(made),
        millions=row.get("millions"),
        delta=row.get("delta"),
        delta_recomputed=row.get("delta_recomputed"),
    )
