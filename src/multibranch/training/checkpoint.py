"""Checkpoints to resume from: complete or absent, checked, and written while training goes on.

    resume/update-00001200/state.safetensors   weights, Adam's moments
    resume/update-00001200/progress.json       where training stood, and the checksum of the above

A checkpoint is written beside its place, synced and renamed. One whose checksum does not fit is
passed over, with a message, for the one before.
"""

import hashlib
import shutil
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from multibranch.directory import load_weights, read_json, replaced_folder, write_json
from multibranch.errors import UserError

STATE = "state.safetensors"
PROGRESS = "progress.json"


@dataclass
class Progress:
    """Where training stands. The random numbers of an update are a function of seed and update."""

    update: int = 0  # updates done
    epoch: int = 0
    batch: int = 0  # batches of this epoch done, of each process
    seconds: float = 0.0  # spent training
    tokens: int = 0  # target tokens seen, by all processes
    skipped: int = 0  # updates skipped because their gradient was not finite
    best: float | None = None  # the best validation value so far
    best_update: int = 0
    stale: int = 0  # validations since then
    finished: bool = False
    snapshots: list[int] = field(default_factory=list)  # updates whose weights will be averaged


class Checkpoints:
    """The checkpoints of one run, under `folder`."""

    def __init__(
        self, folder: Path, *, keep: int = 2, tell: Callable[[str], None] = lambda message: None
    ) -> None:
        self.folder = folder
        self.keep = max(1, keep)
        self.tell = tell
        self._writer: threading.Thread | None = None
        self._failure: BaseException | None = None

    def save(self, state: dict[str, Tensor], progress: Progress, *, wait: bool = False) -> None:
        """Write a checkpoint in the background, from a copy made now."""
        self.wait()
        copied = {name: tensor.detach().to("cpu", copy=True) for name, tensor in state.items()}
        record = asdict(progress)
        self._writer = threading.Thread(target=self._write, args=(copied, record), daemon=False)
        self._writer.start()
        if wait:
            self.wait()

    def wait(self) -> None:
        """Wait for the last checkpoint to be on disk; raises if it could not be written."""
        if self._writer is not None:
            self._writer.join()
            self._writer = None
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise UserError(
                f"the checkpoint could not be written to {self.folder}: {failure}. "
                "Earlier checkpoints are unharmed; make room and start the same command again"
            ) from failure

    def _write(self, state: dict[str, Tensor], record: dict[str, Any]) -> None:
        try:
            place = self.folder / f"update-{record['update']:08d}"
            with replaced_folder(place) as new:
                save_file(state, new / STATE)
                write_json(new / PROGRESS, {**record, "checksum": checksum(new / STATE)})
            for old in self._all()[: -self.keep]:
                shutil.rmtree(old, ignore_errors=True)
        except BaseException as failure:
            self._failure = failure

    def load(self) -> tuple[dict[str, Tensor], Progress] | None:
        """The newest checkpoint that is sound, or None when there is none."""
        for place in reversed(self._all()):
            try:
                record = read_json(place / PROGRESS)
                if record.pop("checksum", None) != checksum(place / STATE):
                    raise UserError(f"{place / STATE} does not fit its checksum")
                return load_weights(place / STATE), Progress(**record)
            except (UserError, OSError, TypeError) as error:
                self.tell(f"{place} is damaged ({error}); taking the checkpoint before it")
        return None

    def _all(self) -> list[Path]:
        return sorted(self.folder.glob("update-*"))


def checksum(path: Path) -> str:
    """The SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
