"""Our numbers in the layout of the paper's tables, beside the paper's own."""

import re
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from multibranch.study.experiment import Experiment
from multibranch.study.paper import Cell, Part, Row
from multibranch.study.plan import Corpus, Grid, Study, table
from multibranch.study.results import CellResult, Results

# What the paper's scores are called in our records.
METRICS = {
    "multi-bleu": "multi_bleu",
    "sacrebleu": "bleu",
    "sentence-bleu": "sentence_bleu",
    "pov": "pov",
    "accuracy": "accuracy",
}


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

    @property
    def renamed(self) -> bool:
        """Whether a model is called otherwise here than in the paper's row."""
        return any(line.ours_label not in ("", line.label) for line in self.lines)


@dataclass(frozen=True)
class Sheet:
    """One table of the paper, on a corpus or on several for its different tasks."""

    number: int
    caption: str
    corpus: str
    blocks: tuple[Block, ...]
    rates: bool  # whether the columns are values of ρ

    @property
    def found(self) -> list[CellResult]:
        """The cells that have a number of ours."""
        cells = [cell for block in self.blocks for line in block.lines for cell in line.ours]
        return [cell for cell in cells if cell is not None]

    @property
    def compared(self) -> bool:
        """Whether one of them stands with its difference to a reference."""
        return any(cell.fairest is not None for cell in self.found)


def sheets(study: Study, results: Results) -> list[Sheet]:
    """Every table that the study mirrors, with the corpora that have a number.

    Corpora that stand for different tasks share a table, as in the paper; those that stand for the
    same one have a table each.
    """
    run = {cell.experiment.corpus for cell in results.cells.values()}
    corpora = [corpus for corpus in study.corpora if corpus.name in run]
    made = []
    for grid in study.grids:
        if grid.paper is None:
            continue
        for together in _together(corpora, {cell.task for cell in table(grid.paper).cells}):
            sheet = _sheet(study, results, grid, together)
            if sheet.found:
                made.append(sheet)
    return made


def _together(corpora: list[Corpus], tasks: set[str]) -> list[list[Corpus]]:
    """The corpora for these tasks in groups, none of which has a task twice."""
    groups: list[tuple[list[Corpus], set[str]]] = []
    for corpus in corpora:
        own = tasks & set(corpus.stands_for or [corpus.name])
        group = next((each for each in groups if not own & each[1]), None)
        if own and group is None:
            groups.append(([corpus], own))
        elif own and group is not None:
            group[0].append(corpus)
            group[1].update(own)
    return [group for group, _ in groups]


def _sheet(study: Study, results: Results, grid: Grid, corpora: list[Corpus]) -> Sheet:
    assert grid.paper is not None
    source = table(grid.paper)
    blocks = []
    for part in source.parts:
        lines = [_line(study, results, grid, corpora, row) for row in part.rows]
        if any(any(line.ours) for line in lines):
            blocks.append(Block(part.heading, part.columns, tuple(lines)))
    rates = all(_is_rate(part) for part in source.parts)
    names = ", ".join(corpus.name for corpus in corpora)
    return Sheet(source.number, source.caption, names, tuple(blocks), rates)


def _line(study: Study, results: Results, grid: Grid, corpora: list[Corpus], row: Row) -> Line:
    found: list[CellResult | None] = [None] * len(row.cells)
    label = ""
    for corpus in corpora:
        made = [study.experiment_of(cell, grid, corpus, 1) for cell in row.cells]
        for place, one in enumerate(made):
            if one is None:
                continue
            label = label or one.shape
            columns = [cell for cell, other in zip(row.cells, made) if other == one]
            found[place] = _score_in(results, one, row.cells[place], columns, corpus)
    return Line(row.label, label, tuple(found), row.cells)


def _score_in(
    results: Results, one: Experiment, cell: Cell, columns: list[Cell], corpus: Corpus
) -> CellResult | None:
    """Our number for a cell of the paper's.

    columns: all cells in the row for this one model. Where there are several, each has its own
    score, and a test set that is not the corpus's has none.
    """
    if len(columns) == 1:
        return results.find(one)
    same = [each for each in columns if each.metric == cell.metric]
    same = [each for each in same if corpus.test in (None, each.test)]
    if not same or same[0] is not cell:
        return None
    return results.by(METRICS[cell.metric]).find(one)


def _is_rate(part: Part) -> bool:
    return all(column.replace(".", "").isdigit() for column in part.columns)


def ordered(results: Results) -> list[CellResult]:
    """All cells for the list of everything, as they stand in the study, but for two things.

    The baseline continued follows the baseline, and cells that differ in ρ alone follow each other.
    """
    order: dict[str, int] = {}
    for experiment in results.study.experiments():
        order.setdefault(_but_for_rate(experiment), len(order))

    def place(cell: CellResult) -> tuple[int, bool, float]:
        one = cell.experiment
        control = one.start == "continued"
        name = _but_for_rate(one.baseline if control else one)
        return order.get(name, len(order)), control, one.drop_branch

    return sorted(results.cells.values(), key=place)


def _but_for_rate(experiment: Experiment) -> str:
    return replace(experiment, drop_branch=0.0).cell


def row_of(cell: CellResult, study: Study) -> dict[str, Any]:
    """A cell as plain values, for JSON and for lists."""
    return {
        "cell": cell.cell,
        "model": study.title_of(cell.experiment),
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
        "similarity": cell.similarity,
        "parameters": cell.records[0].get("parameters"),
        "updates": cell.average("updates"),
        "seconds": cell.average("wall_seconds"),
        "command": command_of(cell, study),
    }


def keys_of(cell: CellResult, study: Study) -> list[str]:
    """What `--only` needs to repeat a cell's trials, those of all seeds that were run."""
    said = re.search(r" --seeds (\d+)", _run_by(cell))
    usual = max(grid.seeds or study.seeds for grid in study.grids)
    count = usual if said is None else int(said[1])
    if cell.seeds == list(range(1, count + 1)):
        return [cell.cell]
    return [str(record["key"]) for record in cell.records]


def command_of(cell: CellResult, study: Study) -> str:
    """The command that repeats a cell's trials."""
    return _command(cell, keys_of(cell, study))


def _command(cell: CellResult, keys: list[str]) -> str:
    words = shlex.split(_run_by(cell))
    own = str(cell.records[-1]["key"])
    return shlex.join(one for word in words for one in (keys if word == own else [word]))


def _run_by(cell: CellResult) -> str:
    """The command of the last seed, which is the one that may have to say how many there are."""
    return str(cell.records[-1]["command"])


def repeating(results: Results) -> tuple[str, list[str]]:
    """The one command that repeats a cell when its key stands for KEY, and other cells' own.

    Those are cells that were run with other options than most.
    """
    cells = ordered(results)
    usual, _ = Counter(_command(cell, ["KEY"]) for cell in cells).most_common(1)[0]
    others = [cell for cell in cells if _command(cell, ["KEY"]) != usual]
    return usual, [command_of(cell, results.study) for cell in others]


def by_corpus(cells: Sequence[CellResult]) -> dict[str, list[CellResult]]:
    """Cells by the name of their corpus."""
    found: dict[str, list[CellResult]] = {}
    for cell in cells:
        found.setdefault(cell.experiment.corpus, []).append(cell)
    return found
