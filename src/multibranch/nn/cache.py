"""The decoder's memory of what it has read and written, for decoding token by token.

Rows are (sentence, beam) pairs. Keys and values of the source are kept once a sentence: its beams
are query positions of one attention. Those of the target are a tree: every token that a row ever
read has one slot among its sentence's slots, and a mask, the ancestry, says which of them are a
row's own past. When beams survive or die only that mask is reordered; no key or value moves. Slots
that no row descends from are dropped by `tidy`: beams share most of their past, so a sentence needs
little more than one slot a position.
"""

import torch
from torch import Tensor

_FIRST_POSITIONS = 16  # room that a new cache has, in target positions


class LayerCache:
    """Keys and values of one decoder block: source (b, h, s, w) and target (2, b, h, slots, w)."""

    def __init__(self, memory_key: Tensor, memory_value: Tensor) -> None:
        # Copies: every step reads them, and sentences move within them.
        self.memory_key = memory_key.clone(memory_format=torch.contiguous_format)
        self.memory_value = memory_value.clone(memory_format=torch.contiguous_format)
        b, h, _, w = memory_key.shape
        self.key_value = memory_key.new_empty(2, b, h, 0, w)

    def grow(self, slots: int, used: int) -> None:
        """Make room for so many slots, and keep those in use."""
        old = self.key_value
        self.key_value = old.new_empty(*old.shape[:3], slots, old.shape[4])
        self.key_value[:, :, :, :used] = old[:, :, :, :used]

    def take_slots(self, slots: Tensor) -> None:
        """Keep these slots (b, kept) of every sentence, in this order."""
        two, b, h, _, w = self.key_value.shape
        index = slots[None, :, None, :, None].expand(two, b, h, slots.shape[1], w)
        self.key_value = self.key_value.gather(3, index)

    def take_sentences(self, moved: Tensor, sources: Tensor, count: int) -> None:
        """Sentences `sources` replace those at `moved`; the first `count` stay."""
        self.key_value[:, moved] = self.key_value[:, sources]
        self.key_value = self.key_value[:, :count]
        self.memory_key = _moved(self.memory_key, moved, sources)[:count]
        self.memory_value = _moved(self.memory_value, moved, sources)[:count]


class DecoderCache:
    """The caches of all decoder blocks, for b sentences with `beam` rows each.

    A step calls `advance` once, then `append` for every block; between steps come `reorder`,
    `select` and `tidy`. After `fix` the shapes stay as they are and the place of the next slot is
    read from a tensor, so that one recorded step can be replayed.
    """

    def __init__(self, layers: list[LayerCache], mask: Tensor | None, *, sentences: int, beam: int):
        self.layers = layers
        self.mask = mask  # (b, 1, 1, s), True where the source has a token, or added to the scores
        self.sentences = sentences
        self.beam = beam
        self.length = 0  # target positions read
        self.used = 0  # slots taken so far, those that `tidy` dropped not counted
        self.slots: Tensor | None = None  # (beam,) the open slots, once the shapes are fixed
        self.place: Tensor | None = None  # (1,) the position of the token being read, likewise
        like = layers[0].memory_key
        self._ancestry = like.new_zeros(sentences, 1, beam, 0)
        own = torch.eye(beam, dtype=torch.bool, device=like.device)
        self._own = like.new_zeros(beam, beam).masked_fill(~own, float("-inf"))

    @property
    def room(self) -> int:
        """How many more positions fit without growing."""
        return (self._ancestry.shape[3] - self.used) // self.beam

    @property
    def ancestry(self) -> Tensor:
        """(b, 1, beam, slots): 0 for the slots of a row's own past and −∞ for others, to add."""
        return self._ancestry if self.slots is not None else self._ancestry[..., : self.used]

    def reserve(self, positions: int) -> None:
        """Make room for `positions` more positions."""
        slots = self.used + positions * self.beam
        # A multiple of 8: GPU kernels copy masks whose rows have other strides first.
        slots += -slots % 8
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
        for layer in self.layers:  # masked slots are multiplied by 0, which undoes no NaN
            layer.key_value[:, :, :, self.used :] = 0

    def release(self) -> None:
        """Steps again see only the slots in use."""
        self.slots = self.place = None

    def advance(self) -> None:
        """Open one slot for every row, for the token that this step reads."""
        if self.slots is not None and self.place is not None:
            self.slots += self.beam
            self.place += 1
            own = self._own.expand(self.sentences, 1, self.beam, self.beam)
            self._ancestry.index_copy_(3, self.slots, own)
        else:
            if self.room < 1:
                # Doubling: growing copies little on average.
                self.reserve(max(_FIRST_POSITIONS, self.used // self.beam))
            self._ancestry[..., self.used : self.used + self.beam] = self._own
        self.note_step()

    def note_step(self) -> None:
        """Count a step; replaying a recorded one does all else that `advance` does."""
        self.length += 1
        self.used += self.beam

    def position_of(self, table: Tensor) -> Tensor:
        """The row of `table` (positions, d) for the token being read, (1, d)."""
        if self.place is not None:
            return table.index_select(0, self.place)
        return table[self.length - 1 : self.length]

    def append(self, layer: LayerCache, key_value: Tensor) -> tuple[Tensor, Tensor]:
        """Put one key and value a row, (b, beam, 2, h, w), into the open slots.

        Gives back the sentences' keys and values so far, each (b, h, slots, w).
        """
        new = key_value.permute(2, 0, 3, 1, 4)  # (2, b, h, beam, w)
        if self.slots is not None:
            layer.key_value.index_copy_(3, self.slots, new)
            return layer.key_value[0], layer.key_value[1]
        layer.key_value[:, :, :, self.used - self.beam : self.used] = new
        seen = layer.key_value[:, :, :, : self.used]
        return seen[0], seen[1]

    def reorder(self, beams: Tensor) -> None:
        """Row (i, j) continues what row (i, beams[i, j]) was; beams (b, beam)."""
        past = self.ancestry
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
        self._ancestry[moved] = self._ancestry[sources]
        self._ancestry = self._ancestry[:count]
        if self.mask is not None:
            self.mask = _moved(self.mask, moved, sources)[:count]
        self.sentences = count

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


def _moved(tensor: Tensor, moved: Tensor, sources: Tensor) -> Tensor:
    """The tensor with rows `sources` at `moved`, in place."""
    tensor[moved] = tensor[sources]
    return tensor
