"""The folder of a trial: what is kept there, and who is at work in it.

TRIAL/trial.json     the record: settings, scores, learning curve, times, the command
TRIAL/test.txt.gz    the tokenised translations of the test set
TRIAL/config.json, model.safetensors, …   the model directory
"""

import fcntl
import gzip
import json
import shutil
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from multibranch.disk import replaced_file
from multibranch.errors import UserError

RECORD = "trial.json"
HYPOTHESES = "test.txt.gz"


class Busy(Exception):
    """Another process is at work on this very trial."""


def read_record(folder: Path) -> dict[str, Any] | None:
    """The record of a trial that is done."""
    try:
        found: dict[str, Any] = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found


def write_lines(path: Path, lines: list[str]) -> None:
    """Lines, compressed, and the same bytes for the same lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(line.replace("\n", " ") + "\n" for line in lines)
    with replaced_file(path) as file:
        file.write(gzip.compress(text.encode("utf-8"), mtime=0))


def read_lines(path: Path) -> list[str]:
    """What `write_lines` wrote."""
    try:
        text = gzip.decompress(path.read_bytes()).decode("utf-8")
    except (gzip.BadGzipFile, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise UserError(
            f"{path} is damaged: {error}; remove it, which leaves the differences of its trial "
            "untested, and import the trial again where it was recorded elsewhere"
        ) from None
    return text.removesuffix("\n").split("\n") if text else []


def tidy(folder: Path, *, model: bool = False) -> None:
    """Remove what only training needed, and with `model` the weights too.

    A fine-tuned encoder lies in a folder of its own within the trial's, and a large one in parts.
    """
    for name in ("resume", "best", "last", "averaged", "tensorboard"):
        shutil.rmtree(folder / name, ignore_errors=True)
    if model:
        for weights in (*folder.glob("model*.safetensors"), *folder.glob("model/*.safetensors")):
            weights.unlink(missing_ok=True)


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Hold the trial until the end, or until this process ends in whatever way."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f".{folder.name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Busy(folder.name) from None
        except OSError:  # a file system without locks
            pass
        yield


def is_claimed(folder: Path) -> bool:
    """Whether another process is at work on the trial."""
    try:
        with claimed(folder):
            return False
    except Busy:
        return True
