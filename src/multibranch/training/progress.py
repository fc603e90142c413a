"""Where a run of training stands, and when it has reached its end."""

import math
from dataclasses import dataclass, field
from pathlib import Path
from signal import raise_signal
from typing import Any

from multibranch.errors import counted
from multibranch.training.config import TrainConfig


@dataclass
class Progress:
    """Where training stands: with the weights and Adam's moments, all that a continuation needs.

    The schedule and all random numbers are functions of the seed and `update`, the order of the
    data one of the seed and `epoch`.
    """

    update: int = 0  # updates done
    epoch: int = 0
    batch: int = 0  # batches of this epoch done, of each process
    world: int = 1  # processes that shared them
    data: list[int] = field(default_factory=list)  # what the training data are known by
    start: str | None = None  # the checksum of the weights that it started from
    seconds: float = 0.0  # spent training
    tokens: int = 0  # target tokens seen, by all processes
    skipped: int = 0  # updates skipped because their gradient was not finite
    best: float | None = None  # the best validation loss, or score where that decides
    best_update: int = 0
    best_loss: float | None = None  # the loss of that validation
    best_plain: float | None = None  # the same without smoothing: the logarithm of the perplexity
    best_score: float | None = None
    stale: int = 0  # validations since then
    validated: int = -1  # the update after which validation last took place
    loss: float | None = None  # the loss it found
    snapshots: list[int] = field(default_factory=list)  # updates whose weights will be averaged

    def note_validation(
        self, train: TrainConfig, *, loss: float, plain: float, score: float | None
    ) -> bool:
        """Take a validation into account; says whether it is the best so far.

        Validations before update `judged_from` try no one's patience, and the first one after it
        is better than all of them.
        """
        by_score = train.stop_on == "score"
        judged_from = _judged_from(train)
        self.validated, self.loss = self.update, loss
        value, before = (score if by_score else loss), self.best
        if value is None or not math.isfinite(value):
            better = False
        elif before is None or self.best_update < judged_from <= self.update:
            better = True
        else:
            better = value > before if by_score else value < before
        if better:
            self.best, self.best_update, self.stale = value, self.update, 0
            self.best_loss, self.best_plain, self.best_score = loss, plain, score
        elif self.update >= judged_from:
            self.stale += 1
        return better

    def add_snapshot(self, *, most: int) -> None:
        """Take the weights of this update into the average, the last `most` of them."""
        before = [update for update in self.snapshots if update != self.update]
        self.snapshots = [*before, self.update][-most:]

    def share_out(self, world: int) -> bool:
        """Go on with another number of processes; says whether that is a change.

        Batches that the processes together have not all done are done again.
        """
        changed = self.world != world
        self.batch = self.batch * self.world // world
        self.world = world
        return changed


@dataclass
class Outcome:
    """How a run ended."""

    folder: Path
    progress: Progress
    stopped: str  # why it ended
    signal: int | None = None  # the signal that stopped it: there is more to do
    parameters: int = 0
    averaged: dict[str, Any] | None = None  # losses of the averaged weights, where they were made
    late: int | None = None  # a signal that came when nothing was left to stop

    @property
    def interrupted(self) -> bool:
        """Whether a signal stopped it before its end."""
        return self.signal is not None

    def before_more(self) -> None:
        """Raise a signal that came too late for this run: nothing that follows it is to begin."""
        if self.late is not None:
            raise_signal(self.late)


def _judged_from(train: TrainConfig) -> int:
    """The first update whose validation decides something.

    Where scores decide, those that a model from random weights has while its learning rate still
    rises are left out: one that writes the same words for every source can score well by chance.
    """
    if train.judge_from is not None:
        return train.judge_from
    return train.warmup if train.stop_on == "score" and train.init_from is None else 0


def reason_to_stop(train: TrainConfig, progress: Progress, *, out_of_time: bool) -> str | None:
    """Why a run has reached its end, or None when it has not."""
    if train.max_updates and progress.update >= train.max_updates:
        return counted(progress.update, "update is done", "updates are done")
    if train.max_epochs and progress.epoch >= train.max_epochs:
        return counted(progress.epoch, "epoch is done", "epochs are done")
    if train.patience and progress.stale >= train.patience:
        best = f"; the best was at update {progress.best_update:,}" if progress.best_update else ""
        alone = progress.stale == 1
        last = "validation was" if alone else f"{progress.stale} validations were"
        return f"the last {last} no better{best}"
    if out_of_time and train.max_minutes:
        return counted(train.max_minutes, "minute has passed", "minutes have passed")
    return None


def share_done(
    train: TrainConfig, progress: Progress, *, batches: int, seconds: float
) -> float | None:
    """How much of the run is done, as far as can be told."""
    shares = []
    if train.max_updates:
        shares.append(progress.update / train.max_updates)
    if train.max_epochs:
        shares.append((progress.epoch + progress.batch / batches) / train.max_epochs)
    if train.max_minutes:
        shares.append(seconds / (60 * train.max_minutes))
    return min(1.0, max(shares)) if shares else None
