"""Lines of UTF-8 in and out, for the verbs that stream text."""

import io
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO

from multibranch.disk import file_status, naming, replaced_file
from multibranch.errors import UserError


def read_lines(stream: BinaryIO, name: str) -> Iterator[str]:
    """The lines of a stream, without their ends; only \\n ends a line, before it \\r is dropped.

    So is a byte order mark before the first, which some editors write. What is no UTF-8 is a
    UserError that names the line. A file is checked to its end before the first line is given, so
    that nothing is done with half of it; a pipe as it is read.
    """
    if _is_file(stream):
        start = stream.tell()
        for number, line in enumerate(stream, start=1):
            _decode(line, number, name)
        stream.seek(start)
    for number, line in enumerate(stream, start=1):
        yield _decode(line, number, name)


def count_lines(stream: BinaryIO) -> int | None:
    """How many lines are left in a file, which stays where it is; None for a pipe."""
    if not _is_file(stream):
        return None
    start = stream.tell()
    count = sum(1 for _ in stream)
    stream.seek(start)
    return count


def _decode(line: bytes, number: int, name: str) -> str:
    try:
        text = line.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8")
        return text.removeprefix("\ufeff") if number == 1 else text
    except UnicodeDecodeError as error:
        raise UserError(
            f"line {number} of {name} is not UTF-8 (byte {line[error.start]:#04x} at position "
            f"{error.start + 1}): convert the input, for instance with iconv -t UTF-8"
        ) from None


def check_apart(stream: BinaryIO, name: str, output: str | None) -> None:
    """Refuse an output that is the file which is read, under whatever name: it would be lost."""
    there = None if output is None else file_status(Path(output))
    if (
        there is not None
        and _is_file(stream)
        and os.path.samestat(os.fstat(stream.fileno()), there)
    ):
        raise UserError(
            f"--output {output} is the file that is read as {name}, and would be overwritten: "
            "give it another name"
        )


def _is_file(stream: BinaryIO) -> bool:
    try:
        return stat.S_ISREG(os.fstat(stream.fileno()).st_mode)
    except (OSError, io.UnsupportedOperation):
        return False


def one_line(text: str) -> str:
    """The text as what fits on one line of output."""
    return text.replace("\r", " ").replace("\n", " ")


@contextmanager
def open_input(path: str | None) -> Iterator[tuple[BinaryIO, str]]:
    """A file, or standard input for None, with its name for messages."""
    if path is None:
        if sys.stdin is None:
            raise UserError("standard input is closed: give it text, a file for instance")
        yield sys.stdin.buffer, "standard input"
        return
    with ExitStack() as stack:
        try:
            stream = stack.enter_context(Path(path).open("rb"))
        except OSError as error:
            raise UserError(f"cannot read {path}: {error.strerror}") from None
        yield stream, path


@contextmanager
def open_output(path: str | None) -> Iterator[BinaryIO]:
    """Standard output for None, or a file that is there whole when all went well, or not at all."""
    if path is None:
        try:
            yield sys.stdout.buffer
        finally:
            sys.stdout.buffer.flush()
        return
    if Path(path).is_dir():
        raise UserError(f"cannot write {path}: it is a folder")
    with naming(path), ExitStack() as stack:
        try:
            stream = stack.enter_context(replaced_file(Path(path)))
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror}") from None
        yield stream
