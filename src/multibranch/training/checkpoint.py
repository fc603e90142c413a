"""Checkpoints to resume from: complete or absent, and checked.

    resume/update-00001200/state.safetensors   weights, Adam's moments, running statistics
    resume/update-00001200/progress.json       where training stood
    resume/update-00001200/checksums.json      of both, and of the snapshots that belong to it
    resume/snapshots/                          see averaging.py

A checkpoint is written beside its place, synced and renamed. One that does not fit its checksums is
passed over, with a message, for the one before.
"""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from torch import Tensor

from multibranch.directory import load_weights, read_json, save_weights
from multibranch.disk import clean_up, replaced_folder, sha256, write_json
from multibranch.errors import UserError
from multibranch.training.averaging import Snapshots
from multibranch.training.progress import Progress

STATE = "state.safetensors"
PROGRESS = "progress.json"
CHECKSUMS = "checksums.json"
FORMAT = 1


class Checkpoints:
    """The checkpoints of one run, under `folder`, and the snapshots they mention."""

    def __init__(
        self, folder: Path, *, keep: int = 2, tell: Callable[[str], None] = lambda message: None
    ) -> None:
        self.folder = folder
        self.keep = keep
        self.tell = tell
        self.snapshots = Snapshots(folder / "snapshots")

    def write(self, state: Mapping[str, Tensor], record: Mapping[str, Any]) -> None:
        """Write a checkpoint of what `record_of` noted and remove those that are too old."""
        with replaced_folder(self._place(record["update"])) as new:
            save_weights(new / STATE, state)
            write_json(new / PROGRESS, record)
            sums: dict[str, Any] = {name: sha256(new / name) for name in (STATE, PROGRESS)}
            known = self.snapshots.checksums
            sums["snapshots"] = {str(update): known[update] for update in record["snapshots"]}
            write_json(new / CHECKSUMS, sums)
        self._prune()

    def write_snapshot(self, weights: Mapping[str, Tensor], taken: list[int]) -> None:
        """Write the newest of the snapshots `taken`; remove those that nothing mentions."""
        self.snapshots.write(weights, taken[-1])
        mentioned = {update for place in self._all() for update in _snapshots_of(place)}
        self.snapshots.prune(mentioned | set(taken))

    def load(self) -> tuple[dict[str, Tensor], Progress] | None:
        """The newest checkpoint that is sound, or None when there is none; removes the others."""
        clean_up(self.folder)
        places = self._all()
        for place in reversed(places):
            try:
                found = self._read(place)
                self._prune()
                return found
            except _Damaged as damage:
                self.tell(f"the checkpoint {place} is damaged ({damage}): taking the one before it")
                shutil.rmtree(place, ignore_errors=True)
        if places:
            self.tell(f"no checkpoint under {self.folder} is sound: training starts anew")
        return None

    def _read(self, place: Path) -> tuple[dict[str, Tensor], Progress]:
        try:
            sums = read_json(place / CHECKSUMS)
            for name in (STATE, PROGRESS):
                if not (place / name).is_file():
                    raise UserError(f"{name} is missing")
                if sha256(place / name) != sums.get(name):
                    raise UserError(f"{name} does not fit its checksum")
            self.snapshots.check(
                {int(update): wanted for update, wanted in sums["snapshots"].items()}
            )
            record = read_json(place / PROGRESS)
            state = load_weights(place / STATE)
        except (UserError, KeyError, ValueError, AttributeError) as error:
            raise _Damaged(str(error)) from None
        known = {item.name for item in fields(Progress)}
        if record.pop("format", None) != FORMAT or not record.keys() <= known:
            raise UserError(
                f"{place} was written by another release of multibranch: go on with that one, or "
                "choose another train.output"
            )
        return state, Progress(**record)

    def _prune(self) -> None:
        for old in self._all()[: -self.keep]:
            shutil.rmtree(old, ignore_errors=True)

    def _place(self, update: int) -> Path:
        return self.folder / f"update-{update:08d}"

    def _all(self) -> list[Path]:
        """The checkpoints that there are, oldest first."""
        return sorted(self.folder.glob("update-*"))


class _Damaged(Exception):
    """A checkpoint is not what was written."""


def record_of(progress: Progress) -> dict[str, Any]:
    """What a checkpoint holds of the progress, apart from it: training goes on meanwhile."""
    return {"format": FORMAT, **asdict(progress)}


def _snapshots_of(place: Path) -> list[int]:
    try:
        return [int(update) for update in read_json(place / CHECKSUMS)["snapshots"]]
    except (UserError, KeyError, ValueError, TypeError):
        return []
