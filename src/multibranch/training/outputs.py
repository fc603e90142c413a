"""The model directories of a run: best, last and averaged weights, and the one that stands for it.

runs/x/best, last, averaged                model directories
runs/x/config.json, model.safetensors, …   the one among them that later commands take
"""

import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor

from multibranch.directory import CONFIG, save_model
from multibranch.disk import sync
from multibranch.nn import MultiBranchTransformer
from multibranch.text import TextPipeline
from multibranch.training.config import Config


class Outputs:
    """Writes a run's model directories under `folder`."""

    def __init__(
        self, folder: Path, config: Config, model: MultiBranchTransformer, text: TextPipeline
    ) -> None:
        self.folder = folder
        self.config = config
        self.model = model
        self.text = text

    def write(
        self, name: str, weights: Mapping[str, Tensor], *, update: int, loss: float | None
    ) -> None:
        """Write the model directory `name` with these weights, float32 on the CPU.

        loss: theirs on the validation set; one that is not finite, which JSON does not have, is
            written as null.
        """
        extra: dict[str, Any] = {
            "task": self.config.task,
            "weights": name,
            "training": {
                "updates": update,
                "validation_loss": loss if loss is not None and math.isfinite(loss) else None,
                "data": str(self.config.data.folder or self.config.data.builtin),
                "init_from": self.config.train.init_from,
                "seed": self.config.train.seed,
            },
            "decoding": {
                **asdict(self.config.decode),
                "max_length": self.config.longest_output,
            },
        }
        save_model(self.folder / name, self.model, self.text, extra=extra, weights=weights)

    def publish(self, name: str) -> None:
        """Make `name` the model of the run: its files, at the folder's top.

        config.json goes first and comes last: without it there is no model directory, so that no
        moment shows one that is half the old and half the new.
        """
        (self.folder / CONFIG).unlink(missing_ok=True)
        files = sorted((self.folder / name).iterdir(), key=lambda path: path.name == CONFIG)
        for path in files:
            beside = self.folder / f".{path.name}"
            beside.write_bytes(path.read_bytes())
            sync(beside)
            beside.replace(self.folder / path.name)
        sync(self.folder)

    def stands(self, name: str) -> bool:
        """Whether the model directory `name` has been written."""
        return (self.folder / name / CONFIG).is_file()
