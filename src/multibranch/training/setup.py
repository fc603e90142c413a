"""The parts of a run, made from its configuration: its pairs, batches, precision and rates."""

import torch

from multibranch.data import PackedBatches, PaddedBatches, PairStore, PreparedData
from multibranch.disk import damaged
from multibranch.errors import UserError
from multibranch.nn import MultiBranchTransformer
from multibranch.text.pipeline import SIDES
from multibranch.training.config import Config, TrainConfig
from multibranch.training.processes import Processes, shard
from multibranch.training.schedule import cool_down, learning_rate
from multibranch.training.step import Objective


def training_batches(
    config: Config, data: PreparedData, processes: Processes
) -> PackedBatches | PaddedBatches:
    """The training batches of this process."""
    kind = PackedBatches if config.data.layout == "packed" else PaddedBatches
    batches = kind(
        data.split("train"),
        tokens=config.train.tokens,
        seed=config.train.seed,
        rank=processes.rank,
        world=processes.world,
        max_length=min(config.data.max_length, config.train.tokens),
    )
    if len(batches) == 0:
        raise UserError(
            f"no training pair of {data.folder} is within data.max_length "
            f"({config.data.max_length}) and train.tokens ({config.train.tokens})"
        )
    return batches


def count_tokens(batches: PackedBatches | PaddedBatches, numbers: range) -> int:
    """The target tokens of these batches of all processes: every process knows the plan."""
    world, lengths = batches.world, batches.target_lengths
    of_all = range(numbers.start * world, numbers.stop * world)
    return max(1, sum(int(lengths[batches.plan.pairs(number)].sum()) for number in of_all))


def validation_pairs(data: PreparedData) -> PairStore:
    """The validation pairs; that there are none is said before training, not after an epoch."""
    pairs = data.split("valid")
    if not len(pairs):
        raise UserError(f"the validation split of {data.folder} is empty: prepare it again")
    return pairs


def validation_tokens(train: TrainConfig, device: torch.device) -> int:
    """The target tokens of a validation batch: on a GPU enough to keep it busy, run as it is."""
    return max(train.tokens, 16384) if device.type == "cuda" else train.tokens


def rate(train: TrainConfig, update: int) -> float:
    """The learning rate of an update."""
    scheduled = learning_rate(
        update,
        peak=train.learning_rate,
        warmup=train.warmup,
        warmup_from=train.warmup_from,
        schedule=train.schedule,
    )
    return scheduled * cool_down(update, updates=train.max_updates or 0, share=train.cool_down)


def check_ids(data: PreparedData) -> None:
    """Refuse ids beyond the vocabulary, for which the model has no embedding."""
    sizes = (data.text.source_size, data.text.target_size)
    for split in ("train", "valid"):
        pairs = data.split(split)
        for side, ids, size in zip(SIDES, (pairs.source_ids, pairs.target_ids), sizes):
            largest = int(ids.max(initial=0))
            if largest >= size:
                raise damaged(
                    data.folder / f"{split}.{side}.bin",
                    f"it has the id {largest:,}, and the vocabulary only {size:,} entries",
                )


def precision(train: TrainConfig, device: torch.device) -> torch.dtype:
    """What the model computes in."""
    if train.precision == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    return torch.bfloat16 if train.precision == "bfloat16" else torch.float32


def lay_out(
    objective: Objective, processes: Processes, dtype: torch.dtype, *, sharded: bool
) -> None:
    """Bring the weights to the device in their precision, or share them out between the processes.

    Weights that are shared out go block by block: no device ever has to hold all of them.
    """
    if sharded:
        shard(objective, processes, dtype=dtype)
    else:
        objective.to(processes.device)
        cast_weights(objective.model, dtype)


def cast_weights(model: MultiBranchTransformer, dtype: torch.dtype) -> None:
    """Give the weights a precision; positions stay float32, as they are wherever the model goes."""
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
