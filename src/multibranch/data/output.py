"""The folder that a preparation leaves: whole, or not there at all.

Work is done in ``.NAME.partial-PID`` beside the output, which takes the output's name, and the
place of what it replaces, in one step at the end. The manifest in it says what it was made from and
how, so that the same request finds the work done, and another one is told what differs.
"""

import errno
import json
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from multibranch import __version__
from multibranch.data.files import Source
from multibranch.disk import (
    alive,
    check_place,
    exchange,
    full_disk,
    parents_made,
    recover,
    sha256,
    sync,
    write_json,
)
from multibranch.errors import UserError

MANIFEST = "manifest.json"
FORMAT = 1


class Workshop:
    """A context in which a folder is filled; leaving it by an exception leaves nothing behind."""

    def __init__(self, output: Path, *, overwrite: bool = False) -> None:
        self.output = output.resolve()  # through links: a folder cannot take a link's place
        self.folder = self.output.with_name(f".{self.output.name}.partial-{os.getpid()}")
        self._overwrite = overwrite
        self._parents = parents_made(self.output)

    def __enter__(self) -> Path:
        if self.output.exists() and not _prepared(self.output):
            raise UserError(
                f"{self.output} holds something other than a prepared corpus; choose another "
                "--output."
            )
        check_place(self.output, "--output")
        self._parents.__enter__()
        self._sweep()
        self.folder.mkdir()
        return self.folder

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                self._publish()
        except BaseException as failure:
            error = failure
            if not isinstance(error, OSError):
                raise
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)
            self._parents.__exit__(None if error is None else type(error), error, trace)
        if isinstance(error, OSError):
            raise self._sentence(error) from error

    def _publish(self) -> None:
        for path in (*self.folder.rglob("*"), self.folder):
            sync(path)
        if self._overwrite:
            exchange(self.folder, self.output)
            return
        try:
            self.folder.replace(self.output)
        except OSError:
            # The same may have been prepared meanwhile: two runs that start at once want it both.
            made = _manifest(self.folder)
            if made is None or _manifest(self.output) != made:
                raise

    def _sweep(self) -> None:
        """Remove what runs that were killed have left; what they had taken away comes back."""
        recover(self.output)
        for path in self.output.parent.glob(f".{self.output.name}.partial-*"):
            pid = path.name.rpartition("-")[2]
            if not pid.isdecimal() or not alive(int(pid)) or int(pid) == os.getpid():
                shutil.rmtree(path, ignore_errors=True)

    def _sentence(self, error: OSError) -> UserError:
        advice = "Nothing was left behind: make room, or choose another --output."
        full = full_disk(error, self.output, advice=advice)
        if full is not None:
            return full
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            return UserError(
                f"{self.output} appeared while it was being prepared; look at what made it, and "
                "run again."
            )
        where = f" ({error.filename})" if error.filename else ""
        return UserError(f"{self.output} could not be prepared: {error.strerror}{where}.")


def describe_inputs(sources: Iterable[Source]) -> list[dict[str, Any]]:
    """Name, size and checksum of the files on the disk that hold ``sources``, each once.

    A file that has another checksum than a SHA256SUMS or NAME.sha256 beside it says is a UserError.
    """
    described = []
    for path in sorted({source.path for source in sources}):
        checksum = sha256(path)
        _compare(path, checksum)
        described.append({"name": path.name, "bytes": path.stat().st_size, "sha256": checksum})
    return described


def _compare(path: Path, checksum: str) -> None:
    for name in ("SHA256SUMS", f"{path.name}.sha256"):
        listing = path.with_name(name)
        if not listing.is_file():
            continue
        for line in listing.read_text(encoding="utf-8", errors="replace").splitlines():
            known, _, file = line.partition(" ")
            if file.strip().removeprefix("*") == path.name and known.lower() != checksum:
                raise UserError(
                    f"{path} has the checksum {checksum}, but {listing} says {known}: the file is "
                    "not the one it should be; get it again, or remove the listing."
                )


def describe_outputs(folder: Path) -> dict[str, Any]:
    """Size and checksum of everything in ``folder``."""
    return {
        path.relative_to(folder).as_posix(): {
            "bytes": path.stat().st_size,
            "sha256": sha256(path),
        }
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def write_manifest(
    folder: Path,
    *,
    request: Mapping[str, Any],
    results: Mapping[str, Any],
) -> dict[str, Any]:
    """Write down what was asked for, what came of it, and the files that hold it."""
    manifest = {
        "format": FORMAT,
        "version": __version__,
        **request,
        **results,
        "files": describe_outputs(folder),
    }
    write_json(folder / MANIFEST, manifest)
    return manifest


def _manifest(folder: Path) -> bytes | None:
    """The manifest of a folder, which has the checksums of all else in it."""
    path = folder / MANIFEST
    return path.read_bytes() if path.is_file() else None


def _prepared(folder: Path) -> bool:
    """Whether a folder is one that preparing may replace."""
    return folder.is_dir() and ((folder / MANIFEST).is_file() or not any(folder.iterdir()))


def finished(output: Path, request: Mapping[str, Any]) -> dict[str, Any] | None:
    """The manifest of ``output`` if it holds exactly what ``request`` asks for, None if it is free.

    A folder that holds something else is a UserError that says what differs.
    """
    recover(output.resolve())
    if not output.exists():
        return None
    path = output / MANIFEST
    if not path.is_file():
        if output.is_dir() and not any(output.iterdir()):
            return None
        raise UserError(
            f"{output} exists and is not a prepared folder; choose another --output, or remove it."
        )
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(
            f"{path} is damaged ({error}); use --overwrite to prepare again."
        ) from error
    differences = [key for key in request if _differs(manifest.get(key), request[key])]
    if manifest.get("format") != FORMAT:
        differences.insert(0, "format")
    if differences:
        raise UserError(
            f"{output} was prepared from another request ({_tell(manifest, request, differences)})"
            "; choose another --output, or use --overwrite to replace it."
        )
    for name, facts in manifest["files"].items():
        file = output / name
        if not file.is_file() or file.stat().st_size != facts["bytes"]:
            raise UserError(
                f"{file} is missing or changed since it was prepared; use --overwrite to prepare "
                f"{output} again."
            )
    return manifest


def _differs(there: Any, asked: Any) -> bool:
    return json.dumps(there, sort_keys=True) != json.dumps(asked, sort_keys=True)


def _tell(there: Mapping[str, Any], asked: Mapping[str, Any], keys: list[str]) -> str:
    """The differences in words: "settings.lowercase is true there, false asked for"."""
    told = []
    for key in keys:
        old, new = there.get(key), asked.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            inner = [k for k in {**old, **new} if _differs(old.get(k), new.get(k))]
            told += [f"{key}.{_tell(old, new, [k])}" for k in inner]
        elif isinstance(new, list):
            told.append(f"{key}: {_changed(old, new)}")
        else:
            told.append(f"{key} is {json.dumps(old)} there, {json.dumps(new)} asked for")
    return "; ".join(told)


def _changed(old: Any, new: list[Any]) -> str:
    known = old if isinstance(old, list) else []
    names = [item.get("name", "?") for item in new if item not in known]
    names += [item.get("name", "?") for item in known if item not in new]
    return f"{', '.join(dict.fromkeys(names))} differ"
