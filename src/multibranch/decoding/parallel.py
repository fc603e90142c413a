"""Several batches at once on a CPU, each on a core of its own.

Cutting every operation of one batch in two and waiting for both halves, some two hundred times a
step, wastes much of a second core, and nearly all of it on a machine that has other work. Two
batches side by side have nothing to wait for.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from typing import TypeVar

import torch

Work = TypeVar("Work")
Result = TypeVar("Result")

_counting = threading.Lock()
_spreading = 0  # calls of `spread` under way, in whatever threads
_usual = 1  # PyTorch's threads before the first of them


def spread(
    work: Callable[[Work, threading.Event], Result],
    items: Sequence[Work],
    *,
    workers: int,
    stop: threading.Event | None = None,
) -> Iterator[tuple[Work, Result]]:
    """Every item with its result, as they come; `workers` items at once, one thread each.

    When the caller breaks off, or one item fails, the event that the work is given is set, so that
    the others end soon too. `stop` is that event, where someone else may set it as well.
    """
    stop = stop or threading.Event()
    if workers < 2 or len(items) < 2:
        for item in items:
            yield item, work(item, stop)
        return
    with (
        _threads_restored(),
        ThreadPoolExecutor(
            max_workers=min(workers, len(items)), initializer=torch.set_num_threads, initargs=(1,)
        ) as pool,
    ):
        try:
            futures = {pool.submit(work, item, stop): item for item in items}
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BaseException:
            stop.set()
            raise
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


@contextmanager
def _threads_restored() -> Iterator[None]:
    """Inside, each thread may set PyTorch's number of threads; what it was comes back at the end.

    Threads that start later find the number that one thread has set. So a call that begins while
    others are inside must not take it for the usual one.
    """
    global _spreading, _usual
    with _counting:
        if not _spreading:
            _usual = torch.get_num_threads()
        _spreading += 1
    try:
        yield
    finally:
        with _counting:
            _spreading -= 1
            torch.set_num_threads(_usual)
