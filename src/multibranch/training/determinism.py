"""Sums in one order: on a GPU, runs of one seed that repeat each other to the bit."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

# Runs in several threads share PyTorch's settings: the first sets them, the last sets them back.
_lock = threading.Lock()
_inside = 0
_before: tuple[bool, bool, bool]


@contextmanager
def deterministic(wanted: bool) -> Iterator[None]:
    """Inside this context, where wanted, PyTorch takes algorithms that always add up alike.

    What is compiled inside keeps them. An operation that has none says so in a warning.
    """
    if not wanted:
        yield
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS reads it when it begins
    global _inside, _before
    memory: Any = torch.utils.deterministic
    with _lock:
        if not _inside:
            _before = (
                torch.are_deterministic_algorithms_enabled(),
                torch.is_deterministic_algorithms_warn_only_enabled(),
                memory.fill_uninitialized_memory,
            )
            torch.use_deterministic_algorithms(True, warn_only=True)
            memory.fill_uninitialized_memory = False  # nothing here reads such memory
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if not _inside:
                torch.use_deterministic_algorithms(_before[0], warn_only=_before[1])
                memory.fill_uninitialized_memory = _before[2]
