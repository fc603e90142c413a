"""Which pairs go into which batch: the plan of an epoch, computed for all pairs at once.

A plan depends on the lengths, the budgets, the seed and the epoch alone. Every process computes the
whole plan and takes its share, so that nothing has to be agreed between processes and any batch can
be asked for without the ones before it.
"""

import math
from dataclasses import dataclass

import numpy as np

from multibranch.errors import counted

# Padded batches gather pairs of like length within pools of this many shuffled pairs: large enough
# for rectangles without much padding, small enough that an epoch's batches are new ones.
POOL = 8192

# How many standard deviations of room the source budget and the number of sequences leave above
# what a full batch of targets brings along on average.
ROOM = 4.0


@dataclass(frozen=True)
class LengthReport:
    """What the length limits did to a corpus."""

    pairs: int
    used: int
    truncated: int
    dropped: int
    empty: int
    source_limit: int
    target_limit: int

    def __str__(self) -> str:
        limits = (
            f"over {self.source_limit:,} source or {counted(self.target_limit, 'target token')}"
        )
        parts = [f"{self.used:,} of {counted(self.pairs, 'pair')} used"]
        if self.truncated:
            parts.append(f"{self.truncated:,} truncated ({limits})")
        if self.dropped:
            parts.append(f"{self.dropped:,} dropped ({limits})")
        if self.empty:
            parts.append(f"{self.empty:,} dropped (an empty side)")
        return ", ".join(parts)


@dataclass(frozen=True)
class Plan:
    """Batch i consists of the pairs ``order[starts[i]:starts[i + 1]]``."""

    order: np.ndarray  # (used pairs,) int64
    starts: np.ndarray  # (batches + 1,) int64

    def __len__(self) -> int:
        return len(self.starts) - 1

    def pairs(self, batch: int) -> np.ndarray:
        """The numbers of the pairs in one batch; none beyond the last batch."""
        if batch >= len(self):
            return self.order[:0]
        return self.order[self.starts[batch] : self.starts[batch + 1]]

    def reordered(self, batches: np.ndarray) -> "Plan":
        """The same batches in another order."""
        sizes = np.diff(self.starts)[batches]
        starts = np.zeros_like(self.starts)
        np.cumsum(sizes, out=starts[1:])
        where = np.repeat(self.starts[:-1][batches] - starts[:-1], sizes)
        return Plan(self.order[where + np.arange(len(where))], starts)


def shuffled(count: int, *key: int) -> np.ndarray:
    """A permutation of ``range(count)`` that is a function of ``key``: (count,) int64.

    It sorts raw bits of PCG64, whose stream NumPy guarantees; its ``permutation`` is free to change
    from release to release.
    """
    entropy = [number % 2**64 for number in key]
    bits = np.random.PCG64(np.random.SeedSequence(entropy)).random_raw(count)
    return np.argsort(bits, kind="stable")


def limit_lengths(
    source: np.ndarray,
    target: np.ndarray,
    *,
    source_limit: int,
    target_limit: int,
    truncate: bool,
) -> tuple[np.ndarray, LengthReport]:
    """The numbers of the pairs that may be used, and the account of the others."""
    empty = (source == 0) | (target == 0)
    long = ((source > source_limit) | (target > target_limit)) & ~empty
    usable = np.flatnonzero(~empty if truncate else ~(empty | long))
    report = LengthReport(
        pairs=len(source),
        used=len(usable),
        truncated=int(long.sum()) if truncate else 0,
        dropped=0 if truncate else int(long.sum()),
        empty=int(empty.sum()),
        source_limit=source_limit,
        target_limit=target_limit,
    )
    return usable, report


def source_budget(source: np.ndarray, target: np.ndarray, tokens: int) -> int:
    """How many source tokens to reserve beside ``tokens`` target tokens.

    The sources of a full batch add up to ``tokens`` times the corpus's length ratio, give or take
    the scatter of that ratio; a few standard deviations of room make it rare that the sources fill
    a batch before the targets do.
    """
    if not len(target) or not target.any():
        return tokens
    ratio = float(source.sum(dtype=np.int64)) / float(target.sum(dtype=np.int64))
    sequences = tokens / float(target.mean())
    scatter = float(np.square(source - ratio * target).mean())
    return _round_up(ratio * tokens + ROOM * math.sqrt(sequences * scatter), 64)


def sequence_budget(lengths: np.ndarray, tokens: int) -> int:
    """How many sequences to reserve for ``tokens`` tokens of one side."""
    if not len(lengths) or not lengths.any():
        return 8
    mean = float(lengths.mean())
    sequences = tokens / mean
    scatter = float(lengths.std()) / mean
    return _round_up(min(sequences + ROOM * math.sqrt(sequences) * scatter + 1, tokens), 8)


def pack(
    source: np.ndarray,
    target: np.ndarray,
    *,
    source_tokens: int,
    target_tokens: int,
    sequences: int,
) -> np.ndarray:
    """Cut a row of pairs wherever the next one would pass a budget: starts, (batches + 1,) int64.

    For every pair it is computed at once where a batch beginning there would end; the batches are
    then a walk from end to end.
    """
    count = len(target)
    first = np.arange(count)
    end = np.minimum(first + sequences, count)
    for lengths, budget in ((source, source_tokens), (target, target_tokens)):
        sums = np.zeros(count + 1, dtype=np.int64)
        np.cumsum(lengths, out=sums[1:])
        np.minimum(end, np.searchsorted(sums, sums[:-1] + budget, side="right") - 1, out=end)
    if (end <= first).any():
        raise ValueError("a pair is longer than the budget of a batch")
    return _walk(end, count)


def rectangles(
    source: np.ndarray, target: np.ndarray, *, source_tokens: int, target_tokens: int
) -> np.ndarray:
    """The same for padded batches, whose longest sequence counts for all: starts, int64."""
    count = len(target)
    starts = [0]
    while starts[-1] < count:
        start = starts[-1]
        most = max(1, target_tokens // max(1, int(target[start])))
        stop = min(start + most, count)
        sizes = np.arange(1, stop - start + 1)
        tall = np.maximum.accumulate(target[start:stop]) * sizes
        wide = np.maximum.accumulate(source[start:stop]) * sizes
        over = (tall > target_tokens) | (wide > source_tokens)
        fit = int(over.argmax()) if over.any() else stop - start
        if fit == 0:
            raise ValueError("a pair is longer than the budget of a batch")
        starts.append(start + fit)
    return np.array(starts, dtype=np.int64)


def by_length(source: np.ndarray, target: np.ndarray) -> np.ndarray:
    """An order of the row in which neighbours are of like length, pool by pool: (pairs,) int64.

    Every other pool runs from long to short, so that the pools meet at like lengths too.
    """
    pool = np.arange(len(target)) // POOL
    turn = 1 - 2 * (pool % 2)
    return np.lexsort((source * turn, target * turn, pool))


def _walk(end: np.ndarray, count: int) -> np.ndarray:
    starts, step, at = [0], end.tolist(), 0
    while at < count:
        at = step[at]
        starts.append(at)
    return np.array(starts, dtype=np.int64)


def _round_up(number: float, multiple: int) -> int:
    return multiple * math.ceil(number / multiple)
