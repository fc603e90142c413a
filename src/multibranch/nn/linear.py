"""Products of states with weights, forwards and backwards, by the faster of PyTorch's libraries.

PyTorch multiplies float32 on a CPU by MKL, which on processors that are not Intel's runs at half of
the speed of oneDNN, PyTorch's other library. There `linear` takes that one, also for the gradients.
"""

import contextlib
import functools
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from multibranch.nn.plainly import eager_on_cpu

_LEAST = 2**21  # multiplications of a product that is worth the call


def linear(states: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """states (…, in)·weightᵀ (in, out) + bias (out,) → (…, out)"""
    if not _by_onednn(states, weight, bias):
        return F.linear(states, weight, bias)
    rows = states.reshape(-1, states.shape[-1])
    if torch.is_grad_enabled():
        output: Tensor = _Linear.apply(rows, weight, bias)
    else:
        output = _multiply(rows, weight, bias)
    return output.view(*states.shape[:-1], -1)


def scaled_linear(states: Tensor, weight: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    """`linear`, multiplied by `scale`; a bias of another type than the product's takes that."""
    if scale == 1:
        return linear(states, weight, bias)
    output = linear(states, weight)
    if bias is not None:
        output = output + bias.to(output.dtype)
    return output * scale


@functools.cache
def prefers_onednn() -> bool:
    """Whether float32 products are oneDNN's, not MKL's, slow on processors that are not Intel's."""
    both = torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()
    if not both or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    with contextlib.suppress(OSError):
        return "GenuineIntel" not in Path("/proc/cpuinfo").read_text(encoding="utf-8")
    return False


def _by_onednn(states: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether oneDNN is to multiply: nothing but plain tensors, large enough to be worth it.

    It reads a bias from where that begins in memory, whatever its strides.
    """
    return (
        eager_on_cpu(states, weight)
        and prefers_onednn()
        and bool(torch.backends.mkldnn.enabled)
        and states.dtype == weight.dtype == torch.float32
        and states.numel() * weight.shape[0] >= _LEAST
        and weight.shape[1:] == states.shape[-1:]
        and (bias is None or _is_row(bias, weight.shape[0]))
        and not torch.is_autocast_enabled("cpu")
    )


def _is_row(bias: Tensor, size: int) -> bool:
    """Whether a bias is (size,) numbers of float32 that lie one after the other."""
    return bias.shape == (size,) and bias.dtype == torch.float32 and bias.is_contiguous()


def _multiply(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    output: Tensor = torch.ops.mkldnn._linear_pointwise(rows, weight, bias, "none", [], "")
    return output


class _Linear(torch.autograd.Function):
    """oneDNN's product, whose gradients are products of the same kind."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(rows, weight)
        return _multiply(rows, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        rows, weight = ctx.saved_tensors
        of_rows, of_weight, of_bias = ctx.needs_input_grad
        return (
            linear(grad, weight.t()) if of_rows else None,
            weight_gradient(rows, grad) if of_weight else None,
            grad.sum(0) if of_bias else None,
        )


def weight_gradient(rows: Tensor, grad: Tensor) -> Tensor:
    """gradᵀ (out, n)·rows (n, in) → (out, in)"""
    # oneDNN's first factor is laid out anew: let that be the smaller one.
    if rows.shape[1] < grad.shape[1]:
        return linear(rows.t(), grad.t()).t()
    return linear(grad.t(), rows.t())
