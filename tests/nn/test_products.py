"""Products laid out once, against the plain product; int8 within what eight bits can tell."""

import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from multibranch.nn.products import Int8Product, Product


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 70), st.integers(1, 70), st.integers(1, 70), st.booleans())
def test_products_equal_the_plain_product(rows: int, inner: int, outer: int, biased: bool) -> None:
    torch.manual_seed(rows * 10_000 + inner * 100 + outer)
    states, weight = torch.randn(rows, inner), torch.randn(outer, inner)
    bias = torch.randn(outer) if biased else None
    expected = torch.nn.functional.linear(states, weight, bias)
    torch.testing.assert_close(Product(weight, bias)(states), expected, atol=1e-5, rtol=1e-4)
    # A rounded state or weight is off by at most half a step.
    rounded = Int8Product(weight, bias)
    steps = 127 if rounded.few.reduce_range else 255
    step = (states.max().clamp_min(0) - states.min().clamp_max(0)) / steps
    most = weight.abs().amax(1) / 127
    off = weight.abs() + most[:, None] / 2
    bound = step / 2 * off.sum(1) + most / 2 * states.abs().sum(1, keepdim=True)
    error = (rounded(states) - expected).abs()
    assert bool((error <= 1.01 * bound + 1e-5).all())


def test_large_and_vanishing_weights_keep_their_own_scales() -> None:
    torch.manual_seed(0)
    states = torch.randn(5, 64)
    weight = torch.randn(3, 64) * torch.tensor([[1e4], [1e-4], [0.0]])
    found = Int8Product(weight, None)(states)
    expected = states @ weight.t()
    assert ((found - expected).norm(dim=0) <= 0.03 * expected.norm(dim=0) + 1e-9).all()


def test_int8_leaves_no_trace_and_says_nothing() -> None:
    before = torch.backends.quantized.engine
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        product = Int8Product(torch.randn(4, 8), None)
        assert product(torch.zeros(2, 8)).abs().max() == 0
    assert torch.backends.quantized.engine == before
    with pytest.raises(ValueError, match="at least one row"):
        product(torch.zeros(0, 8))
