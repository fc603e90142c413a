"""Products laid out once, against the plain product; int8 within what eight bits can tell."""

import warnings
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from multibranch.nn import int8_products, products
from multibranch.nn.products import Int8Product, Product, PyTorchInt8Product

needs_kernel = pytest.mark.skipif(
    int8_products.library() is None, reason="the int8 kernel is not compiled for this machine"
)
sizes = st.integers(1, 140)


def made(rows: int, inner: int, outer: int, biased: bool) -> tuple[Tensor, Tensor, Tensor | None]:
    torch.manual_seed(rows * 10_000 + inner * 100 + outer)
    bias = torch.randn(outer) if biased else None
    return torch.randn(rows, inner), torch.randn(outer, inner), bias


def bound(states: Tensor, weight: Tensor, step: Tensor) -> Tensor:
    """How far off a product may be whose states and weights are off by at most half a step."""
    most = weight.abs().amax(1) / 127
    off = weight.abs() + most[:, None] / 2
    return 1.01 * (step / 2 * off.sum(1) + most / 2 * states.abs().sum(1, keepdim=True)) + 1e-5


@settings(deadline=None, max_examples=60)
@given(sizes, sizes, sizes, st.booleans(), st.booleans())
def test_products_equal_the_plain_product(
    rows: int, inner: int, outer: int, biased: bool, relu: bool
) -> None:
    states, weight, bias = made(rows, inner, outer, biased)
    expected = torch.nn.functional.linear(states, weight, bias)
    if relu:
        expected = expected.relu()
    for by_onednn in {False, torch.backends.mkldnn.is_available()}:
        with patch.object(products, "prefers_onednn", return_value=by_onednn):
            found = Product(weight, bias, relu=relu)(states)
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
    scales = weight.abs().amax(1) / 127
    theirs = PyTorchInt8Product(weight, scales, bias, relu=relu)
    steps = 127 if theirs.reduce_range else 255
    step = (states.max().clamp_min(0) - states.min().clamp_max(0)) / steps
    assert bool(((theirs(states) - expected).abs() <= bound(states, weight, step)).all())
    if int8_products.library() is not None:
        step = (states.amax(1) - states.amin(1))[:, None] / 255  # of each row
    found = Int8Product(weight, bias, relu=relu)(states)
    assert bool(((found - expected).abs() <= bound(states, weight, step)).all())


@pytest.mark.parametrize("by_onednn", sorted({False, torch.backends.mkldnn.is_available()}))
def test_a_product_takes_any_rows_and_a_bias_with_gaps(by_onednn: bool) -> None:
    weight, bias = torch.randn(7, 5), torch.randn(14)[::2]
    with patch.object(products, "prefers_onednn", return_value=by_onednn):
        product = Product(weight, bias)
    assert product(torch.empty(0, 5)).shape == (0, 7)
    for states in (torch.randn(5, 3).t(), torch.randn(4, 10)[:, ::2]):
        torch.testing.assert_close(product(states), states @ weight.t() + bias)


@needs_kernel
@settings(deadline=None, max_examples=60)
@given(st.integers(1, 900), sizes, sizes, st.data())
def test_a_row_does_not_depend_on_the_others(
    rows: int, inner: int, outer: int, data: st.DataObject
) -> None:
    states, weight, bias = made(rows, inner, outer, True)
    product = Int8Product(weight, bias)
    whole = product(states)
    some = torch.randperm(rows)[: data.draw(st.integers(1, rows))]
    assert torch.equal(product(states[some]), whole[some])


@needs_kernel
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("relu", [False, True])
def test_what_is_no_number_stays_in_its_row(bad: float, relu: bool) -> None:
    states, weight, bias = made(13, 37, 70, True)
    product = Int8Product(weight, bias, relu=relu)
    healthy = product(states)
    states[4, 36] = bad
    found = product(states)
    assert bool(found[4].isnan().all())
    rest = torch.arange(13) != 4
    assert torch.equal(found[rest], healthy[rest])


@needs_kernel
def test_rows_of_any_size_are_rounded_finely() -> None:
    torch.manual_seed(0)
    weight = torch.randn(50, 64)
    product = Int8Product(weight, None)
    for states in (
        torch.randn(9, 64) * torch.logspace(-30, 30, 9)[:, None],  # each row its own scale
        torch.rand(9, 64) + 100,  # far from zero
        torch.randn(9, 64).relu(),
    ):
        expected = states.double() @ weight.double().t()
        within = (states.amax(1) - states.amin(1)) / 255 * 64
        largest = weight.abs().amax() / 127 * states.abs().sum(1)
        error = (product(states) - expected).abs().amax(1)
        assert bool((error <= within + largest).all())
    for constant in (0.0, 3.0, -2.5):  # a row that is all the same has no span
        states = torch.full((2, 64), constant)
        expected = states @ weight.t()
        torch.testing.assert_close(product(states), expected, atol=1.5, rtol=0.02)
    assert product(torch.zeros(2, 64)).abs().max() == 0


@needs_kernel
def test_what_the_kernel_cannot_read_is_refused() -> None:
    weight = torch.randn(70, 33)
    for bias in (torch.randn(70).double(), torch.randn(70).half(), torch.randn(3)):
        with pytest.raises(ValueError, match="a bias of 70"):
            Int8Product(weight, bias)
    product = Int8Product(weight, torch.randn(140)[::2])  # every other number of its memory
    for states in (torch.randn(5, 33).double(), torch.randn(5, 34), torch.randn(5, 1, 33)):
        with pytest.raises(ValueError, match="states"):
            product(states)
    states = torch.randn(33, 5).t()
    torch.testing.assert_close(product(states), product(states.contiguous()))


def test_sums_do_not_wrap_around() -> None:
    weight = torch.ones(3, 70_000)
    states = torch.ones(2, 70_000)
    states[:, 0] = 0.0
    found = Int8Product(weight, None)(states)
    torch.testing.assert_close(found, torch.full((2, 3), 69_999.0), rtol=1e-3, atol=0)


def test_large_and_vanishing_weights_keep_their_own_scales() -> None:
    torch.manual_seed(0)
    states = torch.randn(5, 64)
    weight = torch.randn(3, 64) * torch.tensor([[1e4], [1e-4], [0.0]])
    expected = states @ weight.t()
    scales = weight.abs().amax(1).clamp_min(1e-12) / 127
    for product in (
        Int8Product(weight, None),
        PyTorchInt8Product(weight, scales, None, relu=False),
    ):
        off = (product(states) - expected).norm(dim=0)
        assert bool((off <= 0.03 * expected.norm(dim=0) + 1e-9).all())


def test_int8_leaves_no_trace_and_says_nothing() -> None:
    before = torch.backends.quantized.engine
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        weight = torch.randn(4, 8)
        PyTorchInt8Product(weight, weight.abs().amax(1) / 127, None, relu=False)
        product = Int8Product(weight, None)
        assert product(torch.zeros(2, 8)).abs().max() == 0
    assert torch.backends.quantized.engine == before
    with pytest.raises(ValueError, match="at least one row"):
        product(torch.zeros(0, 8))
