"""What ends workers before their work is done: Ctrl-C, SIGTERM, and a time that is up."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from multibranch.errors import STOPS, Interrupted, interrupts_sent_again


def end_of(minutes: float | None) -> float | None:
    """When a time that begins now is up, by this machine's clock; None is never."""
    return None if minutes is None else time.monotonic() + 60 * minutes


def is_over(end: float | None) -> bool:
    """Whether that time is up."""
    return end is not None and time.monotonic() >= end


@contextmanager
def terminable(end: float | None = None) -> Iterator[None]:
    """Let SIGTERM, or a time that is up, end a worker as Ctrl-C does: what it holds is given back.

    A training inside takes SIGTERM itself, and saves what it has. Where it has just ended,
    `Outcome.before_more` raises it; before anything else begins, `is_over` is to be asked.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    left = False

    def stop(number: int, frame: Any) -> None:
        if not left:
            raise Interrupted(number)

    def time_is_up() -> None:
        main = threading.main_thread().ident
        assert main is not None
        signal.pthread_kill(main, signal.SIGTERM)

    timer = None if end is None else threading.Timer(end - time.monotonic(), time_is_up)
    before = [(number, signal.signal(number, stop)) for number in STOPS]
    try:
        if timer is not None:
            timer.daemon = True
            timer.start()
        with interrupts_sent_again():
            yield
    finally:
        left = True
        if timer is not None:
            timer.cancel()
            timer.join()
        for number, handler in before:
            signal.signal(number, handler)
