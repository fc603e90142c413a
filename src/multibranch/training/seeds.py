"""Random numbers as a function of the seed and the update, so that a run resumes exactly."""

from collections.abc import Sequence

import numpy as np
import torch

from multibranch.nn.drop import Keep, draw_keep
from multibranch.training.config import TrainConfig


def mix(*numbers: int) -> int:
    """One seed from several numbers, so that neighbours have nothing in common."""
    sequence = np.random.SeedSequence([number & 0xFFFFFFFF for number in numbers])
    return int(sequence.generate_state(1, np.uint64)[0] >> 1)


def seed_update(seed: int, update: int, rank: int) -> None:
    """Set the random numbers of one update: dropout differs from process to process.

    Of the CPU and of a GPU that is in use: torch.manual_seed also remembers the seed, with the
    calls that led to it, for kinds of device that are not, which takes ten times as long.
    """
    number = mix(seed, update, rank)
    torch.default_generator.manual_seed(number)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(number)


def draw_branches(
    rates: Sequence[float], train: TrainConfig, update: int, device: torch.device | None
) -> list[Keep]:
    """The factors of drop-branch for each pass of an update: the same in every process.

    rates: ρ of every unit of the model, as its `drop_rates` gives them.
    device: where the factors are to be; None: as numbers, by which layers skip what is dropped.
    """
    passes = 2 if train.r_drop else 1
    if not any(rates):
        return [None] * passes
    generator = torch.Generator().manual_seed(mix(train.seed, update, -1))
    drawn = [draw_keep(rates, generator=generator) for _ in range(passes)]
    if device is None:
        return [keep.tolist() for keep in drawn]
    return [keep.to(device, non_blocking=True) for keep in drawn]
