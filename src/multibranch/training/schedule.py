"""The learning rate: a linear warm-up, the inverse square root (inverse_sqrt), a cool-down."""


def inverse_sqrt(
    update: int, *, learning_rate: float, warmup: int, warmup_from: float = 1e-7
) -> float:
    """The rate for update 1, 2, …: from `warmup_from` up to `learning_rate` at update `warmup`,

    and learning_rate·√(warmup/update) from there on.
    """
    if update < warmup:
        return warmup_from + (learning_rate - warmup_from) * update / warmup
    return learning_rate * (warmup / update) ** 0.5


def cool_down(update: int, *, last: int, updates: int) -> float:
    """The factor of the rate for an update: 1, and in the last `updates` of them linearly to 0.

    last: the number of the last update; the factor would be 0 at the one after it.
    """
    return min(1.0, (last + 1 - update) / updates) if updates else 1.0
