"""Drop-branch: unbiased, independent, repeatable, absent from evaluation, and skippable."""

import pytest
import torch
from torch import nn

from multibranch.nn import (
    EncoderBlock,
    Layout,
    MultiBranchAttention,
    MultiBranchFeedForward,
    MultiBranchTransformer,
    draw_keep,
)
from small_transformer import small_transformer


def small_model(**changes) -> MultiBranchTransformer:
    return small_transformer(**{"drop_branch": 0.3, **changes})


@pytest.mark.parametrize("kind", ["branch", "head"])
def test_mean_over_draws_is_the_undropped_output(kind):
    torch.manual_seed(0)
    layer = MultiBranchAttention(
        8, 2, branches=3, drop_branch=0.3, drop_kind=kind, batch_first=True
    ).double()
    nn.init.normal_(layer.out_bias)
    states = torch.randn(1, 3, 8, dtype=torch.float64)
    exact = layer.eval()(states, states, states, need_weights=False)[0]
    layer.train()
    draws = torch.stack([layer(states, states, states, need_weights=False)[0] for _ in range(4000)])
    error = (draws.mean(0) - exact).abs()
    interval = 4.5 * draws.std(0) / len(draws) ** 0.5
    assert (error <= interval).all()
    assert draws.std(0).max() > 0.01


def test_mean_over_draws_of_the_feed_forward_layer():
    torch.manual_seed(0)
    layer = MultiBranchFeedForward(8, 16, branches=2, drop_branch=0.25).double()
    nn.init.normal_(layer.out_bias)
    states = torch.randn(3, 8, dtype=torch.float64)
    exact = layer.eval()(states)
    layer.train()
    draws = torch.stack([layer(states) for _ in range(4000)])
    assert ((draws.mean(0) - exact).abs() <= 4.5 * draws.std(0) / len(draws) ** 0.5).all()


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("skip", [False, True])
def test_all_dropped_passes_the_input_through_the_residual(norm, skip):
    torch.manual_seed(0)
    block = EncoderBlock(
        8,
        attention={"heads": 2, "branches": 3, "batch_first": True},
        feed_forward={"hidden": 16},
        norm=norm,
    ).double()
    states = torch.randn(2, 4, 8, dtype=torch.float64, requires_grad=True)
    keep = [0.0] * block.units if skip else torch.zeros(block.units)
    output = block(states, Layout(), keep)
    expected = states
    if norm == "post":
        expected = block.feed_forward_norm(block.attention_norm(states))
    torch.testing.assert_close(output, expected)
    output.sum().backward()
    assert torch.isfinite(states.grad).all()
    assert all(torch.isfinite(p.grad).all() for p in block.parameters() if p.grad is not None)


def test_evaluation_never_drops():
    torch.manual_seed(0)
    model = small_model(drop_branch=0.9).eval()
    source, target = torch.randint(4, 20, (2, 5)), torch.randint(4, 20, (2, 6))
    first = model(source, target)
    assert all(torch.equal(first, model(source, target)) for _ in range(5))


def test_one_seed_gives_one_result_and_another_seed_another():
    model = small_model().train()
    source, target = torch.randint(4, 20, (2, 5)), torch.randint(4, 20, (2, 6))

    def run(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return model(source, target)

    torch.testing.assert_close(run(1), run(1), rtol=0, atol=0)
    assert not torch.allclose(run(1), run(2))


def test_units_draw_independently_at_their_own_rates():
    torch.manual_seed(0)
    model = small_model(drop_branch=0.3, drop_ffn=0.1)
    # encoder block: 3 branches + 1 FFN; decoder block: 3 + 3 + 1
    assert model.draw_keep().shape == (2 * 4 + 2 * 7,)
    draws = torch.stack([model.draw_keep() for _ in range(20000)])
    dropped = (draws == 0).double()
    rates = torch.tensor(model.drop_rates())
    assert rates[:4].tolist() == pytest.approx([0.3, 0.3, 0.3, 0.1])
    assert (dropped.mean(0) - rates).abs().max() < 0.015
    correlation = torch.corrcoef(dropped.T) - torch.eye(dropped.shape[1])
    assert correlation.abs().max() < 0.035
    kept = draws[draws > 0].unique()
    torch.testing.assert_close(kept, torch.tensor([1 / 0.9, 1 / 0.7]), rtol=1e-6, atol=0)


def test_drop_head_keeps_and_scales_single_heads():
    torch.manual_seed(0)
    layer = MultiBranchAttention(8, 2, branches=2, drop_kind="head", batch_first=True)
    states = torch.randn(1, 3, 8)
    # With an output projection that copies its input, each head's columns show by themselves.
    with torch.no_grad():
        layer.out_weight.zero_()
        layer.out_weight[0].copy_(torch.eye(8))
    whole = layer(states, states, states, need_weights=False)[0]
    keep = torch.tensor([0.0, 2.0, 1.0, 1.0])  # the first branch's heads: dropped, doubled
    dropped = layer(states, states, states, need_weights=False, keep=keep)[0]
    assert (dropped[..., :4] == 0).all()
    torch.testing.assert_close(dropped[..., 4:], 2 * whole[..., 4:])


@pytest.mark.parametrize("kind", ["branch", "head"])
def test_skipping_and_masking_are_the_same_function(kind):
    torch.manual_seed(0)
    model = small_model(drop_kind=kind, ffn_branches=2, hidden=16).double()
    source, target = torch.randint(4, 20, (2, 5)), torch.randint(4, 20, (2, 6))
    for seed in range(5):
        keep = model.draw_keep(generator=torch.Generator().manual_seed(seed))
        masked = model(source, target, keep=keep.double())
        skipped = model(source, target, keep=keep.double().tolist())
        torch.testing.assert_close(masked, skipped)


def test_draws_from_a_generator_repeat():
    rates = torch.tensor([0.5] * 40)
    first = draw_keep(rates, generator=torch.Generator().manual_seed(3))
    again = draw_keep(rates, generator=torch.Generator().manual_seed(3))
    other = draw_keep(rates, generator=torch.Generator().manual_seed(4))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_a_rate_that_rounds_to_one_drops_and_spoils_nothing():
    model = small_model(drop_branch=1 - 1e-9, norm="post").train()
    assert torch.equal(draw_keep(model.drop_rates()), torch.zeros(len(model.drop_rates())))
    assert model(torch.randint(4, 20, (2, 5)), torch.randint(4, 20, (2, 6))).isfinite().all()


@pytest.mark.parametrize("count", [39, 41])
@pytest.mark.parametrize("skip", [False, True])
def test_factors_of_another_model_are_refused(count, skip):
    model = small_model(branches=6)  # two blocks of 6 + 1 units, and two of 6 + 6 + 1
    source, target = torch.randint(4, 20, (2, 5)), torch.randint(4, 20, (2, 6))
    keep = torch.ones(count)
    with pytest.raises(ValueError, match=f"keep holds {count} factors, but there are 40 units"):
        model(source, target, keep=keep.tolist() if skip else keep)


@pytest.mark.parametrize("branches", [1, 2])
def test_factors_are_not_rounded_to_the_type_of_the_states(branches):
    """As bfloat16, 1/(1 − 0.1) is 0.16% less: every pass would be a little too small."""
    torch.manual_seed(0)
    states = torch.randn(50, 40, 8).bfloat16()
    keep = torch.full((branches,), 1 / 0.9)
    attention = MultiBranchAttention(8, 2, branches=branches, bias=False).bfloat16()
    feed_forward = MultiBranchFeedForward(8, 8, branches=branches, bias=False).bfloat16()
    with torch.no_grad():
        for layer in (attention, feed_forward):
            layer.out_weight.copy_(torch.eye(8).expand(branches, 8, 8))
        for call in (attention.attend, feed_forward):
            whole, found = call(states).float(), call(states, keep=keep).float()
            factor = (found * whole).sum() / whole.square().sum()
            torch.testing.assert_close(factor, keep[0], rtol=2e-4, atol=0)
