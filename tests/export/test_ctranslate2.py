"""CTranslate2: the exported model computes what the model computes, or is refused by name."""

import json
from pathlib import Path

import pytest
import torch

from multibranch.decoding import Translator
from multibranch.errors import UserError
from multibranch.export import CTranslate2Engine, export_ctranslate2
from multibranch.export.ctranslate2 import QUANTIZATIONS
from multibranch.export.folder import read_description
from multibranch.nn import MultiBranchEncoder
from multibranch.text import TextPipeline, WordCounter, learn_bpe

ctranslate2 = pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed")

OPTIONS = {
    "the paper's": {},
    "one branch": {"branches": 1},
    "pre-norm": {"norm": "pre"},
    "gelu": {"activation": "gelu"},
    "swiglu, pre-norm": {"activation": "swiglu", "norm": "pre"},
    "learned positions, some shared": {"positions": "learned", "max_length": 7},
    "output embedding shared": {"share_embeddings": "target"},
    "no embedding shared": {"share_embeddings": "none"},
    "feed-forward branches": {"ffn_branches": 2},
    "gated feed-forward branches": {"ffn_branches": 3, "activation": "swiglu"},
    "the released scale": {"branch_scale": "released", "ffn_branches": 2},
    "branches by layer": {"branches": [1, 3, 2, 4]},
    "heads by layer": {"heads": [2, 4, 1, 8], "branches": [3, 1, 2, 1]},
    "a head width": {"head_width": 5, "heads": 3},
    "other depths": {"encoder_layers": 3, "decoder_layers": 1},
    "drop-head": {"drop_kind": "head", "drop_branch": 0.3},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_the_exported_model_computes_the_same(tmp_path, text, make_model, sentences, same, options):
    model = make_model(text, **options)
    folder = export_ctranslate2(model, text, tmp_path / "out")
    assert read_description(folder, format="ctranslate2")["largest_difference"] < 2e-5
    engine = CTranslate2Engine.load(folder, device="cpu", threads=1)
    how = {"beam": 4, "length_penalty": 1.2, "tokenised": True}
    same(engine.generate(sentences, **how), Translator([model], text).generate(sentences, **how))


def test_sides_with_vocabularies_of_their_own(
    tmp_path, two_sided_text, make_model, sentences, same
):
    text = two_sided_text
    assert text.source_size != text.target_size
    model = make_model(text)
    folder = export_ctranslate2(model, text, tmp_path / "out")
    assert {"source_vocabulary.json", "target_vocabulary.json"} <= {
        p.name for p in folder.iterdir()
    }
    engine = CTranslate2Engine.load(folder, threads=1)
    same(engine.generate(sentences), Translator([model], text).generate(sentences))


def test_the_folder_is_complete_and_says_what_it_is(tmp_path, text, make_model):
    model = make_model(text)
    folder = export_ctranslate2(model, text, tmp_path / "a" / "out", quantization="int8")
    assert {path.name for path in folder.iterdir()} == {
        "config.json",
        "model.bin",
        "multibranch.json",
        "shared_vocabulary.json",
        "text.json",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert [path.name for path in folder.parent.iterdir()] == ["out"]
    said = read_description(folder, format="ctranslate2")
    assert said["quantization"] == "int8"
    assert said["settings"] == model.settings
    assert TextPipeline.load(folder).settings == text.settings
    assert ctranslate2.contains_model(str(folder))


def test_stock_ctranslate2_takes_the_folder(tmp_path, text, make_model, sentences):
    model = make_model(text)
    folder = export_ctranslate2(model, text, tmp_path / "out")
    stock = ctranslate2.Translator(str(folder), intra_threads=1)
    given = [text.tokenizer("source").encode(line).tokens[:-1] for line in sentences]
    found = stock.translate_batch(given, beam_size=1, max_decoding_length=8)
    ours = Translator([model], text).generate(sentences, beam=1, max_length=8, tokenised=True)
    names = text.tokenizer("target").id_to_token
    assert [one.hypotheses[0] for one in found] == [[names(n) for n in h.ids] for [h] in ours]


@pytest.mark.parametrize(
    ("quantization", "most"),
    [
        ("int8", 0.3),
        ("int8_float32", 0.3),
        ("int8_float16", 0.3),
        ("int8_bfloat16", 0.3),
        ("int16", 0.05),
        ("float16", 0.02),
        ("bfloat16", 0.15),
    ],
)
def test_quantized_models_stay_near(tmp_path, text, make_model, quantization, most):
    if quantization == "int16" and "int16" not in ctranslate2.get_supported_compute_types("cpu"):
        most = 0.3  # CTranslate2 computes it in int8 here
    model = make_model(text)
    full = export_ctranslate2(model, text, tmp_path / "full")
    small = export_ctranslate2(model, text, tmp_path / "small", quantization=quantization)
    difference = read_description(small, format="ctranslate2")["largest_difference"]
    assert 1e-5 < difference < most
    assert (small / "model.bin").stat().st_size < 0.9 * (full / "model.bin").stat().st_size
    engine = CTranslate2Engine.load(small, threads=1)
    assert len(engine.translate(["der Hund schläft ."], beam=2)[0]) > 0


def test_every_quantization_is_one_of_ctranslate2s():
    from ctranslate2.specs.model_spec import ACCEPTED_MODEL_TYPES

    assert set(QUANTIZATIONS) == set(ACCEPTED_MODEL_TYPES)


def test_training_and_the_model_are_left_as_they_were(tmp_path, text, make_model):
    model = make_model(text, drop_branch=0.3).train()
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    export_ctranslate2(model, text, tmp_path / "out", quantization="int8")
    assert model.training
    assert all(torch.equal(weight, before[n]) for n, weight in model.state_dict().items())


# -- What is refused, before anything is written ---------------------------------------------------


def refused(call, folder: Path, match: str) -> None:
    with pytest.raises(UserError, match=match):
        call()
    assert not folder.exists()
    assert not list(folder.parent.iterdir())


def test_an_encoder_by_itself_is_refused(tmp_path, text):
    encoder = MultiBranchEncoder(vocabulary=text.source_size, width=16, hidden=16, heads=2)
    out = tmp_path / "out"
    refused(lambda: export_ctranslate2(encoder, text, out), out, "MultiBranchEncoder.*onnx")


@pytest.mark.parametrize("side", ["encoder", "decoder"])
def test_a_model_without_layers_is_refused(tmp_path, text, make_model, side):
    model = make_model(text, **{f"{side}_layers": 0}, polite=side == "encoder")
    out = tmp_path / "out"
    refused(lambda: export_ctranslate2(model, text, out), out, f"without {side} layers")


def test_an_unknown_quantization_is_refused(tmp_path, text, make_model):
    out = tmp_path / "out"
    wrong = lambda: export_ctranslate2(make_model(text), text, out, quantization="int4")  # noqa: E731
    refused(wrong, out, "no quantization 'int4'; it is one of float32, int8")


def test_another_vocabulary_is_refused(tmp_path, text, make_model):
    counter = WordCounter()
    counter.update({"anders": 5})
    other = TextPipeline(text.settings, learn_bpe(counter, merges=3))
    out = tmp_path / "out"
    refused(lambda: export_ctranslate2(make_model(text), other, out), out, "source tokens")


def test_weights_that_are_no_numbers_are_refused(tmp_path, text, make_model):
    model = make_model(text)
    model.decoder[1].feed_forward.out_bias[0, 3] = float("nan")
    out = tmp_path / "out"
    refused(
        lambda: export_ctranslate2(model, text, out), out, "decoder.1.feed_forward.out_bias.*NaN"
    )


@pytest.mark.parametrize("quantization", ["float16", "int8_float16"])
def test_weights_beyond_float16_are_refused(tmp_path, text, make_model, quantization):
    model = make_model(text)
    model.encoder[0].attention_norm.weight[0] = 1e5
    out = tmp_path / "out"
    wrong = lambda: export_ctranslate2(model, text, out, quantization=quantization)  # noqa: E731
    refused(wrong, out, "encoder.0.attention_norm.weight reach 1e\\+05, beyond float16")


@pytest.mark.parametrize("quantization", ["float32", "int8"])
def test_weights_too_large_to_compute_with_are_refused(tmp_path, text, make_model, quantization):
    model = make_model(text)
    for block in model.decoder:
        block.feed_forward.in_weight.mul_(1e20)
        block.feed_forward.out_weight.mul_(1e20)
    out = tmp_path / "out"
    wrong = lambda: export_ctranslate2(model, text, out, quantization=quantization)  # noqa: E731
    refused(wrong, out, "the model computes infinities or NaN")


def test_too_few_positions_are_refused(tmp_path, text, make_model):
    out = tmp_path / "out"
    wrong = lambda: export_ctranslate2(make_model(text), text, out, positions=1)  # noqa: E731
    refused(wrong, out, "positions must be at least 16 and at most 65,536, not 1")


@pytest.mark.parametrize("kind", ["folder", "file", "dangling link"])
def test_what_is_there_is_not_written_over(tmp_path, text, make_model, kind):
    out = tmp_path / "out"
    if kind == "folder":
        out.mkdir()
    elif kind == "file":
        out.write_text("mine")
    else:
        out.symlink_to(tmp_path / "nowhere")
    with pytest.raises(UserError, match="exists already"):
        export_ctranslate2(make_model(text), text, out)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert kind != "file" or out.read_text() == "mine"


def test_a_place_that_cannot_be_written_is_one_clear_error(tmp_path, text, make_model):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        export_ctranslate2(make_model(text), text, tmp_path / "file" / "out")


def test_a_wrong_export_is_not_put_in_place(tmp_path, text, make_model, monkeypatch):
    """The check before the folder is put in place sees a specification that is wrong."""
    from multibranch.export import ctranslate2 as module

    whole = module.specification

    def damaged(*arguments, **options):
        spec = whole(*arguments, **options)
        spec.decoder.layer[0].attention.linear[2].weight *= 1.5
        return spec

    monkeypatch.setattr(module, "specification", damaged)
    out = tmp_path / "out"
    refused(lambda: export_ctranslate2(make_model(text), text, out), out, "differs from PyTorch")


def test_the_description_is_json_of_one_object(tmp_path, text, make_model):
    folder = export_ctranslate2(make_model(text), text, tmp_path / "out", decoding={"beam": 2})
    said = json.loads((folder / "multibranch.json").read_text())
    assert said["format"] == "ctranslate2"
    assert said["decoding"] == {"beam": 2}
