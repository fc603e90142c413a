"""The decoder's memory of what it has read and written, for decoding token by token.

Rows are (sentence, beam) pairs. Keys and values of the source are kept once a sentence: its beams
are query positions of one attention. Those of the target are kept once a row and reordered as
beams survive.
"""

import torch
from torch import Tensor


class LayerCache:
    """Keys and values of one decoder block: source (b, h, s, w) and target (rows, h, t, w)."""

    def __init__(self, memory_key: Tensor, memory_value: Tensor) -> None:
        self.memory_key = memory_key
        self.memory_value = memory_value
        self.length = 0
        self._key: Tensor | None = None
        self._value: Tensor | None = None

    def append(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Add one position, (rows, h, 1, w) each; give back all positions so far."""
        if self._key is None or self._value is None or self.length == self._key.shape[2]:
            self._grow(key)
        assert self._key is not None and self._value is not None
        self._key[:, :, self.length] = key[:, :, 0]
        self._value[:, :, self.length] = value[:, :, 0]
        self.length += 1
        return self._key[:, :, : self.length], self._value[:, :, : self.length]

    def _grow(self, like: Tensor) -> None:
        """Double the room for positions, so that appending copies little on average."""
        rows, h, _, w = like.shape
        capacity = max(16, 2 * self.length)
        for name in ("_key", "_value"):
            old = getattr(self, name)
            new = like.new_empty(rows, h, capacity, w)
            if old is not None:
                new[:, :, : self.length] = old[:, :, : self.length]
            setattr(self, name, new)

    def take_rows(self, rows: Tensor) -> None:
        """Continue with these rows of the target's cache (rows',) in this order."""
        if self._key is None or self._value is None:
            return
        capacity = self._key.shape[2]
        for name in ("_key", "_value"):
            old = getattr(self, name)
            if rows.shape[0] == old.shape[0]:
                old[:, :, : self.length] = old[:, :, : self.length].index_select(0, rows)
            else:
                new = old.new_empty(rows.shape[0], old.shape[1], capacity, old.shape[3])
                new[:, :, : self.length] = old[:, :, : self.length].index_select(0, rows)
                setattr(self, name, new)

    def take_sentences(self, sentences: Tensor) -> None:
        """Continue with these sentences of the source's keys and values."""
        self.memory_key = self.memory_key.index_select(0, sentences)
        self.memory_value = self.memory_value.index_select(0, sentences)


class DecoderCache:
    """The caches of all decoder blocks, for b sentences with `beam` rows each."""

    def __init__(self, layers: list[LayerCache], mask: Tensor | None, *, sentences: int, beam: int):
        self.layers = layers
        self.mask = mask  # (b, 1, 1, s), True where the source has a token
        self.sentences = sentences
        self.beam = beam

    @property
    def length(self) -> int:
        """How many target positions have been read."""
        return self.layers[0].length

    def reorder(self, beams: Tensor) -> None:
        """Row (i, j) continues what row (i, beams[i, j]) was; beams (b, beam)."""
        first = torch.arange(self.sentences, device=beams.device).unsqueeze(1) * beams.shape[1]
        rows = (first + beams).flatten()
        for layer in self.layers:
            layer.take_rows(rows)

    def select(self, sentences: Tensor) -> None:
        """Keep only these sentences (b',), with all their beams; the others leave the batch."""
        beams = torch.arange(self.beam, device=sentences.device)
        rows = (sentences.unsqueeze(1) * self.beam + beams).flatten()
        for layer in self.layers:
            layer.take_rows(rows)
            layer.take_sentences(sentences)
        if self.mask is not None:
            self.mask = self.mask.index_select(0, sentences)
        self.sentences = sentences.shape[0]
