"""Results as a table for people and as JSON for programs."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from multibranch.cli import streams
from multibranch.disk import check_file
from multibranch.errors import UserError, counted


def print_result(
    rows: Sequence[dict[str, Any]], *, as_json: bool, title: str = "", many: bool = False
) -> None:
    """Print rows with the same keys to standard output; one row is one JSON object.

    `many`: JSON is a list whatever the number of rows, for what may happen to be one.
    """
    if as_json:
        content: Any = rows[0] if len(rows) == 1 and not many else list(rows)
        print(json.dumps(content, indent=2, ensure_ascii=False))
        return
    from rich.table import Table
    from rich.text import Text

    console = streams.console()
    table = Table(title=title or None, title_justify="left", header_style="bold")
    names = list(rows[0]) if rows else []
    columns = [[name.replace("_", " "), *_cells([row[name] for row in rows])] for name in names]
    widths = _widths(columns, console.width - 3 * len(names) - 1)  # without borders and blanks
    for name, cells, width in zip(names, columns, widths, strict=True):
        values = [row[name] for row in rows if row[name] is not None]
        numeric = bool(values) and all(isinstance(value, int | float) for value in values)
        justify: Literal["left", "right"] = "right" if numeric else "left"
        # Folded, not cut: in a narrow terminal a name or a number must still be there to read.
        table.add_column(cells[0], justify=justify, overflow="fold", width=width)
    for row_cells in zip(*(column[1:] for column in columns), strict=True):
        table.add_row(*map(Text, row_cells))
    console.print(table)


def print_scores(
    row: dict[str, Any], scores: Mapping[str, Any], *, as_json: bool, title: str
) -> None:
    """Print one row, and how each of its scores was computed."""
    signatures = {name: score.signature for name, score in scores.items()}
    if as_json:
        print_result([{**row, "signatures": signatures}], as_json=True)
        return
    print_result([row], as_json=False, title=title)
    print_signatures(signatures)


def print_signatures(signatures: Mapping[str, str]) -> None:
    """How each score was computed, a line each: in a table's cell it would be broken to copy."""
    for name, signature in signatures.items():
        print(f"{name}: {signature}")


def scored(result: Mapping[str, Any], noun: str) -> str:
    """What a result of `evaluate` was computed on, for its title, and how.

    `noun`: what is counted; the result has its number under the plural.
    """
    number, whole = result[f"{noun}s"], result["split_size"]
    said = counted(whole, noun)
    some = said if number == whole else f"the first {number:,} of {said}"
    chosen = ", ".join(map(str, result["branches"] or ()))
    only = f", branches {chosen} only" if chosen else ""
    return f"{result['split']}, {some}, in {result['precision']}{only}"


def check_writable(path: str) -> None:
    """Refuse a file that could not be written, before the work whose result goes there."""
    place = Path(path)
    if not place.parent.exists():
        raise UserError(f"there is no folder {place.parent} to write {place.name} to; make it")
    if place.is_file() or place.is_dir() or not place.exists():
        # It is written beside, and then takes its place; a pipe is written to as it is.
        check_file(place.resolve() if place.is_symlink() else place, "--output")
    if place.exists() and not os.access(place, os.W_OK):
        raise UserError(f"{path} may not be written: choose another --output")


def _widths(columns: Sequence[Sequence[str]], room: int) -> list[int | None]:
    """How wide columns must be to break no word; None where none can.

    A table that is too wide is narrowed by rich without regard to words: "paramet", "ers".
    """
    from rich.cells import cell_len

    words = [[word for cell in cells for word in cell.split()] for cells in columns]
    least = [max(map(cell_len, found), default=0) for found in words]
    widths = [max(map(cell_len, cells)) for cells in columns]
    if sum(least) > room:
        return [None] * len(columns)
    while sum(widths) > room:
        spare = [(width, i) for i, width in enumerate(widths) if width > least[i]]
        widths[max(spare)[1]] -= 1
    return list(widths)


def _cells(values: Sequence[Any]) -> list[str]:
    """The cells of a column, with equally many decimals: 0.900 above 0.891, 0.40 above 1.62."""
    cells = [_cell(value) for value in values]
    numbers = [value for value in values if isinstance(value, float)]
    if len(numbers) < 2:
        return cells
    if any(abs(value) > 1 for value in numbers):
        if any(0 < abs(value) < 0.1 for value in numbers):  # of which two decimals leave little
            return cells
        decimals = 2
    else:
        short = [f"{value:.4g}" for value in numbers]
        if any("e" in cell for cell in short):
            return cells
        decimals = max(2, *(len(cell.partition(".")[2]) for cell in short))
    return [
        f"{value:,.{decimals}f}" if isinstance(value, float) else cell
        for value, cell in zip(values, cells, strict=True)
    ]


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1 else f"{value:,.2f}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
