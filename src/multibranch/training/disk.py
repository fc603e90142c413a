"""The disk's refusals as sentences."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from multibranch.disk import full_disk
from multibranch.errors import UserError

REFUSED = (errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO)


@contextmanager
def refusals_explained(folder: Path) -> Iterator[None]:
    """What the disk refuses while a run writes under `folder`, as a UserError."""
    try:
        yield
    except OSError as error:
        advice = "What was saved before is unharmed: make room, and start the same command again"
        full = full_disk(error, folder, advice=advice)
        if full is not None:
            raise full from error
        if error.errno in REFUSED:
            raise UserError(
                f"{error.filename or folder} could not be read or written: {error.strerror}. What "
                "was saved before is unharmed"
            ) from error
        raise
