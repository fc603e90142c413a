"""Random numbers as a function of the seed and the update, so that a run resumes exactly."""

import numpy as np
import torch

from multibranch.nn import MultiBranchTransformer
from multibranch.nn.drop import Keep
from multibranch.training.config import TrainConfig


def mix(*numbers: int) -> int:
    """One seed from several numbers, so that neighbours have nothing in common."""
    sequence = np.random.SeedSequence([number & 0xFFFFFFFF for number in numbers])
    return int(sequence.generate_state(1, np.uint64)[0] >> 1)


def seed_update(seed: int, update: int, rank: int) -> None:
    """Set the random numbers of one update: dropout differs from process to process."""
    torch.manual_seed(mix(seed, update, rank))


def draw_branches(
    model: MultiBranchTransformer, train: TrainConfig, update: int, device: torch.device
) -> list[Keep]:
    """The factors of drop-branch for each pass of an update: the same in every process."""
    passes = 2 if train.r_drop else 1
    if not any(model.drop_rates()):
        return [None] * passes
    generator = torch.Generator().manual_seed(mix(train.seed, update, -1))
    drawn = [model.draw_keep(generator=generator) for _ in range(passes)]
    if train.skip_dropped:
        return [keep.tolist() for keep in drawn]
    return [keep.to(device, non_blocking=True) for keep in drawn]
