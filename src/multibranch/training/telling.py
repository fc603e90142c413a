"""What a run says of itself as it begins and as it ends."""

from pathlib import Path

import torch

from multibranch.data import PackedBatches, PaddedBatches
from multibranch.errors import counted
from multibranch.nn import training_kernels
from multibranch.training.processes import Processes
from multibranch.training.progress import Progress


def beginning(
    batches: PackedBatches | PaddedBatches,
    processes: Processes,
    precision: torch.dtype,
    *,
    parameters: int,
    resumed: Progress | None,
) -> list[str]:
    """The lines on what is trained, and with what; resumed: where a run that goes on stands."""
    lines = [
        f"{parameters:,} parameters, {counted(len(batches), 'batch', 'batches')} an epoch on "
        f"{processes.world} × {processes.device.type}, {str(precision)[6:]}",
        str(batches.report),
    ]
    if processes.device.type == "cpu" and precision == torch.float32:
        lines += filter(None, [training_kernels.lacking()])
    return lines if resumed is None else [*lines, f"resuming after update {resumed.update:,}"]


def ending(why: str, folder: Path, progress: Progress, *, stopped: bool) -> str:
    """The line on how it ended; stopped: by a signal, before it was done."""
    if not stopped:
        return f"ended: {why}. The model is in {folder}"
    if not progress.update:
        return f"stopped by {why} before the first update"
    return (
        f"stopped by {why} after update {progress.update:,}, which is saved: "
        "start the same command again to go on"
    )
