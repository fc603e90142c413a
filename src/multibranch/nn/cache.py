"""The decoder's memory of what it has read and written, for decoding token by token.

Rows are (sentence, beam) pairs. Keys and values of the source are kept once a sentence: its beams
are query positions of one attention. Those of the target are a tree: every token that a row ever
read has one slot among its sentence's slots, and a mask, the ancestry, says which of them are a
row's own past. When beams survive or die only that mask is reordered; no key or value moves. Slots
that no row descends from are dropped by `tidy`: beams share most of their past, so a sentence needs
little more than one slot a position.

Keys are laid out (b, h, slots, w) as attention kernels take them, or transposed, (b, h, w, slots),
for plain products on a CPU. These want a multiple of 16 slots: the last of them may be empty.
nn/int8_cache.py keeps them in eight bits.
"""

import math
import threading
from bisect import insort
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

_LANES = 16  # slots come in multiples of this where products or kernels like that


def padded(size: int) -> int:
    """The size rounded up to whole lanes."""
    return size + -size % _LANES


class Room:
    """Memory that caches hand on to one another.

    On a CPU fetching it from the system, page by page, takes longer than what is done with it. What
    is held is never much more than what was in use at one time: a piece that has to be fetched
    anew takes the place of smaller ones that lie free.
    """

    def __init__(self) -> None:
        self._free: list[Tensor] = []  # one-dimensional, from small to large
        self._lock = threading.Lock()

    def take(self, like: Tensor, *shape: int) -> Tensor:
        """Memory of this shape, holding any numbers, none of them infinite or NaN."""
        size = math.prod(shape)
        if like.device.type != "cpu":  # other devices' allocators reuse what was freed
            return like.new_zeros(shape)
        with self._lock:
            for place, piece in enumerate(self._free):
                if piece.numel() >= size and piece.dtype == like.dtype:
                    return self._free.pop(place)[:size].view(shape)
            rounded = _rounded(size)
            let_go = 0
            while self._free and let_go < rounded:
                let_go += self._free.pop().numel()
        return like.new_zeros(rounded)[:size].view(shape)

    def give(self, tensor: Tensor) -> None:
        """Take back all the memory that this tensor lies in; nobody may use it any more.

        What holds infinities or NaN is let go: masked slots are multiplied by 0, which undoes
        neither, and one sentence's overflow shall not reach another's.
        """
        size = tensor.untyped_storage().nbytes() // tensor.element_size()
        if tensor.device.type != "cpu" or not size:
            return
        whole = tensor.detach().as_strided((size,), (1,), 0)
        if not whole.is_floating_point() or math.isfinite(
            float(whole.sum(dtype=torch.promote_types(whole.dtype, torch.float32)))
        ):
            with self._lock:
                insort(self._free, whole, key=Tensor.numel)


def _rounded(size: int) -> int:
    """The size rounded up to one of eight steps between two powers of two, so that pieces fit."""
    step = 1 << max(0, size.bit_length() - 4)
    return -(-size // step) * step


class LayerCache:
    """Keys and values of one decoder block.

    Args:
        memory_key, memory_value: of the source, (b, h, s, w).
        transposed: lay keys out (b, h, w, slots), and pad the source to a multiple of 16.
        room: where memory comes from and goes to.
    """

    def __init__(
        self,
        memory_key: Tensor,
        memory_value: Tensor,
        *,
        transposed: bool = False,
        room: Room | None = None,
    ) -> None:
        self._room = Room() if room is None else room
        b, h, s, w = memory_key.shape
        self.source_length = s
        # Copies: every step reads them, and sentences move within them.
        exact = torch.contiguous_format
        if transposed:
            missing = padded(s) - s
            self.memory_key = F.pad(memory_key.transpose(2, 3), (0, missing)).contiguous()
            self.memory_value = F.pad(memory_value, (0, 0, 0, missing)).contiguous()
            self.key = memory_key.new_empty(b, h, w, 0)
        else:
            self.memory_key = memory_key.clone(memory_format=exact)
            self.memory_value = memory_value.clone(memory_format=exact)
            self.key = memory_key.new_empty(b, h, 0, w)
        self.value = memory_key.new_empty(b, h, 0, w)
        self.slot_axis = 3 if transposed else 2  # of the keys

    @property
    def like(self) -> Tensor:
        """A tensor of the type and device that attention is computed in."""
        return self.memory_value

    @property
    def whole_lanes(self) -> bool:
        """Whether a step looks at a multiple of 16 slots."""
        return self.slot_axis == 3

    def keys(self, first: int, last: int) -> Tensor:
        """The keys in slots first..last."""
        return self.key.narrow(self.slot_axis, first, last - first)

    def values(self, first: int, last: int) -> Tensor:
        """The values in slots first..last."""
        return self.value.narrow(2, first, last - first)

    def grow(self, slots: int, used: int) -> None:
        """Make room for so many slots, and keep those in use."""
        old_key, old_value = self.keys(0, used), self.values(0, used)
        shape = list(self.key.shape)
        shape[self.slot_axis] = slots
        self.key = self._room.take(old_key, *shape)
        self.keys(0, used).copy_(old_key)
        self._room.give(old_key)
        self.value = self._room.take(old_value, *self.value.shape[:2], slots, self.value.shape[3])
        self.values(0, used).copy_(old_value)
        self._room.give(old_value)

    def close(self) -> None:
        """Give the memory back; the cache is at its end."""
        for tensor in (self.key, self.value, self.memory_key, self.memory_value):
            self._room.give(tensor)

    def take_slots(self, slots: Tensor) -> None:
        """Keep these slots (b, kept) of every sentence, in this order."""
        index = slots[:, None, :, None].expand(-1, *self._others(self.value, 2))
        self.value = self.value.gather(2, index)
        if self.slot_axis == 3:
            index = slots[:, None, None, :].expand(-1, *self.key.shape[1:3], -1)
        self.key = self.key.gather(self.slot_axis, index)

    @staticmethod
    def _others(tensor: Tensor, axis: int) -> list[int]:
        """The sizes after the first for `expand`, the one of `axis` left as it is."""
        return [-1 if at == axis else size for at, size in enumerate(tensor.shape)][1:]

    def take_sentences(self, moved: Tensor, sources: Tensor, count: int) -> None:
        """Sentences `sources` replace those at `moved`; the first `count` stay."""
        for name in ("key", "value", "memory_key", "memory_value"):
            setattr(self, name, moved_within(getattr(self, name), moved, sources)[:count])


class DecoderCache:
    """The caches of all decoder blocks, for b sentences with `beam` rows each.

    A step calls `advance` once, then `append` for every block; between steps come `reorder`,
    `select` and `tidy`. A step may read one token a sentence instead of one a row: what all rows
    begin with need not be computed for each. After `fix` the shapes stay as they are and the place
    of the next slot is read from a tensor, so that one recorded step can be replayed.
    """

    def __init__(
        self, layers: Sequence[LayerCache], mask: Tensor | None, *, sentences: int, beam: int
    ) -> None:
        self.layers = layers
        self.mask = mask  # (b, 1, 1, s), True where the source has a token, or added to the scores
        self.sentences = sentences
        self.beam = beam
        self.length = 0  # target positions read
        self.used = 0  # slots taken so far, those that `tidy` dropped not counted
        self.open = beam  # tokens that the present step reads for a sentence: one, or one a row
        self.slots: Tensor | None = None  # (beam,) the open slots, once the shapes are fixed
        self.place: Tensor | None = None  # (1,) the position of the token being read, likewise
        self._whole_lanes = layers[0].whole_lanes
        like = layers[0].like
        self._ancestry = like.new_zeros(sentences, 1, beam, 0)
        own = torch.eye(beam, dtype=torch.bool, device=like.device)
        self._own = like.new_zeros(beam, beam).masked_fill(~own, float("-inf"))

    @property
    def room(self) -> int:
        """How many more positions fit without growing."""
        return (self._ancestry.shape[3] - self.used) // self.beam

    @property
    def seen(self) -> int:
        """How many slots a step looks at; those not in use are masked."""
        if self.slots is not None:
            return self._ancestry.shape[3]
        return padded(self.used) if self._whole_lanes else self.used

    @property
    def ancestry(self) -> Tensor:
        """(b, 1, open, slots): 0 for the slots of a row's own past and −∞ for others, to add."""
        return self._ancestry[:, :, : self.open, : self.seen]

    def reserve(self, positions: int) -> None:
        """Make room for `positions` more positions."""
        # Whole lanes here also keep GPU kernels from copying masks whose rows lie unaligned.
        slots = padded(self.used + positions * self.beam)
        if slots > self._ancestry.shape[3]:
            old = self._ancestry
            self._ancestry = old.new_full((self.sentences, 1, self.beam, slots), float("-inf"))
            self._ancestry[..., : self.used] = old[..., : self.used]
            for layer in self.layers:
                layer.grow(slots, self.used)

    def fix(self) -> None:
        """From now on steps have one shape: they see all the room there is, empty or not."""
        device = self._own.device
        self.slots = torch.arange(self.beam, device=device) + (self.used - self.beam)
        self.place = torch.full((1,), self.length - 1, device=device)

    def release(self) -> None:
        """Steps again see only the slots in use."""
        self.slots = self.place = None

    def advance(self, tokens: int) -> None:
        """Open the slots for the tokens that this step reads: one a row, or one for all of them."""
        if tokens not in (1, self.beam):
            raise ValueError(f"a step reads 1 or {self.beam} tokens a sentence, not {tokens}")
        if self.slots is not None and self.place is not None:
            self.slots += self.beam
            self.place += 1
            own = self._own.expand(self.sentences, 1, self.beam, self.beam)
            self._ancestry.index_copy_(3, self.slots, own)
        else:
            if self.room < 1:
                # At first as many as the source has: batches of many short sentences then take no
                # more than those of few long ones. Doubling: growing copies little on average.
                self.reserve(max(self.layers[0].source_length, self.used // self.beam))
            own = self._own if tokens == self.beam else self._own.new_zeros(self.beam, 1)
            self._ancestry[..., self.used : self.used + tokens] = own
        self.open = tokens
        self.note_step()

    def note_step(self) -> None:
        """Count a step; replaying a recorded one does all else that `advance` does."""
        self.length += 1
        self.used += self.open

    def position_of(self, table: Tensor) -> Tensor:
        """The row of `table` (positions, d) for the token being read, (1, d)."""
        if self.place is not None:
            return table.index_select(0, self.place)
        return table[self.length - 1 : self.length]

    def append(self, layer: LayerCache, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Put the keys and values of the step's tokens, (b, open, h, w) each, into the open slots.

        Gives back the sentences' keys and values so far, as the layer lays them out.
        """
        transposed = layer.slot_axis == 3
        key = key.permute(0, 2, 3, 1) if transposed else key.transpose(1, 2)
        value = value.transpose(1, 2)  # (b, h, open, w)
        if self.slots is not None:
            layer.key.index_copy_(layer.slot_axis, self.slots, key)
            layer.value.index_copy_(2, self.slots, value)
            return layer.key, layer.value
        layer.keys(self.used - self.open, self.used).copy_(key)
        layer.values(self.used - self.open, self.used).copy_(value)
        return layer.keys(0, self.seen), layer.values(0, self.seen)

    def reorder(self, beams: Tensor) -> None:
        """Row (i, j) continues what row (i, beams[i, j]) was; beams (b, beam)."""
        past = self._ancestry[..., : self.seen]
        past.copy_(past.gather(2, beams[:, None, :, None].expand_as(past)))

    def select(self, sentences: Tensor) -> None:
        """Keep only these sentences (b',), in this order, with all their beams."""
        count = sentences.shape[0]
        places = torch.arange(count, device=sentences.device)
        moved = (sentences != places).nonzero().flatten()
        sources = sentences[moved]
        if bool((sources < count).any()):  # a source would be overwritten before it is read
            moved, sources = places, sentences
        for layer in self.layers:
            layer.take_sentences(moved, sources, count)
        self._ancestry = moved_within(self._ancestry, moved, sources)[:count]
        if self.mask is not None:
            self.mask = moved_within(self.mask, moved, sources)[:count]
        self.sentences = count

    def close(self) -> None:
        """Give the memory back; the cache is at its end."""
        for layer in self.layers:
            layer.close()

    def tidy(self) -> None:
        """Drop the slots that no row of their sentence descends from."""
        alive = (self._ancestry[:, 0, :, : self.used] == 0).any(1)  # (b, slots)
        kept = int(alive.sum(1).max()) if self.sentences else 0
        if kept > 3 * self.used // 4:
            return  # moving the rest would cost more than it saves
        # Stable, so that what a sentence has too many of are its dead slots, which stay masked.
        slots = (~alive).to(torch.uint8).argsort(dim=1, stable=True)[:, :kept]
        index = slots[:, None, None, :].expand(-1, 1, self.beam, -1)
        self._ancestry = self._ancestry.gather(3, index)
        for layer in self.layers:
            layer.take_slots(slots)
        self.used = kept


def moved_within(tensor: Tensor, moved: Tensor, sources: Tensor) -> Tensor:
    """The tensor with rows `sources` at `moved`, in place."""
    tensor[moved] = tensor[sources]
    return tensor
