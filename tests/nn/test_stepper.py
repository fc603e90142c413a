"""Decoding token by token: the lean decoder against the modules, and what the cache can do."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from multibranch.nn import MultiBranchTransformer, int8_products
from multibranch.nn.cache import Room
from multibranch.nn.stepper import Stepper
from small_transformer import small_transformer

PAD = 1


def small_model(**changes) -> MultiBranchTransformer:
    sizes = {"source_vocabulary": 24, "target_vocabulary": 24, "encoder_layers": 1}
    return small_transformer(**{**sizes, **changes}).double().eval()


def padded_sources(*lengths: int) -> Tensor:
    source = torch.full((len(lengths), max(lengths)), PAD)
    for row, length in enumerate(lengths):
        source[row, :length] = torch.randint(4, 24, (length,))
    return source


@pytest.mark.parametrize("products", [True, False])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"norm": "pre", "activation": "gelu"},
        {"activation": "swiglu", "ffn_branches": 2, "positions": "learned", "max_length": 4},
        {"branches": [1, 2, 3], "branch_scale": "released", "share_embeddings": "none"},
        {"heads": 3, "head_width": 5, "share_embeddings": "target", "target_vocabulary": 8},
    ],
)
@torch.inference_mode()
def test_stepper_computes_what_the_model_computes(changes, products):
    torch.manual_seed(0)
    model = small_model(**changes)
    stepper = Stepper(model, products=products)
    source = padded_sources(3, 5, 1)
    ours = stepper.start(stepper.encode(source), beam=3)
    theirs = model.start(model.encode(source), beam=3)
    for _ in range(6):
        ids = torch.randint(4, model.settings["target_vocabulary"], (3, 3))
        torch.testing.assert_close(stepper.step(ids, ours), model.step(ids, theirs))
        beams = torch.randint(0, 3, (3, 3))
        ours.reorder(beams)
        theirs.reorder(beams)


@pytest.mark.parametrize("products", [True, False])
@torch.inference_mode()
def test_a_source_that_is_all_padding_is_read_as_the_model_reads_it(products):
    torch.manual_seed(0)
    model = small_model()
    stepper = Stepper(model, products=products)
    source = padded_sources(3, 0, 2)
    ours, theirs = stepper.start(stepper.encode(source)), model.start(model.encode(source))
    for _ in range(3):
        ids = torch.randint(4, 24, (3, 1))
        logits = stepper.step(ids, ours)
        assert bool(logits.isfinite().all())
        torch.testing.assert_close(logits, model.step(ids, theirs))


@pytest.mark.parametrize("width", [32, 16])  # of heads whose keys are kept in eight bits, or not
@torch.inference_mode()
def test_eight_bits_read_a_source_that_is_all_padding_as_one_more_sentence(width):
    torch.manual_seed(0)
    model = small_model(width=width).float()
    stepper = Stepper(model, int8=True)
    source = padded_sources(3, 0, 2)
    ours, theirs = stepper.start(stepper.encode(source)), model.start(model.encode(source))
    ids = torch.randint(4, 24, (3, 1))
    away = (stepper.step(ids, ours) - model.step(ids, theirs)).abs().amax((1, 2))
    assert away[1] < 2 * max(away[0], away[2])


@settings(deadline=None, max_examples=40)
@given(st.data())
@torch.inference_mode()
def test_cache_operations_never_change_the_logits(data):
    """Reordering, leaving, tidying and fixed shapes, in any order, against the whole forward."""
    torch.manual_seed(data.draw(st.integers(0, 1000)))
    beam = data.draw(st.integers(1, 4))
    model = small_model()
    stepper = Stepper(model, products=data.draw(st.booleans()))
    source = padded_sources(*data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=4)))
    cache = stepper.start(stepper.encode(source), beam=beam)
    written = torch.zeros(len(source), beam, 0, dtype=torch.long)
    for _ in range(data.draw(st.integers(1, 12))):
        ids = torch.randint(4, 24, (len(source), beam))
        if cache.slots is None and data.draw(st.booleans()):  # one token for all rows
            ids = ids[:, :1].expand(-1, beam)
            alike = bool((written == written[:, :1]).all())
            logits = stepper.step(ids[:, :1] if alike else ids, cache).expand(-1, beam, -1)
        else:
            logits = stepper.step(ids, cache)
        written = torch.cat([written, ids.unsqueeze(-1)], dim=-1)
        whole = model(source.repeat_interleave(beam, 0), written.flatten(0, 1))[:, -1]
        torch.testing.assert_close(logits.flatten(0, 1), whole)
        beams = torch.randint(0, beam, (len(source), beam))
        cache.reorder(beams)
        written = written.gather(1, beams.unsqueeze(-1).expand_as(written))
        operation = data.draw(st.sampled_from(["none", "select", "shuffle", "tidy", "fix"]))
        cache.release()
        if operation in ("select", "shuffle"):
            stay = torch.randperm(len(source))
            if operation == "select":
                stay = stay[: max(1, len(source) - 1)].sort().values
            cache.select(stay)
            source, written = source[stay], written[stay]
        elif operation == "tidy":
            cache.tidy()
        elif operation == "fix":
            cache.reserve(3)
            cache.fix()


@torch.inference_mode()
def test_tidy_keeps_one_slot_for_a_past_that_all_beams_share():
    torch.manual_seed(0)
    stepper = Stepper(small_model())
    cache = stepper.start(stepper.encode(padded_sources(3, 2)), beam=4)
    for _ in range(6):
        stepper.step(torch.randint(4, 24, (2, 4)), cache)
        cache.reorder(torch.zeros(2, 4, dtype=torch.long))
    assert cache.used == 24
    cache.tidy()
    assert cache.used == 6  # one a position: all rows descend from row 0
    assert cache.layers[0].key.shape[3] == cache.layers[0].value.shape[2] == 6
    assert cache.length == 6


@torch.inference_mode()
def test_logits_are_float32_however_small_the_weights():
    torch.manual_seed(0)
    model = small_model().float()
    exact = Stepper(model)
    rough = Stepper(model.bfloat16())
    ids, source = torch.randint(4, 24, (2, 1)), padded_sources(3, 4)
    logits = rough.step(ids, rough.start(rough.encode(source)))
    assert logits.dtype == torch.float32
    expected = exact.step(ids, exact.start(exact.encode(source)))
    assert (logits - expected).norm() / expected.norm() < 3e-2


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("sentences", [2, 40])  # few rows and many have products of their own
@pytest.mark.parametrize("heads", [4, 8])  # of width 16 and 8: with kernels and without
@torch.inference_mode()
def test_int8_is_close_in_every_part(norm, sentences, heads):
    torch.manual_seed(0)
    model = small_model(width=64, hidden=128, heads=heads, norm=norm).float()
    exact, rough = Stepper(model), Stepper(model, int8=True)
    ids = torch.randint(4, 24, (sentences, 3))
    source = padded_sources(*[3, 7] * (sentences // 2))
    memories = [stepper.encode(source).states for stepper in (exact, rough)]
    assert 0 < (memories[0] - memories[1]).norm() / memories[0].norm() < 3e-2
    logits = [
        stepper.step(ids, stepper.start(stepper.encode(source), beam=3))
        for stepper in (exact, rough)
    ]
    assert 0 < (logits[0] - logits[1]).norm() / logits[0].norm() < 5e-2


@pytest.mark.skipif(
    int8_products.library() is None, reason="the int8 kernel is not compiled for this machine"
)
@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("width", [64, 72])  # states of whole vectors, and not
@torch.inference_mode()
def test_a_block_as_one_call_computes_what_its_parts_compute(norm, width):
    torch.manual_seed(0)
    model = small_model(width=width, hidden=100, heads=3, head_width=32, norm=norm).float()
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            nn.init.normal_(module.weight, mean=1.0, std=0.1)
    whole, parts = Stepper(model, int8=True), Stepper(model, int8=True)
    for block in parts._decoder:
        assert block.whole is not None
        block.whole = None
    source = padded_sources(*[3, 7] * 4)
    caches = [stepper.start(stepper.encode(source), beam=3) for stepper in (whole, parts)]
    sentences, ids = 8, torch.randint(4, 24, (8, 1))  # all beams begin alike
    for number in range(25):
        logits, expected = (
            stepper.step(ids, cache) for stepper, cache in zip((whole, parts), caches)
        )
        # A number between two that are rounded to may go to either: sums have their own order.
        assert (logits - expected).norm() / expected.norm() < 5e-3
        if number == 12:
            sentences = 4
        ids, beams = torch.randint(4, 24, (sentences, 3)), torch.randint(0, 3, (sentences, 3))
        for cache in caches:
            if number == 12:
                cache.select(torch.tensor([0, 7, 2, 3]))
            cache.reorder(beams)
            if number % 8 == 7:
                cache.tidy()


@torch.inference_mode()
def test_int8_decodes_what_no_one_call_is_there_for():
    torch.manual_seed(0)
    model = small_model(width=64, hidden=128, heads=4, activation="gelu").float()
    exact, rough = Stepper(model), Stepper(model, int8=True)
    assert all(getattr(block, "whole", None) is None for block in rough._decoder)
    ids, source = torch.randint(4, 24, (2, 3)), padded_sources(3, 7)
    logits = [
        stepper.step(ids, stepper.start(stepper.encode(source), beam=3))
        for stepper in (exact, rough)
    ]
    assert 0 < (logits[0] - logits[1]).norm() / logits[0].norm() < 5e-2


def test_int8_is_made_of_float32():
    with pytest.raises(ValueError, match="made of float32"):
        Stepper(small_model(), int8=True)


@pytest.mark.parametrize("int8", [False, True])
@torch.inference_mode()
def test_a_sentence_that_overflows_reaches_no_other(int8):
    """Neither in its own batch nor in one that is given its memory."""
    if int8 and int8_products.library() is None:
        pytest.skip("the int8 kernel is not compiled for this machine")
    torch.manual_seed(0)
    model = small_model(width=64, heads=4).float()
    stepper, room = Stepper(model, int8=int8), Room()
    ids = torch.randint(4, 24, (3, 2))
    source = padded_sources(3, 5, 4)
    exact = stepper.start(stepper.encode(source), beam=2)
    for poisoned in (True, False):
        memory = stepper.encode(source)
        if poisoned:
            memory.states[0] = float("nan")
        cache = stepper.start(memory, beam=2, room=room)
        for _ in range(6):
            logits = stepper.step(ids, cache)
        assert bool(logits[1:].isfinite().all())
        assert bool(logits[0].isfinite().all()) is not poisoned
        cache.close()
    for _ in range(6):
        expected = stepper.step(ids, exact)
    torch.testing.assert_close(logits, expected)
