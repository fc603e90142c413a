"""The average of a run's last snapshots: one weight file a validation, averaged at the end.

    resume/snapshots/00001200.safetensors

On the disk they are exact to resume from and take no memory. Every checkpoint holds the checksums
of the snapshots that belong to it.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from multibranch.directory import load_weights, save_weights
from multibranch.disk import sha256, sync
from multibranch.errors import UserError

# The losses of weights on the validation set.
Measure = Callable[[Mapping[str, Tensor]], dict[str, Any]]


@dataclass
class Average:
    """Averaged weights, how many snapshots they are the mean of, and their losses."""

    weights: dict[str, Tensor]
    snapshots: int
    measured: dict[str, Any]


class Snapshots:
    """The snapshots of one run, under `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.checksums: dict[int, str] = {}

    def write(self, weights: Mapping[str, Tensor], update: int) -> None:
        """Write the snapshot of an update, complete or not at all."""
        self.folder.mkdir(parents=True, exist_ok=True)
        beside = self.folder / ".new"
        try:
            save_weights(beside, weights)
            sync(beside)
            self.checksums[update] = sha256(beside)
            beside.replace(self._place(update))
            sync(self.folder)
        finally:
            beside.unlink(missing_ok=True)

    def check(self, checksums: Mapping[int, str]) -> None:
        """Raise a UserError unless these snapshots are there and sound; then they are ours."""
        for update, wanted in checksums.items():
            path = self._place(update)
            if not path.is_file() or sha256(path) != wanted:
                raise UserError(f"{path} is missing or does not fit its checksum")
        self.checksums = dict(checksums)

    def prune(self, wanted: Iterable[int]) -> None:
        """Remove all snapshots but those of these updates."""
        kept = {self._place(update) for update in wanted}
        for path in self.folder.glob("*.safetensors"):
            if path not in kept:
                path.unlink()

    def average(self, updates: Sequence[int]) -> dict[str, Tensor]:
        """The mean of the snapshots' weights, summed in float64."""
        *_, total = self._sums(updates)
        return _mean(total, len(updates))

    def best_average(self, updates: Sequence[int], measure: Measure) -> Average:
        """Of the means of the last 1, 2, … snapshots, that with the lowest loss."""
        best: Average | None = None
        for number, total in enumerate(self._sums(updates[::-1]), 1):
            weights = _mean(total, number)
            found = Average(weights, number, measure(weights))
            if best is None or _loss(found) <= _loss(best):
                best = found
        if best is None:
            raise ValueError("there is no snapshot to average")
        return best

    def _sums(self, updates: Sequence[int]) -> Iterator[dict[str, Tensor]]:
        """The sum of the first snapshot's weights, of the first two's, …, in float64."""
        total: dict[str, Tensor] = {}
        for update in updates:
            for name, tensor in load_weights(self._place(update)).items():
                total[name] = tensor.double() + total[name] if name in total else tensor.double()
            yield total

    def _place(self, update: int) -> Path:
        return self.folder / f"{update:08d}.safetensors"


def _mean(total: Mapping[str, Tensor], number: int) -> dict[str, Tensor]:
    return {name: (tensor / number).float() for name, tensor in total.items()}


def _loss(average: Average) -> float:
    """The loss, or infinity where it is no number, so that it is never the lowest."""
    loss = float(average.measured["loss"])
    return math.inf if math.isnan(loss) else loss
