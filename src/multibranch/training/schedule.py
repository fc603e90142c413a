"""The learning rate: a linear warm-up, then the inverse square root or none, and a cool-down."""

from typing import Literal

Schedule = Literal["inverse_sqrt", "constant"]


def learning_rate(
    update: int,
    *,
    peak: float,
    warmup: int,
    warmup_from: float = 1e-7,
    schedule: Schedule = "inverse_sqrt",
) -> float:
    """The rate for update 1, 2, …: from `warmup_from` up to `peak` at update `warmup`,

    and from there on peak·√(warmup/update), or, constant, the peak.
    """
    if update < warmup:
        return warmup_from + (peak - warmup_from) * update / warmup
    return peak * (warmup / update) ** 0.5 if schedule == "inverse_sqrt" else peak


def cool_down(update: int, *, updates: int, share: float) -> float:
    """The factor of the rate for one of so many updates: 1, and in the last `share` of them falling

    linearly, to 0 at the one that would come next.
    """
    return min(1.0, (updates + 1 - update) / (share * updates)) if share else 1.0
