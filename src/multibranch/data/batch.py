"""What a batch of pairs is: packed into one row of tokens, or padded to a rectangle."""

from dataclasses import dataclass, field, fields, replace
from typing import TypeVar

import numpy as np
import torch

from multibranch.text.special import PAD


def _none() -> np.ndarray:
    return np.empty(0, dtype=np.int64)


@dataclass
class PackedBatch:
    """Sequences one after the other in one row. Shapes are the same for every batch of a run.

    The tail of each row is padding and belongs to no sequence; unused boundaries repeat the last
    used one, so that they delimit sequences of no tokens.
    """

    source: torch.Tensor  # (source_tokens,) int64
    source_boundaries: torch.Tensor  # (sequences + 1,) int32
    target_input: torch.Tensor  # (tokens,) int64: begin-of-sentence, then the target less its last
    target_output: torch.Tensor  # (tokens,) int64: the target
    target_boundaries: torch.Tensor  # (sequences + 1,) int32
    source_longest: int = 0
    target_longest: int = 0
    pairs: int = 0
    source_count: int = 0  # real source tokens
    target_count: int = 0  # real target tokens
    indices: np.ndarray = field(default_factory=_none)  # (pairs,) which pairs of the store

    def to(self, device: torch.device | str, *, non_blocking: bool = True) -> "PackedBatch":
        """The same batch with its tensors on ``device``."""
        return _move(self, device, non_blocking)

    def padded(self) -> "PaddedBatch":
        """The same pairs as a padded batch."""
        sources, targets = self.source_boundaries, self.target_boundaries
        return PaddedBatch(
            source=_pad(self.source, sources[: self.pairs + 1]),
            target_input=_pad(self.target_input, targets[: self.pairs + 1]),
            target_output=_pad(self.target_output, targets[: self.pairs + 1]),
            pairs=self.pairs,
            target_count=self.target_count,
            indices=self.indices,
        )


@dataclass
class PaddedBatch:
    """Sequences as the rows of a rectangle, filled up with padding."""

    source: torch.Tensor  # (b, s) int64
    target_input: torch.Tensor  # (b, t) int64: begin-of-sentence, then the target less its last
    target_output: torch.Tensor  # (b, t) int64: the target
    pairs: int
    target_count: int  # real target tokens
    indices: np.ndarray  # (pairs,) which pairs of the store

    def to(self, device: torch.device | str, *, non_blocking: bool = True) -> "PaddedBatch":
        """The same batch with its tensors on ``device``."""
        return _move(self, device, non_blocking)


Batch = TypeVar("Batch", bound=PackedBatch | PaddedBatch)


def _move(batch: Batch, device: torch.device | str, non_blocking: bool) -> Batch:
    tensors = {
        item.name: getattr(batch, item.name).to(device, non_blocking=non_blocking)
        for item in fields(batch)
        if isinstance(getattr(batch, item.name), torch.Tensor)
    }
    return replace(batch, **tensors)


def _pad(row: torch.Tensor, boundaries: torch.Tensor) -> torch.Tensor:
    """Cut a row (n,) at its boundaries (b + 1,) and stack the pieces: (b, longest)."""
    lengths = boundaries.diff()
    longest = int(lengths.max()) if len(lengths) else 0
    rectangle = row.new_full((len(lengths), longest), PAD)
    inside = torch.arange(longest, device=row.device) < lengths[:, None]
    rectangle[inside] = row[: int(boundaries[-1])]
    return rectangle
