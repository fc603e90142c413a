"""The average of a run's last snapshots: one weight file a validation, averaged at the end.

resume/snapshots/00001200.safetensors
"""

from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from multibranch.directory import load_weights


class Snapshots:
    """The last `count` snapshots of the weights, on disk: exact to resume, and no memory held."""

    def __init__(self, folder: Path, *, count: int) -> None:
        self.folder = folder
        self.count = count

    def add(self, weights: dict[str, Tensor], update: int, taken: list[int]) -> list[int]:
        """Write a snapshot; give back the updates whose snapshots now stand, oldest first."""
        self.folder.mkdir(parents=True, exist_ok=True)
        place, beside = self._place(update), self.folder / "new"
        save_file({name: t.detach().cpu().contiguous() for name, t in weights.items()}, beside)
        beside.replace(place)
        return [*(u for u in taken if u != update), update][-self.count :]

    def prune(self, taken: list[int]) -> None:
        """Remove the snapshots that no checkpoint mentions any more."""
        wanted = {self._place(update) for update in taken}
        for path in self.folder.glob("*.safetensors"):
            if path not in wanted:
                path.unlink()

    def average(self, taken: list[int]) -> dict[str, Tensor]:
        """The mean of the snapshots' weights, summed in float64."""
        total: dict[str, Tensor] = {}
        for update in taken:
            for name, tensor in load_weights(self._place(update)).items():
                total[name] = total.get(name, torch.zeros((), dtype=torch.float64)) + tensor
        return {name: (tensor / len(taken)).float() for name, tensor in total.items()}

    def _place(self, update: int) -> Path:
        return self.folder / f"{update:08d}.safetensors"
