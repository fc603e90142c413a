"""The update of several runs of one architecture as one: their weights stacked.

One launch a layer serves all of them. The weights and moments of each run are views of the stacked
ones, so that nothing else of the run has to know; `Seat` is what takes the place of its Step.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from multibranch.data import PackedBatch, PackedBatches, PaddedBatches
from multibranch.errors import UserError
from multibranch.nn.drop import Keep
from multibranch.training.config import TrainConfig
from multibranch.training.graphed import STAGED
from multibranch.training.graphs import Graphs
from multibranch.training.optimiser import Optimiser
from multibranch.training.seeds import seed_update
from multibranch.training.step import Objective, Step, add_up, arguments, longest_sequences

# What the update of all takes from one of them, and what says when they end.
_ALIKE = (
    *("learning_rate", "warmup", "warmup_from", "schedule", "cool_down", "betas", "epsilon"),
    *("weight_decay", "label_smoothing", "max_updates"),
)
# Of a model's settings, what each may have of its own: `keep` is drawn for every run by itself.
_OWN = ("drop_branch", "drop_ffn")

# On a GPU, how many updates each run stages at most before all are run. The runs work in turn, and
# a turn costs: where threads wake slowly, several times what there is to do for one update.
AHEAD = 20


class Seat(Step):
    """One run's part in the updates of all.

    meet: called when its batches are staged; comes back once the updates of all were run.
    """

    def __init__(
        self,
        meet: Callable[[], None],
        objective: Objective,
        optimiser: Optimiser,
        batches: PackedBatches,
        train: TrainConfig,
        update: int,
    ) -> None:
        super().__init__(objective, optimiser, device=optimiser.parameters[0].device)
        self.keeps_on = torch.device("cpu")  # all are sent to the device at once
        self.meet = meet
        self.batches = batches
        self.train = train
        self.update = update
        self.place: int
        self.stacked: Stacked

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
        self.update += 1
        slot = self.stacked.slot(self.update)
        self._tokens += self.stacked.stage(slot, self.place, batches, number, keep, rate, tokens)
        self._updates += 1
        if self.stacked.is_met_after(self.update):
            self.meet()

    def take_part(self, stacked: "Stacked", place: int) -> None:
        """Let weights, moments and sums be views of the stacked ones."""
        self.stacked, self.place = stacked, place
        own, all_ = self.optimiser, stacked.optimiser
        for parameter, theirs in zip(own.parameters, all_.parameters, strict=True):
            parameter.data = theirs.data[place]
        for master, theirs in zip(own.masters, all_.masters, strict=True):
            master.data, master.grad = theirs.data[place], None
            moments = all_.adam.state[theirs]
            own.adam.state[master] = {
                "step": moments["step"],
                **{name: moments[name][place] for name in ("exp_avg", "exp_avg_sq")},
            }
        self._sums = stacked.sums[place]


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


class Stacked:
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
        objective = _StackedObjective([seat.objective for seat in seats])  # type: ignore[misc]
        self.optimiser = Optimiser(
            objective,
            betas=first.train.betas,
            epsilon=first.train.epsilon,
            weight_decay=first.train.weight_decay,
        )
        self.optimiser.load_state(self._state())
        if not self.optimiser.adam.state:
            self.optimiser.initialise()
        on_gpu = self.device.type == "cuda"
        self.objective = torch.compile(objective, dynamic=False) if on_gpu else objective
        self.graphs = Graphs() if on_gpu else None
        self.met_after = _met_after(seats, ahead=AHEAD if on_gpu else 1)
        lengths = [longest_sequences(seat.batches) for seat in seats]
        self.longest = {name: max(each[name] for each in lengths) for name in lengths[0]}
        self.batch = self._allocate().to(self.device)
        # Twice as many as are staged at once: some are laid out while those before are at work.
        ring = range(2 * min(self.met_after))
        self.ring = [self._allocate(pin_memory=on_gpu) for _ in ring]
        self.copied = [torch.cuda.Event() for _ in ring] if on_gpu else []
        self.scale = torch.zeros(len(seats), device=self.device)
        self.scales = [torch.zeros(len(seats), pin_memory=on_gpu) for _ in ring]
        self.rates = [0.0 for _ in ring]  # the same for all
        rates = [seat.objective.model.drop_rates() for seat in seats]  # type: ignore[union-attr,operator]
        factors = torch.ones((len(seats), len(rates[0])))
        self.keep = factors.to(self.device) if any(map(any, rates)) else None
        self.keeps = [factors.pin_memory() if on_gpu else factors.clone() for _ in ring]
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

    # -- What the runs do, one after the other -----------------------------------------------

    def slot(self, update: int) -> int:
        """Where in the ring an update is staged."""
        return update % len(self.ring)

    def is_met_after(self, update: int) -> bool:
        """Whether all runs meet after this update, so that those staged until then are run."""
        return any(update % every == 0 for every in self.met_after) or update == 1

    def stage(
        self,
        slot: int,
        place: int,
        batches: PackedBatches,
        number: int,
        keep: Keep,
        rate: float,
        tokens: int,
    ) -> int:
        """Lay out the batch of one run for an update; its target tokens."""
        if self.copied:
            self.copied[slot].synchronize()
        rows: dict[str, Any] = {n: getattr(self.ring[slot], n)[place] for n in STAGED}
        batch = batches.batch(number, out=PackedBatch(**rows))
        self.scales[slot][place] = 1 / tokens
        if isinstance(keep, Tensor):
            self.keeps[slot][place] = keep
        self.rates[slot] = rate
        return batch.target_count

    # -- What the last to come does ---------------------------------------------------------

    def run(self) -> None:
        """The updates of all that they have staged."""
        while self.update < self.seats[0].update:
            self._run_next()

    def _run_next(self) -> None:
        self.update += 1
        slot = self.slot(self.update)
        seed_update(self.seats[0].train.seed, self.update, 0)
        for name in STAGED:
            getattr(self.batch, name).copy_(getattr(self.ring[slot], name), non_blocking=True)
        self.scale.copy_(self.scales[slot], non_blocking=True)
        if self.keep is not None:
            self.keep.copy_(self.keeps[slot], non_blocking=True)
        if self.copied:
            self.copied[slot].record()
        self.optimiser.set_rate(self.rates[slot])
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


def _met_after(seats: Sequence[Seat], *, ahead: int) -> set[int]:
    """All runs meet after the multiples of these: wherever one of them looks at what was done."""
    trains = [seat.train for seat in seats]
    found = {ahead, *(train.log_every for train in trains), *(t.max_skipped for t in trains)}
    found |= {train.max_updates or 1 for train in trains}
    # Without it a run validates at the end of each of its epochs, wherever that is.
    return found | {train.validate_every or 1 for train in trains}


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
