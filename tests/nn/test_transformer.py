"""The whole model: against torch.nn.Transformer, packed against padded, step by step, compiled."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from multibranch.nn import MultiBranchEncoder, MultiBranchTransformer
from small_transformer import small_transformer

PAD = 1


def small_model(**changes) -> MultiBranchTransformer:
    return small_transformer(**changes).double().eval()


def random_sequences(lengths: list[int], seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(4, 20, (length,), generator=generator) for length in lengths]


def pad(sequences: list[Tensor]) -> Tensor:
    return nn.utils.rnn.pad_sequence(sequences, batch_first=True, padding_value=PAD)


def pack(sequences: list[Tensor], tail: int, empty: int) -> tuple[Tensor, Tensor]:
    """Packed ids with `tail` ids of padding, and boundaries with `empty` unused ones at the end."""
    ids = torch.cat([*sequences, torch.full((tail,), PAD)])
    ends = torch.tensor([len(sequence) for sequence in sequences]).cumsum(0)
    boundaries = torch.cat([torch.zeros(1), ends, ends[-1:].expand(empty)]).int()
    return ids, boundaries


def torch_twin(model: MultiBranchTransformer) -> nn.Transformer:
    """torch's Transformer with the weights of a one-branch model."""
    said = model.settings
    twin = nn.Transformer(
        said["width"],
        said["heads"],
        said["encoder_layers"],
        said["decoder_layers"],
        said["hidden"],
        dropout=0.0,
        batch_first=True,
        norm_first=said["norm"] == "pre",
        activation=said["activation"],
    ).double()
    with torch.no_grad():
        for ours, theirs in zip(model.encoder, twin.encoder.layers):
            copy_block(ours, theirs, [("attention", "self_attn", "norm1")], "norm2")
        for ours, theirs in zip(model.decoder, twin.decoder.layers):
            attentions = [
                ("attention", "self_attn", "norm1"),
                ("cross_attention", "multihead_attn", "norm2"),
            ]
            copy_block(ours, theirs, attentions, "norm3")
    if said["norm"] == "pre":
        twin.encoder.norm.load_state_dict(model.encoder_norm.state_dict())
        twin.decoder.norm.load_state_dict(model.decoder_norm.state_dict())
    else:
        twin.encoder.norm = twin.decoder.norm = None
    return twin.eval()


def copy_block(ours, theirs, attentions, last_norm) -> None:
    for name, their_name, their_norm in attentions:
        layer, twin = getattr(ours, name), getattr(theirs, their_name)
        twin.in_proj_weight.copy_(layer.qkv_weight.flatten(0, 2))
        twin.in_proj_bias.copy_(layer.qkv_bias.flatten())
        twin.out_proj.weight.copy_(layer.out_weight[0].t())
        twin.out_proj.bias.copy_(layer.out_bias[0])
        getattr(theirs, their_norm).load_state_dict(getattr(ours, f"{name}_norm").state_dict())
    theirs.linear1.weight.copy_(ours.feed_forward.in_weight[0])
    theirs.linear1.bias.copy_(ours.feed_forward.in_bias[0])
    theirs.linear2.weight.copy_(ours.feed_forward.out_weight[0].t())
    theirs.linear2.bias.copy_(ours.feed_forward.out_bias[0])
    getattr(theirs, last_norm).load_state_dict(ours.feed_forward_norm.state_dict())


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_one_branch_is_torchs_transformer(norm, activation):
    torch.manual_seed(0)
    model = small_model(branches=1, norm=norm, activation=activation)
    source = pad(random_sequences([5, 3], 1))
    target = pad(random_sequences([4, 6], 2))
    twin = torch_twin(model)
    padding = source == PAD
    states = twin(
        model.source_embedding(source, torch.arange(source.shape[1])),
        model.target_embedding(target, torch.arange(target.shape[1])),
        tgt_mask=nn.Transformer.generate_square_subsequent_mask(target.shape[1]).double(),
        src_key_padding_mask=padding,
        memory_key_padding_mask=padding,
    )
    expected = states @ model.target_embedding.weight.t()
    real = target != PAD
    torch.testing.assert_close(model(source, target)[real], expected[real])


lengths = st.lists(st.integers(1, 7), min_size=1, max_size=4)


@settings(max_examples=30, deadline=None)
@given(lengths, st.integers(0, 5), st.integers(0, 3), st.booleans(), st.integers(0, 2**31))
def test_packed_equals_padded(source_lengths, tail, empty, drop, seed):
    torch.manual_seed(seed)
    model = small_model(drop_branch=0.4, ffn_branches=2)
    sources = random_sequences(source_lengths, seed)
    targets = random_sequences([length % 5 + 1 for length in source_lengths], seed + 1)
    keep = model.draw_keep() if drop else None
    padded = model(pad(sources), pad(targets), keep=keep)
    source, source_boundaries = pack(sources, tail, empty)
    target, target_boundaries = pack(targets, tail, empty)
    packed = model(
        source,
        target,
        source_boundaries=source_boundaries,
        target_boundaries=target_boundaries,
        source_longest=max(source_lengths),
        target_longest=5,
        keep=keep,
    )
    assert torch.isfinite(packed).all()
    real = pad(targets) != PAD
    total = sum(len(sequence) for sequence in targets)
    torch.testing.assert_close(packed[:total], padded[real])
    direction = torch.randn_like(packed[:total])
    parameters = list(model.parameters())
    ours = torch.autograd.grad((packed[:total] * direction).sum(), parameters)
    theirs = torch.autograd.grad((padded[real] * direction).sum(), parameters)
    for one, other in zip(ours, theirs):
        torch.testing.assert_close(one, other)


def test_packed_encoder_equals_padded():
    torch.manual_seed(0)
    encoder = MultiBranchEncoder(
        vocabulary=20, width=16, hidden=32, heads=2, encoder_layers=2, branches=2, dropout=0.0
    ).double()
    sequences = random_sequences([3, 6, 1], 0)
    ids, boundaries = pack(sequences, tail=2, empty=1)
    packed = encoder(ids, boundaries=boundaries, longest=6)
    padded = encoder(pad(sequences))
    torch.testing.assert_close(packed[:10], padded[pad(sequences) != PAD])


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_incremental_decoding_equals_the_full_forward(data):
    """Step by step, through arbitrary reordering of beams and sentences leaving the batch."""
    seed = data.draw(st.integers(0, 2**31))
    beam = data.draw(st.integers(1, 3))
    source_lengths = data.draw(lengths)
    norm = data.draw(st.sampled_from(["post", "pre"]))
    positions = data.draw(st.sampled_from(["sinusoidal", "learned"]))
    torch.manual_seed(seed)
    model = small_model(norm=norm, positions=positions)
    source = pad(random_sequences(source_lengths, seed))
    cache = model.start(model.encode(source), beam=beam)
    written = torch.zeros(len(source), beam, 0, dtype=torch.long)
    for _ in range(data.draw(st.integers(1, 18))):
        ids = torch.randint(4, 20, (len(source), beam))
        logits = model.step(ids, cache)
        written = torch.cat([written, ids.unsqueeze(-1)], dim=-1)
        full = model(source.repeat_interleave(beam, 0), written.flatten(0, 1))[:, -1]
        torch.testing.assert_close(logits.flatten(0, 1), full)
        beams = torch.randint(0, beam, (len(source), beam))
        cache.reorder(beams)
        written = written.gather(1, beams.unsqueeze(-1).expand_as(written))
        if len(source) > 1 and data.draw(st.booleans()):
            stay = torch.randperm(len(source))[:-1].sort().values
            cache.select(stay)
            source, written = source[stay], written[stay]


@pytest.mark.parametrize("share", ["all", "target", "none"])
def test_embeddings_are_shared_as_asked(share):
    model = small_model(share_embeddings=share, encoder_layers=1, decoder_layers=1)
    inner = sum(p.numel() for b in (model.encoder, model.decoder) for p in b.parameters())
    total = sum(p.numel() for p in model.parameters())
    assert total - inner == {"all": 1, "target": 2, "none": 3}[share] * 20 * 16
    source, target = torch.randint(4, 20, (1, 3)), torch.randint(4, 20, (1, 3))
    model(source, target).sum().backward()
    assert model.target_embedding.weight.grad is not None


def test_layers_may_differ_in_branches_and_rates():
    model = small_model(branches=[1, 2, 3, 4], drop_branch=[0.0, 0.1, 0.2, 0.3])
    assert [block.attention.branches for block in model.blocks] == [1, 2, 3, 4]
    assert [block.feed_forward.drop_branch for block in model.blocks] == [0.0, 0.1, 0.2, 0.3]
    with pytest.raises(ValueError, match="branches must hold one value a layer: 4, not 2"):
        small_model(branches=[1, 2])


def test_settings_rebuild_the_model_and_the_state_dict_round_trips():
    torch.manual_seed(0)
    model = small_model(share_embeddings="target", target_vocabulary=24, norm="pre")
    again = MultiBranchTransformer(**model.settings).double().eval()
    again.load_state_dict(model.state_dict())
    source, target = torch.randint(4, 20, (2, 5)), torch.randint(4, 20, (2, 5))
    assert torch.equal(model(source, target), again(source, target))


def test_memory_given_to_a_model_made_without_holds_its_positions():
    torch.manual_seed(0)
    model = small_model().float()
    source, target = torch.randint(4, 20, (2, 5)), torch.randint(4, 20, (2, 5))
    expected = model(source, target)
    with torch.device("meta"):
        without = MultiBranchTransformer(**model.settings).half().eval()
    for empty in (without.float(), copy.deepcopy(model)):
        empty.to_empty(device="cpu")
        empty.load_state_dict(model.state_dict())
        assert torch.equal(empty(source, target), expected)


@pytest.mark.parametrize("padding", [None, -1, 20])
def test_padding_is_the_id_of_a_token(padding):
    """None would make every vector zero, −1 the last token's, both without a gradient."""
    with pytest.raises(ValueError, match=f"padding must be an id from 0 to 19, not {padding}"):
        small_model(padding=padding)
    with pytest.raises(ValueError, match=f"padding must be an id from 0 to 19, not {padding}"):
        MultiBranchEncoder(vocabulary=20, width=16, padding=padding)


def test_wrong_batches_say_what_was_expected():
    model = small_model()
    ids = torch.randint(4, 20, (6,))
    with pytest.raises(ValueError, match=r"packed .* with their boundaries"):
        model(ids, ids)
    with pytest.raises(ValueError, match="boundaries go with packed ids"):
        model(ids.view(2, 3), ids.view(2, 3), source_boundaries=torch.tensor([0, 6]))
    for source, target in ((ids.view(1, 6), ids.view(2, 3)), (ids.view(2, 3), ids.view(1, 6))):
        with pytest.raises(ValueError, match="both be packed, or padded with as many sequences"):
            model(source, target)
    with pytest.raises(ValueError, match="both be packed, or padded with as many sequences"):
        model(ids, ids.view(1, 6), source_boundaries=torch.tensor([0, 2, 6]))
    with pytest.raises(ValueError, match="cannot share embeddings"):
        small_model(target_vocabulary=24)
    with pytest.raises(ValueError, match="norm must be"):
        small_model(norm="sandwich")


def test_runs_under_autocast_near_float32():
    torch.manual_seed(0)
    model = small_model().float()
    source, target = torch.randint(4, 20, (2, 5)), torch.randint(4, 20, (2, 5))
    exact = model(source, target)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rough = model(source, target)
    assert rough.dtype == torch.bfloat16
    assert (rough.float() - exact).norm() / exact.norm() < 3e-2


def test_compiles_without_graph_breaks():
    torch.manual_seed(0)
    model = small_model(drop_branch=0.3, encoder_layers=1, decoder_layers=1).float().train()
    source, source_boundaries = pack(random_sequences([3, 4], 0), 1, 1)
    target, target_boundaries = pack(random_sequences([2, 5], 1), 1, 1)
    keep = model.draw_keep()

    def run(model: nn.Module) -> Tensor:
        return model(
            source,
            target,
            source_boundaries=source_boundaries,
            target_boundaries=target_boundaries,
            source_longest=4,
            target_longest=5,
            keep=keep,
        )

    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(run(compiled), run(model))
    padded_source, padded_target = torch.randint(4, 20, (2, 5)), torch.randint(4, 20, (2, 5))
    torch.testing.assert_close(
        compiled(padded_source, padded_target, keep=keep),
        model(padded_source, padded_target, keep=keep),
    )


def test_exports():
    torch.manual_seed(0)
    model = small_model(encoder_layers=1, decoder_layers=1).float()
    source, target = torch.randint(4, 20, (2, 5)), torch.randint(4, 20, (2, 6))
    length, batch = torch.export.Dim("length", min=2, max=64), torch.export.Dim("batch", min=2)
    exported = torch.export.export(
        model, (source, target), dynamic_shapes=({0: batch, 1: length}, {0: batch})
    )
    longer = torch.randint(4, 20, (3, 9)), torch.randint(4, 20, (3, 6))
    torch.testing.assert_close(exported.module()(*longer), model(*longer))
