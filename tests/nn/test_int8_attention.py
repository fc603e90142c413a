"""Attention in eight bits, against the same in float32."""

import ctypes
import importlib.util
from collections.abc import Iterator

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from multibranch.nn import MultiBranchTransformer, int8_attention, int8_products
from multibranch.nn.cache import DecoderCache, LayerCache
from multibranch.nn.int8_cache import Int8LayerCache
from multibranch.nn.stepper import Stepper

if int8_attention.library() is None:
    pytest.skip("the int8 kernels are not compiled for this machine", allow_module_level=True)

KINDS = [
    name.rpartition("_")[2]
    for names in int8_attention._MODULES.values()
    for name in names
    if names[0] == name and importlib.util.find_spec(name) is not None
]


@pytest.fixture(params=KINDS)
def kernels(request, monkeypatch):
    """One of the compiled libraries that this machine can run."""
    capability = torch.backends.cpu.get_cpu_capability()
    if request.param == "avx512" and capability != "AVX512":
        pytest.skip("this machine has no AVX-512")
    int8_attention.library.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: request.param.upper())
        loaded = int8_attention.library()
    assert isinstance(loaded, ctypes.CDLL) and request.param in loaded._name
    yield loaded
    int8_attention.library.cache_clear()


def attended(query, keys, values, mask):
    """query (b, t, h, w) divided by √w, keys and values (b, h, s, w) → (b·t, h·w)"""
    scores = torch.einsum("bthw,bhsw->bhts", query, keys) + mask
    return torch.einsum("bhts,bhsw->bthw", scores.softmax(-1), values).flatten(0, 1).flatten(1)


@pytest.mark.parametrize("width", [16, 48, 64, 80, 144])
@pytest.mark.parametrize("rows", [1, 3, 5, 6, 12])
@torch.inference_mode()
def test_attention_to_the_source(kernels, width, rows):
    torch.manual_seed(width + rows)
    b, s, h = 3, 21, 2
    projected = torch.randn(b, s, 2, h, width)
    projected[1] *= 1e-3  # every vector has a scale of its own
    layer = Int8LayerCache(projected)
    mask = torch.full((b, 1, 1, 32), float("-inf"))
    for i, length in enumerate((21, 8, 1)):
        mask[i, ..., :length] = 0
    query = torch.randn(b, rows, h, width) * width**-0.5
    keys, values = projected.transpose(1, 3).unbind(2)
    expected = attended(query, keys, values, mask[..., :s])
    found = layer.attend_source(query, mask)
    error = (found - expected).view(b, -1).norm(dim=1) / expected.view(b, -1).norm(dim=1)
    assert bool((error < 0.015).all())
    assert bool((error[:2] > 1e-4).all())  # rounded it is


@settings(
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture],  # one library for all examples
)
@given(data=st.data())
@torch.inference_mode()
def test_cache_operations_move_eight_bits_as_they_move_others(kernels, data):
    """Growing, reordering, leaving and tidying: a slot too far and attention is far off."""
    torch.manual_seed(data.draw(st.integers(0, 1000)))
    b, beam, h, w = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 7)), 2, 16
    s = data.draw(st.integers(1, 20))
    projected = torch.randn(b, s, 2, h, w)
    keys, values = projected.transpose(1, 3).unbind(2)
    mask = torch.zeros(b, 1, 1, s + -s % 16).index_fill_(3, torch.arange(s, s + -s % 16), -1e9)
    exact = DecoderCache([LayerCache(keys, values)], mask, sentences=b, beam=beam)
    rough = DecoderCache([Int8LayerCache(projected)], mask.clone(), sentences=b, beam=beam)
    for number in range(data.draw(st.integers(1, 14))):
        rows = 1 if number == 0 and data.draw(st.booleans()) else beam
        qkv = torch.randn(b, rows, 3, h, w)
        qkv[:, :, 0] *= w**-0.5  # queries come divided by √w; larger ones magnify what is rounded
        for cache in (exact, rough):
            cache.advance(rows)
        query, key, value = qkv.unbind(2)
        past = exact.append(exact.layers[0], key, value)
        expected = attended(query, *past, exact.ancestry)
        found = rough.layers[0].attend_written(qkv, rough.used - rough.open, rough.ancestry)
        assert bool(((found - expected).norm(dim=1) < 0.03 * expected.norm(dim=1)).all())
        memory = exact.layers[0].memory_key, exact.layers[0].memory_value
        expected = attended(query, *memory, torch.zeros(1))
        found = rough.layers[0].attend_source(query.contiguous(), rough.mask)
        assert bool(((found - expected).norm(dim=1) < 0.03 * expected.norm(dim=1)).all())
        beams = torch.randint(0, beam, (b, beam))
        stay = torch.randperm(b)[: data.draw(st.integers(1, b))]
        operation = data.draw(st.sampled_from(["none", "select", "tidy"]))
        for cache in (exact, rough):
            cache.reorder(beams)
            if operation == "select":
                cache.select(stay)
            elif operation == "tidy":
                cache.tidy()
        b = exact.sentences
        assert rough.sentences == b and rough.used == exact.used


def test_weights_of_zero_count_for_nothing(kernels):
    layer = Int8LayerCache(torch.zeros(1, 2, 2, 1, 16))
    found = layer.attend_source(torch.ones(1, 1, 1, 16), torch.zeros(1, 1, 1, 16))
    assert bool((found == 0).all())


def test_what_the_kernels_cannot_read_is_refused():
    layer = Int8LayerCache(torch.randn(1, 2, 2, 3, 16))
    query, mask = torch.randn(1, 3, 2, 16).transpose(1, 2), torch.zeros(1, 1, 1, 16)
    for wrong in (query, query.contiguous().double()):
        with pytest.raises(AssertionError):
            layer.attend_source(wrong, mask)
    with pytest.raises(ValueError, match="heads of 24 numbers"):
        Int8LayerCache(torch.randn(1, 2, 2, 3, 24))


@pytest.fixture
def no_libraries() -> Iterator[None]:
    """None of the compiled libraries has been looked for, and none that is found is kept."""
    libraries = (int8_attention.library, int8_products.library)
    for library in libraries:
        library.cache_clear()
    yield
    for library in libraries:
        library.cache_clear()


@pytest.mark.usefixtures("no_libraries")
@pytest.mark.parametrize("lacking", ["_int8_", "_int8_vnni", "_int8_avx512", "_int8_avx"])
@torch.inference_mode()
def test_without_some_of_the_kernels_int8_still_decodes(lacking, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if lacking in name else found(name)
    )
    for library in (int8_attention.library(), int8_products.library()):
        assert library is None or lacking not in library._name
    model = MultiBranchTransformer(
        source_vocabulary=24,
        target_vocabulary=24,
        width=32,
        hidden=32,
        heads=2,
        encoder_layers=1,
        decoder_layers=1,
        branches=2,
    ).eval()
    ids, source = torch.full((40, 3), 5), torch.full((40, 4), 6)
    exact, rough = (
        stepper.step(ids, stepper.start(stepper.encode(source), beam=3))
        for stepper in (Stepper(model), Stepper(model, int8=True))
    )
    assert 0 < (exact - rough).norm() / exact.norm() < 0.05
