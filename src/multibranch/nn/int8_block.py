"""A decoder block's step in eight bits as one call (int8_block.c), where its kernels run."""

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from multibranch.nn import int8_attention, int8_products
from multibranch.nn.cache import DecoderCache
from multibranch.nn.int8_cache import Int8LayerCache
from multibranch.nn.int8_products import RowProduct, Weight


class _Norm(ctypes.Structure):
    _fields_ = [
        ("weight", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("epsilon", ctypes.c_double),
    ]


class _Block(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in ("heads", "width", "pre_norm")),
        *((name, Weight) for name in ("qkv", "out", "query", "cross_out", "inner", "outer")),
        *((name, _Norm) for name in ("norm", "cross_norm", "feed_forward_norm")),
    ]


class _Memory(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("kept", "scales", "mask")),
        *((name, ctypes.c_int64) for name in ("slots", "beam", "mask_slots", "seen", "first")),
    ]


def runs_here() -> bool:
    """Whether both kernels run here, and lay keys out alike."""
    found = int8_products.library()
    if found is None or int8_attention.library() is None:
        return False
    return bool(found.lanes() == int8_attention.lanes())


class BlockStep:
    """States (b·open, d) → the same, in place, through a whole decoder block.

    Args:
        products: of queries, keys and values; after attention; of the queries to the source; after
            that attention; into the feed-forward layer, with its ReLU; and out of it.
        norms: weight and bias (d,) each, and epsilon, of these three layers.
        heads, width: of both attentions.
    """

    def __init__(
        self,
        products: Sequence[RowProduct],
        norms: Sequence[tuple[Tensor, Tensor, float]],
        *,
        heads: int,
        width: int,
        pre_norm: bool,
    ) -> None:
        found = int8_products.library()
        if found is None or not runs_here():
            raise RuntimeError("the int8 kernels were not compiled for this machine")
        self._library = found
        self._held = (list(products), list(norms))  # what the block points to
        self._block = _Block(
            heads,
            width,
            pre_norm,
            *(product.weight for product in products),
            *(_Norm(weight.data_ptr(), bias.data_ptr(), eps) for weight, bias, eps in norms),
        )

    def __call__(self, states: Tensor, layer: Int8LayerCache, cache: DecoderCache) -> Tensor:
        assert cache.mask is not None and states.is_contiguous()
        mask, ancestry = cache.mask.contiguous(), cache.ancestry
        seen, slots = ancestry.shape[3], ancestry.stride(2)
        written = _Memory(
            layer.written.data_ptr(),
            layer.written_scales.data_ptr(),
            ancestry.data_ptr(),
            layer.written_scales.shape[3],
            ancestry.stride(0) // slots,
            slots,
            seen,
            cache.used - cache.open,
        )
        source = _Memory(
            layer.source.data_ptr(),
            layer.source_scales.data_ptr(),
            mask.data_ptr(),
            layer.source_scales.shape[3],
        )
        sizes = (cache.sentences, cache.open)
        block = ctypes.byref(self._block)
        most = max(seen, source.slots)
        room = torch.empty(
            self._library.block_room(block, sizes[0] * sizes[1], most), dtype=torch.uint8
        )
        self._library.block_step(
            block, states.data_ptr(), *sizes, ctypes.byref(written), ctypes.byref(source),
            room.data_ptr(),
        )  # fmt: skip
        return states
