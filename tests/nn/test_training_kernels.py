"""Kernels in C for training on a CPU: dropout, and of attention what test_kernels.py has not."""

import ctypes
import math

import pytest
import torch
from torch import Tensor

from multibranch.nn import training_kernels
from multibranch.nn.kernels import (
    make_segments,
    packed_cross_attention,
    packed_self_attention,
)
from multibranch.nn.plainly import use_reference
from multibranch.nn.training_kernels import dropout
from small_transformer import small_transformer

if training_kernels.library() is None:
    pytest.skip("the kernels are not compiled for this machine", allow_module_level=True)


def kept(states: Tensor, rate: float, seed: int) -> Tensor:
    torch.manual_seed(seed)
    return dropout(states, rate, training=True) != 0


@pytest.mark.parametrize("rate", [0.05, 0.3, 0.5, 0.9])
def test_dropout_keeps_as_many_as_the_rate_says(compiled: ctypes.CDLL, rate: float) -> None:
    states = torch.ones(1000, 1000)
    torch.manual_seed(1)
    dropped = dropout(states, rate, training=True)
    assert set(dropped.unique().tolist()) == {0.0, torch.tensor(1 / (1 - rate)).item()}
    rows, columns = (dropped == 0).float().mean(1), (dropped == 0).float().mean(0)
    deviation = math.sqrt(rate * (1 - rate) / 1000)
    for each in (rows, columns):  # a thousand of them: none is 5 deviations off
        assert bool(((each - rate).abs() < 5 * deviation).all())
        assert 0.9 < each.std().item() / deviation < 1.1
    assert abs(rows.mean().item() - rate) < 5 * deviation / math.sqrt(1000)


def test_dropout_of_one_place_says_nothing_of_another(compiled: ctypes.CDLL) -> None:
    """Neighbours, rows, and draws one after the other or of seeds beside each other."""
    states, seen = torch.ones(512, 512), []
    for seed in (1, 2, 2**31):
        seen.append(kept(states, 0.5, seed))
        seen.append(dropout(states, 0.5, training=True) != 0)
    signs = [2.0 * each.float() - 1 for each in seen]
    limit = 5 / math.sqrt(states.numel())
    for number, first in enumerate(signs):
        for second in signs[number + 1 :]:
            assert abs((first * second).mean().item()) < limit
        for apart in (1, 2, 16, 512, 8192):
            flat = first.flatten()
            assert abs((flat[:-apart] * flat[apart:]).mean().item()) < 1.1 * limit


def test_dropout_is_a_function_of_the_seed_and_not_of_the_threads(compiled: ctypes.CDLL) -> None:
    states, threads = torch.randn(77, 333), torch.get_num_threads()
    first = kept(states, 0.3, 5)
    try:
        torch.set_num_threads(3)
        assert torch.equal(kept(states, 0.3, 5), first)
    finally:
        torch.set_num_threads(threads)
    assert not torch.equal(kept(states, 0.3, 6), first)
    assert torch.equal(kept(states.t(), 0.3, 5), first.view(333, 77))  # by the place in its order


def test_dropout_adds_the_base_and_has_the_gradients_of_both(compiled: ctypes.CDLL) -> None:
    states = torch.randn(9, 33, requires_grad=True)
    base = torch.randn(9, 33, requires_grad=True)
    torch.manual_seed(3)
    output = dropout(states, 0.4, training=True, base=base)
    factors = kept(torch.ones(9, 33), 0.4, 3) / 0.6
    torch.testing.assert_close(output, base + states * factors)
    weights = torch.randn(9, 33, requires_grad=True)
    of_states, of_base = torch.autograd.grad(output, (states, base), weights, create_graph=True)
    torch.testing.assert_close(of_states, weights * factors)
    torch.testing.assert_close(of_base, weights)
    (second,) = torch.autograd.grad(of_states.sum(), weights)
    torch.testing.assert_close(second, factors)


def test_dropout_without_training_or_rate_changes_nothing(compiled: ctypes.CDLL) -> None:
    states, base = torch.randn(4, 5), torch.randn(4, 5)
    assert dropout(states, 0.5, training=False) is states
    assert dropout(states, 0.0, training=True) is states
    assert torch.equal(dropout(states, 0.5, training=False, base=base), base + states)
    assert dropout(torch.empty(0, 5), 0.5, training=True).shape == (0, 5)


def test_other_tensors_are_pytorchs(compiled: ctypes.CDLL) -> None:
    states = torch.ones(50, 50)
    for other in (states.double(), states.bfloat16()):
        dropped = dropout(other, 0.5, training=True)
        assert dropped.dtype == other.dtype and 0.3 < (dropped == 0).float().mean() < 0.7
    many = torch.func.vmap(lambda x: dropout(x, 0.5, training=True), randomness="different")(
        torch.ones(3, 50, 50)
    )
    assert many.shape == (3, 50, 50) and not torch.equal(many[0], many[1])
    torch.manual_seed(1)
    with use_reference():
        plain = dropout(states, 0.5, training=True)
    torch.manual_seed(1)
    assert torch.equal(plain, torch.nn.functional.dropout(states, 0.5))


def test_attention_is_the_same_for_any_number_of_threads(compiled: ctypes.CDLL) -> None:
    boundaries = torch.tensor([0, 7, 7, 30, 93, 94])
    segments = make_segments(boundaries, 100)
    qkv, grad = torch.randn(100, 3, 4, 32, requires_grad=True), torch.randn(100, 4, 32)
    threads, found = torch.get_num_threads(), []
    try:
        for number in (1, 2, 5):
            torch.set_num_threads(number)
            output = packed_self_attention(qkv, segments, causal=True)
            found.append((output, *torch.autograd.grad(output, qkv, grad)))
    finally:
        torch.set_num_threads(threads)
    for other in found[1:]:
        assert all(torch.equal(one, two) for one, two in zip(found[0], other))


@pytest.mark.parametrize("causal", [False, True])
def test_weights_that_are_dropped_have_no_gradient(compiled: ctypes.CDLL, causal: bool) -> None:
    """With the identity as values the output shows the weights, and so which were dropped."""
    rate, lengths, heads, width = 0.3, [13, 1, 64, 50], 3, 64
    boundaries = torch.tensor([0, *lengths]).cumsum(0)
    n = int(boundaries[-1])
    segments = make_segments(boundaries, n)
    qkv = torch.randn(n, 3, heads, width)
    shown = qkv.clone()
    for start, length in zip(boundaries.tolist(), lengths):
        shown[start : start + length, 2] = torch.eye(length, width)[:, None]
    scale = torch.tensor([0.0, 1.0, 1.4])

    def attend(qkv: Tensor) -> Tensor:
        torch.manual_seed(5)
        extras = {"causal": causal, "head_scale": scale, "dropout_p": rate}
        return packed_self_attention(qkv, segments, **extras)

    kept = attend(shown) != 0
    doubles = qkv.double().requires_grad_()
    expected = torch.zeros(n, heads, width, dtype=torch.float64)
    dropped = seen = 0
    for start, length in zip(boundaries.tolist(), lengths):
        own = slice(start, start + length)
        q, k, v = doubles[own].unbind(1)
        scores = torch.einsum("qhw,khw->hqk", q, k) / math.sqrt(width)
        visible = torch.ones(length, length).tril() if causal else torch.ones(length, length)
        weights = scores.masked_fill(visible == 0, -math.inf).softmax(-1)
        mask = kept[own, :, :length].transpose(0, 1).double()
        dropped += int((mask[1:] == 0).sum() - 2 * (visible == 0).sum())
        seen += 2 * int(visible.sum())
        values = torch.einsum("hqk,khw->qhw", weights * mask / (1 - rate), v)
        expected[own] = values * scale.double()[:, None]
    assert abs(dropped / seen - rate) < 5 * math.sqrt(rate * (1 - rate) / seen)
    found = attend(qkv.requires_grad_())
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=1e-5)
    grad = torch.randn(n, heads, width)
    (one,) = torch.autograd.grad(found, qkv, grad)
    (other,) = torch.autograd.grad(expected, doubles, grad.double())
    torch.testing.assert_close(one.double(), other, rtol=0, atol=2e-5)


def test_attention_to_large_scores_is_finite_and_to_nan_is_nan(compiled: ctypes.CDLL) -> None:
    segments = make_segments(torch.tensor([0, 5, 12]), 12)
    qkv = torch.randn(12, 3, 2, 16)
    large = qkv.clone()
    large[:, :2] *= 1e4
    with use_reference():
        expected = packed_self_attention(large.double(), segments)
    found = packed_self_attention(large, segments)
    assert bool(found.isfinite().all())
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=1e-3)
    qkv[7] = math.nan
    found = packed_self_attention(qkv, segments)
    assert bool(found[5:].isnan().all()) and bool(found[:5].isfinite().all())


def test_attention_refuses_a_second_derivative(compiled: ctypes.CDLL) -> None:
    segments = make_segments(torch.tensor([0, 5]), 5)
    q, kv = torch.randn(5, 2, 16, requires_grad=True), torch.randn(5, 2, 2, 16, requires_grad=True)
    output = packed_cross_attention(q, kv, segments, segments)
    with pytest.raises(RuntimeError, match="packed attention has no second derivative"):
        torch.autograd.grad(output.sum(), q, create_graph=True)


def test_a_model_trains_as_it_does_in_plain_pytorch(compiled: ctypes.CDLL) -> None:
    """All of an update, without dropout, of which the two draw different numbers."""
    torch.manual_seed(0)
    model = small_transformer(width=64, drop_branch=0.3)
    source, target = torch.randint(4, 20, (40,)), torch.randint(4, 20, (33,))
    cut = {
        "source_boundaries": torch.tensor([0, 9, 10, 39]),
        "target_boundaries": torch.tensor([0, 4, 20, 31]),
    }
    keep, weights = model.draw_keep(), torch.randn(33, 64)

    def gradients() -> list[Tensor]:
        model.zero_grad()
        states = model.states(source, target, keep=keep, **cut)
        (states * weights)[:31].sum().backward()
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    found = gradients()
    with use_reference():
        expected = gradients()
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5 * other.abs().max().item())
