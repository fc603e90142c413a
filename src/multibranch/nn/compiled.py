"""C code that was compiled as the package was installed, where there was a compiler for it.

Its functions are called without Python's lock: two batches run on two cores.
"""

import ctypes
import importlib.util
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

POINTER, WHOLE = ctypes.c_void_p, ctypes.c_int64
NOT_COMPILED = (
    "not compiled when multibranch was installed: install it again with a C compiler at hand"
)
Signatures = dict[str, tuple[Any, list[Any]]]  # of functions: what each gives and takes


def load(module: str, signatures: Signatures) -> ctypes.CDLL | None:
    """A module's functions; None where there is no such module, or none for this machine."""
    found = importlib.util.find_spec(module)
    if found is None or found.origin is None:
        return None
    try:
        library = ctypes.CDLL(found.origin)
    except OSError:  # made for another machine
        return None
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name, None)
        if function is None:  # made of older sources
            return None
        function.restype, function.argtypes = result, arguments
    return library


def load_first(modules: Mapping[str, Sequence[str]], signatures: Signatures) -> ctypes.CDLL | None:
    """The functions of the first module there is of those for what PyTorch says it can run here."""
    for module in modules.get(torch.backends.cpu.get_cpu_capability(), ()):
        loaded = load(module, signatures)
        if loaded is not None:
            return loaded
    return None


def call(function: Any, *arguments: Any) -> Any:
    """Tensors go as pointers, and live until the function is done."""
    return function(*(a.data_ptr() if isinstance(a, Tensor) else a for a in arguments))
