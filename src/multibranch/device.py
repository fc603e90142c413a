"""Which device is meant by auto, cpu, cuda or cuda:1, and what it is called."""

import contextlib
import platform
from pathlib import Path

import torch

from multibranch.errors import UserError


def choose_device(
    asked: str | torch.device, *, option: str = "--device", local_rank: int | None = None
) -> torch.device:
    """The device that a setting means; "auto" is a GPU where there is one.

    Args:
        option: what the person set it with, for messages.
        local_rank: the GPU that "cuda" is, among several processes of one machine; PyTorch's
            current one unless given.
    """
    if asked == "auto":
        asked = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        chosen = torch.device(asked)
    except RuntimeError:
        chosen = torch.device("meta")
    if chosen.type not in ("cpu", "cuda"):
        raise UserError(f"{option}: '{asked}' is no device here: choose auto, cpu or cuda")
    if chosen.type == "cuda":
        if not torch.cuda.is_available():
            raise UserError(f"{option}: cuda was asked for, but no GPU can be seen: choose cpu")
        if chosen.index is None and local_rank is not None:
            chosen = torch.device("cuda", local_rank)
        if (chosen.index or 0) >= torch.cuda.device_count():
            many = "start as many processes (torchrun --nproc-per-node), or "
            raise UserError(
                f"there is no GPU {chosen.index}: this machine has {torch.cuda.device_count()}; "
                f"{'' if local_rank is None else many}set {option}"
            )
    return chosen


def device_name(device: str | torch.device = "auto") -> str:
    """What a device calls itself, for records: a GPU, or the processor where Linux tells."""
    chosen = choose_device(device)
    if chosen.type == "cuda":
        return torch.cuda.get_device_name(chosen)
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return f"unknown {platform.machine()}"
