"""Where a benchmark's record comes from: the command, and the machine that ran it."""

import platform
import shlex
import sys

import torch

from multibranch.device import device_name


def command() -> str:
    """The command as a shell takes it."""
    return shlex.join(["python", *sys.argv])


def origin(device: str | torch.device = "auto") -> dict[str, str]:
    """What a record begins with."""
    return {
        "command": command(),
        "device": device_name(device),
        "torch": str(torch.__version__),
        "python": platform.python_version(),
    }
