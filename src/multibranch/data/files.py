"""Finding and reading the files of a corpus where the user has them: folders, files, archives.

A ``Library`` is asked for a file by the last part of its path (``train.tags.de-en.de``,
``dev/newstest2013.*``). It looks in folders first and then inside archives, and inside archives
within archives; compression (.gz, .bz2, .xz, .zst) is undone on the way. Everything is read as a
stream, and memory does not depend on the file. Nothing is unpacked to the disk, but for a .zip that
lies in a .tar or is compressed once more: a temporary file holds it while it is read.
"""

import bz2
import contextlib
import gzip
import io
import itertools
import lzma
import shutil
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from operator import attrgetter
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast

from multibranch.errors import UserError

COMPRESSIONS = (".gz", ".bz2", ".xz", ".zst")
_TAR_SUFFIXES = {".tgz": ".gz", ".tbz2": ".bz2", ".tbz": ".bz2", ".txz": ".xz", ".tzst": ".zst"}
_DAMAGE = (EOFError, zlib.error, lzma.LZMAError, tarfile.TarError, zipfile.BadZipFile)


@dataclass(frozen=True)
class Source:
    """One file of a corpus: on the disk, or a member of the archive that is on the disk.

    ``members`` is the way inside: empty for a plain file, one name for a member of an archive, two
    for a member of an archive in an archive.
    """

    path: Path
    members: tuple[str, ...] = ()

    def __str__(self) -> str:
        return ": ".join((str(self.path), *self.members))

    @property
    def stored(self) -> str:
        """The path as it is called where it lies."""
        return self.members[-1] if self.members else self.path.as_posix()

    @property
    def inner(self) -> str:
        """The same without its compression's suffix."""
        return without_compression(self.stored)

    @contextlib.contextmanager
    def open(self) -> Iterator[IO[bytes]]:
        """The decompressed bytes, to be read once from beginning to end."""
        with contextlib.ExitStack() as stack, _sound(self):
            stream = stack.enter_context(_opened(self.path))
            name = self.path.name
            for member in self.members:
                stream = stack.enter_context(_member(stream, name, member))
                name = member
            yield _decompressed(stream, name)


class Library:
    """The files that a recipe may take from: all that the given folders and archives hold."""

    def __init__(self, places: Sequence[Path]) -> None:
        for place in places:
            if not place.exists():
                raise UserError(f"{place} does not exist; give a file, an archive or a folder.")
        self.places = tuple(places)

    def find(self, *patterns: str) -> Source | None:
        """The file whose path is, or else ends with, one of ``patterns`` (the first there is).

        A path is compared as it is, and then without its compression's suffix.
        """
        for sources in (self._plain_files, self._archived):
            for pattern, whole in itertools.product(patterns, (True, False)):
                for path in (attrgetter("stored"), attrgetter("inner")):
                    for source in sources:
                        if _matches(path(source), pattern, whole=whole):
                            return source
        return None

    def names(self, limit: int = 8) -> str:
        """What is there, for an error message."""
        names = [PurePosixPath(s.inner).name for s in (*self._plain_files, *self._archived)]
        if not names:
            return "nothing"
        more = f" and {len(names) - limit} more" if len(names) > limit else ""
        return ", ".join(names[:limit]) + more

    @cached_property
    def _files(self) -> list[Path]:
        found: list[Path] = []
        for place in self.places:
            if place.is_file():
                found.append(place)
            else:
                inside = (path for path in sorted(place.rglob("*")) if path.is_file())
                found += [p for p in inside if not _hidden(p.relative_to(place).as_posix())]
        return found

    @cached_property
    def _plain_files(self) -> list[Source]:
        return [Source(path) for path in self._files if not _is_archive(path.name)]

    @cached_property
    def _archived(self) -> list[Source]:
        return [
            source for path in self._files if _is_archive(path.name) for source in _contents(path)
        ]


def check_archive(path: Path) -> None:
    """Read an archive or a compressed file to its end; one cut short or damaged is a UserError."""
    with _sound(Source(path)), _opened(path) as stream:
        if _is_archive(path.name):
            _read_members(stream, path.name)
        else:
            _drain(_decompressed(stream, path.name))


def _read_members(stream: IO[bytes], name: str) -> None:
    """Read every file of an archive to its end, where its checksum is compared."""
    for member, inner in _entries(stream, name):
        if _is_archive(member) and not _hidden(member):
            _read_members(inner, member)
        _drain(inner)


def _drain(stream: IO[bytes]) -> None:
    while stream.read(1 << 20):
        pass


def _contents(path: Path) -> list[Source]:
    """The files inside an archive, those of archives inside it included."""
    with _sound(Source(path)), _opened(path) as stream:
        return [Source(path, members) for members in _list(stream, path.name)]


def _list(stream: IO[bytes], name: str) -> Iterator[tuple[str, ...]]:
    for member, inner in _entries(stream, name):
        if _hidden(member):
            continue
        if _is_archive(member):
            for deeper in _list(inner, member):
                yield (member, *deeper)
        else:
            yield (member,)


def _entries(stream: IO[bytes], name: str) -> Iterator[tuple[str, IO[bytes]]]:
    """Every file of an archive and its bytes, one after the other."""
    if without_compression(name).endswith(".zip"):
        with _seekable(stream, name) as whole, zipfile.ZipFile(whole) as archive:
            for info in archive.infolist():
                if not info.is_dir():
                    with _unlocked(archive, info, name) as inner:
                        yield info.filename, inner
        return
    unpacked = _decompressed(stream, _tar_name(name))
    with tarfile.open(fileobj=unpacked, mode="r|") as tar:
        for entry in tar:
            if entry.isfile():
                yield entry.name, cast(IO[bytes], tar.extractfile(entry))
    _drain(unpacked)  # the checksum of a compressed file stands behind the last of the archive


def _unlocked(archive: zipfile.ZipFile, info: zipfile.ZipInfo, name: str) -> IO[bytes]:
    """A file of a .zip; one with a password, or packed in a way not known here, is a UserError."""
    try:
        return archive.open(info)
    except RuntimeError as error:
        raise UserError(
            f"{info.filename} in {name} cannot be unpacked here ({error}); unpack the archive with "
            "another program, and give the folder."
        ) from error


@contextlib.contextmanager
def _seekable(stream: IO[bytes], name: str) -> Iterator[IO[bytes]]:
    """A .zip, whose table of contents stands at its end: copied where it can only be read on."""
    if name.endswith(".zip") and not isinstance(stream, tarfile.ExFileObject):
        yield stream
        return
    with tempfile.TemporaryFile() as copy:
        shutil.copyfileobj(_decompressed(stream, name), copy)
        yield copy


@contextlib.contextmanager
def _member(stream: IO[bytes], name: str, member: str) -> Iterator[IO[bytes]]:
    entries = _entries(stream, name)
    try:
        for entry, inner in entries:
            if entry == member:
                yield inner
                return
    finally:
        entries.close()  # type: ignore[attr-defined]
    raise UserError(f"{name} no longer holds {member}; it was changed while it was read.")


def _decompressed(stream: IO[bytes], name: str) -> IO[bytes]:
    suffix = PurePosixPath(name).suffix
    if suffix == ".gz":
        return cast(IO[bytes], gzip.GzipFile(fileobj=stream))
    if suffix == ".bz2":
        return bz2.BZ2File(stream)
    if suffix == ".xz":
        return lzma.LZMAFile(stream)
    if suffix == ".zst":
        return _zstandard(stream)
    return stream


def _zstandard(stream: IO[bytes]) -> IO[bytes]:
    try:
        import zstandard
    except ImportError as error:
        raise UserError(
            "reading .zst files takes the package zstandard: `pip install zstandard`, or "
            "decompress the file first."
        ) from error
    return cast(IO[bytes], io.BufferedReader(_Zstandard(stream, zstandard.ZstdDecompressor())))


class _Zstandard(io.RawIOBase):
    """Reads Zstandard frames; a last frame that does not end is an error, as in gzip and xz."""

    def __init__(self, stream: IO[bytes], decompressor: Any) -> None:
        self._stream = stream
        self._decompressor = decompressor
        self._frame: Any = None
        self._ready = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            if not self._advance():
                return 0
        count = min(len(buffer), len(self._ready))
        buffer[:count], self._ready = self._ready[:count], self._ready[count:]
        return count

    def _advance(self) -> bool:
        """Decompress some more; False at the end of the last frame."""
        data = self._stream.read(1 << 16)
        if not data and self._frame is not None:
            raise EOFError("the compressed file ended before its last frame did")
        while data:
            if self._frame is None:
                self._frame = self._decompressor.decompressobj()
            self._ready += self._frame.decompress(data)
            data = b""
            if self._frame.eof:
                data, self._frame = self._frame.unused_data, None
            elif self._ready:
                break
        return bool(self._ready) or self._frame is not None


def _tar_name(name: str) -> str:
    """The name as a compressed .tar: what the short suffixes stand for."""
    for short, suffix in _TAR_SUFFIXES.items():
        if name.endswith(short):
            return name.removesuffix(short) + ".tar" + suffix
    return name


def _is_archive(name: str) -> bool:
    plain = without_compression(name)
    return plain.endswith((".tar", ".zip")) or name.endswith(tuple(_TAR_SUFFIXES))


def without_compression(name: str) -> str:
    """The name that a file has once it is decompressed."""
    for suffix in COMPRESSIONS:
        if name.endswith(suffix):
            return name.removesuffix(suffix)
    return name


def _hidden(name: str) -> bool:
    parts = PurePosixPath(name).parts
    return any((part.startswith(".") and part != ".") or part == "__MACOSX" for part in parts)


def _matches(path: str, pattern: str, *, whole: bool) -> bool:
    return fnmatchcase(path, pattern if whole else f"*/{pattern}")


def _opened(path: Path) -> IO[bytes]:
    try:
        return path.open("rb")
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}).") from error


@contextlib.contextmanager
def _sound(source: Source) -> Iterator[None]:
    """Turn what a decompressor says of a damaged file into a sentence."""
    try:
        yield
    except _DAMAGE as error:
        raise _damaged(source, error) from error
    except OSError as error:
        if error.errno is None:  # gzip and bz2 report damage as an OSError without a number
            raise _damaged(source, error) from error
        raise
    except Exception as error:
        if type(error).__name__ == "ZstdError":
            raise _damaged(source, error) from error
        raise


def _damaged(source: Source, error: Exception) -> UserError:
    return UserError(
        f"{source} is cut short or damaged ({str(error) or type(error).__name__}); download or "
        "copy it again."
    )
