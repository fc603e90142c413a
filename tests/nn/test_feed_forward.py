"""MultiBranchFeedForward against a loop over branches."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import reference_attention as reference
from multibranch.nn import MultiBranchFeedForward


@settings(max_examples=40, deadline=None)
@given(
    branches=st.integers(1, 4),
    activation=st.sampled_from(["relu", "gelu", "swiglu"]),
    scale=st.sampled_from(["paper", "released"]),
    drop=st.none() | st.lists(st.booleans(), min_size=4, max_size=4),
    skip=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_equals_the_loop_over_branches(branches, activation, scale, drop, skip, seed):
    torch.manual_seed(seed)
    layer = MultiBranchFeedForward(
        6, 10, branches=branches, activation=activation, branch_scale=scale
    ).double()
    nn.init.normal_(layer.in_bias)
    nn.init.normal_(layer.out_bias)
    states = torch.randn(2, 3, 6, dtype=torch.float64, requires_grad=True)
    factors = None if drop is None else torch.tensor(drop[:branches]).double() / 0.8
    keep = factors.tolist() if factors is not None and skip else factors
    output = layer(states, keep)
    expected = reference.feed_forward(layer, states, factors)
    torch.testing.assert_close(output, expected, rtol=1e-10, atol=1e-10)
    if factors is not None and not factors.any():
        return
    direction = torch.randn_like(output)
    wanted = [states, *layer.parameters()]
    ours = torch.autograd.grad((output * direction).sum(), wanted)
    theirs = torch.autograd.grad((expected * direction).sum(), wanted)
    for one, other in zip(ours, theirs):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"branches": 0}, "branches must be at least 1"),
        ({"activation": "tanh"}, "activation must be one of"),
        ({"drop_branch": 1.0}, "drop_branch"),
        ({"activation_dropout": -1.0}, "activation_dropout"),
    ],
)
def test_wrong_arguments_say_what_to_change(arguments, message):
    with pytest.raises(ValueError, match=message):
        MultiBranchFeedForward(8, 16, **arguments)
