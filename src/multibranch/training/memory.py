"""What to say when there is not enough memory to train: the budget to set."""

from multibranch.errors import UserError
from multibranch.training.config import TrainConfig

LEAST_TOKENS = 256


def out_of_memory(train: TrainConfig, *, model_fits: bool, together: int = 1) -> UserError:
    """The sentence for it.

    model_fits: whether the weights and Adam's moments found room.
    together: how many runs are trained as one.
    """
    if together > 1:
        return UserError(
            f"there is not enough memory for {together} runs that are trained together: train fewer"
        )
    share = "share the weights out between GPUs (torchrun with train.sharding: full)"
    if not model_fits:
        return UserError(
            "there is not enough memory for the model's weights and Adam's moments: make the "
            f"model smaller, or {share}"
        )
    if train.tokens < 2 * LEAST_TOKENS:
        return UserError(
            f"there is not enough memory, though batches have only {train.tokens} tokens "
            f"(train.tokens): make the model smaller, or {share}"
        )
    return UserError(
        f"there is not enough memory for batches of {train.tokens} tokens: set train.tokens "
        f"to {train.tokens // 2} and train.accumulate to {2 * train.accumulate}, which makes "
        "updates of the same size (a run that has saved something needs a new train.output)"
    )
