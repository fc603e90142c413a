"""MultiBranchAttention against a loop over branches, and against torch.nn.MultiheadAttention."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import reference_attention as reference
from multibranch.nn import MultiBranchAttention


def with_random_biases(layer: MultiBranchAttention) -> MultiBranchAttention:
    """Biases start at zero, where a mistake in them would not show."""
    for parameter in (layer.qkv_bias, layer.out_bias):
        if parameter is not None:
            nn.init.normal_(parameter)
    return layer


def grads(output: Tensor, direction: Tensor, wanted: list[Tensor]) -> list[Tensor]:
    return list(torch.autograd.grad((output * direction).sum(), wanted))


@st.composite
def cases(draw):
    heads = draw(st.integers(1, 4))
    branches = draw(st.integers(1, 4))
    kind = draw(st.sampled_from(["branch", "head"]))
    units = branches * (heads if kind == "head" else 1)
    return {
        "heads": heads,
        "width": heads * 2 * draw(st.integers(1, 4)),
        "branches": branches,
        "kind": kind,
        "scale": draw(st.sampled_from(["paper", "released"])),
        "bias": draw(st.booleans()),
        "b": draw(st.integers(1, 3)),
        "t": draw(st.integers(1, 5)),
        "s": draw(st.integers(1, 5)),
        "mode": draw(st.sampled_from(["self", "causal", "cross", "three"])),
        "mask": draw(st.booleans()),
        "drop": draw(st.none() | st.lists(st.booleans(), min_size=units, max_size=units)),
        "skip": draw(st.booleans()),
        "seed": draw(st.integers(0, 2**31)),
    }


@settings(max_examples=80, deadline=None)
@given(cases())
def test_equals_the_loop_over_branches(case):
    torch.manual_seed(case["seed"])
    layer = with_random_biases(
        MultiBranchAttention(
            case["width"],
            case["heads"],
            branches=case["branches"],
            drop_kind=case["kind"],
            branch_scale=case["scale"],
            bias=case["bias"],
            batch_first=True,
        ).double()
    )
    b, t, s, d = case["b"], case["t"], case["s"], case["width"]
    if case["mode"] in ("self", "causal"):
        query = torch.randn(b, t, d, dtype=torch.float64, requires_grad=True)
        key = value = query
        s = t
    else:
        query = torch.randn(b, t, d, dtype=torch.float64, requires_grad=True)
        key = torch.randn(b, s, d, dtype=torch.float64, requires_grad=True)
        value = key if case["mode"] == "cross" else torch.randn_like(key, requires_grad=True)
    allowed = torch.ones(b, t, s, dtype=torch.bool)
    padding = None
    if case["mask"]:
        lengths = torch.randint(1, s + 1, (b,))
        padding = torch.arange(s) >= lengths[:, None]
        allowed = allowed & ~padding[:, None, :]
    if case["mode"] == "causal":
        allowed = allowed & torch.ones(t, s, dtype=torch.bool).tril()
    factors = None if case["drop"] is None else torch.tensor(case["drop"]).double() / 0.7
    keep = factors if factors is None or not case["skip"] else factors.tolist()
    output, _ = layer(
        query,
        key,
        value,
        key_padding_mask=padding,
        need_weights=False,
        is_causal=case["mode"] == "causal",
        keep=keep,
    )
    expected = reference.attention(layer, query, key, value, allowed=allowed, keep=factors)
    torch.testing.assert_close(output, expected, rtol=1e-10, atol=1e-10)
    if factors is not None and not factors.any():
        return  # nothing depends on anything
    direction = torch.randn_like(output)
    inputs = list({id(x): x for x in (query, key, value)}.values())
    wanted = [*inputs, *layer.parameters()]
    for ours, theirs in zip(grads(output, direction, wanted), grads(expected, direction, wanted)):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 3e-2)])
@pytest.mark.parametrize("branches", [1, 3])
def test_lower_precisions_stay_near_float64(dtype, tolerance, branches):
    torch.manual_seed(0)
    exact = with_random_biases(
        MultiBranchAttention(64, 4, branches=branches, batch_first=True).double()
    )
    states = torch.randn(3, 9, 64, dtype=torch.float64)
    layer = MultiBranchAttention(64, 4, branches=branches, batch_first=True).to(dtype)
    layer.load_state_dict(exact.state_dict())
    output, _ = layer(states.to(dtype), states.to(dtype), states.to(dtype), need_weights=False)
    expected = reference.attention(exact, states, states, states)
    error = (output.double() - expected).norm() / expected.norm()
    assert error < tolerance


def test_weights_do_not_overflow_half_precision_before_torchs_do():
    layer = MultiBranchAttention(64, 2, branches=2, batch_first=True).half()
    with torch.no_grad():
        for branch in range(2):
            layer.qkv_weight[:, branch].copy_(torch.eye(64).expand(3, 64, 64))
    states = torch.full((1, 3, 64), 100.0).half()  # scores of 320,000, divided by √32
    output, weights = layer(states, states, states)
    assert torch.equal(weights, torch.full((1, 3, 3), 1 / 3).half())
    assert torch.equal(output, layer(states, states, states, need_weights=False)[0])


def torch_twin(layer: MultiBranchAttention) -> nn.MultiheadAttention:
    """torch's attention with the weights of a one-branch layer."""
    twin = nn.MultiheadAttention(
        layer.width, layer.heads, batch_first=layer.batch_first, dtype=layer.qkv_weight.dtype
    )
    with torch.no_grad():
        twin.in_proj_weight.copy_(layer.qkv_weight.flatten(0, 2))
        twin.in_proj_bias.copy_(layer.qkv_bias.flatten())
        twin.out_proj.weight.copy_(layer.out_weight[0].t())
        twin.out_proj.bias.copy_(layer.out_bias[0])
    return twin


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("mask", [None, "padding", "bool", "float", "per head", "causal"])
@pytest.mark.parametrize("cross", [False, True])
def test_one_branch_is_torchs_multihead_attention(batch_first, mask, cross):
    torch.manual_seed(1)
    layer = with_random_biases(MultiBranchAttention(24, 3, batch_first=batch_first).double())
    twin = torch_twin(layer)
    b, t = 2, 5
    s = 7 if cross else t
    query = torch.randn((b, t, 24) if batch_first else (t, b, 24), dtype=torch.float64)
    memory = torch.randn((b, s, 24) if batch_first else (s, b, 24), dtype=torch.float64)
    key = memory if cross else query
    given: dict = {}
    if mask == "padding":
        given["key_padding_mask"] = torch.arange(s) >= torch.tensor([[s], [s - 2]])
    elif mask == "bool":
        given["attn_mask"] = torch.rand(t, s) > 0.8
        given["attn_mask"][:, 0] = False
    elif mask == "float":
        given["attn_mask"] = torch.randn(t, s, dtype=torch.float64)
    elif mask == "per head":
        given["attn_mask"] = torch.randn(b * 3, t, s, dtype=torch.float64)
    elif mask == "causal":
        given["attn_mask"] = torch.ones(t, s, dtype=torch.bool).triu(1)
        given["is_causal"] = True
    for need_weights in (True, False):
        ours, weights = layer(query, key, key, need_weights=need_weights, **given)
        theirs, their_weights = twin(query, key, key, need_weights=need_weights, **given)
        torch.testing.assert_close(ours, theirs)
        if need_weights:
            torch.testing.assert_close(weights, their_weights)
    _, by_head = layer(query, key, key, average_attn_weights=False, **given)
    _, theirs_by_head = twin(query, key, key, average_attn_weights=False, **given)
    torch.testing.assert_close(by_head.squeeze(1), theirs_by_head)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("layers", [1, 2])
def test_it_takes_the_place_of_torchs_in_torchs_own_encoder(training, layers):
    torch.manual_seed(1)
    layer = with_random_biases(MultiBranchAttention(24, 2, batch_first=True))
    theirs = nn.TransformerEncoderLayer(24, 2, 32, dropout=0.0, batch_first=True)
    theirs.self_attn = torch_twin(layer)
    ours = copy.deepcopy(theirs)
    ours.self_attn = layer
    if layers > 1:
        ours, theirs = (
            nn.TransformerEncoder(each, layers, enable_nested_tensor=False)
            for each in (ours, theirs)
        )
    states, padding = torch.randn(2, 5, 24), torch.arange(5) >= torch.tensor([[5], [3]])
    with torch.no_grad():
        output, expected = (
            each.train(training)(states, src_key_padding_mask=padding) for each in (ours, theirs)
        )
    torch.testing.assert_close(output[~padding], expected[~padding])


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("gradients", [False, True])
def test_it_takes_the_place_of_torchs_in_a_transformer_that_was_made_before(gradients):
    torch.manual_seed(1)
    how = {"dim_feedforward": 32, "dropout": 0.0, "batch_first": True}
    theirs = nn.Transformer(24, 2, 2, 2, **how).eval()
    ours = copy.deepcopy(theirs)
    for block, twin in zip(
        (*ours.encoder.layers, *ours.decoder.layers),
        (*theirs.encoder.layers, *theirs.decoder.layers),
    ):
        for name in ("self_attn", "multihead_attn"):
            if hasattr(block, name):
                layer = with_random_biases(MultiBranchAttention(24, 2, batch_first=True))
                setattr(block, name, layer)
                setattr(twin, name, torch_twin(layer).eval())
    source, target = torch.randn(2, 5, 24), torch.randn(2, 4, 24)
    padding = torch.arange(5) >= torch.tensor([[5], [3]])
    masks = {"src_key_padding_mask": padding, "memory_key_padding_mask": padding}
    with torch.set_grad_enabled(gradients):
        torch.testing.assert_close(ours(source, target, **masks), theirs(source, target, **masks))


def test_unbatched_input_and_weights_by_branch():
    torch.manual_seed(2)
    layer = MultiBranchAttention(16, 2, branches=3)
    states = torch.randn(5, 16)
    output, weights = layer(states, states, states, average_attn_weights=False)
    assert output.shape == (5, 16)
    assert weights.shape == (3, 2, 5, 5)
    torch.testing.assert_close(weights.sum(-1), torch.ones(3, 2, 5))
    _, average = layer(states, states, states)
    torch.testing.assert_close(average, weights.mean((0, 1)))


@pytest.mark.parametrize("keep", [[1.0, 0.0, 2.0], [0.0, 0.0, 0.0]])
@pytest.mark.parametrize("average", [False, True])
def test_weights_are_those_of_all_branches_whichever_are_skipped(keep, average):
    torch.manual_seed(2)
    layer = with_random_biases(MultiBranchAttention(16, 2, branches=3))
    states = torch.randn(5, 2, 16)
    found = layer(states, states, states, average_attn_weights=average, keep=keep)
    masked = layer(states, states, states, average_attn_weights=average, keep=torch.tensor(keep))
    assert found[1].shape == ((2, 5, 5) if average else (2, 3, 2, 5, 5))
    for one, other in zip(found, masked):
        assert torch.equal(one, other)


def test_masks_may_differ_by_branch():
    torch.manual_seed(3)
    layer = MultiBranchAttention(8, 1, branches=2, batch_first=True)
    states = torch.randn(2, 4, 8)
    mask = torch.zeros(2, 2, 1, 4, 4, dtype=torch.bool)
    mask[:, 1, :, :, 2:] = True  # the second branch sees only the first two positions
    _, weights = layer(
        states, states, states, attn_mask=mask.flatten(0, 2), average_attn_weights=False
    )
    assert (weights[:, 1, :, :, 2:] == 0).all()
    assert (weights[:, 0] > 0).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"width": 10, "heads": 4}, "do not divide a width of 10"),
        ({"width": 8, "heads": 2, "branches": 0}, "branches must be at least 1"),
        ({"width": 8, "heads": 0}, "heads must be at least 1"),
        ({"width": 8, "heads": 2, "drop_branch": 1.0}, r"drop_branch must lie in \[0, 1\)"),
        ({"width": 8, "heads": 2, "drop_branch": -0.1}, "drop_branch"),
        ({"width": 8, "heads": 2, "dropout": 1.5}, "dropout"),
        ({"width": 8, "heads": 2, "drop_kind": "layer"}, "drop_kind"),
        ({"width": 8, "heads": 2, "branch_scale": "mean"}, "branch_scale"),
    ],
)
def test_wrong_arguments_say_what_to_change(arguments, message):
    with pytest.raises(ValueError, match=message):
        MultiBranchAttention(**arguments)


@pytest.mark.parametrize(
    "wrong",
    [
        {"key_padding_mask": torch.zeros(2, 4, dtype=torch.bool)},
        {"attn_mask": torch.zeros(5, 4)},
        {"attn_mask": torch.zeros(3, 5, 5)},
        {"keep": [1.0]},
    ],
)
def test_wrong_shapes_say_what_was_expected(wrong):
    layer = MultiBranchAttention(8, 2, branches=2, batch_first=True)
    states = torch.randn(2, 5, 8)
    with pytest.raises(ValueError, match=r"must have the shape|factors"):
        layer(states, states, states, **wrong)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64])
def test_masks_of_whole_numbers_are_refused(dtype):
    """Many models have masks of 1 where attention is allowed, which would be added to scores."""
    layer = MultiBranchAttention(8, 2, branches=2, batch_first=True)
    states = torch.randn(2, 5, 8)
    for name, mask in (("key_padding_mask", torch.ones(2, 5)), ("attn_mask", torch.ones(5, 5))):
        with pytest.raises(ValueError, match=f"{name} must be bool, .* not torch"):
            layer(states, states, states, **{name: mask.to(dtype)})


@pytest.mark.parametrize(
    ("query", "key", "value", "message"),
    [
        ((2, 5, 8), (5, 8), (5, 8), "must all have three axes"),
        ((5, 8), (2, 5, 8), (2, 5, 8), "must all have three axes"),
        ((1, 2, 5, 8), (1, 2, 5, 8), (1, 2, 5, 8), "must all have three axes"),
        ((2, 5, 8), (2, 5, 8), (2, 3, 8), "as many keys as values"),
        ((2, 5, 8), (2, 5, 8), (1, 5, 8), "as many keys as values"),
        ((2, 5, 8), (1, 5, 8), (1, 5, 8), "must be of one batch, axis 0"),
        ((1, 5, 8), (2, 5, 8), (2, 5, 8), "must be of one batch, axis 0"),
        ((2, 5, 8), (2, 5, 4), (2, 5, 4), "must all be 8 wide"),
    ],
)
@pytest.mark.parametrize("need_weights", [False, True])
def test_states_that_do_not_belong_together_are_refused(query, key, value, message, need_weights):
    layer = MultiBranchAttention(8, 2, branches=2, batch_first=True)
    states = (torch.randn(shape) for shape in (query, key, value))
    with pytest.raises(ValueError, match=f"query, key and value .*{message}"):
        layer(*states, need_weights=need_weights)
