"""Several batches at once on a CPU, each on a core of its own.

Cutting every operation of one batch in two and waiting for both halves, some two hundred times a
step, wastes much of a second core, and nearly all of it on a machine that has other work. Two
batches side by side have nothing to wait for.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TypeVar

import torch

Work = TypeVar("Work")
Result = TypeVar("Result")


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
    before = torch.get_num_threads()
    with ThreadPoolExecutor(
        max_workers=min(workers, len(items)), initializer=torch.set_num_threads, initargs=(1,)
    ) as pool:
        try:
            futures = {pool.submit(work, item, stop): item for item in items}
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BaseException:
            stop.set()
            raise
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
            torch.set_num_threads(before)
