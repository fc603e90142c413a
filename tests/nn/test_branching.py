"""Branching out, folding and pruning keep the function; drop-branch is what parts the copies."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch.nn.utils.parametrizations import weight_norm

from multibranch.nn import (
    MultiBranchAttention,
    MultiBranchEncoder,
    MultiBranchTransformer,
    branch_out,
    branch_similarity,
    fold,
    from_torch,
    prune,
)
from small_transformer import small_transformer


def small_model(**changes) -> MultiBranchTransformer:
    return small_transformer(**{"branches": 1, "drop_branch": 0.3, **changes})


SOURCE = torch.randint(4, 20, (3, 7), generator=torch.Generator().manual_seed(0))
TARGET = torch.randint(4, 20, (3, 6), generator=torch.Generator().manual_seed(1))


def logits(model: MultiBranchTransformer) -> torch.Tensor:
    return model.eval()(SOURCE, TARGET)


@pytest.mark.parametrize(
    "change", [lambda m: branch_out(m, branches=4, how="tile"), fold, lambda m: prune(m, keep=1)]
)
@pytest.mark.parametrize("alone", [True, False])
def test_hooks_come_along(change, alone):
    model = small_model(branches=2)
    layer = model.decoder[0].attention
    called = []
    layer.register_forward_pre_hook(
        lambda layer, given, named: called.append("before"), with_kwargs=True
    )
    layer.register_forward_hook(lambda layer, given, output: called.append("after"))
    layer.register_full_backward_hook(lambda layer, into, out: called.append("back"))
    changed = change(layer) if alone else change(model).decoder[0].attention
    layer.register_forward_hook(lambda layer, given, output: called.append("too late"))
    states = torch.randn(5, 3, 16, requires_grad=True)
    changed(states, states, states, need_weights=False)[0].sum().backward()
    assert called == ["before", "after", "back"]


@pytest.mark.parametrize("branches", [2, 3, 4])
@pytest.mark.parametrize("scale", ["paper", "released"])
def test_branching_out_keeps_the_logits(branches, scale):
    torch.manual_seed(0)
    model = small_model(branch_scale=scale)
    branched = branch_out(model, branches=branches)
    torch.testing.assert_close(logits(branched), logits(model), rtol=1e-5, atol=1e-5)
    assert branched.settings["branches"] == branches
    assert branched.output_vectors is branched.source_embedding.vectors  # still one embedding
    assert model.settings["branches"] == 1  # the original is left alone
    d, layers = 16, 2 + 2 * 2
    added = (branches - 1) * layers * (4 * d * d + 4 * d)
    count = {m: sum(p.numel() for p in m.parameters()) for m in (model, branched)}
    assert count[branched] - count[model] == added


def test_every_block_can_have_a_number_of_branches_of_its_own():
    model = small_model()
    branched = branch_out(model, branches=[1, 2, 3, 4])
    torch.testing.assert_close(logits(branched), logits(model), rtol=1e-5, atol=1e-5)
    assert branched.settings["branches"] == [1, 2, 3, 4]
    assert branched.decoder[1].cross_attention.branches == 4
    with pytest.raises(ValueError, match="branches must hold one value a layer: 4, not 2"):
        branch_out(model, branches=[1, 2])


def test_one_layer_whose_copies_cannot_part_is_warned_of():
    model = small_model(drop_branch=[0.3, 0.0, 0.3, 0.3])
    with pytest.warns(UserWarning, match="stay equal for ever"):
        branch_out(model, branches=2)


def train(model: MultiBranchTransformer, steps: int) -> None:
    model.train()
    optimiser = torch.optim.Adam(model.parameters(), lr=5e-3)
    for step in range(steps):
        torch.manual_seed(step)
        output = model(SOURCE, TARGET)
        loss = F.cross_entropy(output.flatten(0, 1), TARGET.roll(-1, 1).flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()


def test_copies_stay_equal_without_drop_branch_and_part_with_it():
    torch.manual_seed(0)
    with pytest.warns(UserWarning, match="stay equal for ever"):
        still = branch_out(small_model(drop_branch=0.0), branches=3)
    parting = branch_out(small_model(drop_branch=0.3), branches=3)
    assert len(branch_similarity(still)) == 2 + 2 * 2
    train(still, 20)
    train(parting, 20)
    assert min(branch_similarity(still).values()) > 1 - 1e-5
    for layer in still.modules():
        if isinstance(layer, MultiBranchAttention):
            torch.testing.assert_close(layer.qkv_weight[:, 0], layer.qkv_weight[:, 2])
    assert max(branch_similarity(parting).values()) < 0.999


def test_noise_parts_the_copies_at_once_and_silences_the_warning():
    torch.manual_seed(0)
    model = small_model(drop_branch=0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        branched = branch_out(model, branches=2, noise=0.1)
    assert max(branch_similarity(branched).values()) < 0.9999
    layer, original = branched.encoder[0].attention, model.encoder[0].attention
    assert torch.equal(layer.qkv_weight[:, 0], original.qkv_weight[:, 0])


@pytest.mark.parametrize("noise", [float("nan"), float("inf"), -0.1])
def test_noise_that_spoils_the_copies_is_refused(noise):
    with pytest.raises(ValueError, match="noise must be a finite number of at least 0"):
        branch_out(small_model(), branches=2, noise=noise)


@pytest.mark.parametrize(
    "change",
    [
        lambda model: branch_out(model, branches=2),
        lambda model: prune(model, keep=1),
        fold,
    ],
    ids=["branch_out", "prune", "fold"],
)
def test_other_models_are_refused_by_name(change):
    with pytest.raises(TypeError, match=r"takes a MultiBranchTransformer, .*, not a Sequential"):
        change(torch.nn.Sequential(MultiBranchAttention(16, 2, drop_branch=0.1)))


@pytest.mark.parametrize("change", [lambda model: prune(model, keep=1), fold])
def test_layers_that_are_more_than_a_plain_one_are_refused(change):
    class Doubled(MultiBranchAttention):
        def merge(self, *args, **options):
            return 2 * super().merge(*args, **options)

    with pytest.raises(TypeError, match="what Doubled adds to MultiBranchAttention would be lost"):
        change(Doubled(16, 2, branches=2))
    model = small_model(branches=2)
    weight_norm(model.encoder[1].attention, "qkv_weight")
    with pytest.raises(TypeError, match="without parametrizations"):
        change(model)


def test_noise_falls_on_copies_only():
    torch.manual_seed(0)
    model = small_model(branches=2)
    layer = model.encoder[0].attention
    tiled = branch_out(model, branches=4, how="tile", noise=0.1).encoder[0].attention
    assert torch.equal(tiled.qkv_weight[:, :2], layer.qkv_weight)
    assert torch.equal(tiled.out_weight[:2], layer.out_weight)
    for branch in (2, 3):
        apart = (tiled.qkv_weight[:, branch] - layer.qkv_weight[:, branch - 2]).detach()
        assert float(apart.std() / layer.qkv_weight.detach().std()) == pytest.approx(0.1, rel=0.1)
    # Equal branches of a model that was branched out before are copies as well.
    copies = branch_out(branch_out(small_model(), branches=3), branches=3, how="tile", noise=0.1)
    assert max(branch_similarity(copies).values()) < 0.9999


@pytest.mark.parametrize(
    "change",
    [
        lambda model: branch_out(model, branches=4, how="tile"),
        lambda model: prune(model, keep=1),
        fold,
    ],
    ids=["branch_out", "prune", "fold"],
)
def test_what_is_frozen_stays_frozen(change):
    model = small_model(branches=2)
    frozen = ("encoder.0.", "decoder.1.cross_attention.out_weight")
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not name.startswith(frozen))
    for name, parameter in change(model).named_parameters():
        assert parameter.requires_grad != name.startswith(frozen), name


def test_a_branched_model_is_branched_again_only_when_told_how():
    torch.manual_seed(0)
    model = small_model(branches=2)
    with pytest.raises(ValueError, match="already has 2 branches"):
        branch_out(model, branches=4)
    with pytest.raises(ValueError, match="choose a multiple"):
        branch_out(model, branches=3, how="tile")
    tiled = branch_out(model, branches=4, how="tile")
    torch.testing.assert_close(logits(tiled), logits(model), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("scale", ["paper", "released"])
@pytest.mark.parametrize("branches", [1, 3, [1, 2, 2, 4]])
def test_folding_keeps_the_function(scale, branches):
    torch.manual_seed(0)
    model = small_model(branches=branches, branch_scale=scale)
    folded = fold(model)
    torch.testing.assert_close(logits(folded), logits(model), rtol=1e-5, atol=1e-5)
    layers = [block.attention for block in folded.blocks]
    assert all(layer.branches == 1 and layer.head_width == 8 for layer in layers)
    if isinstance(branches, int):
        assert folded.settings["heads"] == 2 * branches
    again = MultiBranchTransformer(**folded.settings)
    again.load_state_dict(folded.state_dict())
    torch.testing.assert_close(logits(again), logits(folded))


@pytest.mark.parametrize("scale", ["paper", "released"])
def test_pruning_identical_copies_changes_nothing(scale):
    torch.manual_seed(0)
    model = small_model(branch_scale=scale)
    branched = branch_out(model, branches=4)
    for keep in (1, 2, [0, 3], [2]):
        torch.testing.assert_close(
            logits(prune(branched, keep=keep)), logits(model), rtol=1e-5, atol=1e-5
        )


def test_pruning_averages_the_branches_that_stay():
    torch.manual_seed(0)
    layer = MultiBranchAttention(16, 2, branches=3, batch_first=True)
    states = torch.randn(2, 5, 16)
    kept = prune(layer, keep=[2, 0])(states, states, states, need_weights=False)[0]
    alone = [
        prune(layer, keep=[branch])(states, states, states, need_weights=False)[0]
        for branch in (0, 2)
    ]
    torch.testing.assert_close(kept, (alone[0] + alone[1]) / 2)


@pytest.mark.parametrize("keep", [0, 4, [], [3], [-1], [1, 1], torch.tensor([1, 1])])
def test_pruning_to_branches_that_are_not_there_is_refused(keep):
    with pytest.raises(ValueError, match="cannot keep branches"):
        prune(small_model(branches=3), keep=keep)


def test_an_encoder_branches_out_too():
    torch.manual_seed(0)
    encoder = MultiBranchEncoder(
        vocabulary=20,
        width=16,
        hidden=32,
        heads=2,
        encoder_layers=2,
        branches=1,
        drop_branch=0.1,
        dropout=0.0,
    )
    branched = branch_out(encoder, branches=2)
    torch.testing.assert_close(branched.eval()(SOURCE), encoder.eval()(SOURCE))
    assert branched.settings["branches"] == 2


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
def test_torchs_own_attention_becomes_one_branch_and_then_many(bias, batch_first):
    torch.manual_seed(0)
    trained = torch.nn.MultiheadAttention(16, 2, dropout=0.2, bias=bias, batch_first=batch_first)
    for name, parameter in trained.named_parameters():
        if "bias" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    trained.out_proj.weight.requires_grad_(False)
    trained = trained.double().eval()
    layer = from_torch(trained, drop_branch=0.3)
    states = torch.randn(3, 5, 16, dtype=torch.float64)
    padding = torch.tensor([False, False, False, True, True]).expand(3, 5)
    given = {"key_padding_mask": padding if batch_first else padding.new_zeros(5, 3)}
    for made in (layer, branch_out(layer, branches=3)):
        for ours, theirs in zip(
            made(states, states, states, **given), trained(states, states, states, **given)
        ):
            torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    assert (layer.drop_branch, layer.dropout, layer.training) == (0.3, 0.2, False)
    assert layer.qkv_weight.requires_grad and not layer.out_weight.requires_grad


def test_what_has_no_counterpart_in_torchs_attention_is_refused():
    with pytest.raises(ValueError, match="kdim, vdim"):
        from_torch(torch.nn.MultiheadAttention(16, 2, kdim=8))
    for option in ("add_bias_kv", "add_zero_attn"):
        with pytest.raises(ValueError, match=option):
            from_torch(torch.nn.MultiheadAttention(16, 2, **{option: True}))
    with pytest.raises(TypeError, match="not a Linear"):
        from_torch(torch.nn.Linear(16, 16))  # type: ignore[arg-type]
    for change in (fold, lambda layer: branch_out(layer, branches=2)):
        with pytest.raises(TypeError, match="give what from_torch makes of it"):
            change(torch.nn.MultiheadAttention(16, 2))
