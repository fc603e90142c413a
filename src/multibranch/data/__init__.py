"""Corpora: recipes that make clean text, the binary store, and batches of token ids.

``PreparedData`` opens what ``multibranch prepare`` wrote; ``PackedBatches`` and ``PaddedBatches``
cut a split of it into batches.
"""

from multibranch.data.store import PairStore, PreparedData, StoreWriter

__all__ = ["PairStore", "PreparedData", "StoreWriter"]
