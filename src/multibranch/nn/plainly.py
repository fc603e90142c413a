"""Switching the fast paths off, to compare them with plain PyTorch."""

from collections.abc import Iterator
from contextlib import contextmanager

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
