"""The folder of a run: one configuration's, and one process's at a time."""

import fcntl
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from multibranch import configuration
from multibranch.directory import LOCK, RUN, WEIGHTS
from multibranch.disk import check_place, clean_up, remove, sync
from multibranch.errors import UserError
from multibranch.training.config import Config

# What may change between a run and its continuation without making it another run.
FREE_KEYS = (
    "train.output",
    "train.max_epochs",
    "train.max_updates",
    "train.max_minutes",
    "train.patience",
    "train.judge_from",
    "train.checkpoint_minutes",
    "train.keep_checkpoints",
    "train.log_every",
    "train.tensorboard",
    "train.max_skipped",
    "train.device",
    "train.threads",
    "train.compile",
    "train.deterministic",
    "train.sharding",
    "data.folder",
)
# What a run saves; whatever of it is left, and be it the model alone, no other run may replace.
SAVED = ("resume/update-*", "best", WEIGHTS)


@dataclass
class _Before:
    """What there was where a run is to be."""

    missing: list[Path]  # folders that there were not, the innermost first
    names: set[str]  # what was in the run's own
    configuration: str | None  # that of a run, where it held one


class RunFolder:
    """The folder `train.output` while a run is at work in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: IO[str] | None = None
        self._before: _Before | None = None  # to go back to

    def claim(self, config: Config) -> None:
        """Refuse a folder that is not ours to write; else note the configuration in it.

        It is ours when it is empty, when it holds a run of the same configuration, or a run that
        ended before anything of it was saved; and when no other process is at work in it. Unless
        `keep` is called before, `release` makes all of this undone.
        """
        place = self.path / RUN
        if place.is_file():
            self._compare(configuration.load(Config, place), config)
        elif self.path.exists() and not self.path.is_dir():
            raise UserError(f"{self.path} is a file: choose another train.output")
        elif self.path.is_dir() and any(p for p in self.path.iterdir() if p.name[0] != "."):
            raise UserError(
                f"{self.path} is not empty and holds no run: choose another train.output"
            )
        check_place(self.path, "train.output", filled=True)
        whole = self.path.absolute()
        missing = [folder for folder in (whole, *whole.parents) if not folder.exists()]
        new = {LOCK} if not (self.path / LOCK).exists() else set()
        self.path.mkdir(parents=True, exist_ok=True)
        self._acquire()
        clean_up(self.path)
        names = {path.name for path in self.path.iterdir()} - new
        noted = place.read_text(encoding="utf-8") if RUN in names else None
        self._before = _Before(missing, names, noted)
        self._note(configuration.to_yaml(config))

    def keep(self) -> None:
        """From now on the folder holds what is worth keeping."""
        self._before = None

    def release(self) -> None:
        """Let others in. Where nothing was worth keeping, all is as it was before `claim`."""
        if self._before is not None:
            with suppress(OSError):  # why the run ended matters more
                self._restore(self._before)
            self._before = None
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _note(self, content: str) -> None:
        """Write the configuration, complete or not at all."""
        beside = self.path / f".{RUN}"
        beside.write_text(content, encoding="utf-8")
        sync(beside)
        beside.replace(self.path / RUN)

    def _restore(self, before: _Before) -> None:
        for path in self.path.iterdir():
            if path.name not in before.names:
                remove(path)
        if before.configuration is not None:
            self._note(before.configuration)
        for folder in before.missing:
            folder.rmdir()

    def _compare(self, before: Config, now: Config) -> None:
        # A cool-down counts back from the last update.
        bound = ("train.max_updates",) if now.train.cool_down else ()
        changed = [
            f"{key}: {old} → {new}"
            for key, old, new in configuration.differences(before, now)
            if key not in FREE_KEYS or key in bound
        ]
        if now.train.cool_down and any(each.startswith(bound) for each in changed):
            changed.append("which train.cool_down counts back from")
        saved = [path for name in SAVED for path in self.path.glob(name)]
        if changed and saved:
            raise UserError(
                f"{self.path} holds a run of another configuration ({'; '.join(changed)}): choose "
                "another train.output, or remove that folder"
            )

    def _acquire(self) -> None:
        """Hold the folder until `release`, or until this process ends in whatever way."""
        self._lock = (self.path / LOCK).open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.release()
            raise UserError(
                f"another process is training in {self.path}: stop that one, or choose another "
                "train.output"
            ) from None
        except OSError:  # a file system without locks
            self.release()
