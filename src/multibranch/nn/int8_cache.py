"""Keys and values of one decoder block in eight bits: a quarter of the memory that steps read."""

import torch
from torch import Tensor

from multibranch.nn import int8_attention
from multibranch.nn.cache import LayerCache, Room, moved_within, padded


class Int8LayerCache(LayerCache):
    """What a LayerCache keeps, as the kernels of nn/int8_attention.c lay it out.

    Args:
        projected: keys and values of the source, (b, s, 2, h, w), w a multiple of 16.
        room: where memory comes from and goes to.
    """

    def __init__(self, projected: Tensor, *, room: Room | None = None) -> None:
        self._room = Room() if room is None else room
        b, s, _, self.heads, self.width = projected.shape
        if self.width % 16:
            raise ValueError(f"heads of {self.width} numbers are not kept in eight bits")
        self.source_length = s
        self.lanes = int8_attention.lanes()
        self.source, self.source_scales = self._empty(b, padded(s))
        int8_attention.keep_source(projected, self.source, self.source_scales)
        self.written, self.written_scales = self._empty(b, 0)

    @property
    def like(self) -> Tensor:
        return self.source_scales

    @property
    def whole_lanes(self) -> bool:
        return True

    def _empty(self, b: int, slots: int) -> tuple[Tensor, Tensor]:
        """Numbers (b, 2, h, slots·w), any, and scales (b, 2, h, slots), which are 0."""
        shape = (b, 2, self.heads)
        numbers = self._room.take(torch.empty(0, dtype=torch.int8), *shape, slots * self.width)
        return numbers, torch.zeros(*shape, slots)

    def attend_written(self, qkv: Tensor, first: int, ancestry: Tensor) -> Tensor:
        """Remember the keys and values of qkv (b, rows, 3, h, w), and attend: (b·rows, h·w)"""
        return int8_attention.attend_written(
            qkv, first, ancestry, self.written, self.written_scales
        )

    def attend_source(self, query: Tensor, mask: Tensor) -> Tensor:
        """query (b, rows, h, w), mask (b, 1, 1, slots) → (b·rows, h·w)"""
        return int8_attention.attend_source(query, mask, self.source, self.source_scales)

    def grow(self, slots: int, used: int) -> None:
        old, old_scales = self.written, self.written_scales
        self.written, self.written_scales = self._empty(len(old), slots)
        blocks = padded(used) * self.width  # whole ones: a slot of keys lies all over its block
        self.written[..., :blocks] = old[..., :blocks]
        self.written_scales[..., :used] = old_scales[..., :used]
        self._room.give(old)

    def take_slots(self, slots: Tensor) -> None:
        b, kept = slots.shape
        shape = (b, self.heads, -1, self.width)
        blocked = (b, self.heads, -1, self.width, self.lanes)
        old, old_scales = self.written, self.written_scales
        keys = old[:, 0].view(blocked).transpose(3, 4).reshape(shape)
        values = old[:, 1].view(shape)
        self.written, self.written_scales = self._empty(b, padded(kept))
        index = slots[:, None, :, None].expand(-1, self.heads, -1, self.width)
        taken = keys.new_zeros(b, self.heads, padded(kept), self.width)
        taken[:, :, :kept] = keys.gather(2, index)
        taken = taken.view(b, self.heads, -1, self.lanes, self.width).transpose(3, 4)
        self.written[:, 0].view(blocked).copy_(taken)
        self.written[:, 1].view(shape)[:, :, :kept] = values.gather(2, index)
        index = slots[:, None, None, :].expand(-1, 2, self.heads, -1)
        self.written_scales[..., :kept] = old_scales.gather(3, index)
        self._room.give(old)

    def take_sentences(self, moved: Tensor, sources: Tensor, count: int) -> None:
        for name in ("source", "source_scales", "written", "written_scales"):
            setattr(self, name, moved_within(getattr(self, name), moved, sources)[:count])

    def close(self) -> None:
        self._room.give(self.source)
        self._room.give(self.written)
