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


def cool_down(update: int, *, updates: int, share: float) -> float:
    """The factor of the rate for one of so many updates: 1, and in the last `share` of them falling

    linearly, to 0 at the one that would come next.
    """
    return min(1.0, (updates + 1 - update) / (share * updates)) if share else 1.0
