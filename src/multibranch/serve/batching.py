"""Requests of many clients in common batches: one thread that takes what waits and runs it.

A `Work` is what one request brought: items that can share a batch with the items of any other work
of the same key. The thread takes the oldest work, gives others of its key a few milliseconds to
join it, and fills a batch from all of them in turn, so that a long request does not keep short ones
waiting.
"""

import contextlib
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from typing import Any

from multibranch.serve.metrics import Metrics

Run = Callable[[Any, list[Any], threading.Event], list[Any]]


class QueueFull(Exception):
    """There is no room for more work; `retry_after` seconds from now there should be."""

    def __init__(self, retry_after: int) -> None:
        super().__init__("the queue is full")
        self.retry_after = retry_after


class Closed(Exception):
    """The service is stopping and takes nothing more."""


@dataclass(eq=False)
class Work:
    """The items of one request.

    key: items of equal keys may be run together.
    costs: what each item takes of a batch's budget: tokens.
    future: resolves to the results in order. Cancel it, and what is left of the work is dropped, as
        it is once an item has failed.
    """

    key: Hashable
    items: Sequence[Any]
    costs: Sequence[int]
    future: "Future[list[Any]]" = field(default_factory=Future)
    arrived: float = field(default_factory=time.monotonic)
    taken: int = 0
    results: dict[int, Any] = field(default_factory=dict)


class Batcher:
    """Runs works in batches, in a thread of its own.

    Args:
        run: (key, items, stop) → the items' results in order; may break off once `stop` is set.
        capacity: items that may be admitted and unfinished.
        batch_cost: what the items of a batch may cost, each counted as its longest.
        wait: seconds that a work waits for others to join it.
    """

    def __init__(
        self,
        run: Run,
        *,
        capacity: int,
        batch_cost: int,
        wait: float,
        metrics: Metrics | None = None,
    ) -> None:
        self._run, self._capacity, self._batch_cost, self._wait = run, capacity, batch_cost, wait
        self.metrics = metrics or Metrics()
        self._change = threading.Condition()
        self._waiting: deque[Work] = deque()
        self._running: list[Work] = []
        self._stop = threading.Event()  # breaks the running batch off
        self._admitted = 0
        self._closing = False
        self._seconds_an_item = 0.05
        self._thread = threading.Thread(target=self._loop, name="batcher", daemon=True)
        self._thread.start()

    @property
    def admitted(self) -> int:
        """Items that wait or run."""
        return self._admitted

    def admit(self, count: int) -> None:
        """Take room for `count` items, or raise QueueFull; `release` gives it back."""
        with self._change:
            if self._closing:
                raise Closed
            if self._admitted + count > self._capacity:
                wait = self._admitted * self._seconds_an_item
                raise QueueFull(min(60, max(1, math.ceil(wait))))
            self._admitted += count

    def release(self, count: int) -> None:
        """Give room back that `admit` took."""
        with self._change:
            self._admitted -= count

    def submit(self, work: Work) -> "Future[list[Any]]":
        """Put work that was admitted into the queue."""
        work.future.add_done_callback(lambda _: self._gone(work))
        with self._change:
            if self._closing:
                raise Closed
            self._waiting.append(work)
            self._change.notify()
        return work.future

    def close(self, *, timeout: float | None = None) -> None:
        """Finish what was submitted, then end the thread."""
        with self._change:
            self._closing = True
            self._change.notify()
        self._thread.join(timeout)

    # -- The thread -------------------------------------------------------------------------

    def _loop(self) -> None:
        while batch := self._take():
            began = time.monotonic()
            for work, _ in batch:
                self.metrics.waited.observe(began - work.arrived)
            self.metrics.batch_sentences.observe(len(batch))
            self._run_batch(batch)
            seconds = time.monotonic() - began
            self.metrics.batch_seconds.observe(seconds)
            self._seconds_an_item += 0.1 * (seconds / len(batch) - self._seconds_an_item)
            with self._change:
                self._running = []
            del batch  # nothing of a request stays while the thread waits for the next

    def _take(self) -> list[tuple[Work, int]]:
        """The next batch, as works and numbers of their items; empty when all is over."""
        with self._change:
            while True:
                self._drop_done()
                if not self._waiting:
                    if self._closing:
                        return []
                    self._change.wait()
                    continue
                batch = self._fill()
                left = self._waiting[0].arrived + self._wait - time.monotonic()
                if left <= 0 or self._closing or self._is_full(batch):
                    break
                self._change.wait(left)
            for work, number in batch:
                work.taken = max(work.taken, number + 1)
            together = {id(work) for work, _ in batch}
            rest = [w for w in self._waiting if id(w) in together and w.taken < len(w.items)]
            others = [work for work in self._waiting if id(work) not in together]
            self._waiting = deque([*others, *rest])  # what is not finished queues up again
            self._running = [work for work, number in batch if number + 1 == work.taken]
            self._stop.clear()
            return batch

    def _fill(self) -> list[tuple[Work, int]]:
        """Items of the oldest work's key, from every work in turn, as many as a batch holds."""
        key = self._waiting[0].key
        works = [work for work in self._waiting if work.key == key]
        batch: list[tuple[Work, int]] = []
        longest, step = 0, 0
        while works:
            for work in works:
                number = work.taken + step
                longest = max(longest, work.costs[number])
                if batch and longest * (len(batch) + 1) > self._batch_cost:
                    return batch
                batch.append((work, number))
            step += 1
            works = [work for work in works if work.taken + step < len(work.items)]
        return batch

    def _is_full(self, batch: list[tuple[Work, int]]) -> bool:
        longest = max(work.costs[number] for work, number in batch)
        return longest * (len(batch) + 1) > self._batch_cost

    def _drop_done(self) -> None:
        """What was cancelled, or of which a part has failed, is not worth running."""
        if any(work.future.done() for work in self._waiting):
            self._waiting = deque(w for w in self._waiting if not w.future.done())

    def _gone(self, work: Work) -> None:
        """A work's future is done: in order, failed or cancelled."""
        if not work.future.cancelled():
            return
        self.metrics.cancelled.add()
        with self._change:
            # What nobody waits for any more is not worth finishing.
            if self._running and all(other.future.cancelled() for other in self._running):
                self._stop.set()
            self._change.notify()

    def _run_batch(self, batch: list[tuple[Work, int]]) -> None:
        items = [work.items[number] for work, number in batch]
        try:
            results = self._run(batch[0][0].key, items, self._stop)
        except InterruptedError:
            return
        except Exception as error:
            works = {id(work): work for work, _ in batch}
            if len(works) == 1:
                _fail(batch[0][0], error)
                return
            # One of them is at fault; the others must not suffer for it.
            for number in works:
                self._run_batch([pair for pair in batch if id(pair[0]) == number])
            return
        for (work, number), result in zip(batch, results, strict=True):
            work.results[number] = result
            if len(work.results) == len(work.items):
                _resolve(work)


def _resolve(work: Work) -> None:
    with contextlib.suppress(InvalidStateError):  # cancelled meanwhile
        work.future.set_result([work.results[number] for number in range(len(work.items))])


def _fail(work: Work, error: Exception) -> None:
    with contextlib.suppress(InvalidStateError):
        work.future.set_exception(error)
