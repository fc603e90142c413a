"""The binary store of a prepared corpus: token ids of both sides, memory-mapped.

A split is four files. ``{split}.source.bin`` and ``{split}.target.bin`` hold the ids of all
sequences one after the other (uint16, or uint32 once an id passes 65,535);
``{split}.source.len`` and ``{split}.target.len`` hold the sequences' lengths (int32). Each file
begins with 32 bytes that say what it is, how wide its numbers are and how many follow, so that a
file cut short or of another kind is recognised when it is opened, not when training meets it.
"""

import contextlib
import itertools
import json
import struct
from collections.abc import Iterable, Iterator, Sequence, Sized
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np

from multibranch.disk import damaged, full_disk
from multibranch.errors import UserError, counted
from multibranch.text import TextPipeline
from multibranch.text.pipeline import SIDES

SPLITS = ("train", "valid", "test")

MAGIC = b"multibranch ids\n"
HEADER = struct.Struct("<16sIIQ")  # magic, version, bytes a number, how many numbers
VERSION = 1
FLUSH_IDS = 1 << 20


class StoreWriter:
    """Writes one split of a prepared folder, pair by pair or in lots.

    The files appear under their own names only when ``close`` succeeds: until then, and for ever if
    the writer is left by an exception, there is nothing that looks like a store.
    """

    def __init__(self, folder: str | Path, split: str) -> None:
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / split
        self._sides = tuple(_SideWriter(folder, f"{split}.{side}") for side in SIDES)
        self._closed = False

    def add(self, source_ids: Sequence[int], target_ids: Sequence[int]) -> None:
        """Append one pair."""
        self.add_many([source_ids], [target_ids])

    def add_many(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> None:
        """Append pairs: ``sources[i]`` belongs to ``targets[i]``."""
        if len(sources) != len(targets):
            raise ValueError(f"{_sizes(sources, targets)} were given")
        for side, sequences in zip(self._sides, (sources, targets)):
            side.add_many(sequences)

    def __len__(self) -> int:
        return self._sides[0].sequences

    def close(self) -> None:
        """Finish the files and give them their names."""
        if self._closed:
            return
        try:
            for side in self._sides:
                side.finish()
        except BaseException:
            self.discard()
            raise
        for side in self._sides:
            side.publish()
        self._closed = True

    def discard(self) -> None:
        """Remove everything written so far."""
        for side in self._sides:
            side.discard()
        self._closed = True

    def __enter__(self) -> "StoreWriter":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()


class PairStore:
    """Read-only pairs of id sequences: one split of a prepared folder, or pairs held in memory."""

    def __init__(
        self,
        ids: tuple[np.ndarray, np.ndarray],
        lengths: tuple[np.ndarray, np.ndarray],
        *,
        path: Path | None = None,
    ) -> None:
        if len(lengths[0]) != len(lengths[1]):
            raise UserError(
                f"{path or 'the store'} holds {_sizes(*lengths)}; prepare the corpus again."
            )
        self.path = path
        self.name = path.name if path else "memory"
        self.source_ids, self.target_ids = ids
        self.source_lengths, self.target_lengths = lengths

    @classmethod
    def open(cls, folder: str | Path, split: str) -> "PairStore":
        """Map the files of ``split``; whatever is missing, cut short or foreign is a UserError."""
        folder = Path(folder)
        ids, lengths = [], []
        for side in SIDES:
            numbers = _map(folder / f"{split}.{side}.bin", (np.uint16, np.uint32))
            counts = np.array(_map(folder / f"{split}.{side}.len", (np.int32,)))
            if (counts < 0).any() or int(counts.sum(dtype=np.int64)) != len(numbers):
                raise damaged(
                    folder / f"{split}.{side}.len",
                    f"its lengths do not add up to the {counted(len(numbers), 'id')} of "
                    f"{split}.{side}.bin",
                )
            ids.append(numbers)
            lengths.append(counts)
        return cls((ids[0], ids[1]), (lengths[0], lengths[1]), path=folder / split)

    @classmethod
    def from_lists(
        cls, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
    ) -> "PairStore":
        """The same in memory, for pairs that were never written to a folder."""
        (a, a_lengths), (b, b_lengths) = _flatten(sources), _flatten(targets)
        return cls((a, b), (a_lengths, b_lengths))

    def __len__(self) -> int:
        return len(self.source_lengths)

    @cached_property
    def source_offsets(self) -> np.ndarray:
        """Where each source begins in ``source_ids``: (pairs + 1,) int64."""
        return _offsets(self.source_lengths)

    @cached_property
    def target_offsets(self) -> np.ndarray:
        """Where each target begins in ``target_ids``: (pairs + 1,) int64."""
        return _offsets(self.target_lengths)

    def load(self, *, at_most: int) -> None:
        """Copy the ids of each side into memory, unless they take more than ``at_most`` bytes.

        Gathering shuffled pairs from a mapped file costs a page fault a pair until the whole file
        has been seen.
        """
        if isinstance(self.source_ids, np.memmap) and self.source_ids.nbytes <= at_most:
            self.source_ids = np.array(self.source_ids)
        if isinstance(self.target_ids, np.memmap) and self.target_ids.nbytes <= at_most:
            self.target_ids = np.array(self.target_ids)

    def source(self, index: int) -> np.ndarray:
        """The ids of one source, end-of-sentence included."""
        return self.source_ids[self.source_offsets[index] : self.source_offsets[index + 1]]

    def target(self, index: int) -> np.ndarray:
        """The ids of one target, end-of-sentence included."""
        return self.target_ids[self.target_offsets[index] : self.target_offsets[index + 1]]


class PreparedData:
    """A prepared folder: its manifest, its text pipeline and its splits."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.manifest = _read_manifest(self.folder)
        self._stores: dict[str, PairStore] = {}

    @classmethod
    def open(cls, folder: str | Path) -> "PreparedData":
        """Open the folder; a folder that `multibranch prepare` did not finish is a UserError."""
        return cls(folder)

    @cached_property
    def text(self) -> TextPipeline:
        """Text to ids and back, for both sides."""
        return TextPipeline.load(self.folder)

    @property
    def splits(self) -> list[str]:
        """The names of the splits that the folder holds."""
        return [name for name in SPLITS if (self.folder / f"{name}.source.bin").exists()]

    def split(self, name: str) -> PairStore:
        """The pairs of one split."""
        if name not in self._stores:
            if name not in self.splits:
                held = ", ".join(self.splits) or "none"
                raise UserError(
                    f"{self.folder} has no split '{name}' (it holds: {held}); name one of those, "
                    "or prepare the corpus again with it."
                )
            self._stores[name] = PairStore.open(self.folder, name)
        return self._stores[name]

    def lines(self, name: str, side: str) -> list[str]:
        """The clean text of one side of a split, before tokenisation: what evaluation refers to."""
        path = self.folder / f"{name}.{side}.txt"
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            self.split(name)  # which says so where there is no such split
            raise UserError(
                f"{path} cannot be read ({error.strerror}); the text is kept for valid and test "
                "only: prepare the corpus again if it should be there."
            ) from error
        except UnicodeDecodeError as error:
            raise damaged(path, f"it is no text in UTF-8 ({error})") from error
        return text.removesuffix("\n").split("\n") if text else []


class _SideWriter:
    """One side of a split on its way to the disk: the ids, their lengths, and both headers."""

    def __init__(self, folder: Path, name: str) -> None:
        self._paths = {kind: folder / f"{name}.{kind}" for kind in ("bin", "len")}
        self._partial = {kind: folder / f"{name}.{kind}.partial" for kind in ("bin", "len")}
        self._width = 2
        self._count = 0
        self.sequences = 0
        self._pending: list[np.ndarray] = []
        self._pending_ids = 0
        self._files: dict[str, IO[bytes]] = {}
        for kind, path in self._partial.items():
            self._files[kind] = path.open("wb+")
            self._write(kind, b"\0" * HEADER.size)

    def add_many(self, sequences: Sequence[Sequence[int]]) -> None:
        ids, lengths = _flatten(sequences)
        self._pending.append(ids)
        self._pending_ids += len(ids)
        self._write("len", lengths.tobytes())
        self.sequences += len(lengths)
        if self._pending_ids >= FLUSH_IDS:
            self._flush()

    def _flush(self) -> None:
        if not self._pending_ids:
            return
        ids = np.concatenate(self._pending)
        self._pending, self._pending_ids = [], 0
        if int(ids.min()) < 0 or int(ids.max()) > 0xFFFFFFFF:
            raise ValueError("token ids must lie between 0 and 2**32 - 1")
        if self._width == 2 and int(ids.max()) > 0xFFFF:
            self._widen()
        self._write("bin", ids.astype(f"<u{self._width}").tobytes())
        self._count += len(ids)

    def _widen(self) -> None:
        """Rewrite what is on the disk with four bytes an id, from the end so as to fit in place."""
        file = self._files["bin"]
        with _disk(self._paths["bin"]):
            for start in reversed(range(0, self._count, FLUSH_IDS)):
                stop = min(start + FLUSH_IDS, self._count)
                file.seek(HEADER.size + 2 * start)
                narrow = np.frombuffer(file.read(2 * (stop - start)), dtype="<u2")
                file.seek(HEADER.size + 4 * start)
                file.write(narrow.astype("<u4").tobytes())
            file.seek(0, 2)
        self._width = 4

    def _write(self, kind: str, data: bytes) -> None:
        with _disk(self._paths[kind]):
            self._files[kind].write(data)

    def finish(self) -> None:
        self._flush()
        for kind, width, count in (("bin", self._width, self._count), ("len", 4, self.sequences)):
            file = self._files[kind]
            with _disk(self._paths[kind]):
                file.seek(0)
                file.write(HEADER.pack(MAGIC, VERSION, width, count))
                file.close()

    def publish(self) -> None:
        for kind, path in self._partial.items():
            path.replace(self._paths[kind])

    def discard(self) -> None:
        for kind, path in self._partial.items():
            # A full disk refuses the last flush too; the file goes either way.
            with contextlib.suppress(OSError):
                self._files[kind].close()
            path.unlink(missing_ok=True)


def _flatten(sequences: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    """All ids in one array (int64), and the sequences' lengths (int32)."""
    lengths = np.fromiter(map(len, sequences), dtype=np.int32, count=len(sequences))
    flat: Iterable[int] = itertools.chain.from_iterable(sequences)
    ids = np.fromiter(flat, dtype=np.int64, count=int(lengths.sum(dtype=np.int64)))
    return ids, lengths


def _offsets(lengths: np.ndarray) -> np.ndarray:
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def _map(path: Path, kinds: tuple[type, ...]) -> np.ndarray:
    """The numbers of one file, memory-mapped, after its header was found true."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            head = file.read(HEADER.size)
    except OSError as error:
        raise UserError(
            f"{path} cannot be read ({error.strerror}); prepare the corpus again."
        ) from error
    if len(head) < HEADER.size:
        raise damaged(path, "it is shorter than its header")
    magic, version, width, count = HEADER.unpack(head)
    if magic != MAGIC:
        raise damaged(path, "it is not a store of token ids")
    if version != VERSION:
        raise UserError(
            f"{path} was written in format {version}, this release reads format {VERSION}; "
            "prepare the corpus again."
        )
    known = {np.dtype(kind).itemsize: np.dtype(kind).newbyteorder("<") for kind in kinds}
    if width not in known:
        raise damaged(path, f"it claims {counted(width, 'byte')} a number")
    if size != HEADER.size + width * count:
        raise damaged(path, f"it should have {HEADER.size + width * count} bytes, not {size}")
    if count == 0:
        return np.empty(0, dtype=known[width])
    return np.memmap(path, dtype=known[width], mode="r", offset=HEADER.size, shape=(count,))


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / "manifest.json"
    if not path.is_file():
        raise UserError(
            f"{folder} is not a prepared folder (it has no manifest.json); make one with "
            "`multibranch prepare RECIPE --output DIR`."
        )
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise damaged(path, f"it is not valid JSON ({error})") from error
    if not isinstance(manifest, dict):
        raise damaged(path, "it is not a JSON object")
    return manifest


def _sizes(sources: Sized, targets: Sized) -> str:
    return f"{counted(len(sources), 'source')} but {counted(len(targets), 'target')}"


@contextlib.contextmanager
def _disk(path: Path) -> Iterator[None]:
    """Turn what the disk says while ``path`` is written into a sentence."""
    try:
        yield
    except OSError as error:
        full = full_disk(error, path, advice="Make room, and run it again.")
        other = UserError(f"{path} could not be written ({error.strerror}).")
        raise full or other from error
