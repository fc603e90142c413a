"""What a run shows and records: a live line, metrics.jsonl and TensorBoard.

On a terminal the line is redrawn with progress and time left, between reports once a second;
elsewhere a line is printed for a report, at most one every few seconds. Only the first process has
a display.
"""

import json
import math
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from multibranch.errors import counted
from multibranch.training.progress import Progress

METRICS = "metrics.jsonl"


class Display:
    """Tells people and programs how training goes.

    folder: where the records go; None in all processes but the first.
    """

    def __init__(self, folder: Path | None, *, quiet: bool = False, tensorboard: bool = True):
        self.console = Console(stderr=True, quiet=quiet, highlight=False)
        self.folder = folder
        self._tensorboard: Any = None
        self._live: Live | None = None
        self._wants_tensorboard = tensorboard and folder is not None
        self._again = 0  # the first update that will be run, and recorded, again
        self._shown = 0.0
        self._reported: dict[str, Any] = {}  # the last report

    def start(self, progress: Progress | None) -> None:
        """Forget what was recorded after this progress, which will be run, and recorded, again.

        None: nothing of what was recorded was saved, all of it will be run again.
        """
        self._again = 0 if progress is None else progress.update + 1
        if self.folder is not None:
            _forget(self.folder / METRICS, progress)

    def __enter__(self) -> "Display":
        if self.console.is_terminal and not self.console.quiet:
            self._live = Live(Text(""), console=self.console, refresh_per_second=4)
            self._live.__enter__()
        return self

    def __exit__(self, *reason: Any) -> None:
        if self._live is not None:
            # Else a run that has ended leaves a line with time left below what it says at its end.
            self._live.transient = reason[0] is None
            self._live.__exit__(*reason)
            self._live = None
        if self._tensorboard is not None:
            with suppress(OSError):  # a full disk has been reported already
                self._tensorboard.close()

    def flush(self) -> None:
        """Have everything recorded so far on the disk, as a checkpoint is about to be."""
        if self._tensorboard is not None:
            self._tensorboard.flush()

    def tell(self, message: str) -> None:
        """A line that stays."""
        self.console.print(message, soft_wrap=True, markup=False)

    def progress(self, record: dict[str, Any], *, share: float | None, left: float | None) -> None:
        """Show and keep one report of training; `share` is how much of the run is done."""
        self.record("train", record)
        self._reported = record
        if self._live is not None:
            self._redraw(_line(record, share, left))
        elif time.monotonic() - self._shown > 5 or record["update"] <= 1:
            self._shown = time.monotonic()
            self.console.print(_line(record, share, left), soft_wrap=True, markup=False)

    def stands_still(self) -> bool:
        """Whether there is a live line that has not moved for a second."""
        return self._live is not None and time.monotonic() - self._shown >= 1

    def move(self, pace: dict[str, Any], *, share: float | None, left: float | None) -> None:
        """Redraw the live line between reports; losses and norm stay those of the last one.

        pace: the update, the epoch and the tokens a second, which is all that is known without
        asking the device.
        """
        self._redraw(_line({**self._reported, **pace}, share, left))

    def _redraw(self, line: str) -> None:
        if self._live is not None:
            self._shown = time.monotonic()
            self._live.update(Text(line, style="cyan"))

    def validation(self, record: dict[str, Any], *, best: bool) -> None:
        """Show and keep one validation."""
        self.record("validation", record)
        line = (
            f"{_place(record)}  valid loss {record['loss']:.4f}  ppl {_perplexity(record['plain'])}"
        )
        if record.get("score") is not None:
            line += f"  {record['score_name']} {record['score']:.2f}"
        if record.get("similarity"):
            values = list(record["similarity"].values())
            line += f"  branches' cosine {sum(values) / len(values):.3f}"
        self.tell(line + ("  *" if best else ""))

    def beginning(self, record: dict[str, Any]) -> None:
        """Show and keep the validation before the first update."""
        self.record("start", record)
        loss, perplexity = record["loss"], _perplexity(record["plain"])
        self.tell(f"starts at valid loss {loss:.4f}  ppl {perplexity}")

    def averaged(self, record: dict[str, Any]) -> None:
        """Show and keep the validation of the averaged weights."""
        self.record("averaged", record)
        loss, perplexity = record["loss"], _perplexity(record["plain"])
        many = counted(record["snapshots"], "validation")
        self.tell(f"averaged weights of {many}: valid loss {loss:.4f}  ppl {perplexity}")

    def record(self, kind: str, record: dict[str, Any]) -> None:
        """Keep a record in metrics.jsonl and TensorBoard."""
        if self.folder is None:
            return
        with (self.folder / METRICS).open("a", encoding="utf-8") as file:
            file.write(json.dumps({"kind": kind, **_finite(record)}) + "\n")
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
            # The curves forget what earlier runs recorded from that update on.
            place = str(self.folder / "tensorboard")
            self._tensorboard = SummaryWriter(place, purge_step=self._again)
        return self._tensorboard


def read_records(folder: Path, kind: str) -> list[dict[str, Any]]:
    """What a run has recorded of one kind (train, validation, start, averaged), in its order."""
    lines = (folder / METRICS).read_text(encoding="utf-8").splitlines()
    return [record for record in map(json.loads, lines) if record["kind"] == kind]


def _forget(path: Path, progress: Progress | None) -> None:
    """Cut metrics.jsonl back to what had been recorded when the run stood at `progress`."""
    if not path.is_file():
        return
    kept = []
    if progress is not None:
        last = {"train": progress.update, "validation": progress.validated, "start": 0}
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True):
            try:
                record = json.loads(line)
                if record["update"] <= last.get(record["kind"], -1):
                    kept.append(line)
            except (ValueError, LookupError, TypeError):
                continue  # the line that was being written when the run was killed
    beside = path.with_name(f".{path.name}")
    beside.write_text("".join(kept), encoding="utf-8")
    beside.replace(path)


def _line(record: dict[str, Any], share: float | None, left: float | None) -> str:
    """How training goes; a run that was resumed has no loss to tell before its first report."""
    parts = [_place(record)]
    if "loss" in record:
        parts += [f"loss {record['loss']:.3f}", f"ppl {_perplexity(record['plain'])}"]
    parts.append(f"{record['tokens_per_second']:,.0f} tok/s")
    if "norm" in record:
        parts.append(f"norm {record['norm']:.2f}")
    if share is not None:
        parts.append(f"{100 * share:3.0f}%")
    if left is not None:
        parts.append(f"{clock(left)} left")
    if record.get("skipped"):
        parts.append(f"{record['skipped']} skipped")
    return "  ".join(parts)


def _place(record: dict[str, Any]) -> str:
    return f"epoch {record['epoch']:>3}  update {record['update']:>7,}"


def clock(seconds: float) -> str:
    """Seconds as 1:02:03 or 2:03."""
    hours, rest = divmod(round(seconds), 3600)
    minutes, seconds = divmod(rest, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def _perplexity(loss: float) -> str:
    return "over e20" if loss >= 20 else f"{math.exp(loss):.2f}"


def _finite(value: Any) -> Any:
    """The same with null for numbers that JSON does not have."""
    if isinstance(value, dict):
        return {name: _finite(inner) for name, inner in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _flat(record: dict[str, Any]) -> list[tuple[str, float]]:
    flat = []
    for name, value in record.items():
        if isinstance(value, dict):
            flat += [(f"{name}/{inner}", number) for inner, number in _flat(value)]
        elif isinstance(value, int | float) and not isinstance(value, bool):
            flat.append((name, value))
    return flat
