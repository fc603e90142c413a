"""The end of a run whose gradients are not finite any more: which batches they came from."""

from collections import deque
from pathlib import Path

from multibranch.data import PackedBatches, PaddedBatches
from multibranch.disk import write_json
from multibranch.errors import UserError, counted

NAME = "bad_batch.json"


class Diverged(UserError):
    """Training fell apart, and going on would not mend it."""


class BadBatches:
    """Remembers the batches of the last `count` updates."""

    def __init__(self, count: int) -> None:
        self._updates: deque[tuple[int, int, range]] = deque(maxlen=count)

    def remember(self, update: int, epoch: int, numbers: range) -> None:
        """Note an update and the numbers of its batches, of each process."""
        self._updates.append((update, epoch, numbers))

    def give_up(self, folder: Path, batches: PackedBatches | PaddedBatches) -> None:
        """Write the pairs of those updates to `folder`, and raise the error that ends it."""
        updates = []
        for update, epoch, numbers in self._updates:
            plan, world = batches.at_epoch(epoch).plan, batches.world
            of_all = range(numbers.start * world, numbers.stop * world)
            pairs = [int(pair) for number in of_all for pair in plan.pairs(number)]
            updates.append({"update": update, "epoch": epoch, "pairs": pairs})
        write_json(folder / NAME, {"split": "train", "updates": updates})
        raise Diverged(
            "the gradient was not finite for "
            f"{counted(len(updates), 'update', 'updates in a row')}, up to update "
            f"{updates[-1]['update']}; the numbers of their training pairs are in "
            f"{folder / NAME}: lower train.learning_rate, or look at the data"
        )
