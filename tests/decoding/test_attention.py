"""Looking at attention: what is recorded is what the model computed, and the pictures hold it."""

import base64
import json
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

import reference_decoding as reference
from multibranch.cli import main
from multibranch.decoding import Translator
from multibranch.decoding.attention import inspect, recorded_attention
from multibranch.decoding.page import write_page
from multibranch.directory import load_model, load_text
from multibranch.errors import UserError
from multibranch.nn import branch_out, branch_similarity

SENTENCE = "Der Mann läuft und das Haus ."


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("models") / "one"
    reference.save_model_directory(place, branches=[2, 3, 3], encoder_layers=1, decoder_layers=2)
    return place


@pytest.fixture(scope="module")
def inspection(folder):
    return inspect(load_model(folder), load_text(folder), SENTENCE)


@torch.inference_mode()
def test_recording_changes_nothing_and_leaves_nothing(folder):
    model = load_model(folder).double()
    source = torch.tensor([[4, 5, 6, 2, 1], [7, 8, 9, 4, 2]])
    target = torch.tensor([[0, 5, 6], [0, 7, 8]])
    plain = model(source, target)
    with recorded_attention(model) as seen:
        recorded = model(source, target)
    torch.testing.assert_close(recorded, plain)
    assert torch.equal(model(source, target), plain)
    weights = seen["decoder.1.cross_attention"]
    assert weights.shape == (2, 3, 2, 3, 5)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 3, 2, 3, dtype=torch.float64))
    assert weights[0, ..., 4].abs().max() == 0  # padding
    causal = seen["decoder.0.attention"]
    assert causal.triu(1).abs().max() == 0


def test_several_threads_may_look_at_one_model(folder):
    model, text = load_model(folder), load_text(folder)
    sentences = [SENTENCE, "rot", "Ein Hund .", "das Haus und die Frau"] * 5
    expected = [inspect(model, text, sentence, target="rot und grün") for sentence in sentences]
    with ThreadPoolExecutor(4) as pool:
        found = pool.map(lambda one: inspect(model, text, one, target="rot und grün"), sentences)
        for ours, alone in zip(found, expected, strict=True):
            for layer, other in zip(ours.layers, alone.layers, strict=True):
                assert layer.weights.shape == other.weights.shape
                torch.testing.assert_close(layer.weights, other.weights)


def test_every_branch_of_every_layer_is_there(inspection, folder):
    s, t = len(inspection.source), len(inspection.target)
    found = [(layer.kind, layer.layer, tuple(layer.weights.shape)) for layer in inspection.layers]
    assert found == [
        ("cross", 1, (3, 2, t, s)),
        ("cross", 2, (3, 2, t, s)),
        ("encoder", 1, (2, 2, s, s)),
        ("decoder", 1, (3, 2, t, t)),
        ("decoder", 2, (3, 2, t, t)),
    ]
    similar = branch_similarity(load_model(folder))
    assert inspection.of_kind("encoder")[0].weight_similarity == similar["encoder.0.attention"]


def test_tokens_and_translation_are_the_models(inspection, folder):
    translator = Translator.load(folder, device="cpu")
    assert inspection.target_text == translator.translate([SENTENCE], beam=5, length_penalty=1.0)[0]
    assert inspection.source[-1] == inspection.target[-1] == "</s>"
    assert inspection.read == ["<s>", *inspection.target[:-1]]
    assert "Mann" in inspection.source
    given = inspect(load_model(folder), load_text(folder), SENTENCE, target="ein Hund schläft")
    assert given.target == ["ein", "Hund", "schläft", "</s>"]


def test_overlap_is_one_for_copies_and_the_shared_mass_for_others(inspection, folder):
    for layer in inspection.layers:
        branches = layer.weights.mean(1)
        first, second = branches[0], branches[1]
        shared = torch.minimum(first, second).sum(-1).mean()
        assert layer.overlap[0, 1] == pytest.approx(float(shared))
        assert layer.overlap.diagonal().tolist() == pytest.approx([1.0] * len(branches))
        assert 0 < layer.mean_overlap < 1
    one = reference.random_model(1, vocabulary=load_text(folder).target_size, branches=1).float()
    with pytest.warns(UserWarning, match="equal"):
        copies = branch_out(one, branches=3)
    looked = inspect(copies, load_text(folder), SENTENCE, max_length=5)
    assert all(layer.mean_overlap == pytest.approx(1.0) for layer in looked.layers)
    alone = inspect(one, load_text(folder), SENTENCE, max_length=5)
    assert all(layer.mean_overlap is None for layer in alone.layers)


def test_the_page_is_whole_in_itself_and_holds_the_weights(inspection, tmp_path):
    page = write_page(inspection, tmp_path / "page.html").read_text(encoding="utf-8")
    assert not re.search(r"(src|href)\s*=|url\(|https?://(?!www\.w3\.org/2000/svg)", page)
    data = json.loads(
        re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)[1]
    )
    assert data["source"] == SENTENCE
    kind = data["kinds"][0]
    assert kind["rows"] == inspection.target
    assert kind["columns"] == inspection.source
    for said, layer in zip(kind["layers"], inspection.of_kind("cross")):
        stored = np.frombuffer(base64.b64decode(said["weights"]), dtype=np.uint8)
        stored = stored.reshape(said["shape"]) / 255
        assert np.abs(stored - layer.weights.numpy()).max() < 0.5 / 255 + 1e-6


def test_text_cannot_break_out_of_the_page(folder, tmp_path):
    wicked = '<!--<script></script><script>alert("rot")</script>'
    looked = inspect(load_model(folder), load_text(folder), wicked, max_length=3)
    page = write_page(looked, tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.count("</script>") == 2
    assert "<!--<script" not in page


def test_inspect_writes_a_picture_and_a_page(folder, tmp_path, capsys):
    words = ["inspect", str(folder), SENTENCE, "--target", "ein Hund"]
    assert main([*words, "--output", str(tmp_path / "look"), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["translation"] == "ein Hund"
    assert len(said["layers"]) == 5
    assert 0 < said["layers"][0]["in_common"] < 1
    picture = Path(said["png"]).read_bytes()
    assert picture[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = (int.from_bytes(picture[at : at + 4], "big") for at in (16, 20))
    assert width > 600
    assert height > 400
    assert Path(said["html"]).read_text(encoding="utf-8").startswith("<!doctype html>")
    assert main([*words, "--output", str(tmp_path / "new" / "look")]) == 0
    assert (tmp_path / "new" / "look.png").is_file()
    assert main(["inspect", str(tmp_path / "nothing"), SENTENCE]) == 2
    with pytest.raises(UserError, match="the sentence is empty"):
        inspect(load_model(folder), load_text(folder), "  ")


def test_a_directory_that_remembers_several_hypotheses_can_be_searched_with_fewer(folder, tmp_path):
    several = shutil.copytree(folder, tmp_path / "several")
    config = json.loads((several / "config.json").read_text())
    config["decoding"] = {"beam": 3, "n_best": 3}
    (several / "config.json").write_text(json.dumps(config))
    words = ["inspect", str(several), SENTENCE, "--output", str(tmp_path / "one")]
    assert main([*words, "--beam", "1"]) == 0
