"""One update of the weights: forward and backward over its batches, then Adam.

`Objective` is the loss of a batch as a module, so that it can be compiled or wrapped for many
processes as a whole. `Step` runs it as it is; `GraphedStep` (training/graphed.py) captures it as
CUDA graphs.
"""

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from multibranch.data import PackedBatch, PackedBatches, PaddedBatch, PaddedBatches
from multibranch.nn import MultiBranchTransformer, kernels
from multibranch.nn.drop import Keep
from multibranch.training.loss import consistency
from multibranch.training.optimiser import Optimiser


class Statistics(NamedTuple):
    """What has happened since statistics were last read; the losses are sums over target tokens."""

    smoothed: float  # the training loss
    plain: float  # the cross-entropy: a token, the logarithm of the perplexity
    norm: float  # the mean norm of the gradient; NaN where all updates were skipped
    skipped: int  # updates skipped because their gradient was not finite
    tokens: int  # target tokens of this process that the losses are sums over


class Objective(nn.Module):
    """The loss of one batch, summed over its target tokens."""

    def __init__(
        self, model: MultiBranchTransformer, *, smoothing: float, r_drop: float = 0.0
    ) -> None:
        super().__init__()
        self.model = model
        self.smoothing = smoothing
        self.r_drop = r_drop

    def forward(
        self,
        source: Tensor,
        target_input: Tensor,
        target_output: Tensor,
        source_boundaries: Tensor | None,
        target_boundaries: Tensor | None,
        keep: Keep,
        second_keep: Keep = None,
        *,
        source_longest: int | None = None,
        target_longest: int | None = None,
    ) -> Tensor:
        """(2,): the loss to minimise and the plain cross-entropy, sums over the target tokens.

        With R-Drop, half of its definition, ½·[CE₁ + CE₂ + α·½(KL₁₂ + KL₂₁)], so that the loss
        stays one of a single pass in size; the passes draw different dropout and branches.
        """

        def states(factors: Keep) -> Tensor:
            return self.model.states(
                source,
                target_input,
                source_boundaries=source_boundaries,
                target_boundaries=target_boundaries,
                source_longest=source_longest,
                target_longest=target_longest,
                keep=factors,
            )

        output, padding = self.model.output_vectors, self.model.padding
        targets = target_output.flatten()
        first = states(keep).flatten(0, -2)  # (n, d)
        if not (self.r_drop and self.training):
            smoothed, plain = kernels.smoothed_cross_entropy(
                first, output, targets, smoothing=self.smoothing, ignore_index=padding
            )
            return torch.stack([smoothed, plain])
        logits = [F.linear(first, output), F.linear(states(second_keep).flatten(0, -2), output)]
        losses = [
            kernels.label_smoothed(each, targets, smoothing=self.smoothing, ignore_index=padding)
            for each in logits
        ]
        apart = consistency(logits[0], logits[1], targets, padding=padding)
        smoothed, plain = (one + other for one, other in zip(*losses))
        return torch.stack([(smoothed + self.r_drop * apart) / 2, plain / 2])


class Step:
    """Runs updates eagerly, or with a compiled objective.

    Args:
        objective: an Objective, possibly compiled or wrapped for many processes.
        world: how many processes share an update; their gradients are averaged by the wrapper, so
            that the loss is multiplied by `world` to make it a sum.
        no_sync: leaves out the exchange of gradients for all but the last batch of an update.
        skips: whether the work of dropped branches is skipped, not masked.
    """

    # The running sums that grow with the batches of this process alone: losses and tokens. The
    # others are the same in every process.
    OWN = [0, 1, 5]

    def __init__(
        self,
        objective: nn.Module,
        optimiser: Optimiser,
        *,
        device: torch.device,
        world: int = 1,
        no_sync: Any = nullcontext,
        skips: bool = False,
    ) -> None:
        self.objective = objective
        self.optimiser = optimiser
        self.device = device
        # Where it takes the factors of drop-branch; None: as numbers, by which layers skip work.
        self.keeps_on = None if skips else device
        self.world = world
        self.no_sync = no_sync
        self._sums = torch.zeros(5, device=device)
        self._tokens = 0
        self._updates = 0

    def run(
        self,
        batches: PackedBatches | PaddedBatches,
        numbers: Sequence[int],
        *,
        keeps: Sequence[Keep],
        rate: float,
        tokens: int,
    ) -> None:
        """One update over the batches of these numbers.

        keeps: the factors of drop-branch for the first and, with R-Drop, the second pass.
        rate: the learning rate.
        tokens: how many target tokens the batches of all processes hold.
        """
        self.optimiser.set_rate(rate)
        self.optimiser.clear()
        losses = torch.zeros(2, device=self.device)
        longest = longest_sequences(batches)
        for number in numbers:
            batch = batches.batch(number)
            last = number == numbers[-1]
            # Gradients in bfloat16 are summed in float32, batch by batch: each is exchanged.
            context: AbstractContextManager = (
                nullcontext() if last or self.optimiser.mixed else self.no_sync()
            )
            with context:
                loss = self.objective(*arguments(batch.to(self.device), keeps), **longest)
                (loss[0] * (self.world / tokens)).backward()
            losses += loss.detach()
            self._tokens += batch.target_count
            if self.optimiser.mixed:
                gradients = [
                    torch.zeros_like(p) if p.grad is None else p.grad
                    for p in self.optimiser.parameters
                ]
                self.optimiser.gather(gradients, first=number == numbers[0])
                self.optimiser.clear()
        norm = self.optimiser.update()
        add_up(self._sums, losses, norm, self.optimiser.skipped)
        self._updates += 1

    def statistics(self) -> Statistics:
        """Read and reset the running sums; waits for the device."""
        smoothed, plain, norm, skipped, _ = self._sums.tolist()
        done = self._updates - int(skipped)
        # Which tokens the skipped updates held is not known here: their share is left out.
        tokens = round(self._tokens * done / max(1, self._updates))
        self._sums[:4].zero_()
        self._tokens = self._updates = 0
        return Statistics(smoothed, plain, norm / done if done else math.nan, int(skipped), tokens)

    def streak(self) -> int:
        """How many updates in a row, up to the last one, were skipped; waits for the device."""
        return int(self._sums[4])

    def running(self) -> Tensor:
        """The running sums, (7,) float64 on the CPU: what `resume` takes."""
        counts = torch.tensor([self._tokens, self._updates], dtype=torch.float64)
        return torch.cat([self._sums.double().cpu(), counts])

    def resume(self, running: Tensor) -> None:
        """Go on counting from what `running` gave."""
        self._sums.copy_(running[:5])
        self._tokens, self._updates = int(running[5]), int(running[6])


def add_up(sums: Tensor, losses: Tensor, norm: Tensor, skipped: Tensor) -> None:
    """Add an update to the running sums (…, 5) of one run or of several.

    They are both losses (…, 2), the norm, the skipped updates, and those of them in a row.
    """
    fine = skipped == 0
    sums[..., :2] += torch.where(fine, losses, 0.0)
    sums[..., 2] += torch.where(fine, norm, 0.0)
    sums[..., 3] += skipped
    sums[..., 4] = (sums[..., 4] + 1) * skipped


def longest_sequences(batches: PackedBatches | PaddedBatches) -> dict[str, int]:
    """The lengths that no sequence of packed batches passes, as arguments of an Objective."""
    if not isinstance(batches, PackedBatches):
        return {}
    return {
        "source_longest": batches.source_longest,
        "target_longest": batches.target_longest,
    }


def arguments(batch: PackedBatch | PaddedBatch, keeps: Sequence[Keep]) -> tuple:
    """A batch and the factors of its passes as the arguments of an Objective."""
    ids = (batch.source, batch.target_input, batch.target_output)
    if isinstance(batch, PackedBatch):
        return (*ids, batch.source_boundaries, batch.target_boundaries, *keeps)
    return (*ids, None, None, *keeps)
