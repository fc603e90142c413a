"""Several models that decode as one: the average of their probabilities, token by token."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from multibranch.nn.cache import DecoderCache, Room
from multibranch.nn.stepper import Stepper


class Ensemble:
    """One or more models with one target vocabulary; what a search steps through."""

    def __init__(self, steppers: Sequence[Stepper]) -> None:
        if not steppers:
            raise ValueError("an ensemble needs at least one model")
        sizes = {stepper.vocabulary for stepper in steppers}
        if len(sizes) > 1:
            raise ValueError(
                f"the models have target vocabularies of {sorted(sizes)} entries: "
                "an ensemble needs one vocabulary"
            )
        self.steppers = list(steppers)
        self.vocabulary = steppers[0].vocabulary
        self.device = steppers[0].device
        self.int8 = any(stepper.int8 for stepper in steppers)

    def start(
        self, sources: Tensor, *, beam: int, steps: int, room: Room | None = None
    ) -> list[DecoderCache]:
        """Encode padded sources (b, s) with every model; caches for at most so many steps."""
        for stepper in self.steppers:
            stepper.reserve_positions(steps)
        return [
            stepper.start(stepper.encode(sources), beam=beam, room=room)
            for stepper in self.steppers
        ]

    def log_probabilities(self, ids: Tensor, caches: Sequence[DecoderCache]) -> Tensor:
        """log p (b, beam, V) of the token after `ids` (b, beam). The result is the caller's own."""
        each = []
        for stepper, cache in zip(self.steppers, caches):
            logits = stepper.step(ids, cache)
            if self.device.type == "cpu":
                # In place: fetching fresh memory for the logits takes longer than the softmax.
                each.append(torch._log_softmax(logits, -1, False, out=logits))
            else:
                each.append(logits.log_softmax(-1))
        if len(each) == 1:
            return each[0]
        mean = torch.stack(each).logsumexp(0).sub_(math.log(len(each)))
        # Rounding may leave a certain token a little above probability 1; early stopping builds
        # on no hypothesis ever gaining by growing.
        return mean.clamp_(max=0.0)
