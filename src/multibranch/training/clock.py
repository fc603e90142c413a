"""The times of a run: what it has taken, its speed, and since when nothing was saved."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Clock:
    """Starts when it is made.

    seconds, tokens: those of the run so far, over all its continuations.
    """

    def __init__(self, *, seconds: float, tokens: int) -> None:
        now = time.monotonic()
        self._began = now - seconds
        self._saved = now
        self._reported, self._tokens = now, tokens

    def seconds(self) -> float:
        """Time spent on this run, over all its continuations."""
        return time.monotonic() - self._began

    def speed(self, tokens: int) -> float:
        """Tokens a second since the last report, now that there are so many."""
        return (tokens - self._tokens) / max(time.monotonic() - self._reported, 1e-9)

    def report(self, tokens: int) -> None:
        """Measure the speed from here on."""
        self._reported, self._tokens = time.monotonic(), tokens

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Inside, time does not count for the speed: validation is not training."""
        before = time.monotonic()
        yield
        self._reported += time.monotonic() - before

    def save(self) -> None:
        """Note that all has been saved."""
        self._saved = time.monotonic()

    def minutes_unsaved(self) -> float:
        """Time since all was saved."""
        return (time.monotonic() - self._saved) / 60
