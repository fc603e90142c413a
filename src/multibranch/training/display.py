"""What a run shows and records: a live line, metrics.jsonl and TensorBoard.

On a terminal the line is redrawn with progress and time left; elsewhere one line is printed a
report. Only the first process has a display.
"""

import json
import math
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text


class Display:
    """Tells people and programs how training goes."""

    def __init__(self, folder: Path | None, *, quiet: bool = False, tensorboard: bool = True):
        self.console = Console(stderr=True, quiet=quiet, highlight=False)
        self.folder = folder
        self._tensorboard: Any = None
        self._live: Live | None = None
        self._wants_tensorboard = tensorboard and folder is not None
        self._shown = 0.0

    def __enter__(self) -> "Display":
        if self.console.is_terminal and not self.console.quiet:
            self._live = Live(Text(""), console=self.console, refresh_per_second=4)
            self._live.__enter__()
        return self

    def __exit__(self, *reason: Any) -> None:
        if self._live is not None:
            self._live.__exit__(*reason)
            self._live = None
        if self._tensorboard is not None:
            self._tensorboard.close()

    def tell(self, message: str) -> None:
        """A line that stays."""
        self.console.print(message, soft_wrap=True, markup=False)

    def progress(self, record: dict[str, Any], *, share: float | None, left: float | None) -> None:
        """Show and keep one report of training; `share` is how much of the run is done."""
        self.record("train", record)
        line = (
            f"epoch {record['epoch'] + 1}  update {record['update']:,}  "
            f"loss {record['loss']:.3f}  ppl {_perplexity(record['plain'])}  "
            f"{record['tokens_per_second']:,.0f} tok/s  norm {record['norm']:.2f}"
        )
        if share is not None:
            line += f"  {100 * share:3.0f}%"
        if left is not None:
            line += f"  {clock(left)} left"
        if record.get("skipped"):
            line += f"  {record['skipped']} skipped"
        if self._live is not None:
            self._live.update(Text(line, style="cyan"))
        elif time.monotonic() - self._shown > 5 or record["update"] <= 1:
            self._shown = time.monotonic()
            self.console.print(line, soft_wrap=True, markup=False)

    def validation(self, record: dict[str, Any], *, best: bool) -> None:
        """Show and keep one validation."""
        self.record("validation", record)
        line = (
            f"epoch {record['epoch']:>3}  update {record['update']:>7,}  "
            f"valid loss {record['loss']:.4f}  ppl {_perplexity(record['plain'])}"
        )
        if record.get("score") is not None:
            line += f"  {record['score_name']} {record['score']:.2f}"
        if record.get("similarity"):
            values = list(record["similarity"].values())
            line += f"  branches' cosine {sum(values) / len(values):.3f}"
        self.tell(line + ("  *" if best else ""))

    def record(self, kind: str, record: dict[str, Any]) -> None:
        """Keep a record in metrics.jsonl and TensorBoard."""
        if self.folder is None:
            return
        with (self.folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps({"kind": kind, **record}) + "\n")
        writer = self._writer()
        if writer is not None:
            for name, value in _flat(record):
                writer.add_scalar(f"{kind}/{name}", value, record.get("update", 0))

    def _writer(self) -> Any:
        if self._wants_tensorboard and self._tensorboard is None:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError:
                self._wants_tensorboard = False
                return None
            assert self.folder is not None
            self._tensorboard = SummaryWriter(str(self.folder / "tensorboard"))
        return self._tensorboard


def forget_after(folder: Path, update: int) -> None:
    """Cut metrics.jsonl back to `update`: what follows will be run, and recorded, again."""
    path = folder / "metrics.jsonl"
    if not path.is_file():
        return
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            if json.loads(line).get("update", 0) <= update:
                kept.append(line)
        except json.JSONDecodeError:
            continue  # the line that was being written when the run was killed
    path.write_text("".join(line + "\n" for line in kept), encoding="utf-8")


def clock(seconds: float) -> str:
    """Seconds as 1:02:03 or 2:03."""
    hours, rest = divmod(round(seconds), 3600)
    minutes, seconds = divmod(rest, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def stderr_is_terminal() -> bool:
    """Whether a person is watching."""
    return sys.stderr.isatty()


def _perplexity(loss: float) -> str:
    return f"{math.exp(loss):.2f}" if loss < 20 else "over e20"


def _flat(record: dict[str, Any]) -> list[tuple[str, float]]:
    flat = []
    for name, value in record.items():
        if isinstance(value, dict):
            flat += [(f"{name}/{inner}", number) for inner, number in _flat(value)]
        elif isinstance(value, int | float) and not isinstance(value, bool):
            flat.append((name, value))
    return flat
