"""Attention over keys and values of eight bits, for decoding on a CPU (int8_attention.c)."""

import ctypes
from functools import cache
from typing import Any

import torch
from torch import Tensor

from multibranch.nn.compiled import POINTER, WHOLE, Signatures, call, load_first

# The compiled modules, by what PyTorch says that a machine can run.
_MODULES = {
    "AVX512": ("multibranch.nn._int8_avx512", "multibranch.nn._int8_avx2"),
    "AVX2": ("multibranch.nn._int8_avx2",),
}
_SIGNATURES: Signatures = {
    "lanes": (ctypes.c_int, []),
    "group": (ctypes.c_int, []),
    "keep_source": (None, [POINTER, *5 * [WHOLE], *2 * [POINTER]]),
    "attend_source": (None, [POINTER, *4 * [WHOLE], POINTER, WHOLE, *4 * [POINTER]]),
    "attend_written": (
        None,
        [POINTER, *5 * [WHOLE], POINTER, *4 * [WHOLE], *4 * [POINTER]],
    ),
}


@cache
def library() -> ctypes.CDLL | None:
    """The compiled code for this machine; None where there is none."""
    return load_first(_MODULES, _SIGNATURES)


def lanes() -> int:
    """How many slots a block of keys has."""
    return int(_loaded().lanes())


def keep_source(projected: Tensor, kept: Tensor, scales: Tensor) -> None:
    """Round keys and values of sources, projected (b, s, 2, h, w), into the first s slots.

    kept (b, 2, h, slots·w) and scales (b, 2, h, slots) are the other functions', too.
    """
    b, s, _, heads, width = projected.shape
    slots = scales.shape[3]
    _call("keep_source", projected.contiguous(), b, s, heads, width, slots, kept, scales)


def attend_source(query: Tensor, mask: Tensor, kept: Tensor, scales: Tensor) -> Tensor:
    """query (b, rows, h, w), divided by √w; mask (b, 1, 1, slots) → (b·rows, h·w)"""
    assert query.is_contiguous() and query.dtype == torch.float32
    slots = scales.shape[3]
    output, scores = _results(query, slots)
    seen = (mask.contiguous(), slots)
    _call("attend_source", query, *query.shape, *seen, kept, scales, output, scores)
    return output


def attend_written(
    qkv: Tensor, first: int, ancestry: Tensor, kept: Tensor, scales: Tensor
) -> Tensor:
    """qkv (b, rows, 3, h, w), queries divided by √w; ancestry (b, 1, rows, seen) → (b·rows, h·w)

    The rows' keys and values go into the slots from `first` on before rows attend. The ancestry is
    a part of one for all rows and slots, whose numbers lie one behind the other.
    """
    assert qkv.is_contiguous() and qkv.dtype == torch.float32
    query, seen = qkv[:, :, 0], ancestry.shape[3]
    output, scores = _results(query, seen)
    slots = ancestry.stride(2)
    mask = (ancestry, ancestry.stride(0) // slots, slots, seen)
    cache = (scales.shape[3], kept, scales)
    _call("attend_written", qkv, *query.shape, first, *mask, *cache, output, scores)
    return output


def _results(query: Tensor, seen: int) -> tuple[Tensor, Tensor]:
    """What rows (b, rows, h, w) attend to, (b·rows, h·w), and room for scores, to be filled."""
    b, rows, heads, width = query.shape
    return query.new_empty(b * rows, heads * width), query.new_empty(_loaded().group(), seen)


def _call(function: str, *arguments: Any) -> None:
    call(getattr(_loaded(), function), *arguments)


def _loaded() -> ctypes.CDLL:
    found = library()
    if found is None:
        raise RuntimeError("the int8 kernels were not compiled for this machine")
    return found
