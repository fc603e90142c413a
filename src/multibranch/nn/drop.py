"""Drop-branch (Eq. 5): the factor that keeps or drops a branch, a head or a feed-forward layer.

A *unit* is whatever is dropped as a whole: a branch of an attention layer, a head (Section 7.2,
variant 2) or a branch of a feed-forward layer. For every unit one number U is drawn once a forward
pass, shared by the whole batch, and the unit's output is multiplied by I{U ≥ ρ}/(1 − ρ).

Layers take these factors as `keep`:

- None: the layer draws its own while training, and keeps everything otherwise;
- a tensor (units,): every unit is computed and then scaled, which suits a fixed graph;
- a sequence of numbers: the work of units whose factor is zero is skipped.
"""

from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch import Tensor

Keep: TypeAlias = Tensor | Sequence[float] | None


def draw_keep(
    rates: Tensor | Sequence[float], *, generator: torch.Generator | None = None
) -> Tensor:
    """Draw I{U ≥ ρ}/(1 − ρ) for every unit; `rates` (units,) holds their ρ. Returns (units,)."""
    rates = torch.as_tensor(rates, dtype=torch.float32)
    uniform = torch.rand(rates.shape, generator=generator, device=rates.device)
    # Not a quotient: a rate that float32 rounds to 1 would make 0/0 of what is dropped.
    return torch.where(uniform >= rates, 1 / (1 - rates), 0.0)


def draw_own(units: int, rate: float, *, training: bool, device: torch.device) -> Tensor | None:
    """What a layer uses when it is given no `keep`: factors (units,) while training, else None."""
    if not training or rate == 0:
        return None
    uniform = torch.rand(units, device=device)
    return (uniform >= rate).float() / (1 - rate)


def split_keep(keep: Keep, sizes: Sequence[int]) -> list[Keep]:
    """`keep` (units,) cut into pieces of so many units, which together are all of it."""
    pieces: list[Keep] = []
    start = 0
    for size in sizes:
        pieces.append(None if keep is None else keep[start : start + size])
        start += size
    return pieces


def kept_units(keep: Sequence[float]) -> list[int]:
    """The positions of the units that are not dropped."""
    return [unit for unit, factor in enumerate(keep) if factor != 0]


def as_factors(keep: Sequence[float], weight: Tensor) -> Tensor:
    """The factors as a tensor beside `weight`, at least as precise as float32."""
    dtype = torch.promote_types(weight.dtype, torch.float32)
    return torch.tensor(list(keep), dtype=dtype, device=weight.device)


def times(states: Tensor, factors: Tensor) -> Tensor:
    """states times factors, in the type of the states, to which the factors are not rounded.

    As bfloat16, 1/(1 − 0.3) is 0.08% more: with it every pass would be a little too large.
    """
    return (states * factors).to(states.dtype)


def check_rate(name: str, rate: float) -> None:
    """Raise ValueError unless `rate` lies in [0, 1)."""
    if not 0 <= rate < 1:
        raise ValueError(f"{name} must lie in [0, 1), not {rate}: at 1 nothing would ever be kept")


def check_units(keep: Tensor | Sequence[float], units: int) -> None:
    """Raise ValueError unless `keep` holds one factor a unit."""
    given = keep.shape[0] if isinstance(keep, Tensor) else len(keep)
    if given != units:
        raise ValueError(f"keep holds {given} factors, but there are {units} units to drop")


def branch_factor(branches: int, branch_scale: str) -> float:
    """The weight of a branch in the average: 1/N (Eq. 4), or the released code's 1/N²."""
    if branch_scale == "paper":
        return 1 / branches
    if branch_scale == "released":
        return 1 / branches**2
    raise ValueError(f'branch_scale must be "paper" or "released", not {branch_scale!r}')
