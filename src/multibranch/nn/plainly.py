"""Switching the fast paths off: to compare them with plain PyTorch, or for what it alone can do."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

IN_REFERENCE = "compute it inside multibranch.nn.plainly.use_reference()"

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


def refuse_second_derivative(of: str, *, instead: str) -> None:
    """For the backward of a fast path, whose gradients are constants to autograd."""
    if torch.is_grad_enabled():  # a graph of the gradients is asked for
        raise RuntimeError(f"{of} has no second derivative: {instead}")
