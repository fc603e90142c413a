"""From the files of a corpus to pairs of lines: the formats that corpora come in.

A format is a function of one line that gives back the text in it, or None where a line is not part
of the corpus (``<url>`` and the like). Lines are read, decoded and paired in lots, so that a corpus
of any size streams through; what is wrong with a line is said with its file and number.
"""

import contextlib
import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field


from multibranch.data.files import Source
from multibranch.errors import UserError

LOT = 2000

_SEGMENT = re.compile(r"\s*<seg\b[^>]*>\s*(.*?)\s*</seg>\s*", re.IGNORECASE)
_SEGMENT_START = re.compile(r"\s*<seg\b", re.IGNORECASE)
_HEADING = re.compile(r"</?(?:title|description)>")
_NOT_TEXT = re.compile(r"<(?:url|talkid|keywords|speaker)>|<(?:reviewer|translator|doc)\b|</doc>")

Format = Callable[[str], str | None]


class BadLine(ValueError):
    """A line that its format cannot read."""


def plain(line: str) -> str | None:
    """One sentence a line."""
    return line


def tagged(line: str) -> str | None:
    """TED's ``train.tags.*``: headings lose their tags, lines about the talk are left out."""
    if "<" not in line:
        return line
    return None if _NOT_TEXT.search(line) else _HEADING.sub("", line)


def segments(line: str) -> str | None:
    """The ``<seg>`` lines of evaluation sets in XML or SGML.

    A typographic apostrophe becomes a plain one, and entities stay as they are: so did the
    preparation that the published scores stand on.
    """
    if not _SEGMENT_START.match(line):
        return None
    found = _SEGMENT.fullmatch(line)
    if not found:
        raise BadLine("a <seg> that is not closed on its line")
    return found[1].replace("’", "'")


FORMATS: dict[str, Format] = {"plain": plain, "tagged": tagged, "segments": segments}


@dataclass
class Lot:
    """Some consecutive pairs of a corpus, and how many lines between them could not be read."""

    source: list[str] = field(default_factory=list)
    target: list[str] = field(default_factory=list)
    bad: int = 0


def read_pairs(
    source: Source, target: Source, kind: str, *, skip_bad_lines: bool = False
) -> Iterator[Lot]:
    """The pairs of two files, in lots.

    Invalid UTF-8, lines that the format cannot read and sides of different length are UserErrors,
    or counted in ``Lot.bad`` with ``skip_bad_lines``.
    """
    sides = [_Lines(file, FORMATS[kind], skip_bad_lines) for file in (source, target)]
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
    if total == 0 and not any(side.count for side in sides):
        raise UserError(f"{source} and {target} hold no sentence; give files that do.")


class _Lines:
    """The text lines of one file; with ``skip`` an unreadable one is None instead of an error."""

    def __init__(self, file: Source, extract: Format, skip: bool) -> None:
        self.file = file
        self.count = 0
        self._extract = extract
        self._skip = skip
        self._number = 0
        self._lines = self._read()

    def take(self, count: int) -> list[str | None]:
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
            if isinstance(line, Exception):
                yield self._bad("is not valid UTF-8", "convert the file to UTF-8")
                continue
            try:
                text = self._extract(line)
            except BadLine as error:
                yield self._bad(f"holds {error}", "correct it")
                continue
            if text is not None:
                yield text

    def _decoded(self, raw: list[bytes]) -> "list[str | UnicodeDecodeError]":
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


def _decode(line: bytes) -> "str | UnicodeDecodeError":
    try:
        return line.decode().rstrip("\r\n")
    except UnicodeDecodeError as error:
        return error


def _uneven(
    sides: list[_Lines], left: list[str | None], right: list[str | None], before: int
) -> UserError:
    shorter, longer = sorted(
        zip(sides, (len(left), len(right))), key=lambda item: item[1]
    )
    end = before + shorter[1]
    length = before + longer[1] + longer[0].rest()
    return UserError(
        f"the sides differ in length: {shorter[0].file} ends after {end} sentences, "
        f"{longer[0].file} has {length}; line {end + 1} has no counterpart. Give files whose lines "
        "correspond, or keep the first part with --skip-bad-lines."
    )
