"""The model card: generated from the directory, with signatures, never without."""

import json
import re

import pytest
import torch
import yaml

from multibranch.directory import read_json, save_model
from multibranch.errors import UserError
from multibranch.hub import branch_out, model_card, write_model_card
from multibranch.metrics import Score
from multibranch.nn import MultiBranchTransformer

SCORES = {"test BLEU": Score(34.567, "nrefs:1|case:lc|eff:no|tok:13a|smooth:exp|version:2.6.0")}


def make(branches, heads=4) -> MultiBranchTransformer:
    torch.manual_seed(0)
    return MultiBranchTransformer(
        source_vocabulary=16,
        target_vocabulary=16,
        width=16,
        hidden=32,
        heads=heads,
        encoder_layers=1,
        decoder_layers=1,
        branches=branches,
        drop_branch=0.3,
    )


@pytest.fixture
def folder(tmp_path):
    return save_model(tmp_path / "my-model", make(branches=3), None)


def test_the_card_says_what_the_model_is(folder):
    path = write_model_card(folder, data="A corpus of nine sentences.", scores=SCORES)
    card = path.read_text()
    assert path.name == "README.md"
    assert "# my-model" in card
    assert "N_a/d/d_h = 3/16/32" in card and "ρ = 0.3" in card
    assert "A corpus of nine sentences." in card
    assert (
        "| test BLEU | 34.57 | `nrefs:1|case:lc|eff:no|tok:13a|smooth:exp|version:2.6.0` |" in card
    )
    configuration = re.search(r"```json\n(.*?)```", card, re.DOTALL)
    assert configuration and json.loads(configuration[1]) == read_json(folder / "config.json")


def test_its_front_matter_is_yaml_that_the_hub_reads(folder):
    front = model_card(folder, scores=SCORES).split("---")[1]
    content = yaml.safe_load(front)
    assert content["pipeline_tag"] == "translation"
    assert "multibranch" in content["tags"]
    (metric,) = content["model-index"][0]["results"][0]["metrics"]
    assert metric == {"type": "BLEU", "name": "test BLEU", "value": 34.57}


def test_what_was_not_recorded_is_said_so(folder):
    card = model_card(folder)
    assert "The training data was not recorded." in card
    assert "None were recorded." in card


def test_a_branched_model_has_its_record_in_the_card(make_model, tmp_path):
    branch_out(make_model("roberta"), branches=2, drop_branch=0.2, layer_drop=0.1).save_pretrained(
        tmp_path
    )
    card = model_card(tmp_path, title="tuned")
    assert "A pretrained roberta model in which every attention layer has 2 branches" in card
    assert "LayerDrop of 0.1" in card
    assert "AutoModelForSequenceClassification" in card


@pytest.mark.parametrize("branches", [1, [1, 1]])
def test_a_model_of_one_branch_is_not_called_multi_branch(branches, tmp_path):
    card = model_card(save_model(tmp_path / "plain", make(branches), None))
    assert (
        "A Transformer with 1 encoder and 1 decoder blocks whose attention layers have one branch "
        "each: d/d_h = 16/32, 4 heads, drop-branch ρ = 0.3.\n"
    ) in card


def test_one_head_is_one_head(tmp_path):
    card = model_card(save_model(tmp_path / "single", make(2, heads=1), None))
    assert "N_a/d/d_h = 2/16/32, 1 head a branch, " in card


def test_layers_that_differ_are_named_one_by_one(tmp_path):
    card = model_card(save_model(tmp_path / "mixed", make([1, 2]), None))
    assert "A Multi-branch Attentive Transformer with" in card
    assert "N_a/d/d_h = 1, 2/16/32, 4 heads a branch" in card


@pytest.mark.parametrize(
    ("dropped", "trained"),
    [
        ({"drop_branch": 0.0}, ""),
        ({"drop_branch": 0.0, "layer_drop": 0.1}, " It was trained with LayerDrop of 0.1."),
        (
            {"drop_branch": 0.2},
            " It was trained with drop-branch, ρ = 0.2 in the attention and 0.2 in the "
            "feed-forward layers.",
        ),
    ],
)
def test_a_pretrained_model_of_one_branch_has_no_copies(make_model, tmp_path, dropped, trained):
    branch_out(make_model("bert"), branches=1, **dropped).save_pretrained(tmp_path)
    assert (
        "A pretrained bert model whose attention layers have one branch each, as they had before."
        f"{trained}\n"
    ) in model_card(tmp_path)


def test_a_score_without_signature_is_refused(folder):
    with pytest.raises(UserError, match="'BLEU' has no signature"):
        model_card(folder, scores={"BLEU": 34.5})


def test_a_folder_without_model_is_refused(tmp_path):
    with pytest.raises(UserError, match="no model directory"):
        model_card(tmp_path)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({}, "does not say its model_type"),
        ({"model_type": "multibranch", "width": 8}, "its encoder_layers, decoder_layers, hidden,"),
    ],
)
def test_a_configuration_of_no_model_is_refused(config, said, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=said):
        model_card(tmp_path)
