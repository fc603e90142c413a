"""Work that goes on beside training: writing checkpoints and model directories, one at a time.

Jobs run in the order they were given, so that what a checkpoint builds on is on the disk before it.
After one that failed no other runs, and training is told at its next update.
"""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

# Every job holds a copy of the weights in memory: so many may wait.
MOST_WAITING = 2


class Background:
    """Runs jobs one after the other in a thread of its own."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="writer")
        self._jobs: deque[Future[None]] = deque()
        self._failed = False

    def submit(self, job: Callable[[], None]) -> None:
        """Have a job done; waits while too many others do."""
        self.check()
        while len(self._jobs) > MOST_WAITING:
            self._jobs[0].exception()
            self.check()
        self._jobs.append(self._pool.submit(self._run, job))

    def check(self) -> None:
        """Raise what a job raised."""
        while self._jobs and self._jobs[0].done():
            self._jobs.popleft().result()

    def wait(self) -> None:
        """Wait for all jobs, and raise what one of them raised."""
        while self._jobs:
            self._jobs.popleft().result()

    def close(self) -> None:
        """Wait for all jobs, whatever became of them."""
        self._pool.shutdown(wait=True)

    def _run(self, job: Callable[[], None]) -> None:
        if self._failed:
            return
        try:
            job()
        except BaseException:
            self._failed = True
            raise
