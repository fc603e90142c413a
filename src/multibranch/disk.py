"""The disk: what is complete or absent, JSON, checksums, who still writes, and no room.

What takes another folder's place is ready, and synced, before.
"""

import ctypes
import errno
import hashlib
import json
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from multibranch.errors import UserError

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NEW, _OLD = ".new.", ".old."  # how the names of folders begin while one takes another's place


@contextmanager
def replaced_folder(folder: Path) -> Iterator[Path]:
    """A new folder beside `folder` that takes its place, synced, when all went well.

    Whatever happens, `folder` is either what it was or complete.
    """
    with parents_made(folder):
        new = Path(tempfile.mkdtemp(prefix=f"{_NEW}{folder.name}.", dir=folder.parent))
        try:
            yield new
            for path in new.iterdir():
                sync(path)
            new.chmod(0o777 & ~umask())
            sync(new)
            exchange(new, folder)
        finally:
            remove(new)


@contextmanager
def parents_made(place: Path) -> Iterator[None]:
    """Inside, the folders above `place` are there; a failure removes those that were made for it.

    One that holds something by then stays.
    """
    missing = [parent for parent in place.absolute().parents if not parent.exists()]
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        for parent in missing:  # the innermost comes first
            with suppress(OSError):
                parent.rmdir()
        raise


@contextmanager
def replaced_file(path: Path) -> Iterator[BinaryIO]:
    """A file to fill that takes its place when all went well; what fails leaves what was there.

    It keeps the mode of one that was there. What is no file, such as a named pipe or /dev/null, is
    written to as it is. A link stays one.
    """
    before = file_status(path)
    if before is not None and not stat.S_ISREG(before.st_mode):
        with path.open("wb") as stream:
            yield stream
        return
    place = path.resolve()
    handle, name = tempfile.mkstemp(prefix=f".{place.name}.", dir=place.parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            yield stream
        Path(name).chmod(0o666 & ~umask() if before is None else stat.S_IMODE(before.st_mode))
        Path(name).replace(place)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def file_status(path: Path) -> os.stat_result | None:
    """What the system says of a file; None where there is none."""
    try:
        return path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None


def check_place(place: Path, option: str, *, filled: bool = False) -> None:
    """Refuse, before any work for it, a place where no file or folder could be made.

    option: what the person named it with, for the message.
    filled: a folder that stands there already is not replaced, but written into.
    """
    places = [place, *place.absolute().parents] if filled else place.absolute().parents
    parent = next(each for each in places if each.exists())
    if not parent.is_dir():
        why = "it" if parent == place else parent
        raise UserError(f"{place} cannot be written: {why} is a file; choose another {option}")
    try:
        # Asking for rights is not enough: root has them all, and /proc still takes nothing.
        Path(tempfile.mkdtemp(prefix=_NEW, dir=parent)).rmdir()
    except OSError as error:
        raise UserError(
            f"{place} cannot be written: nothing can be made in {parent} ({error.strerror}); "
            f"choose another {option}"
        ) from None


def check_file(place: Path, option: str) -> None:
    """`check_place` of a file, which takes no folder's place."""
    if place.is_dir():
        raise UserError(f"{place} is a folder: give {option} a file")
    check_place(place, option)


@contextmanager
def naming(place: str | Path) -> Iterator[None]:
    """Inside, an error of the disk that names no file, as one of a full disk, names `place`."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(place)
        raise


@contextmanager
def system_errors(place: str | Path) -> Iterator[None]:
    """Inside, an error of the system that a library in Rust has in words alone is an OSError."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        number = re.search(r"\(os error (\d+)\)", str(error))
        if number is None:
            raise
        code = int(number[1])
        raise OSError(code, os.strerror(code), str(place)) from error


def umask() -> int:
    """What the user keeps from others; the only way to read it is to set it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def clean_up(folder: Path) -> None:
    """Remove from `folder` what `replaced_folder` left there when it was killed."""
    for path in sorted(folder.glob(f"{_OLD}*")):
        recover(folder / path.name.removeprefix(_OLD))
    for path in folder.glob(f"{_NEW}*"):
        remove(path)


def recover(folder: Path) -> None:
    """Put right what `exchange` left of `folder` when it was killed between its two moves."""
    old = _old(folder)
    if folder.exists():
        remove(old)
    elif old.exists():
        old.rename(folder)


def remove(path: Path) -> None:
    """Remove a folder, a file or a link, as far as that can be done."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


def exchange(new: Path, folder: Path) -> None:
    """Put `new` where `folder` is; what was there is removed, or stands where `new` was."""
    if not folder.exists():
        new.rename(folder)
    elif not _swap(new, folder):
        old = _old(folder)
        remove(old)
        folder.rename(old)
        try:
            new.rename(folder)
        except OSError:
            old.rename(folder)
            raise
        remove(old)
    sync(folder.parent)


def _old(folder: Path) -> Path:
    return folder.parent / f"{_OLD}{folder.name}"  # of the root, too, which has no name


def _swap(one: Path, other: Path) -> bool:
    """Exchange two names in one step, where the system can: Linux, on most file systems."""
    at_current_folder, exchange = -100, 2
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    names = os.fsencode(one), os.fsencode(other)
    return renameat2(at_current_folder, names[0], at_current_folder, names[1], exchange) == 0


def sync(path: Path) -> None:
    """Wait until a file or folder is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def full_disk(error: OSError, place: Path, *, advice: str) -> UserError | None:
    """That there is no room for `place`, as a sentence; None where that is not the error."""
    if error.errno not in _FULL:
        return None
    return UserError(
        f"the disk is full ({error.strerror}): {place} could not be written to. {advice}"
    )


def takes_nothing(error: BaseException) -> bool:
    """Whether an error, or its cause, is that a disk takes nothing any more, whatever it is."""
    error = error.__cause__ or error
    return isinstance(error, OSError) and error.errno in (*_FULL, errno.EROFS, errno.EIO)


def damaged(path: Path, what: str) -> UserError:
    """That a file of a prepared corpus or of a model is not what it should be."""
    return UserError(f"{path} is damaged: {what}; {remedy(path)}.")


def remedy(path: Path) -> str:
    """How to get a whole file of a prepared corpus or of a model again."""
    if (path.parent / "config.json").is_file():
        return "copy the model's folder again, or train the model again"
    return "prepare the corpus again"


def write_json(path: Path, value: Any) -> None:
    """Write JSON for people as for programs: indented, keys in their given order."""
    path.write_text(json_text(value), encoding="utf-8")


def json_text(value: Any) -> str:
    """What `write_json` writes."""
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def sha256(path: Path) -> str:
    """The checksum of a file as it lies on the disk."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def alive(process: int) -> bool:
    """Whether a process of this machine, which has left its number in a name, still runs."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
