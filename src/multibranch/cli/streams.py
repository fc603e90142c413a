"""The streams that whoever starts the command gives it: closed ones, full ones, other encodings."""

import codecs
import io
import json
import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TextIO

from multibranch.disk import naming

if TYPE_CHECKING:
    from rich.console import Console

_ESCAPED = "multibranch.escaped"
# What is opened in place of a closed stream takes and gives nothing, and says so when it is used.
_CLOSED = ((0, "stdin", os.O_WRONLY), (1, "stdout", os.O_RDONLY), (2, "stderr", os.O_WRONLY))


def settle() -> None:
    """Let no other file take the number of a stream that is closed, no character be an error, and
    whatever standard output does not take be an error that names it.

    A library that prints would write into such a file. What an encoding lacks is written as JSON
    escapes it, so that JSON stays JSON.
    """
    for number, name, mode in _CLOSED:
        if getattr(sys, name) is None and not _is_open(number):
            descriptor = os.open(os.devnull, mode)
            if descriptor != number:
                os.dup2(descriptor, number)
                os.close(descriptor)
            if name != "stdin":  # that None is read as such, where something is to be read
                setattr(sys, name, os.fdopen(number, "w", encoding="utf-8", closefd=False))
    codecs.register_error(_ESCAPED, _escaped)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors=_ESCAPED)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout = _named(sys.stdout)


def console(
    file: TextIO | None = None,
    *,
    markup: bool = False,
    highlight: bool = False,
    soft_wrap: bool = False,
) -> "Console":
    """Standard output, or `file`, for tables. That its reader has gone is told to the command, as
    it is of what is printed plainly: rich would end all with a status of its own."""
    from rich.console import Console

    class Plain(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    return Plain(file=file or sys.stdout, highlight=highlight, markup=markup, soft_wrap=soft_wrap)


def let_go() -> None:
    """Let what was not taken go nowhere: Python, which would try it again at its end, would
    complain, and end with a status of its own."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def complain(line: str) -> None:
    """Say on standard error what is wrong, as far as that takes it."""
    with suppress(OSError):
        print(line, file=sys.stderr)


class _Output(io.FileIO):
    """Standard output."""

    def write(self, content: Any, /) -> int:
        with naming("standard output"):
            return super().write(content)


def _named(stream: io.TextIOWrapper) -> io.TextIOWrapper:
    """The same stream, buffered as it is, over a file whose errors name it."""
    raw = _Output(stream.fileno(), "w", closefd=False)
    return io.TextIOWrapper(
        raw if isinstance(stream.buffer, io.RawIOBase) else io.BufferedWriter(raw),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def _escaped(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end
