"""Classifiers and encoders from folders: whatever is damaged there is one sentence."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models
from transformers import AutoModel, PreTrainedTokenizerFast

from multibranch.errors import UserError
from multibranch.hub import branch_out
from multibranch.hub.backbone import load_backbone, load_classifier


@pytest.fixture
def classifier(make_model, tmp_path) -> Path:
    """The folder of a branched classifier with its tokenizer."""
    folder = tmp_path / "classifier"
    branch_out(make_model("bert")).save_pretrained(folder)
    words = models.WordLevel({"[UNK]": 0, "a": 1}, unk_token="[UNK]")
    PreTrainedTokenizerFast(tokenizer_object=Tokenizer(words)).save_pretrained(folder)
    return folder


def says(**changes: object) -> Callable[[Path], None]:
    """config.json with other values."""

    def change(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return change


def holds(name: str, content: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_text(content) and None


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (holds("model.safetensors", ""), "classifier cannot be loaded: its weights are damaged"),
        (holds("model.safetensors", "x" * 99), "its weights are damaged"),
        (lambda folder: (folder / "model.safetensors").unlink(), "no file named model.safetensors"),
        (holds("config.json", "{}"), "classifier cannot be loaded: Unrecognized model"),
        (holds("tokenizer.json", "{}"), "the tokenizer in .*classifier cannot be loaded: KeyError"),
        (holds("tokenizer.json", "no JSON"), "the tokenizer in .*classifier cannot be loaded"),
        (says(hidden_size="wide"), "field 'hidden_size': TypeError: .* expected int"),
        (says(hidden_size=64), "its weights have other sizes than config.json says"),
        (says(id2label="none"), "classifier cannot be loaded: 'str' object"),
        (says(id2label={"0": "a", "5": "b"}), r"number the labels from 0 on, .* has 0, 5"),
        (says(id2label={"0": "a", "1": "a"}), "config.json names two labels 'a': give each a"),
        (says(num_hidden_layers=10**9), "describes: 1,000,000,000 layers for 33 tensors"),
        (says(num_hidden_layers=-1), "describes: -1 layers"),
        (says(num_hidden_layers=3), "describes: bert.encoder.layer.2.* is missing, and 11 more"),
        (says(multibranch=None), 'under "multibranch" how it was branched out, family, .*: not No'),
        (says(multibranch={"family": "bert", "twigs": 2}), "not {'family': 'bert', 'twigs': 2}"),
        (says(multibranch={"family": "bert", "branches": "2"}), "a whole number, not '2'"),
        (says(multibranch={"family": "bert", "drop_ffn": None}), "drop_ffn must be a number, not"),
    ],
)
def test_a_damaged_classifier_is_one_sentence(damage, said, classifier):
    load_classifier(classifier)
    damage(classifier)
    with pytest.raises(UserError, match=said) as raised:
        load_classifier(classifier)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (holds("model.safetensors", ""), "holds no pretrained model: its weights are damaged"),
        (says(hidden_size="wide"), "field 'hidden_size': TypeError: .* expected int"),
    ],
)
def test_a_damaged_encoder_is_one_sentence(damage, said, make_model, tmp_path):
    make_model("bert").save_pretrained(tmp_path / "encoder")
    load_backbone(tmp_path / "encoder", AutoModel)
    damage(tmp_path / "encoder")
    with pytest.raises(UserError, match=said):
        load_backbone(tmp_path / "encoder", AutoModel)


def test_too_little_memory_is_not_taken_for_damage(classifier, monkeypatch):
    def exhausted(*_, **__):
        raise MemoryError

    monkeypatch.setattr("multibranch.hub.backbone.AutoConfig.from_pretrained", exhausted)
    with pytest.raises(MemoryError):
        load_classifier(classifier)
