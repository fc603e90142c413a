"""Corpora: recipes that make clean text, the binary store, and batches of token ids.

``PreparedData`` opens what ``multibranch prepare`` wrote; ``PackedBatches`` and ``PaddedBatches``
cut a split of it into batches. ``multibranch.data.builtin`` generates corpora from a seed.

Read in this order: recipe (what a corpus declares), recipes (those there are), own_files (one's
own), prepare (the work), whose steps are fetch, files, formats and readers (from archives to
lines), tokenising on several workers, and output (the folder, whole or not at all); glue is the
same for labelled text. Then store (the ids), layout (which pairs make a batch), batches and batch.
"""

from typing import TYPE_CHECKING, Any

from multibranch.data.layout import LengthReport
from multibranch.data.store import PairStore, PreparedData, StoreWriter

if TYPE_CHECKING:
    from multibranch.data.batch import PackedBatch, PaddedBatch
    from multibranch.data.batches import PackedBatches, PaddedBatches

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

# The names of `batches`, which alone needs PyTorch: preparing a corpus goes without its import.
_BATCHES = ("PackedBatch", "PackedBatches", "PaddedBatch", "PaddedBatches")


def __getattr__(name: str) -> Any:
    if name not in _BATCHES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from multibranch.data import batches

    return getattr(batches, name)
