"""How far a verb has come, on standard error: a bar in a terminal, else a line now and then."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bar

from multibranch.errors import counted

if TYPE_CHECKING:
    from multibranch.decoding import Hypothesis

_EVERY = 10.0  # seconds between lines


class Progress:
    """Counts the lines that are done; tells a summary at the end: what was done with how many."""

    def __init__(self, *, quiet: bool, did: str = "translated") -> None:
        self.did = did
        self.started = self.told = time.perf_counter()
        self.lines = self.tokens = self.unknowns = 0
        self.quiet = quiet
        self.bar: Bar | None = None
        if not quiet and sys.stderr.isatty():
            self.bar = Bar(
                SpinnerColumn(),
                TextColumn("{task.fields[done]}"),
                TextColumn("{task.fields[speed]}"),
                TimeElapsedColumn(),
                console=Console(file=sys.stderr),
                transient=True,
            )
            self.task = self.bar.add_task("", total=None, done="0 lines", speed="")

    def __enter__(self) -> "Progress":
        if self.bar is not None:
            self.bar.start()
        return self

    def __exit__(self, kind: type | None, *_: object) -> None:
        if self.bar is not None:
            self.bar.stop()
        if kind is None and not self.quiet:
            self._tell()

    def advance(self, lines: int) -> None:
        """So many more lines are done."""
        self.lines += lines
        if self.bar is not None:
            self.bar.update(self.task, done=counted(self.lines, "line"), speed=self._speed())
        elif not self.quiet and time.perf_counter() - self.told > _EVERY:
            self.told = time.perf_counter()
            self._tell()

    def note(self, hypotheses: "list[Hypothesis]") -> None:
        """What was found for a line."""
        if hypotheses:
            self.tokens += len(hypotheses[0].ids)
            self.unknowns += hypotheses[0].unknowns

    def _speed(self) -> str:
        return f"{self.lines / max(time.perf_counter() - self.started, 1e-9):,.1f} a second"

    def _tell(self) -> None:
        said = f"{self.did} {counted(self.lines, 'line')}, {self._speed()}"
        if self.unknowns:
            tokens = counted(self.tokens, "token")
            said += f"; <unk> would have been best at {self.unknowns:,} of {tokens}"
        print(said, file=sys.stderr)


@contextmanager
def counting(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar on standard error that counts to `total`; call the result with what was finished.

    Where there is no terminal to draw it in, a line comes now and then.
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _lines(what, total)
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
    with Bar(*columns, TimeRemainingColumn(), console=console, transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.update(task, advance=done)


def _lines(what: str, total: int) -> Callable[[int], None]:
    finished, told = 0, time.monotonic()

    def advance(done: int) -> None:
        nonlocal finished, told
        finished += done
        if time.monotonic() - told > _EVERY:
            told = time.monotonic()
            print(f"{what}: {finished:,} of {total:,}", file=sys.stderr)

    return advance
