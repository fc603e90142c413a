"""What a run goes on from: its newest checkpoint, with the data that it began with."""

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

from multibranch.data import PreparedData
from multibranch.directory import WEIGHTS
from multibranch.disk import sha256
from multibranch.errors import UserError, counted
from multibranch.text.pipeline import SIDES
from multibranch.training.checkpoint import Checkpoints
from multibranch.training.config import TrainConfig
from multibranch.training.processes import Processes
from multibranch.training.progress import Progress
from multibranch.training.step import Step


def take_up(
    checkpoints: Checkpoints,
    train: TrainConfig,
    data: PreparedData,
    processes: Processes,
    *,
    tell: Callable[[str], None],
) -> tuple[Progress, dict[str, Tensor] | None]:
    """Where a run stands, and the tensors of its newest checkpoint; None where there is none."""
    found: list[Any] = [None, {}]
    known = known_by(data)
    start = _checksum(train.init_from) if processes.first else None

    def read() -> None:
        loaded = checkpoints.load()
        if loaded is not None:
            found[0], found[1] = vars(loaded[1]), loaded[0]
            check_same_data(data, known, loaded[1].data)
            if None not in (start, loaded[1].start) and start != loaded[1].start:
                tell(
                    f"warning: {train.init_from} is another model than when this run started from "
                    "it, and the run goes on from what it was: for one that starts from it as it "
                    f"is, remove {train.output} or choose another train.output"
                )
        elif (Path(train.output) / WEIGHTS).is_file():
            tell(
                f"{train.output} has a model, but no checkpoint to go on from: training "
                "starts anew, and replaces it at its end"
            )

    processes.first_does(read)
    record, state = processes.from_first(*found)
    if record is None:
        return Progress(world=processes.world, data=known, start=start), None
    progress = Progress(**record)
    if progress.share_out(processes.world):
        tell(f"going on with {counted(processes.world, 'process', 'processes')}")
    if not processes.first:  # what was counted is the sum of all processes
        state["statistics"][Step.OWN] = 0
    return progress, state


def _checksum(folder: str | None) -> str | None:
    """The checksum of the weights that a run starts from; None where there are none, or gone."""
    path = Path(folder or "") / WEIGHTS
    return sha256(path) if folder is not None and path.is_file() else None


def known_by(data: PreparedData) -> list[int]:
    """What training data are known by.

    How many pairs, source tokens and target tokens they have; checksums of the ids, and of the
    vocabularies that say what these mean.
    """
    pairs = data.split("train")
    lengths = (pairs.source_lengths, pairs.target_lengths)
    sizes = [len(pairs), *(int(side.sum(dtype="int64")) for side in lengths)]
    ids = vocabularies = 0
    for side, numbers in zip(SIDES, (pairs.source_ids, pairs.target_ids)):
        ids = zlib.crc32(numbers.data, ids)
        entries = sorted(data.text.tokenizer(side).get_vocab().items())
        vocabularies = zlib.crc32(repr(entries).encode(), vocabularies)
    return [*sizes, ids, vocabularies]


def check_same_data(data: PreparedData, now: list[int], before: list[int]) -> None:
    """Refuse to go on with other training data than those of the run so far."""
    if now == before:
        return
    if now[:3] != before[:3]:
        has = f"{counted(now[0], 'pair')} and {counted(now[2], 'target token')}"
        differs = f"they have {has}, not {before[0]:,} and {before[2]:,}"
    elif now[-1] != before[-1]:
        differs = "they have another vocabulary"
    else:
        differs = "they have as many pairs, but not the same"
    raise UserError(
        f"the training data in {data.folder} are not those of the run so far: {differs}; set "
        "data.folder to the right folder, or choose another train.output"
    )
