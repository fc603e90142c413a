"""Switching the fast paths off: to compare them with plain PyTorch, or for what it alone can do."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

IN_REFERENCE = "compute it inside multibranch.nn.plainly.use_reference()"
# PyTorch's fused attention has no second derivative either.
BY_PRODUCTS = (
    f"{IN_REFERENCE} and torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH)"
)

_only = False


@contextmanager
def use_reference() -> Iterator[None]:
    """Inside this context the plain PyTorch path computes everything, whatever the device."""
    global _only
    before, _only = _only, True
    try:
        yield
    finally:
        _only = before


def reference_only() -> bool:
    """Whether plain PyTorch is to compute everything."""
    return _only


def eager_on_cpu(*tensors: Tensor | None) -> bool:
    """Whether code of our own may compute with these: plain tensors on a CPU, run as they come.

    It has no rule for compilers, tracers, vmap and dual numbers, and what counts operations is to
    count PyTorch's.
    """
    return (
        not _only
        and not torch.compiler.is_compiling()
        and not torch.jit.is_tracing()
        and all(_is_plain(tensor) for tensor in tensors if tensor is not None)
        and not torch._C._are_functorch_transforms_active()
        and torch.autograd.forward_ad._current_level < 0
        and not torch._C._len_torch_dispatch_stack()
    )


def _is_plain(tensor: Tensor) -> bool:
    return (
        type(tensor) in (Tensor, nn.Parameter)
        and tensor.device.type == "cpu"
        and tensor.layout == torch.strided
    )


def refuse_second_derivative(of: str, *, instead: str) -> None:
    """For the backward of a fast path, whose gradients are constants to autograd."""
    if torch.is_grad_enabled():  # a graph of the gradients is asked for
        raise RuntimeError(f"{of} has no second derivative: {instead}")
