"""What a run keeps on the disk, all but the last of it written while training goes on.

Weights are copied when they are given; the writing happens in the background, in the order given,
so that a checkpoint stands only where the directories and snapshots it builds on do.
"""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from multibranch.nn import MultiBranchTransformer
from multibranch.text import TextPipeline
from multibranch.training.averaging import Average, Measure
from multibranch.training.background import Background
from multibranch.training.checkpoint import Checkpoints, record_of
from multibranch.training.config import Config
from multibranch.training.display import Display
from multibranch.training.outputs import Outputs
from multibranch.training.progress import Progress


class Keeping:
    """Writes the model directories, snapshots and checkpoints of a run: in the first process."""

    def __init__(self, folder: Path, config: Config, *, tell: Callable[[str], None]) -> None:
        self.folder = folder
        self.config = config
        self.checkpoints = Checkpoints(
            folder / "resume", keep=config.train.keep_checkpoints, tell=tell
        )
        self.background = Background()

    def prepare(self, model: MultiBranchTransformer, text: TextPipeline) -> None:
        """Say what model the directories will hold."""
        self.outputs = Outputs(self.folder, self.config, model, text)

    def weights(self, weights: Mapping[str, Tensor], progress: Progress, *, best: bool) -> None:
        """Keep weights that were just validated: as the best, and as a snapshot to average."""
        average = bool(self.config.train.average)
        if not (best or average):
            return
        copied = _copy(weights)
        update, loss, taken = progress.update, progress.best_loss, list(progress.snapshots)
        if best:
            write = self.outputs.write
            self.background.submit(lambda: write("best", copied, update=update, loss=loss))
        if average:
            self.background.submit(lambda: self.checkpoints.write_snapshot(copied, taken))

    def checkpoint(self, state: Mapping[str, Tensor], progress: Progress) -> None:
        """Keep everything that a continuation needs."""
        copied, record = _copy(state), record_of(progress)
        self.background.submit(lambda: self.checkpoints.write(copied, record))

    def finish(
        self,
        weights: Mapping[str, Tensor],
        progress: Progress,
        measure: Measure,
        display: Display,
    ) -> dict[str, Any] | None:
        """The model directories of the end: last, averaged, and the run's own.

        weights: the last ones.
        measure: the losses that other weights have.

        The losses of the averaged weights; None without these, or where they are no numbers.
        """
        self.outputs.write("last", weights, update=progress.update, loss=progress.loss)
        averaged = self._finish_average(progress, measure, display) if progress.snapshots else None
        if progress.best_loss is None and averaged is None:
            display.tell(
                "no validation had a loss that is a number: this model is of no use; lower "
                "train.learning_rate"
            )
        self._publish(averaged=averaged is not None)
        return averaged

    def _finish_average(
        self, progress: Progress, measure: Measure, display: Display
    ) -> dict[str, Any] | None:
        update, best_loss = progress.update, progress.best_loss
        averaged = self._average(progress, measure)
        loss = averaged.measured["loss"]
        display.averaged({"update": update, "snapshots": averaged.snapshots, **averaged.measured})
        if best_loss is not None and (loss > best_loss or math.isnan(loss)):
            best = self.folder / "best"
            display.tell(f"the average is worse than the best weights, in {best}")
        self.outputs.write("averaged", averaged.weights, update=update, loss=loss)
        return averaged.measured if math.isfinite(loss) else None

    def _average(self, progress: Progress, measure: Measure) -> Average:
        """The average of the snapshots, or of as many of the last ones as are best."""
        self.background.wait()
        snapshots, updates = self.checkpoints.snapshots, progress.snapshots
        if self.config.train.average_best:
            return snapshots.best_average(updates, measure)
        weights = snapshots.average(updates)
        return Average(weights, len(updates), measure(weights))

    def _publish(self, *, averaged: bool) -> None:
        """Choose the model of the run: the average where it is to be, else the best."""
        self.background.wait()
        names = ["averaged", "best", "last"] if averaged else ["best", "last"]
        self.outputs.publish(next(name for name in names if self.outputs.stands(name)))


def _copy(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}
