"""Which way updates are run: as CUDA graphs, with dropped work skipped, sharded, or plainly."""

from multibranch.data import PackedBatches, PaddedBatches
from multibranch.nn.plainly import reference_only
from multibranch.training.config import TrainConfig
from multibranch.training.graphed import GraphedStep
from multibranch.training.optimiser import Optimiser
from multibranch.training.processes import Processes, wrap
from multibranch.training.skipping import compile_sublayers
from multibranch.training.step import Objective, Step


def choose_step(
    objective: Objective,
    optimiser: Optimiser,
    batches: PackedBatches | PaddedBatches,
    *,
    processes: Processes,
    train: TrainConfig,
    sharded: bool,
) -> Step:
    """The fastest way that this device, these batches and the configuration allow."""
    on_gpu = processes.device.type == "cuda"
    packed = isinstance(batches, PackedBatches)
    compiled = (on_gpu and packed) if train.compile is None else train.compile
    if sharded:  # FSDP, as DDP, takes the mean over the processes
        return Step(
            objective,
            optimiser,
            device=processes.device,
            world=processes.world,
            skips=train.skip_dropped,
        )
    if compiled and on_gpu and processes.world == 1 and packed and not train.skip_dropped:
        return GraphedStep(objective, optimiser, batches)  # type: ignore[arg-type]
    skips = skips_dropped(train, processes, compiled=compiled)
    if compiled and skips:
        compile_sublayers(objective.model)
    wrapped, no_sync = wrap(objective, processes, unused=skips)
    if compiled and not skips:
        wrapped.compile()
    return Step(
        wrapped,
        optimiser,
        device=processes.device,
        world=processes.world,
        no_sync=no_sync,
        skips=skips,
    )


def skips_dropped(train: TrainConfig, processes: Processes, *, compiled: bool) -> bool:
    """Whether dropped work is left out: where asked for, and where operations run as they come.

    DDP would have to look for the layers without gradient, which costs more.
    """
    alone_on_cpu = processes.device.type == "cpu" and processes.world == 1
    return train.skip_dropped or (alone_on_cpu and not compiled and not reference_only())
