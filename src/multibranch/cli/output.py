"""Results as a table for people and as JSON for programs."""

import json
import sys
from collections.abc import Sequence
from typing import Any


def print_result(rows: Sequence[dict[str, Any]], *, as_json: bool, title: str = "") -> None:
    """Print rows with the same keys to standard output; one row is one JSON object."""
    if as_json:
        content: Any = rows[0] if len(rows) == 1 else list(rows)
        print(json.dumps(content, indent=2, ensure_ascii=False))
        return
    from rich.console import Console
    from rich.table import Table

    console = Console(file=sys.stdout, highlight=False)
    table = Table(title=title or None, title_justify="left", header_style="bold")
    for name in rows[0] if rows else []:
        numeric = all(isinstance(row[name], int | float) for row in rows)
        table.add_column(name.replace("_", " "), justify="right" if numeric else "left")
    for row in rows:
        table.add_row(*(_cell(value) for value in row.values()))
    console.print(table)


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1 else f"{value:,.2f}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
