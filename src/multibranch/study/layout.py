"""Our numbers in the layout of the paper's tables, beside the paper's own."""

import shlex
from dataclasses import dataclass
from typing import Any

from multibranch.study.paper import Cell, Part, Row
from multibranch.study.plan import Corpus, Grid, Study, table
from multibranch.study.results import CellResult, Results


@dataclass(frozen=True)
class Line:
    """One row: its name in the paper, the model it is here, our cells and the paper's."""

    label: str
    ours_label: str
    ours: tuple[CellResult | None, ...]
    paper: tuple[Cell, ...]


@dataclass(frozen=True)
class Block:
    """Rows under one heading."""

    heading: str | None
    columns: tuple[str, ...]
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class Sheet:
    """One table of the paper on one corpus."""

    number: int
    caption: str
    corpus: str
    blocks: tuple[Block, ...]
    rates: bool  # whether the columns are values of ρ

    @property
    def found(self) -> int:
        """How many cells have a number of ours."""
        cells = [cell for block in self.blocks for line in block.lines for cell in line.ours]
        return sum(cell is not None for cell in cells)


def sheets(study: Study, results: Results) -> list[Sheet]:
    """Every table that the study mirrors, on every corpus that has a number."""
    made = []
    for grid in study.grids:
        if grid.paper is None:
            continue
        for corpus in study.corpora:
            sheet = _sheet(study, results, grid, corpus)
            if sheet.found:
                made.append(sheet)
    return made


def _sheet(study: Study, results: Results, grid: Grid, corpus: Corpus) -> Sheet:
    assert grid.paper is not None
    source = table(grid.paper)
    blocks = []
    for part in source.parts:
        lines = [_line(study, results, grid, corpus, row) for row in part.rows]
        if any(any(line.ours) for line in lines):
            blocks.append(Block(part.heading, part.columns, tuple(lines)))
    rates = all(_is_rate(part) for part in source.parts)
    return Sheet(source.number, source.caption, corpus.name, tuple(blocks), rates)


def _line(study: Study, results: Results, grid: Grid, corpus: Corpus, row: Row) -> Line:
    made = [study.experiment_of(cell, grid, corpus, 1) for cell in row.cells]
    ours = tuple(None if one is None else results.find(one) for one in made)
    known = next((one for one in made if one is not None), None)
    label = "" if known is None else f"{known.branches}/{known.width}/{known.hidden}"
    return Line(row.label, label, ours, row.cells)


def _is_rate(part: Part) -> bool:
    return all(column.replace(".", "").isdigit() for column in part.columns)


def ordered(results: Results) -> list[CellResult]:
    """All cells as they stand in the study: for the list of everything."""
    order: dict[str, int] = {}
    for experiment in results.study.experiments():
        order.setdefault(experiment.cell, len(order))
    return sorted(results.cells.values(), key=lambda cell: order.get(cell.cell, len(order)))


def row_of(cell: CellResult, study: Study) -> dict[str, Any]:
    """A cell as plain values, for JSON and for lists."""
    return {
        "cell": cell.cell,
        "model": cell.experiment.title(),
        "corpus": cell.experiment.corpus,
        "score": round(cell.mean, 3),
        "deviation": None if cell.deviation is None else round(cell.deviation, 3),
        "seeds": cell.seeds,
        "signature": cell.signature,
        **{
            f"against_{name}": {
                "difference": round(found.mean, 3),
                "seeds": found.seeds,
                "tested": found.tested,
                "significantly_above": found.above,
                "significantly_below": found.below,
            }
            for name, found in cell.against.items()
        },
        "perplexity": cell.perplexity,
        "similarity": cell.average("mean_similarity"),
        "parameters": cell.records[0].get("parameters"),
        "updates": cell.average("updates"),
        "seconds": cell.average("wall_seconds"),
        "command": command_of(cell, study),
    }


def command_of(cell: CellResult, study: Study) -> str:
    """The command that repeats a cell's trials, those of all seeds that were run."""
    keys = [str(record["key"]) for record in cell.records]
    every = [cell.cell] if len(keys) >= study.seeds else keys
    words = shlex.split(str(cell.records[0]["command"]))
    return shlex.join(one for word in words for one in (every if word == keys[0] else [word]))
