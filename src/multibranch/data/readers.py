"""From the files of a corpus to pairs of lines, read in lots so that any corpus streams through.

What is wrong with a line is said with its file and number, or counted where the user asked for
that.
"""

import contextlib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

from multibranch.data.files import Source
from multibranch.data.formats import BadLine, Format
from multibranch.errors import UserError, counted

LOT = 2000


@dataclass
class Lot:
    """Some consecutive pairs of a corpus, and how many lines between them could not be read."""

    source: list[str] = field(default_factory=list)
    target: list[str] = field(default_factory=list)
    bad: int = 0


def read_pairs(
    files: tuple[Source, Source], formats: tuple[Format, Format], *, skip_bad_lines: bool = False
) -> Iterator[Lot]:
    """The pairs of two files, in lots.

    Invalid UTF-8, lines that the format cannot read and sides of different length are UserErrors,
    or counted in ``Lot.bad`` with ``skip_bad_lines``.
    """
    sides = [Lines(file, extract, skip_bad_lines) for file, extract in zip(files, formats)]
    total = 0
    while True:
        left, right = (side.take(LOT) for side in sides)
        pairs = list(zip(left, right))
        whole = [(a, b) for a, b in pairs if a is not None and b is not None]
        bad = len(pairs) - len(whole)
        if len(left) != len(right):
            if not skip_bad_lines:
                raise _uneven(sides, left, right, total)
            bad += abs(len(left) - len(right)) + sum(side.rest() for side in sides)
        total += len(pairs)
        if whole or bad:
            yield Lot([a for a, _ in whole], [b for _, b in whole], bad)
        if len(pairs) < LOT:
            break
    if total == 0:
        empty = next((side.file for side in sides if not side.count), files[0])
        raise UserError(f"{empty} holds no sentence; give a file that does.")


class Lines:
    """The text lines of one file; with ``skip`` an unreadable one is None instead of an error."""

    def __init__(self, file: Source, extract: Format, skip: bool) -> None:
        self.file = file
        self.count = 0
        self._extract = extract
        self._skip = skip
        self._number = 0
        self._lines = self._read()

    def take(self, count: int) -> list[str | None]:
        """The next lines, at most ``count`` of them."""
        lines = list(itertools.islice(self._lines, count))
        self.count += len(lines)
        return lines

    def rest(self) -> int:
        """How many lines are left; reads them."""
        return sum(1 for _ in self._lines)

    def _read(self) -> Iterator[str | None]:
        with self.file.open() as stream:
            while raw := list(itertools.islice(stream, LOT)):
                yield from self._texts(raw)

    def _texts(self, raw: list[bytes]) -> Iterator[str | None]:
        for line in self._decoded(raw):
            self._number += 1
            if line is None:
                self._bad("is not valid UTF-8", "convert the file to UTF-8")
                yield None
                continue
            try:
                text = self._extract(line)
            except BadLine as error:
                self._bad(f"holds {error}", "correct it")
                yield None
                continue
            if text is not None:
                yield text

    def _decoded(self, raw: list[bytes]) -> list[str | None]:
        if self._number == 0 and raw[0].startswith(b"\xef\xbb\xbf"):
            raw[0] = raw[0][3:]
        with contextlib.suppress(UnicodeDecodeError):
            lines = b"".join(raw).decode().split("\n")
            if not lines[-1]:
                lines.pop()
            return [line.removesuffix("\r") for line in lines]
        return [_decode(line) for line in raw]

    def _bad(self, what: str, remedy: str) -> None:
        if not self._skip:
            raise UserError(
                f"line {self._number} of {self.file} {what}; {remedy}, or leave such lines out "
                "with --skip-bad-lines."
            )


def _decode(line: bytes) -> str | None:
    try:
        return line.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        return None


def _uneven(
    sides: list[Lines], left: list[str | None], right: list[str | None], before: int
) -> UserError:
    shorter, longer = sorted(zip(sides, (len(left), len(right))), key=lambda item: item[1])
    end = before + shorter[1]
    length = before + longer[1] + longer[0].rest()
    return UserError(
        f"the sides differ in length: {shorter[0].file} ends after {counted(end, 'sentence')}, "
        f"{longer[0].file} has {length}, so line {end + 1} has no counterpart; give files whose "
        "lines correspond, or keep the first part with --skip-bad-lines."
    )
