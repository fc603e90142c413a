"""Sums in one order: on a GPU, runs of one seed that repeat each other to the bit."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def deterministic(wanted: bool) -> Iterator[None]:
    """Inside this context, where wanted, PyTorch takes algorithms that always add up alike.

    What is compiled inside keeps them. An operation that has none says so in a warning.
    """
    if not wanted:
        yield
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS reads it when it begins
    before = torch.are_deterministic_algorithms_enabled()
    only_warned = torch.is_deterministic_algorithms_warn_only_enabled()
    memory: Any = torch.utils.deterministic
    filled = memory.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    memory.fill_uninitialized_memory = False  # nothing here reads such memory
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=only_warned)
        memory.fill_uninitialized_memory = filled
