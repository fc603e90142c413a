"""Several runs of one architecture trained as one: where and how they meet.

A small model leaves most of a GPU idle, however its kernels are launched. Runs that differ in seed,
data or rates of drop-branch, but not in architecture and recipe, can share every kernel. Each is
still a Trainer of its own, in a thread of its own, with its folder, validation and checkpoints;
after every update, on a GPU after some, the threads meet at a Table, where the last to come runs
the updates of all (training/stacked.py).

What one run does not share with what it would be alone: the numbers of its dropout, which are drawn
for all, and the norm of the gradient in its reports, which is that of all; an update whose gradient
is not finite anywhere is skipped by all.
"""

import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any

from multibranch.data import PackedBatches, PaddedBatches
from multibranch.errors import UserError
from multibranch.training.config import TrainConfig
from multibranch.training.optimiser import Optimiser
from multibranch.training.signals import Asked, Interruption
from multibranch.training.stacked import Seat, Stacked, why_alone
from multibranch.training.step import Objective

# What PyTorch says on a CPU of how its own vmap attends and searches: nothing to be put right here.
_OF_VMAP = (
    ".*batching rule for aten::_scaled_dot_product_flash_attention_for_cpu",
    r".*searchsorted\(\): input value tensor is non-contiguous",
)


class Table:
    """Where runs meet for their updates.

    From the first update to the last they work in turn, each until it has to wait for the others:
    threads that want the interpreter all at once spend most of their time on getting it.

    Args:
        size: how many runs there are. All of them must come, or none gets on; one that fails must
            call `break_up`, which ends the others too.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.seats: list[Seat] = []
        self.left = threading.Event()  # all have ended their training, or one has failed
        self.interruption = Interruption(quiet=True)
        self.heard = Asked()  # what signals and clocks asked of all when they last met
        self._saved = time.monotonic()
        self._alone = threading.Lock()
        self._wishes: list[str] = []  # what those that have come have come for
        self._own = threading.local()
        self._stacked: Stacked | None = None
        self._barrier = threading.Barrier(size, action=self._act)  # of those without a place
        self._turns = [threading.Semaphore(0) for _ in range(size)]  # of each place

    def seat(
        self,
        objective: Objective,
        optimiser: Optimiser,
        batches: PackedBatches | PaddedBatches,
        train: TrainConfig,
        *,
        update: int,
    ) -> Seat:
        """A seat for a run that stands at this update; waits until all have one."""
        if not isinstance(batches, PackedBatches):
            raise UserError("runs are trained together with data.layout: packed alone")
        if refused := why_alone(train):
            raise UserError(refused)
        if hasattr(self._own, "place"):
            raise ValueError("a table is for one training of each run: call run_together again")
        seat = Seat(self._meet, objective, optimiser, batches, train, update)
        self.seats.append(seat)
        self._come("sit")
        self._own.place = seat.place
        self._await_turn(seat.place)
        return seat

    def leave(self) -> None:
        """Wait until all have ended their training. Does nothing for a thread that has left."""
        if not getattr(self._own, "left", False):
            self._own.left = True
            self._come("leave")

    def break_up(self) -> None:
        """End all runs, wherever they wait for each other."""
        self._barrier.abort()
        self._end_turns()
        self.left.set()

    def asked(self, update: int) -> Asked:
        """What signals and clocks ask of a run that stands at this update.

        Nothing where it has only staged it: its weights are still those of an earlier one.
        """
        met = self._stacked is not None and self._stacked.update == update
        return self.heard if met else Asked()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Inside, a run does what no two may do at once."""
        with self._alone:
            self._check()
            yield

    def _meet(self) -> None:
        """Run the updates that all have staged, once they have."""
        self._come("update")

    def _come(self, wish: str) -> None:
        """Wait until all have come, and have the last of them do what they came for."""
        self._check()
        self._wishes.append(wish)
        place = getattr(self._own, "place", None)
        if place is None:
            self._barrier.wait()
            return
        if place + 1 < self.size:
            self._turns[place + 1].release()
        else:
            self._act()
        self._await_turn(place)

    def _await_turn(self, place: int) -> None:
        self._turns[place].acquire()
        self._check()

    def _check(self) -> None:
        """End a run whose table was broken up, where nobody gives turns any more."""
        if self._barrier.broken:
            raise threading.BrokenBarrierError

    def _end_turns(self) -> None:
        for turn in self._turns:
            turn.release()

    def _act(self) -> None:
        wishes, self._wishes = set(self._wishes), []
        if len(wishes) > 1:  # they would wait for each other for ever
            raise UserError("of the runs that are trained together, one ended before the others")
        if "leave" in wishes:  # what follows may need the memory of the stacked weights
            self._stacked, self.seats = None, []
            self._end_turns()
            self.left.set()
            return
        if "sit" in wishes:
            self._lay()
        else:
            assert self._stacked is not None
            self._stacked.run()
            self._listen()
        self._turns[0].release()

    def _listen(self) -> None:
        """Hear for all what signals and clocks ask: only runs at one update can go on together."""
        # As many as there are runs are written at once: as much more rarely, then.
        minutes = self.size * min(seat.train.checkpoint_minutes for seat in self.seats)
        checkpoint = time.monotonic() - self._saved >= 60 * minutes
        if checkpoint:
            self._saved = time.monotonic()
        # After the last update all end of themselves: a signal is then for whoever called them.
        ended = self.seats[0].update == self.seats[0].train.max_updates
        self.heard = Asked(None if ended else self.interruption.signal, checkpoint)

    def _lay(self) -> None:
        # In the order of their folders, whoever came first: so that the same runs draw the same.
        self.seats.sort(key=lambda seat: seat.train.output)
        self._stacked = Stacked(self.seats)


def run_together(runs: Sequence[Callable[[Table], Any]]) -> list[Any]:
    """Call every function in a thread of its own, with the table of all; what they give back.

    Where one fails, all end, and its error is raised. A signal ends the training of all after the
    update in hand, with a checkpoint each; the second one ends each where it next waits for the
    others. A signal that comes when all have been trained does what it would do without this.
    Nothing of them is at work any more when this ends. Of no runs there are no results.
    """
    if not runs:
        return []
    table = Table(len(runs))
    errors: list[BaseException] = []

    def call(run: Callable[[Table], Any]) -> Any:
        try:
            result = run(table)
            table.leave()
            return result
        except BaseException as error:
            if not isinstance(error, threading.BrokenBarrierError):
                errors.append(error)
            table.break_up()

    # Not threads that are joined here: a signal in the midst of Thread.join makes Python 3.11 and
    # 3.12 take a thread that still works for one that has ended.
    with warnings.catch_warnings(), ThreadPoolExecutor(max_workers=len(runs)) as pool:
        for message in _OF_VMAP:
            warnings.filterwarnings("ignore", message, UserWarning)
        try:
            with table.interruption:
                calls = [pool.submit(call, run) for run in runs]
                table.left.wait()
            noted = table.interruption.signal
            if noted is not None and table.heard.signal is None:  # too late for an update to hear
                signal.raise_signal(noted)
            wait(calls)
        except BaseException:
            table.break_up()
            raise
    if errors:
        raise errors[0]
    return [each.result() for each in calls]
