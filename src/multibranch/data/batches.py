"""Batches of token ids: packed into one row of a fixed number of tokens, or padded to a rectangle.

Both kinds share their order. An epoch's batches form one global row that is a function of
(seed, epoch); of ``world`` processes, process ``rank`` takes batches ``rank``, ``rank + world``,
``rank + 2 * world``, … of that row, and whoever runs out early gets empty batches, so that all
processes take the same number of steps. ``tokens`` is the budget of one batch of one process:
step k of w processes therefore sees the very pairs that one process sees in its batches
w·k, …, w·k + w - 1, that is, in one update with gradient accumulation w.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Generic, Literal, Self

import numpy as np
import torch

from multibranch.data import layout
from multibranch.data.batch import Batch, PackedBatch, PaddedBatch
from multibranch.data.store import PairStore
from multibranch.text.special import BOS, PAD

IN_MEMORY = 256 << 20  # bytes of ids a side up to which a store is copied into memory

# Positions a side that a batch may have though the corpus cannot fill them. The draws of dropout
# follow a batch's shape, which up to here is what was asked for.
UNFILLED = 1 << 15

# What happens to pairs over the limits: "keep" raises the budgets until the longest pair fits.
TooLong = Literal["drop", "truncate", "keep"]


class _Batches(ABC, Generic[Batch]):
    """What packed and padded batches share: the limits, the plan, and each process's share of it.

    Subclasses say how a row of pairs is cut into batches (``_lay_out``) and what a batch of given
    pairs looks like (``_make``).
    """

    def __init__(
        self,
        store: PairStore,
        *,
        tokens: int,
        source_tokens: int | None,
        seed: int,
        epoch: int,
        rank: int,
        world: int,
        max_length: int,
        shuffle: bool,
        too_long: TooLong | None,
    ) -> None:
        if not 0 <= rank < world:
            raise ValueError(f"rank {rank} is not one of {world} processes")
        if min(tokens, max_length, 1 if source_tokens is None else source_tokens) < 1:
            raise ValueError("tokens, source_tokens and max_length must be at least 1")
        store.load(at_most=IN_MEMORY)
        self.store = store
        self.seed, self.epoch, self.rank, self.world = seed, epoch, rank, world
        self.shuffle = shuffle
        self.too_long: TooLong = too_long or ("drop" if shuffle else "keep")
        self.tokens, self.source_tokens, source_limit, target_limit = _budgets(
            store, tokens, source_tokens, max_length, keep=self.too_long == "keep"
        )
        self._usable, self.report = layout.limit_lengths(
            store.source_lengths,
            store.target_lengths,
            source_limit=source_limit,
            target_limit=target_limit,
            truncate=self.too_long == "truncate",
        )
        self._source = _Side(
            store.source_ids, store.source_offsets, store.source_lengths, source_limit
        )
        self._target = _Side(
            store.target_ids, store.target_offsets, store.target_lengths, target_limit
        )
        # The longest of all batches of the run, for those who need one fixed number.
        self.source_longest = _longest(self._source.lengths[self._usable])
        self.target_longest = _longest(self._target.lengths[self._usable])

    plan: layout.Plan

    @abstractmethod
    def _lay_out(self) -> layout.Plan:
        """Which pairs make which batch of this epoch."""

    @abstractmethod
    def _make(self, pairs: np.ndarray, out: Batch | None) -> Batch:
        """The batch of these pairs, in the memory of `out` where that is given."""

    def at_epoch(self, epoch: int) -> Self:
        """The same batches of another epoch; only the plan is computed anew."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__, epoch=epoch)
        other.plan = other._lay_out()
        return other

    def __len__(self) -> int:
        """The number of batches of this process, the same for all processes."""
        return -(-len(self.plan) // self.world)

    @property
    def target_lengths(self) -> np.ndarray:
        """The target tokens of every pair of the store, as batches hold them: (pairs,) int32."""
        return self._target.lengths

    def indices(self, k: int) -> np.ndarray:
        """Which pairs of the store batch k of this process holds: (pairs,) int64."""
        if not 0 <= k < len(self):
            raise IndexError(f"batch {k} of {len(self)}")
        return self.plan.pairs(k * self.world + self.rank)

    def batch(self, k: int, *, out: Batch | None = None) -> Batch:
        """Batch k of this process; packed batches can be written into the tensors of ``out``."""
        return self._make(self.indices(k), out)

    def from_batch(self, k: int) -> Iterator[Batch]:
        """Batches k, k + 1, … of this process: what remains of an epoch that stopped before k."""
        return (self.batch(number) for number in range(k, len(self)))

    def __iter__(self) -> Iterator[Batch]:
        return self.from_batch(0)

    def _row(self) -> np.ndarray:
        """The usable pairs in the order of this epoch."""
        if not self.shuffle:
            return self._usable
        return self._usable[layout.shuffled(len(self._usable), self.seed, self.epoch)]


class PackedBatches(_Batches[PackedBatch]):
    """The packed batches of one epoch for one process. Every batch has the same shapes.

    ``tokens`` is the number of target positions of a batch. ``source_tokens`` and ``sequences``
    are chosen from the corpus's lengths where they are not given: a little above what a full batch
    of targets brings along, so that the targets are what fills a batch. Budgets far above what the
    whole corpus holds are lowered to that.

    Pairs longer than ``max_length`` or a budget are dropped or truncated (keeping the
    end-of-sentence), as ``too_long`` says, and counted in ``report``; with ``too_long="keep"``,
    the default without shuffling, the budgets grow until every pair fits. Pairs with an empty side
    are always left out and counted.
    """

    def __init__(
        self,
        store: PairStore,
        *,
        tokens: int = 4096,
        source_tokens: int | None = None,
        sequences: int | None = None,
        seed: int = 1,
        epoch: int = 0,
        rank: int = 0,
        world: int = 1,
        max_length: int = 1024,
        shuffle: bool = True,
        too_long: TooLong | None = None,
    ) -> None:
        super().__init__(
            store,
            tokens=tokens,
            source_tokens=source_tokens,
            seed=seed,
            epoch=epoch,
            rank=rank,
            world=world,
            max_length=max_length,
            shuffle=shuffle,
            too_long=too_long,
        )
        self.tokens = _fillable(self.tokens, self._target.lengths[self._usable])
        self.source_tokens = _fillable(self.source_tokens, self._source.lengths[self._usable])
        self.sequences = sequences or min(
            layout.sequence_budget(self._source.lengths[self._usable], self.source_tokens),
            layout.sequence_budget(self._target.lengths[self._usable], self.tokens),
        )
        self.plan = self._lay_out()

    @property
    def fill(self) -> float:
        """The share of the epoch's target positions, over all processes, that hold a token."""
        return int(self._target.lengths[self.plan.order].sum(dtype=np.int64)) / max(
            1, len(self.plan) * self.tokens
        )

    def allocate(self, *, pin_memory: bool = False) -> PackedBatch:
        """An empty batch, whose tensors ``batch(k, out=…)`` can fill again and again."""

        def row(size: int, fill: int, kind: torch.dtype) -> torch.Tensor:
            return torch.full((size,), fill, dtype=kind, pin_memory=pin_memory)

        return PackedBatch(
            source=row(self.source_tokens, PAD, torch.int64),
            source_boundaries=row(self.sequences + 1, 0, torch.int32),
            target_input=row(self.tokens, PAD, torch.int64),
            target_output=row(self.tokens, PAD, torch.int64),
            target_boundaries=row(self.sequences + 1, 0, torch.int32),
        )

    def _lay_out(self) -> layout.Plan:
        row = self._row()
        starts = layout.pack(
            self._source.lengths[row],
            self._target.lengths[row],
            source_tokens=self.source_tokens,
            target_tokens=self.tokens,
            sequences=self.sequences,
        )
        return layout.Plan(row, starts)

    def _make(self, pairs: np.ndarray, out: PackedBatch | None) -> PackedBatch:
        batch = self.allocate() if out is None else out
        source_lengths, target_lengths = self._source.lengths[pairs], self._target.lengths[pairs]
        batch.source_count = _fill_boundaries(batch.source_boundaries, source_lengths)
        batch.target_count = _fill_boundaries(batch.target_boundaries, target_lengths)
        _fill_row(batch.source, self._source.take(pairs))
        _fill_row(batch.target_output, self._target.take(pairs))
        shifted, count = batch.target_input.numpy(), batch.target_count
        shifted[1:count] = batch.target_output.numpy()[: max(0, count - 1)]
        shifted[count:] = PAD
        shifted[batch.target_boundaries.numpy()[: len(pairs)]] = BOS
        batch.source_longest, batch.target_longest = (
            _longest(source_lengths),
            _longest(target_lengths),
        )
        batch.pairs, batch.indices = len(pairs), pairs
        return batch


class PaddedBatches(_Batches[PaddedBatch]):
    """The padded batches of one epoch for one process.

    A batch's rectangles, padding included, hold at most ``tokens`` target and ``source_tokens``
    source positions (as many as ``tokens`` where not given). Pairs of like length go together; the
    order of the batches is shuffled. Limits and processes are as in ``PackedBatches``.
    """

    def __init__(
        self,
        store: PairStore,
        *,
        tokens: int = 4096,
        source_tokens: int | None = None,
        seed: int = 1,
        epoch: int = 0,
        rank: int = 0,
        world: int = 1,
        max_length: int = 1024,
        shuffle: bool = True,
        too_long: TooLong | None = None,
    ) -> None:
        super().__init__(
            store,
            tokens=tokens,
            source_tokens=tokens if source_tokens is None else source_tokens,
            seed=seed,
            epoch=epoch,
            rank=rank,
            world=world,
            max_length=max_length,
            shuffle=shuffle,
            too_long=too_long,
        )
        self.plan = self._lay_out()

    @property
    def fill(self) -> float:
        """The share of the target positions of the epoch's rectangles that hold a token."""
        if not len(self.plan):
            return 0.0
        lengths = self._target.lengths[self.plan.order].astype(np.int64)
        tallest = np.maximum.reduceat(lengths, self.plan.starts[:-1])
        return int(lengths.sum()) / int((tallest * np.diff(self.plan.starts)).sum())

    def _lay_out(self) -> layout.Plan:
        row = self._row()
        row = row[layout.by_length(self._source.lengths[row], self._target.lengths[row])]
        starts = layout.rectangles(
            self._source.lengths[row],
            self._target.lengths[row],
            source_tokens=self.source_tokens,
            target_tokens=self.tokens,
        )
        plan = layout.Plan(row, starts)
        if not self.shuffle:
            return plan
        return plan.reordered(layout.shuffled(len(plan), self.seed, self.epoch, 1))

    def _make(self, pairs: np.ndarray, out: PaddedBatch | None) -> PaddedBatch:
        if out is not None:
            raise ValueError("padded batches differ in shape and cannot be written into another")
        source = _rectangle(self._source.take(pairs), self._source.lengths[pairs])
        target = _rectangle(self._target.take(pairs), self._target.lengths[pairs])
        shifted = np.concatenate((np.full((len(pairs), 1), BOS), target), axis=1)[:, :-1].copy()
        shifted[_outside(self._target.lengths[pairs])] = PAD
        return PaddedBatch(
            source=torch.from_numpy(source),
            target_input=torch.from_numpy(shifted),
            target_output=torch.from_numpy(target),
            pairs=len(pairs),
            target_count=int(self._target.lengths[pairs].sum()),
            indices=pairs,
        )


class _Side:
    """One side of a store under a length limit."""

    def __init__(
        self, ids: np.ndarray, offsets: np.ndarray, lengths: np.ndarray, limit: int
    ) -> None:
        self._ids = ids.view(np.ndarray)
        self._first = offsets[:-1]
        self._last = offsets[1:] - 1
        self.lengths = np.minimum(lengths, limit)  # (pairs,) int32
        self._cut = bool((lengths > limit).any())

    def take(self, pairs: np.ndarray) -> np.ndarray:
        """The ids of the given pairs, one after the other: (tokens,)."""
        lengths = self.lengths[pairs]
        ends = np.cumsum(lengths, dtype=np.int64)
        where = np.repeat(self._first[pairs] - ends + lengths, lengths)
        where += np.arange(len(where))
        if self._cut:  # A truncated sequence keeps its end-of-sentence.
            where[ends - 1] = self._last[pairs]
        return self._ids[where]


def _budgets(
    store: PairStore, tokens: int, source_tokens: int | None, max_length: int, *, keep: bool
) -> tuple[int, int, int, int]:
    """The target and source budgets, and the source and target length limits."""
    source, target = store.source_lengths, store.target_lengths
    if keep:
        tokens = max(tokens, _longest(target))
        max_length = max(1, _longest(source), _longest(target))
    target_limit = min(max_length, tokens)
    if source_tokens is None:
        sources = np.minimum(source, max_length)
        # A source no longer than the longest target allowed is not dropped for want of room.
        source_tokens = max(
            layout.source_budget(sources, np.minimum(target, target_limit), tokens),
            min(_longest(sources), target_limit),
        )
    if keep:
        source_tokens = max(source_tokens, _longest(source))
    return tokens, source_tokens, min(max_length, source_tokens), target_limit


def _fillable(budget: int, lengths: np.ndarray) -> int:
    """A budget, or less where sequences of these lengths cannot fill it."""
    return min(budget, max(UNFILLED, int(lengths.sum(dtype=np.int64))))


def _fill_row(row: torch.Tensor, ids: np.ndarray) -> None:
    array = row.numpy()
    array[: len(ids)] = ids
    array[len(ids) :] = PAD


def _fill_boundaries(boundaries: torch.Tensor, lengths: np.ndarray) -> int:
    """Write the running sum of ``lengths`` behind the leading 0; return the sum."""
    array = boundaries.numpy()
    total = int(lengths.sum(dtype=np.int64))
    np.cumsum(lengths, out=array[1 : len(lengths) + 1])
    array[len(lengths) + 1 :] = total
    return total


def _rectangle(ids: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Rows of the given lengths, padded to the longest: (b, longest) int64."""
    rectangle = np.full((len(lengths), _longest(lengths)), PAD, dtype=np.int64)
    rectangle[~_outside(lengths)] = ids
    return rectangle


def _outside(lengths: np.ndarray) -> np.ndarray:
    """Where a rectangle of rows of the given lengths holds padding: (b, longest) bool."""
    return np.arange(_longest(lengths)) >= lengths[:, None]


def _longest(lengths: np.ndarray) -> int:
    return int(lengths.max()) if len(lengths) else 0
