"""Corpora: recipes that make clean text, the binary store, and batches of token ids.

``PreparedData`` opens what ``multibranch prepare`` wrote; ``PackedBatches`` and ``PaddedBatches``
cut a split of it into batches. ``multibranch.data.builtin`` generates corpora from a seed.
"""

from multibranch.data.batch import PackedBatch, PaddedBatch
from multibranch.data.batches import PackedBatches, PaddedBatches
from multibranch.data.layout import LengthReport
from multibranch.data.store import PairStore, PreparedData, StoreWriter

__all__ = [
    "LengthReport",
    "PackedBatch",
    "PackedBatches",
    "PaddedBatch",
    "PaddedBatches",
    "PairStore",
    "PreparedData",
    "StoreWriter",
]
