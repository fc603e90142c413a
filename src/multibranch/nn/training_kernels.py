"""Attention and dropout for training on a CPU, by kernels in C (packed_attention.c, dropout.c).

They take float32. Where they were not compiled as the package was installed, or for other tensors,
PyTorch computes, and its dropout draws other numbers.
"""

import ctypes
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from multibranch.nn.compiled import NOT_COMPILED, POINTER, WHOLE, Signatures, call, load_first
from multibranch.nn.plainly import BY_PRODUCTS, eager_on_cpu, refuse_second_derivative

# The compiled modules, by what PyTorch says that a machine can run.
_MODULES = {
    "AVX512": ("multibranch.nn._training_avx512", "multibranch.nn._training_avx2"),
    "AVX2": ("multibranch.nn._training_avx2",),
}
_SIGNATURES: Signatures = {
    "packed_longest": (WHOLE, [POINTER, WHOLE]),
    "packed_room": (WHOLE, 3 * [WHOLE]),
    "packed_attend": (None, 2 * [POINTER]),
    "packed_differentiate": (None, 5 * [POINTER]),
    "dropped": (None, [*2 * [POINTER], WHOLE, *2 * [POINTER], WHOLE]),
}


@cache
def library() -> ctypes.CDLL | None:
    """The compiled code for this machine; None where there is none."""
    return load_first(_MODULES, _SIGNATURES)


def lacking() -> str | None:
    """Why training in float32 must do without them on this machine, for a person; None: it has."""
    if library() is not None:
        return None
    here = torch.backends.cpu.get_cpu_capability() in _MODULES
    reason = NOT_COMPILED if here else "this processor has no AVX2"
    return f"training is slower here for want of its C kernels ({reason})"


def _run(*tensors: Tensor | None) -> bool:
    """Whether the kernels take these."""
    return (
        eager_on_cpu(*tensors)
        and all(tensor.dtype == torch.float32 for tensor in tensors if tensor is not None)
        and library() is not None
    )


def _loaded() -> ctypes.CDLL:
    found = library()
    assert found is not None
    return found


# -- Attention over packed sequences ------------------------------------------------------------


def attends(states: Tensor, memory: Tensor | None, head_scale: Tensor | None) -> bool:
    """Whether `packed_attention` takes these."""
    return _run(states, memory, head_scale) and states.shape[-1] % 16 == 0 and states.numel() > 0


def packed_attention(
    states: Tensor,
    memory: Tensor | None,
    boundaries: Tensor,
    memory_boundaries: Tensor,
    *,
    causal: bool,
    head_scale: Tensor | None,
    rate: float,
) -> Tensor:
    """states: qkv (n, 3, h, w) without memory, or q (n, h, w) and kv (s, 2, h, w) → (n, h, w).

    Sequences of queries and of keys lie between boundaries (sequences + 1,) of int32; a factor a
    head, (h,), has no gradient. Weights are dropped at a rate. Queries that see no key come out as
    zeros.
    """
    result: Tensor = _PackedAttention.apply(
        states, memory, boundaries, memory_boundaries, head_scale, causal, _Draw.of(rate)
    )
    return result


class _Draw(ctypes.Structure):
    """What dropout draws: numbers below the threshold, of 2³², are dropped, others multiplied."""

    _fields_ = [
        *((name, ctypes.c_uint32) for name in ("seed", "second_seed", "threshold")),
        ("factor", ctypes.c_float),
    ]

    @classmethod
    def of(cls, rate: float) -> "_Draw":
        """At a rate; the seeds are drawn by PyTorch's generator."""
        if not rate:
            return cls(0, 0, 0, 1)
        seeds = torch.randint(2**32, (2,)).tolist()
        return cls(*seeds, min(round(rate * 2**32), 2**32 - 1), 1 / (1 - rate))


class _Batch(ctypes.Structure):
    """A batch as the kernel takes it; who makes one keeps what it points to."""

    _fields_ = [
        *((name, POINTER) for name in ("q", "k", "v")),
        *((name, WHOLE) for name in ("q_stride", "kv_stride")),
        *((name, POINTER) for name in ("queries", "keys")),
        *((name, WHOLE) for name in ("sequences", "heads", "width", "causal")),
        *((name, POINTER) for name in ("factors", "room")),
        *((name, WHOLE) for name in ("room_each", "threads")),
        ("dropout", _Draw),
    ]


def _parts(states: Tensor, memory: Tensor | None) -> tuple[Tensor, ...]:
    """Queries, keys and values, each (n or s, h, w), where they lie."""
    return states.unbind(1) if memory is None else (states, *memory.unbind(1))


def _call(
    function: str,
    saved: tuple[Any, ...],
    causal: bool,
    dropout: _Draw,
    *others: Tensor,
) -> None:
    """Call a function of the kernel with a batch, and with room for every thread."""
    states, memory, queries, keys, head_scale = saved
    found, threads = _loaded(), torch.get_num_threads()
    *_, heads, width = states.shape
    sequences = queries.shape[0] - 1
    longest = found.packed_longest(keys.data_ptr(), sequences)
    each = found.packed_room(longest, width, function == "packed_differentiate")
    room = torch.empty(threads * each)
    q, k, v = _parts(states, memory)
    batch = _Batch(
        *(part.data_ptr() for part in (q, k, v)),
        q.stride(0),
        k.stride(0),
        *(boundaries.data_ptr() for boundaries in (queries, keys)),
        sequences,
        heads,
        width,
        causal,
        None if head_scale is None else head_scale.data_ptr(),
        room.data_ptr(),
        each,
        threads,
        dropout,
    )
    call(getattr(found, function), ctypes.byref(batch), *others)


class _PackedAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        memory: Tensor | None,
        boundaries: Tensor,
        memory_boundaries: Tensor,
        head_scale: Tensor | None,
        causal: bool,
        dropout: _Draw,
    ) -> Tensor:
        given = (states, memory, boundaries, memory_boundaries, head_scale)
        saved = tuple(None if each is None else each.contiguous() for each in given)
        ctx.save_for_backward(*saved)
        ctx.others = (causal, dropout)
        output = states.new_zeros(states.shape[0], *states.shape[-2:])
        _call("packed_attend", saved, *ctx.others, output)
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative("packed attention", instead=BY_PRODUCTS)
        states, memory, *_ = saved = ctx.saved_tensors
        of_states = torch.zeros_like(states)
        of_memory = None if memory is None else torch.zeros_like(memory)
        parts = _parts(of_states, of_memory)
        _call("packed_differentiate", saved, *ctx.others, grad.contiguous(), *parts)
        return of_states, of_memory, None, None, None, None, None


# -- Dropout ------------------------------------------------------------------------------------


def dropout(states: Tensor, rate: float, *, training: bool, base: Tensor | None = None) -> Tensor:
    """base + dropout(states), with a base of the states' shape where there is one."""
    if not (training and rate):
        return states if base is None else base + states
    if not _run(states, base):
        dropped = F.dropout(states, rate)
        return dropped if base is None else base + dropped
    result: Tensor = _Dropout.apply(states, base, _Draw.of(rate))
    return result


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: Tensor, base: Tensor | None, draw: _Draw) -> Tensor:
        ctx.draw = draw
        states = states.contiguous()
        base = None if base is None else base.contiguous()
        output = torch.empty_like(states)
        threads = torch.get_num_threads()
        call(_loaded().dropped, states, base, states.numel(), ctypes.byref(draw), output, threads)
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        of_base = grad if ctx.needs_input_grad[1] else None
        return _Dropout.apply(grad, None, ctx.draw), of_base, None
