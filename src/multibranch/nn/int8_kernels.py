"""Decoding in eight bits: rounding, and attention over rounded keys and values (int8_kernels.c).

The C code is compiled as the package is installed, where there is a compiler for it. Its functions
do not hold Python's lock: two batches run on two cores.
"""

import ctypes
import importlib.util
from functools import cache
from typing import Any

import torch
from torch import Tensor

_GROUP = 5  # rows that the kernels work on at a time, each with scores of its own
# The compiled modules, by what PyTorch says that a machine can run.
_MODULES = {
    "AVX512": ("multibranch.nn._int8_avx512", "multibranch.nn._int8_avx2"),
    "AVX2": ("multibranch.nn._int8_avx2",),
}
_WHOLE, _POINTER = ctypes.c_int64, ctypes.c_void_p
_SIGNATURES: dict[str, list[Any]] = {
    "keep_source": [_POINTER, _WHOLE, _WHOLE, _WHOLE, _WHOLE, _WHOLE, _POINTER, _POINTER],
    "attend_source": [_POINTER, *4 * [_WHOLE], _POINTER, _WHOLE, *4 * [_POINTER]],
    "round_states": [_POINTER, _WHOLE, _POINTER, ctypes.POINTER(_WHOLE)],
    "attend_written": [_POINTER, *5 * [_WHOLE], _POINTER, *4 * [_WHOLE], *4 * [_POINTER]],
}


@cache
def library() -> ctypes.CDLL | None:
    """The compiled code for this machine; None where there is none."""
    for name in _MODULES.get(torch.backends.cpu.get_cpu_capability(), ()):
        found = importlib.util.find_spec(name)
        if found is not None and found.origin is not None:
            loaded = ctypes.CDLL(found.origin)
            for function, arguments in _SIGNATURES.items():
                getattr(loaded, function).argtypes = arguments
                getattr(loaded, function).restype = None
            loaded.round_states.restype = ctypes.c_float
            return loaded
    return None


def round_states(states: Tensor) -> tuple[Tensor, float, int]:
    """float32 numbers as uint8 of the same shape, with a scale and a zero: scale·(n − zero)."""
    states = states.contiguous()
    rounded, zero = torch.empty_like(states, dtype=torch.uint8), _WHOLE()
    scale = _call("round_states", states, states.numel(), rounded, ctypes.byref(zero))
    return rounded, scale, zero.value


def lanes() -> int:
    """How many slots a block of keys has."""
    return int(_call("lanes"))


def keep_source(projected: Tensor, kept: Tensor, scales: Tensor) -> None:
    """Round keys and values of sources, projected (b, s, 2, h, w), into the first s slots.

    kept (b, 2, h, slots·w) and scales (b, 2, h, slots) are the other functions', too.
    """
    b, s, _, heads, width = projected.shape
    slots = scales.shape[3]
    _call("keep_source", projected.contiguous(), b, s, heads, width, slots, kept, scales)


def attend_source(query: Tensor, mask: Tensor, kept: Tensor, scales: Tensor) -> Tensor:
    """query (b, rows, h, w), divided by √w; mask (b, 1, 1, slots) → (b·rows, h·w)"""
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
    return query.new_empty(b * rows, heads * width), query.new_empty(_GROUP, seen)


def _call(function: str, *arguments: Any) -> Any:
    """Tensors go as pointers, and live until the function is done."""
    found = getattr(_loaded(), function)
    return found(*(a.data_ptr() if isinstance(a, Tensor) else a for a in arguments))


def _loaded() -> ctypes.CDLL:
    found = library()
    if found is None:
        raise RuntimeError("the int8 kernels were not compiled for this machine")
    return found
