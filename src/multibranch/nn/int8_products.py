"""Products with a weight of eight bits by our own kernel (int8_products.c), where it runs."""

import ctypes
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from multibranch.nn.compiled import POINTER, WHOLE, Signatures, call, load

MOST_INPUTS = 2**31 // (255 * 127)  # whose sum cannot leave 32 bits
_MODULE = "multibranch.nn._int8_vnni"
_SIGNATURES: Signatures = {
    "runs_here": (ctypes.c_int, []),
    "panel": (ctypes.c_int, []),
    "room": (WHOLE, [WHOLE, WHOLE]),
    "multiply": (None, [*2 * [POINTER], WHOLE, *2 * [POINTER]]),
    "lanes": (ctypes.c_int, []),
    "block_room": (WHOLE, [POINTER, *2 * [WHOLE]]),
    "block_step": (None, [*2 * [POINTER], *2 * [WHOLE], *3 * [POINTER]]),
}


class Weight(ctypes.Structure):
    """A weight as the kernel takes it; whoever makes one keeps what it points to alive."""

    _fields_ = [
        ("inner", WHOLE),
        ("out", WHOLE),
        *((name, POINTER) for name in ("panels", "units", "totals", "bias")),
        ("relu", WHOLE),
    ]


@cache
def library() -> ctypes.CDLL | None:
    """The compiled code; None where there is none, or not for this machine."""
    if torch.backends.cpu.get_cpu_capability() != "AVX512":
        return None
    loaded = load(_MODULE, _SIGNATURES)
    return loaded if loaded is not None and loaded.runs_here() else None


class RowProduct:
    """x (rows, in) → x·Wᵀ + bias (rows, out), with every row rounded by itself.

    Args:
        rounded: the weight's whole numbers (out, in), from −127 to 127.
        scales: what they are to be multiplied with, (out,).
        relu: whether negative results become 0.
    """

    def __init__(self, rounded: Tensor, scales: Tensor, bias: Tensor | None, *, relu: bool) -> None:
        found = library()
        if found is None:
            raise RuntimeError("the int8 kernel was not compiled for this machine")
        self._library = found
        self.out, self.inner = rounded.shape
        if self.inner > MOST_INPUTS:
            raise ValueError(f"{self.inner:,} products are too many for a sum of 32 bits")
        if bias is not None and (bias.shape != (self.out,) or bias.dtype != torch.float32):
            raise ValueError(f"a bias of {self.out} float32 numbers is needed")
        panel = found.panel()
        full = F.pad(rounded, (0, -self.inner % 4, 0, -self.out % panel))
        fours = full.view(-1, panel, full.shape[1] // 4, 4)
        totals = scales * rounded.sum(1)
        bias = None if bias is None else bias.contiguous()
        self._held = (fours.transpose(1, 2).contiguous(), scales, totals, bias)
        pointers = (None if tensor is None else tensor.data_ptr() for tensor in self._held)
        self.weight = Weight(self.inner, self.out, *pointers, relu)

    def __call__(self, states: Tensor) -> Tensor:
        if states.dtype != torch.float32 or states.shape[1:] != (self.inner,):
            raise ValueError(f"float32 states (rows, {self.inner}) are needed")
        states, rows = states.contiguous(), len(states)
        output = states.new_empty(rows, self.out)
        room = torch.empty(self._library.room(rows, self.inner), dtype=torch.uint8)
        call(self._library.multiply, ctypes.byref(self.weight), states, rows, room, output)
        return output
