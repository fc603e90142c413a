"""The learning rate: a linear warm-up, then falling with the inverse square root (inverse_sqrt)."""


def inverse_sqrt(
    update: int, *, learning_rate: float, warmup: int, warmup_from: float = 1e-7
) -> float:
    """The rate for update 1, 2, …: from `warmup_from` up to `learning_rate` at update `warmup`,

    and learning_rate·√(warmup/update) from there on.
    """
    if update < warmup:
        return warmup_from + (learning_rate - warmup_from) * update / warmup
    return learning_rate * (warmup / update) ** 0.5
