"""Updates as CUDA graphs: the compiled objective, its gradients and Adam, captured once, replayed.

Small models are bound by the launching of kernels, not by their work. Packed batches have one shape
for all of a run, so that the whole update can be captured and replayed as one launch. Batches are
laid out in pinned memory while the update before them still runs, and copied over the captured
inputs.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from multibranch.data import PackedBatch, PackedBatches, PaddedBatches
from multibranch.nn.drop import Keep
from multibranch.training.graphs import Graphs
from multibranch.training.optimiser import Optimiser
from multibranch.training.step import Objective, Step, add_up, arguments, longest_sequences

STAGED = ("source", "source_boundaries", "target_input", "target_output", "target_boundaries")
RING = 3  # batches in pinned memory: how far the host may run ahead of the device


class GraphedStep(Step):
    """Runs updates by replaying CUDA graphs, for one process and packed batches."""

    def __init__(self, objective: Objective, optimiser: Optimiser, batches: PackedBatches) -> None:
        device = optimiser.parameters[0].device
        compiled = torch.compile(objective, dynamic=False)
        super().__init__(compiled, optimiser, device=device)  # type: ignore[arg-type]
        self.longest = longest_sequences(batches)
        self.batch = batches.allocate().to(device)
        self.ring = [batches.allocate(pin_memory=True) for _ in range(RING)]
        self.copied = [torch.cuda.Event() for _ in range(RING)]
        self.turn = 0
        self.scale = torch.zeros((), device=device)
        self.losses = torch.zeros(2, device=device)
        self.keeps: list[Tensor | None] = []
        self.graphs = Graphs()

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
        self._stage_keeps(keeps)
        self.optimiser.set_rate(rate)
        self.scale.fill_(1 / tokens)
        for number in numbers:
            self._tokens += self._stage(batches, number)
            self._replay("first" if number == numbers[0] else "more")
        self._replay("update")
        self._updates += 1

    def _stage(self, batches: PackedBatches, number: int) -> int:
        """Lay a batch out in pinned memory and send it to the captured inputs; its tokens."""
        slot = self.turn % RING
        self.turn += 1
        self.copied[slot].synchronize()
        batch = batches.batch(number, out=self.ring[slot])
        for name in STAGED:
            getattr(self.batch, name).copy_(getattr(batch, name), non_blocking=True)
        self.copied[slot].record()
        return batch.target_count

    def _stage_keeps(self, keeps: Sequence[Keep]) -> None:
        if not self.keeps:
            self.keeps = [
                torch.empty_like(keep, device=self.device) if isinstance(keep, Tensor) else None
                for keep in keeps
            ]
        for static, keep in zip(self.keeps, keeps):
            if static is not None and isinstance(keep, Tensor):
                static.copy_(keep, non_blocking=True)

    # -- What is captured -------------------------------------------------------------------

    def _gradients(self, *, first: bool) -> None:
        """Forward and backward of the staged batch."""
        batch: PackedBatch = self.batch
        loss = self.objective(*arguments(batch, self.keeps), **self.longest)
        gradients = torch.autograd.grad(loss[0] * self.scale, self.optimiser.parameters)
        self.optimiser.gather(gradients, first=first)
        if first:
            self.losses.copy_(loss.detach())
        else:
            self.losses.add_(loss.detach())

    def _finish(self) -> None:
        """Adam and the running sums."""
        norm = self.optimiser.update()
        add_up(self._sums, self.losses, norm, self.optimiser.skipped)

    def _replay(self, part: str) -> None:
        if part == "update":
            if part not in self.graphs:
                self.optimiser.initialise()
            self.graphs.run(part, self._finish)
        else:
            first = part == "first"
            self.graphs.run(part, lambda: self._gradients(first=first), warm_up=first)
