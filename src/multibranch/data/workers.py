"""A function over many lots on several processes: in order, and with few lots in memory at once."""

import collections
import itertools
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any, TypeVar

from multibranch.errors import UserError, handlers

Given = TypeVar("Given")
Made = TypeVar("Made")

# Below this many lots, starting processes takes longer than the work.
_WORTHWHILE = 4
MOST_JOBS = 1024  # more is a slip; they are all started at once


def default_jobs() -> int:
    """The processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def map_lots(
    function: Callable[[Given], Made], lots: Iterable[Given], *, jobs: int
) -> Iterator[Made]:
    """``function`` of every lot, in the order of the lots.

    At most three lots a process are under way, whatever the number of lots: unlike the pools'
    own ``map``, which reads its input to the end at once.
    """
    lots = iter(lots)
    first = list(itertools.islice(lots, _WORTHWHILE if jobs > 1 else 0))
    if len(first) < _WORTHWHILE:
        yield from map(function, itertools.chain(first, lots))
        return
    # Children that only run Python code are safe to fork, and start without importing anything.
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    pool = ProcessPoolExecutor(jobs, mp_context=context, initializer=_start, initargs=(function,))
    try:
        waiting: collections.deque[Future[Made]] = collections.deque()
        for lot in itertools.chain(first, lots):
            with _interrupts_held_back():  # this forks
                waiting.append(pool.submit(_call, lot))
            if len(waiting) >= 3 * jobs:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool as error:
        raise UserError(
            f"one of {jobs} processes was killed, as the system does where memory runs out: make "
            "room, or use fewer with --jobs."
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


@contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM wait for the end of the block.

    Python runs hooks when a process forks, and an interrupt that falls into one of them is lost.
    """
    came: list[int] = []
    before = handlers()
    for number in before:
        signal.signal(number, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if came:
        signal.raise_signal(came[0])


_function: Callable[[Any], Any]


def _start(function: Callable[[Any], Any]) -> None:
    global _function
    _function = function
    # Ctrl-C reaches every process of the terminal; the parent decides what happens then.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # with nothing of its own to clean up


def _call(lot: Any) -> Any:
    return _function(lot)
