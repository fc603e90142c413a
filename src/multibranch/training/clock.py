"""The times of a run: what it has taken, its speed, and since when nothing was saved."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Clock:
    """Starts when it is made.

    seconds, tokens, share: those of the run so far, over all its continuations, and how much of
        it is done.
    """

    def __init__(self, *, seconds: float, tokens: int, share: float | None = None) -> None:
        now = time.monotonic()
        self._began = now - seconds
        self._seconds, self._share = seconds, share or 0.0
        self._saved = now
        self._reported, self._tokens = now, tokens

    def seconds(self) -> float:
        """Time spent on this run, over all its continuations."""
        return time.monotonic() - self._began

    def left(self, share: float) -> float | None:
        """Seconds to the end, now that this share is done, at the pace since this clock was made.

        What was before may have been on another machine, or on one that was busier.
        """
        done = share - self._share
        return (self.seconds() - self._seconds) * (1 - share) / done if done > 0 else None

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
