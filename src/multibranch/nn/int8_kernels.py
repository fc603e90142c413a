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
    scale = _loaded().round_states(
        states.data_ptr(), states.numel(), rounded.data_ptr(), ctypes.byref(zero)
    )
    return rounded, scale, zero.value


def lanes() -> int:
    """How many slots a block of keys has."""
    return int(_loaded().lanes())


def keep_source(projected: Tensor, kept: Tensor, scales: Tensor) -> None:
    """Round keys and values of sources, projected (b, s, 2, h, w), into the first s slots.

    kept (b, 2, h, slots·w) and scales (b, 2, h, slots) are the other functions', too.
    """
    b, s, _, heads, width = projected.shape
    projected = projected.contiguous()
    slots = scales.shape[3]
    _loaded().keep_source(
        projected.data_ptr(), b, s, heads, width, slots, kept.data_ptr(), scales.data_ptr()
    )


def attend_source(query: Tensor, mask: Tensor, kept: Tensor, scales: Tensor) -> Tensor:
    """query (b, rows, h, w), divided by √w; mask (b, 1, 1, slots) → (b·rows, h·w)"""
    b, rows, heads, width = query.shape
    slots = scales.shape[3]
    mask = mask.contiguous()
    output, scores = query.new_empty(b * rows, heads * width), query.new_empty(_GROUP, slots)
    _loaded().attend_source(
        query.data_ptr(),
        b,
        rows,
        heads,
        width,
        mask.data_ptr(),
        slots,
        kept.data_ptr(),
        scales.data_ptr(),
        output.data_ptr(),
        scores.data_ptr(),
    )
    return output


def attend_written(
    qkv: Tensor, first: int, ancestry: Tensor, kept: Tensor, scales: Tensor
) -> Tensor:
    """qkv (b, rows, 3, h, w), queries divided by √w; ancestry (b, 1, rows, seen) → (b·rows, h·w)

    The rows' keys and values go into the slots from `first` on before rows attend. The ancestry is
    a part of one for all rows and slots, whose numbers lie one behind the other.
    """
    b, rows, _, heads, width = qkv.shape
    seen, slots = ancestry.shape[3], scales.shape[3]
    output, scores = qkv.new_empty(b * rows, heads * width), qkv.new_empty(_GROUP, seen)
    mask_slots = ancestry.stride(2)
    _loaded().attend_written(
        qkv.data_ptr(),
        b,
        rows,
        heads,
        width,
        first,
        ancestry.data_ptr(),
        ancestry.stride(0) // mask_slots,
        mask_slots,
        seen,
        slots,
        kept.data_ptr(),
        scales.data_ptr(),
        output.data_ptr(),
        scores.data_ptr(),
    )
    return output


def _loaded() -> ctypes.CDLL:
    found = library()
    if found is None:
        raise RuntimeError("the int8 kernels were not compiled for this machine")
    return found
