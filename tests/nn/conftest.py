"""What the tests of the kernels share: both paths, and new random inputs."""

import ctypes
import importlib.util
import os
from collections.abc import Iterator
from contextlib import nullcontext

import pytest
import torch

from multibranch.nn import training_kernels
from multibranch.nn.compiled import load
from multibranch.nn.plainly import use_reference

HAS_TRITON = torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET") == "1"
COMPILED = [
    kind
    for kind, (name, *_) in training_kernels._MODULES.items()
    if importlib.util.find_spec(name) is not None
]


def only_compiled_for(kind: str, patch: pytest.MonkeyPatch) -> ctypes.CDLL:
    """Take the kernels in C that were compiled for this kind of processor, if this one is such."""
    if kind == "AVX512" and torch.backends.cpu.get_cpu_capability() != "AVX512":
        pytest.skip("this machine has no AVX-512")
    name = training_kernels._MODULES[kind][0]
    loaded = load(name, training_kernels._SIGNATURES)
    if loaded is None:
        pytest.skip(f"this machine does not run what was compiled for {kind}")
    patch.setattr(training_kernels, "library", lambda: loaded)
    return loaded


@pytest.fixture(params=["plain", "triton"] if HAS_TRITON else ["plain"])
def path(request: pytest.FixtureRequest) -> Iterator[str]:
    """Both paths in turn; on the plain one the kernels are switched off."""
    with use_reference() if request.param == "plain" else nullcontext():
        yield request.param


@pytest.fixture(params=["plain", "triton"] if HAS_TRITON else ["plain", *COMPILED])
def path_of_attention(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """The same of attention, which has kernels in C on a CPU."""
    if request.param in COMPILED:
        only_compiled_for(request.param, monkeypatch)
    with use_reference() if request.param == "plain" else nullcontext():
        yield request.param


@pytest.fixture(params=COMPILED)
def compiled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ctypes.CDLL:
    """The kernels in C for training, each kind of them in turn."""
    return only_compiled_for(request.param, monkeypatch)


@pytest.fixture(params=["plain", "triton" if HAS_TRITON else "in chunks"])
def path_of_loss(request: pytest.FixtureRequest) -> Iterator[str]:
    """The same for the loss, which a CPU computes in chunks."""
    with use_reference() if request.param == "plain" else nullcontext():
        yield request.param


@pytest.fixture
def triton() -> None:
    """For tests of the Triton path alone."""
    if not HAS_TRITON:
        pytest.skip("no Triton path in this process")


@pytest.fixture
def fresh_inputs() -> None:
    """New random inputs in every run; pytest shows the seed of a test that fails."""
    print("torch.manual_seed", torch.seed())
