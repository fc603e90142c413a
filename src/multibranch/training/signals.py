"""SIGTERM and Ctrl-C: ask for an end after the update in hand; the second one insists."""

import os
import signal
import threading
import time
from types import FrameType
from typing import Any, NamedTuple

from multibranch.errors import STOPS, Interrupted

# One Ctrl-C may come twice, from the terminal and from a launcher: only later ones insist.
GRACE = 1.0  # seconds

ANSWER = b"\nstopping after this update; what is done is saved (once more stops without saving)\n"


class Asked(NamedTuple):
    """What signals and clocks ask of a run, the same in every process."""

    signal: int | None = None
    checkpoint: bool = False
    out_of_time: bool = False


class Interruption:
    """Inside this context the first signal is only noted."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.signal: int | None = None
        self.quiet = quiet
        self._since = 0.0
        self._before: list[Any] = []

    def __enter__(self) -> "Interruption":
        # Only the main thread may say what signals do.
        if threading.current_thread() is threading.main_thread():
            self._before = [signal.signal(number, self._ask) for number in STOPS]
        return self

    def __exit__(self, *reason: object) -> None:
        for number, handler in zip(STOPS, self._before):
            signal.signal(number, handler)
        self._before = []

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None:
            if time.monotonic() - self._since < GRACE:
                return
            raise Interrupted(number)
        self.signal, self._since = number, time.monotonic()
        if not self.quiet:
            os.write(2, ANSWER)  # print may be what the signal interrupted
