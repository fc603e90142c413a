"""Fetching what a recipe needs from the public place where it lives.

A download goes to ``NAME.part`` and takes its name when it is complete and has the checksum that
the recipe knows; one that was cut off goes on where it ended. What is there already is not fetched
again.
"""

import http.client
import os
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

from multibranch.data.files import check_archive
from multibranch.data.progress import Progress, silent
from multibranch.disk import sha256
from multibranch.errors import UserError

_CHUNK = 1 << 18
_ATTEMPTS = 4
_PATIENCE = 60.0  # seconds without a byte


@dataclass(frozen=True)
class Download:
    """One public file of a corpus, and its checksum where it is known."""

    url: str
    sha256: str | None = None

    @property
    def name(self) -> str:
        """The name of the file."""
        return PurePosixPath(urlsplit(self.url).path).name


def cache_folder(recipe: str) -> Path:
    """Where downloads are kept: in the user's cache, by recipe."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "multibranch" / recipe


def fetch(
    downloads: Sequence[Download],
    folder: Path,
    *,
    home: str,
    progress: Progress | None = None,
) -> list[Path]:
    """Bring every download into ``folder``; give back the files, in order.

    Files of the same name (es-en.tgz of two years) are kept apart in numbered sub-folders.
    `progress` is told a file's name, the bytes that are there, and how many it will have.
    """
    paths = []
    taken: set[str] = set()
    for number, download in enumerate(downloads):
        place = folder / str(number) if download.name in taken else folder
        taken.add(download.name)
        path = place / download.name
        try:
            place.mkdir(parents=True, exist_ok=True)
            if not _sound(path, download):
                _fetch_one(download, path, progress or silent)
        except OSError as error:
            raise UserError(
                f"{download.url} cannot be fetched ({_reason(error)}); run again to go on where it "
                f"ended, or get it by hand (see {home}) and give its folder with --from."
            ) from error
        paths.append(path)
    return paths


def _sound(path: Path, download: Download) -> bool:
    """Whether the file is there as it was fetched: one that was changed is fetched again."""
    if not path.is_file():
        return False
    known = download.sha256 or _noted(path)
    if known is None:  # fetching was cut off before the file was checked, or its checksum noted
        try:
            _check(path, sha256(path))
        except UserError:
            return False
    elif sha256(path) != known:
        path.unlink()
        return False
    return True


def _fetch_one(download: Download, path: Path, progress: Progress) -> None:
    part = path.with_name(path.name + ".part")
    _complete(download, part, progress)
    found = sha256(part)
    if download.sha256 is not None and found != download.sha256:
        part.unlink()
        raise UserError(
            f"{download.url} has the checksum {found}, not {download.sha256}: it was changed or "
            "damaged on its way. It was removed; run again, or get it by hand and give it with "
            "--from."
        )
    part.replace(path)
    _check(path, found)


def _check(path: Path, checksum: str) -> None:
    """Note the checksum of a file that can be read to its end; remove one that cannot."""
    try:
        check_archive(path)
    except UserError:
        path.unlink()
        raise
    _note(path, checksum)


def _complete(download: Download, part: Path, progress: Progress) -> None:
    """Fetch until ``part`` is whole; give up after several attempts that bring nothing."""
    fruitless = 0
    while True:
        have = _size(part)
        trouble: Exception = OSError("the connection ended before the file did")
        try:
            if _continue(download, part, progress):
                return
        except (urllib.error.HTTPError, FileNotFoundError, PermissionError):
            raise
        except (OSError, http.client.HTTPException) as error:
            trouble = error
        fruitless = 0 if _size(part) > have else fruitless + 1
        if fruitless == _ATTEMPTS:
            raise OSError(_reason(trouble)) from trouble
        time.sleep(0.1 * 2**fruitless)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _continue(download: Download, part: Path, progress: Progress) -> bool:
    """Fetch what is missing from ``part``; True if it is whole now."""
    have = _size(part)
    request = urllib.request.Request(download.url, headers={"User-Agent": "multibranch"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        answer = urllib.request.urlopen(request, timeout=_PATIENCE)
    except urllib.error.HTTPError as error:
        if error.code == 416:  # there is nothing past what we have
            return True
        raise
    with answer:
        if have and answer.status != 206:  # the server sends it all again
            have = 0
        length = answer.headers.get("Content-Length")
        total = have + int(length) if length is not None else None
        with part.open("ab" if have else "wb") as file:
            while chunk := answer.read(_CHUNK):
                file.write(chunk)
                have += len(chunk)
                progress(download.name, have, total)
    return total is None or have >= total


def _noted(path: Path) -> str | None:
    """The checksum that was noted when the file was fetched; None if noting it was cut off."""
    note = path.with_name(path.name + ".sha256")
    words = note.read_text(encoding="ascii", errors="replace").split() if note.is_file() else []
    return words[0] if words else None


def _note(path: Path, checksum: str) -> None:
    """Write the checksum beside the file, the way `sha256sum` does."""
    path.with_name(path.name + ".sha256").write_text(f"{checksum}  {path.name}\n", "ascii")


def _reason(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"the server says {error.code} {error.reason}"
    return str(getattr(error, "reason", None) or getattr(error, "strerror", None) or error)
