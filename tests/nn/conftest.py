"""What the tests of the kernels share: both paths, and new random inputs."""

import os
from collections.abc import Iterator
from contextlib import nullcontext

import pytest
import torch

from multibranch.nn.plainly import use_reference

HAS_TRITON = torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET") == "1"


@pytest.fixture(params=["plain", "triton"] if HAS_TRITON else ["plain"])
def path(request: pytest.FixtureRequest) -> Iterator[str]:
    """Both paths in turn; on the plain one the kernels are switched off."""
    with use_reference() if request.param == "plain" else nullcontext():
        yield request.param


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
