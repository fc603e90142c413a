"""What is lacking of the kernels in C is told with its reason: processor, or installation."""

import pytest
import torch

from multibranch.nn import int8_attention, int8_kernels, int8_products, training_kernels
from multibranch.nn.compiled import load

SLOWER = "int8 is slower here for want of its C kernels for "
AGAIN = "not compiled when multibranch was installed: install it again with a C compiler at hand"


@pytest.mark.parametrize(
    ("capability", "vnni", "compiled", "said"),
    [
        ("AVX512", True, True, None),
        ("AVX512", True, False, f"{SLOWER}products and attention ({AGAIN})"),
        ("AVX512", False, True, f"{SLOWER}products (this processor has no AVX-512 VNNI)"),
        (
            "AVX2",
            False,
            False,
            f"{SLOWER}products (this processor has no AVX-512 VNNI) and attention ({AGAIN})",
        ),
        (
            "DEFAULT",
            False,
            True,
            f"{SLOWER}products (this processor has no AVX-512 VNNI) and attention (this processor "
            "has no AVX2)",
        ),
    ],
)
def test_what_int8_lacks_is_told_with_its_reason(
    capability: str,
    vnni: bool,
    compiled: bool,
    said: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(torch.cpu, "_is_vnni_supported", lambda: vnni)
    libraries = {int8_products: vnni, int8_attention: capability != "DEFAULT"}
    for module, runs in libraries.items():
        found = object() if compiled and runs else None
        monkeypatch.setattr(module, "library", lambda found=found: found)
    assert int8_kernels.lacking() == said


@pytest.mark.parametrize(
    ("capability", "said"),
    [("AVX512", AGAIN), ("AVX2", AGAIN), ("DEFAULT", "this processor has no AVX2")],
)
def test_what_training_lacks_is_told_with_its_reason(
    capability: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(training_kernels, "library", lambda: object())
    assert training_kernels.lacking() is None
    monkeypatch.setattr(training_kernels, "library", lambda: None)
    said = f"training is slower here for want of its C kernels ({said})"
    assert training_kernels.lacking() == said


def test_a_module_made_of_older_sources_counts_as_none() -> None:
    assert load("torch._C", {}) is not None
    assert load("torch._C", {"a_function_of_later_sources": (None, [])}) is None
