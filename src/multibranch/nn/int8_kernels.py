"""Which C kernels for decoding in eight bits do not run here, and why, as a sentence."""

import torch

from multibranch.nn import int8_attention, int8_products
from multibranch.nn.compiled import NOT_COMPILED


def lacking() -> str | None:
    """What int8 must do without on this machine, for a person; None where it has all kernels."""
    parts: dict[str, list[str]] = {}
    for part, reason in (("products", _of_products()), ("attention", _of_attention())):
        if reason is not None:
            parts.setdefault(reason, []).append(part)
    if not parts:
        return None
    listed = " and ".join(f"{' and '.join(names)} ({why})" for why, names in parts.items())
    return f"int8 is slower here for want of its C kernels for {listed}"


def _of_products() -> str | None:
    if int8_products.library() is not None:
        return None
    here = torch.backends.cpu.get_cpu_capability() == "AVX512" and torch.cpu._is_vnni_supported()
    return NOT_COMPILED if here else "this processor has no AVX-512 VNNI"


def _of_attention() -> str | None:
    if int8_attention.library() is not None:
        return None
    here = torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")
    return NOT_COMPILED if here else "this processor has no AVX2"
