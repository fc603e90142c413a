"""Several runs of one architecture as one: their weights stacked, and one launch a layer for all.

A small model leaves most of a GPU idle, however its kernels are launched. Runs that differ in seed,
data or rates of drop-branch, but not in architecture and recipe, can share every kernel. Each is
still a Trainer of its own, in a thread of its own, with its folder, validation and checkpoints; at
every update the threads meet at a Table, where the last to come runs the update of all. The weights
and moments of each run are views of the stacked ones, so that nothing else has to know.

What one run does not share with what it would be alone: the numbers of its dropout, which are drawn
for all, and the norm of the gradient in its reports, which is that of all; an update whose gradient
is not finite anywhere is skipped by all.
"""

import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from multibranch.data import PackedBatch, PackedBatches, PaddedBatches
from multibranch.errors import UserError
from multibranch.nn.drop import Keep
from multibranch.training.config import TrainConfig
from multibranch.training.graphed import RING, STAGED
from multibranch.training.graphs import Graphs
from multibranch.training.optimiser import Optimiser
from multibranch.training.seeds import seed_update
from multibranch.training.signals import Asked, Interruption
from multibranch.training.step import Objective, Step, add_up, arguments, longest_sequences

# What the update of all takes from one of them, and what says when they end.
_ALIKE = (
    *("learning_rate", "warmup", "warmup_from", "schedule", "cool_down", "betas", "epsilon"),
    *("weight_decay", "label_smoothing", "max_updates"),
)
# What PyTorch says on a CPU of how its own vmap attends and searches: nothing to be put right here.
_OF_VMAP = (
    ".*batching rule for aten::_scaled_dot_product_flash_attention_for_cpu",
    r".*searchsorted\(\): input value tensor is non-contiguous",
)
# Of a model's settings, what each may have of its own: `keep` is drawn for every run by itself.
_OWN = ("drop_branch", "drop_ffn")


class Table:
    """Where runs meet for every update.

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
        self.asked = Asked()  # what signals and clocks ask of all, as of the last update
        self._saved = time.monotonic()
        self._alone = threading.Lock()
        self._wishes: list[str] = []  # what those that have come have come for
        self._own = threading.local()
        self._together: _Together | None = None
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
    ) -> "Seat":
        """A seat for a run that stands at this update; waits until all have one."""
        if not isinstance(batches, PackedBatches):
            raise UserError("runs are trained together with data.layout: packed alone")
        if refused := why_alone(train):
            raise UserError(refused)
        seat = Seat(self, objective, optimiser, batches, train, update)
        self.seats.append(seat)
        self._come("sit")
        self._own.place = seat.place
        self._await_turn(seat.place)
        return seat

    def meet(self) -> None:
        """Run an update, once all have staged their batches."""
        self._come("update")

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

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Inside, a run does what no two may do at once."""
        with self._alone:
            self._check()
            yield

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
            self._together, self.seats = None, []
            self._end_turns()
            self.left.set()
            return
        if "sit" in wishes:
            self._lay()
        else:
            assert self._together is not None
            self._together.run()
            self._listen()
        self._turns[0].release()

    def _listen(self) -> None:
        """Hear for all what signals and clocks ask: only runs at one update can go on together."""
        minutes = min(seat.train.checkpoint_minutes for seat in self.seats)
        checkpoint = time.monotonic() - self._saved >= 60 * minutes
        if checkpoint:
            self._saved = time.monotonic()
        self.asked = Asked(self.interruption.signal, checkpoint)

    def _lay(self) -> None:
        # In the order of their folders, whoever came first: so that the same runs draw the same.
        self.seats.sort(key=lambda seat: seat.train.output)
        self._together = _Together(self.seats)


class Seat(Step):
    """One run's part in the updates of all."""

    def __init__(
        self,
        table: Table,
        objective: Objective,
        optimiser: Optimiser,
        batches: PackedBatches,
        train: TrainConfig,
        update: int,
    ) -> None:
        super().__init__(objective, optimiser, device=optimiser.parameters[0].device)
        self.keeps_on = torch.device("cpu")  # all are sent to the device at once
        self.table = table
        self.batches = batches
        self.train = train
        self.update = update
        self.place: int
        self.together: _Together

    def run(
        self,
        batches: PackedBatches | PaddedBatches,
        numbers: Sequence[int],
        *,
        keeps: Sequence[Keep],
        rate: float,
        tokens: int,
    ) -> None:
        assert isinstance(batches, PackedBatches)
        (number,), (keep,) = numbers, keeps
        self._tokens += self.together.stage(self.place, batches, number, keep, rate, tokens)
        self.table.meet()
        self._updates += 1

    def take_part(self, together: "_Together", place: int) -> None:
        """Let weights, moments and sums be views of the stacked ones."""
        self.together, self.place = together, place
        own, all_ = self.optimiser, together.optimiser
        for parameter, stacked in zip(own.parameters, all_.parameters, strict=True):
            parameter.data = stacked.data[place]
        for master, stacked in zip(own.masters, all_.masters, strict=True):
            master.data, master.grad = stacked.data[place], None
            moments = all_.adam.state[stacked]
            own.adam.state[master] = {
                "step": moments["step"],
                **{name: moments[name][place] for name in ("exp_avg", "exp_avg_sq")},
            }
        self._sums = together.sums[place]


class _StackedObjective(nn.Module):
    """The objectives of all runs: their parameters, stacked, through one of them."""

    def __init__(self, objectives: Sequence[Objective]) -> None:
        super().__init__()
        named = [dict(objective.named_parameters()) for objective in objectives]
        self.names = list(named[0])
        self.weights = nn.ParameterList(
            nn.Parameter(torch.stack([each[name].detach() for each in named]))
            for name in self.names
        )
        self._one = [objectives[0]]  # in a list: its own parameters are not ours

    def forward(self, keep: Tensor | None, *batch: Tensor, **longest: int) -> Tensor:
        """(runs, 2): what each objective gives; every tensor has the runs in front."""

        def of_one(weights: list[Tensor], keep: Tensor | None, *batch: Tensor) -> Tensor:
            weights_by_name = dict(zip(self.names, weights))
            return functional_call(self._one[0], weights_by_name, (*batch, keep), longest)

        dims = (0, None if keep is None else 0, *(0 for _ in batch))
        of_all = torch.vmap(of_one, in_dims=dims, randomness="different")
        return of_all(list(self.weights), keep, *batch)


class _Together:
    """The update of all runs: eager on a CPU, as CUDA graphs on a GPU."""

    def __init__(self, seats: Sequence[Seat]) -> None:
        self.seats = seats
        first = seats[0]
        self.device = first.device
        for seat in seats:
            _check_alike(first, seat)
        if any(seat.update != first.update for seat in seats):
            raise UserError("runs that go on together must stand at the same update")
        self.update = first.update
        self.stacked = _StackedObjective([seat.objective for seat in seats])  # type: ignore[misc]
        self.optimiser = Optimiser(
            self.stacked,
            betas=first.train.betas,
            epsilon=first.train.epsilon,
            weight_decay=first.train.weight_decay,
        )
        self.optimiser.load_state(self._state())
        if not self.optimiser.adam.state:
            self.optimiser.initialise()
        on_gpu = self.device.type == "cuda"
        self.objective = torch.compile(self.stacked, dynamic=False) if on_gpu else self.stacked
        self.graphs = Graphs() if on_gpu else None
        lengths = [longest_sequences(seat.batches) for seat in seats]
        self.longest = {name: max(each[name] for each in lengths) for name in lengths[0]}
        self.batch = self._allocate().to(self.device)
        self.ring = [self._allocate(pin_memory=on_gpu) for _ in range(RING)]
        self.copied = [torch.cuda.Event() for _ in range(RING)] if on_gpu else []
        self.turn = 0
        self.scale = torch.zeros(len(seats), device=self.device)
        self.scales = [torch.zeros(len(seats), pin_memory=on_gpu) for _ in range(RING)]
        rates = [seat.objective.model.drop_rates() for seat in seats]  # type: ignore[union-attr,operator]
        factors = torch.ones((len(seats), len(rates[0])))
        self.keep = factors.to(self.device) if any(map(any, rates)) else None
        self.keeps = [factors.pin_memory() if on_gpu else factors.clone() for _ in range(RING)]
        self.rate = 0.0
        self.losses = torch.zeros((len(seats), 2), device=self.device)
        self.sums = torch.stack([seat._sums for seat in seats])
        for place, seat in enumerate(seats):
            seat.take_part(self, place)

    def _state(self) -> dict[str, Tensor]:
        """What the runs' own optimisers hold, stacked, under the names of the optimiser of all."""
        own = [seat.optimiser.state() for seat in self.seats]
        found: dict[str, Tensor] = {}
        for name, ours in zip(self.seats[0].optimiser.names, self.optimiser.names, strict=True):
            for kind in ("weight", "mean", "square"):
                if f"{kind}/{name}" in own[0]:
                    tensors = [each[f"{kind}/{name}"] for each in own]
                    found[f"{kind}/{ours}"] = torch.stack(tensors)
            if f"steps/{name}" in own[0]:
                steps = [each[f"steps/{name}"] for each in own]
                if any(int(each) != int(steps[0]) for each in steps):
                    raise UserError("runs that go on together must have skipped as many updates")
                found[f"steps/{ours}"] = steps[0]
        return found

    def _allocate(self, *, pin_memory: bool = False) -> PackedBatch:
        """A batch of batches, as wide as the widest of the runs'."""
        made = [seat.batches.allocate() for seat in self.seats]
        tensors: dict[str, Any] = {}
        for name in STAGED:
            rows = [getattr(batch, name) for batch in made]
            widest = max(rows, key=len)
            row = torch.empty((len(made), len(widest)), dtype=widest.dtype, pin_memory=pin_memory)
            tensors[name] = row.copy_(widest)
        return PackedBatch(**tensors)

    # -- What the runs do, one after the other or at once -----------------------------------

    def stage(
        self,
        place: int,
        batches: PackedBatches,
        number: int,
        keep: Keep,
        rate: float,
        tokens: int,
    ) -> int:
        """Lay out the batch of one run for the next update; its target tokens."""
        slot = self.turn % RING
        if self.copied:
            self.copied[slot].synchronize()
        rows: dict[str, Any] = {n: getattr(self.ring[slot], n)[place] for n in STAGED}
        batch = batches.batch(number, out=PackedBatch(**rows))
        self.scales[slot][place] = 1 / tokens
        if isinstance(keep, Tensor):
            self.keeps[slot][place] = keep
        self.rate = rate  # the same for all
        return batch.target_count

    # -- What the last to come does ---------------------------------------------------------

    def run(self) -> None:
        """The update of all, with what they staged."""
        slot = self.turn % RING
        self.turn += 1
        self.update += 1
        seed_update(self.seats[0].train.seed, self.update, 0)
        for name in STAGED:
            getattr(self.batch, name).copy_(getattr(self.ring[slot], name), non_blocking=True)
        self.scale.copy_(self.scales[slot], non_blocking=True)
        if self.keep is not None:
            self.keep.copy_(self.keeps[slot], non_blocking=True)
        if self.copied:
            self.copied[slot].record()
        self.optimiser.set_rate(self.rate)
        if self.graphs is None:
            self._gradients()
            self._update()
        else:
            self.graphs.run("gradients", self._gradients, warm_up=True)
            self.graphs.run("update", self._update)

    def _gradients(self) -> None:
        *batch, _ = arguments(self.batch, [None])
        losses = self.objective(self.keep, *batch, **self.longest)
        total = (losses[:, 0] * self.scale).sum()
        gradients = torch.autograd.grad(total, self.optimiser.parameters)
        self.optimiser.gather(gradients, first=True)
        self.losses.copy_(losses.detach())

    def _update(self) -> None:
        norm = self.optimiser.update()
        add_up(self.sums, self.losses, norm, self.optimiser.skipped)


def why_alone(train: TrainConfig) -> str | None:
    """Why a run cannot be trained together with others, where its settings do not allow it."""
    if train.accumulate > 1 or train.r_drop or train.clip_norm or train.skip_dropped:
        return (
            "runs are trained together without train.accumulate, train.r_drop, "
            "train.clip_norm and train.skip_dropped"
        )
    if not train.max_updates or train.max_epochs or train.max_minutes or train.patience:
        return (
            "runs that are trained together end together: with train.max_updates, and without "
            "train.max_epochs, train.max_minutes and train.patience"
        )
    return None


def what_must_agree(settings: Mapping[str, Any], train: TrainConfig) -> dict[str, Any]:
    """What runs that are trained together have in common, by name; settings: the model's."""
    found = {f"model.{name}": value for name, value in settings.items() if name not in _OWN}
    return found | {f"train.{name}": getattr(train, name) for name in _ALIKE}


def _check_alike(one: Seat, other: Seat) -> None:
    """Refuse runs that differ in what the update of all takes from one of them."""
    ours, theirs = (_what_must_agree(seat) for seat in (one, other))
    for name, value in ours.items():
        if theirs[name] != value:
            raise UserError(
                f"runs that are trained together must have one {name}, not {value} and "
                f"{theirs[name]}"
            )


def _what_must_agree(seat: Seat) -> dict[str, Any]:
    settings: dict[str, Any] = seat.objective.model.settings  # type: ignore[union-attr,assignment]
    first = seat.optimiser.parameters[0]
    found = what_must_agree(settings, seat.train)
    return {**found, "train.precision": first.dtype, "train.device": first.device}


def run_together(runs: Sequence[Callable[[Table], Any]]) -> list[Any]:
    """Call every function in a thread of its own, with the table of all; what they give back.

    Where one fails, all end, and its error is raised. A signal ends the training of all after the
    update in hand, with a checkpoint each; the second one ends each where it next waits for the
    others. A signal that comes when all have been trained does what it would do without this.
    Nothing of them is at work any more when this ends.
    """
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
            if noted is not None and table.asked.signal is None:  # too late for an update to hear
                signal.raise_signal(noted)
            wait(calls)
        except BaseException:
            table.break_up()
            raise
    if errors:
        raise errors[0]
    return [each.result() for each in calls]
