"""Branching out pretrained models: the same function, every family by one mechanism."""

import copy
import pickle
import socket
import subprocess
import sys
import time

import pytest
import torch
from huggingface_hub import constants
from torch import nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    BertConfig,
    BertModel,
    GPT2Config,
    GPT2Model,
)

import multibranch.nn
from multibranch.errors import UserError
from multibranch.hub import (
    FAMILIES,
    MultiBranchConfig,
    MultiBranchForSequenceClassification,
    branch_out,
)
from multibranch.hub.attention import attend
from multibranch.hub.families import blocks, family_of
from multibranch.nn import MultiBranchAttention

SEQ2SEQ = ("marian", "bart")
ENCODERS = tuple(family for family in FAMILIES if family not in SEQ2SEQ)


def attention_layers(model: nn.Module) -> list[MultiBranchAttention]:
    return [layer for layer in model.modules() if isinstance(layer, MultiBranchAttention)]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("branches", [1, 3])
def test_branching_out_keeps_the_function(family, branches, make_model, inputs):
    model = make_model(family)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    branched = branch_out(model, branches=branches)
    with torch.no_grad():
        expected, found = model(**inputs(family)).logits, branched(**inputs(family)).logits
    assert (found - expected).abs().max() < 1e-5
    # The model that was given is left as it was.
    assert not attention_layers(model)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("family", FAMILIES)
def test_in_double_precision_the_function_is_the_same_to_the_last_digits(
    family, make_model, inputs
):
    model = make_model(family).double()
    branched = branch_out(model, branches=3)
    with torch.no_grad():
        expected, found = model(**inputs(family)).logits, branched(**inputs(family)).logits
    assert (found - expected).abs().max() < 1e-12


@pytest.mark.parametrize("family", FAMILIES)
def test_every_attention_layer_has_copies_of_its_projections(family, make_model):
    model = make_model(family)
    branched = branch_out(model, branches=2, drop_branch=0.4)
    layers = attention_layers(branched)
    assert len(layers) == (6 if family in SEQ2SEQ else 2)  # 2 + 2·2, or 2
    for layer in layers:
        assert (layer.branches, layer.heads, layer.drop_branch) == (2, 4, 0.4)
        assert torch.equal(layer.qkv_weight[:, 0], layer.qkv_weight[:, 1])
        assert torch.equal(layer.out_weight[0], layer.out_weight[1])
    added = sum(each.numel() for each in branched.parameters())
    added -= sum(each.numel() for each in model.parameters())
    assert added == len(layers) * (4 * 32 * 32 + 4 * 32)
    assert next(blocks(branched, family_of(family)), None) is None


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_frozen_stays_frozen(family, make_model):
    for trained in (False, True):
        branched = branch_out(make_model(family).requires_grad_(trained), branches=2)
        assert {each.requires_grad for each in branched.parameters()} == {trained}


@pytest.mark.parametrize("family", FAMILIES)
def test_saved_and_loaded_by_the_auto_classes(family, make_model, inputs, tmp_path):
    branched = branch_out(make_model(family), branches=2, drop_branch=0.2, layer_drop=0.1)
    branched.save_pretrained(tmp_path)
    config = AutoConfig.from_pretrained(tmp_path)
    assert config.model_type == f"multibranch-{family}"
    assert config.multibranch == {
        "family": family,
        "branches": 2,
        "drop_branch": 0.2,
        "drop_ffn": 0.2,
        "layer_drop": 0.1,
    }
    auto = AutoModelForSeq2SeqLM if family in SEQ2SEQ else AutoModelForSequenceClassification
    loaded = auto.from_pretrained(tmp_path).eval()
    assert type(loaded) is type(branched)
    assert [layer.drop_branch for layer in attention_layers(loaded)] == [
        layer.drop_branch for layer in attention_layers(branched)
    ]
    with torch.no_grad():
        expected, found = branched(**inputs(family)).logits, loaded(**inputs(family)).logits
    assert torch.equal(found, expected)


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "marian"])
def test_weights_on_disk_are_fetched_as_they_are_used(family, make_model, inputs, tmp_path):
    branched = branch_out(make_model(family))
    branched.save_pretrained(tmp_path)
    auto = AutoModelForSeq2SeqLM if family in SEQ2SEQ else AutoModelForSequenceClassification
    loaded = auto.from_pretrained(
        tmp_path, device_map={"": "disk"}, offload_folder=tmp_path / "offloaded"
    )
    assert {layer.qkv_weight.device.type for layer in attention_layers(loaded)} == {"meta"}
    with torch.no_grad():
        expected, found = branched(**inputs(family)).logits, loaded(**inputs(family)).logits
    assert torch.equal(found, expected)
    if family in SEQ2SEQ:
        given = {"input_ids": inputs(family)["input_ids"], "max_new_tokens": 6}
        assert torch.equal(loaded.generate(**given), branched.generate(**given))


def test_an_attention_that_branches_do_not_have_is_refused(make_model, tmp_path):
    branch_out(make_model("bert")).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"does not support .*flex_attention"):
        AutoModelForSequenceClassification.from_pretrained(
            tmp_path, attn_implementation="flex_attention"
        )


def test_loaded_without_its_head_by_automodel(make_model, inputs, tmp_path):
    branched = branch_out(make_model("bert"))
    branched.save_pretrained(tmp_path)
    encoder = AutoModel.from_pretrained(tmp_path).eval()
    with torch.no_grad():
        expected = branched.bert(**inputs("bert")).last_hidden_state
        assert torch.equal(encoder(**inputs("bert")).last_hidden_state, expected)


@pytest.mark.parametrize("family", FAMILIES)
def test_hidden_states_and_attention_weights_are_recorded(family, make_model, inputs):
    attention = {} if family == "mpnet" else {"attn_implementation": "eager"}
    model = make_model(family, **attention)
    branched = branch_out(model, branches=2)
    asked = {"output_attentions": True, "output_hidden_states": True}
    with torch.no_grad():
        expected, found = model(**inputs(family), **asked), branched(**inputs(family), **asked)
    names = ["hidden_states", "attentions"]
    if family in SEQ2SEQ:
        names = ["decoder_hidden_states", "decoder_attentions", "cross_attentions"]
    for name in names:
        assert len(found[name]) == len(expected[name]) > 0
        for ours, theirs in zip(found[name], expected[name]):
            if "attentions" in name:  # every branch is a copy
                theirs = theirs.repeat(1, 2, 1, 1)
            torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", SEQ2SEQ)
@pytest.mark.parametrize("use_cache", [True, False])
def test_generation_is_the_same_with_and_without_cache(family, use_cache, make_model, inputs):
    model = make_model(family)
    given = {name: inputs(family)[name] for name in ("input_ids", "attention_mask")}
    options = {"num_beams": 4, "max_new_tokens": 12, "do_sample": False}
    expected = model.generate(**given, **options)
    found = branch_out(model, branches=2).generate(**given, **options, use_cache=use_cache)
    assert expected.shape[1] > 5
    assert torch.equal(found, expected)


def test_a_causal_encoder_with_cross_attention_keeps_its_function(make_model, inputs):
    settings = {"is_decoder": True, "add_cross_attention": True}
    model = make_model("bert", **settings).bert
    branched = branch_out(model, branches=2)
    assert len(attention_layers(branched)) == 4
    given = {**inputs("bert"), "encoder_hidden_states": torch.randn(3, 7, 32)}
    with torch.no_grad():
        expected, found = model(**given), branched(**given)
    torch.testing.assert_close(
        found.last_hidden_state, expected.last_hidden_state, atol=1e-5, rtol=0
    )


def test_weights_are_asked_of_padding_that_sees_nothing(make_model):
    model = branch_out(make_model("bert", is_decoder=True).bert, branches=2).eval()
    ids = torch.randint(4, 90, (2, 6), generator=torch.Generator().manual_seed(1))
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    given["attention_mask"][1, :2] = 0  # on the left: a causal mask leaves these rows no key
    expected = model(**given).last_hidden_state
    asked = model(**given, output_attentions=True)
    torch.testing.assert_close(asked.last_hidden_state, expected, atol=1e-5, rtol=1e-5)
    assert all(weights[1, :, :2].eq(0).all() for weights in asked.attentions)
    asked.last_hidden_state.sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def test_weights_do_not_overflow_half_precision_before_the_kernel_does():
    layer = MultiBranchAttention(64, 2, branches=2, batch_first=True).half()
    with torch.no_grad():
        for branch in range(2):
            layer.qkv_weight[:, branch].copy_(torch.eye(64).expand(3, 64, 64))
    states = torch.full((1, 3, 64), 100.0).half()  # scores of 320,000, divided by √32
    output, weights = attend(layer, states, need_weights=True)
    assert torch.equal(weights, torch.full((1, 4, 3, 3), 1 / 3).half())
    assert torch.equal(output, attend(layer, states)[0])


def test_bfloat16_and_the_seed_of_noise(make_model):
    model = make_model("bert").to(torch.bfloat16)
    torch.manual_seed(1)
    one = branch_out(model, branches=2, noise=0.1)
    torch.manual_seed(1)
    other = branch_out(model, branches=2, noise=0.1)
    for layer, same in zip(attention_layers(one), attention_layers(other)):
        assert layer.qkv_weight.dtype == torch.bfloat16
        assert not torch.equal(layer.qkv_weight[:, 0], layer.qkv_weight[:, 1])
        assert torch.equal(layer.qkv_weight, same.qkv_weight)


def test_a_folder_is_loaded_as_what_it_was_saved_as(make_model, inputs, tmp_path):
    model = make_model("roberta")
    model.save_pretrained(tmp_path)
    branched = branch_out(tmp_path, branches=2).eval()
    with torch.no_grad():
        expected, found = model(**inputs("roberta")).logits, branched(**inputs("roberta")).logits
    assert (found - expected).abs().max() < 1e-5
    model.roberta.save_pretrained(tmp_path / "encoder")
    three = branch_out(
        tmp_path / "encoder", auto_class=AutoModelForSequenceClassification, num_labels=3
    )
    assert three.config.num_labels == 3


def test_a_model_inside_an_installed_package_is_found(make_model, tmp_path, monkeypatch):
    package = tmp_path / "tiny_encoder_package"
    make_model("bert").save_pretrained(package / "weights")
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert len(attention_layers(branch_out("tiny-encoder-package", branches=2))) == 2


# -- Bad input ----------------------------------------------------------------------------------


def test_an_unsupported_family_is_named_with_those_supported():
    config = GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=20)
    with pytest.raises(UserError, match=r"'gpt2'.*bert, roberta, .*mpnet, marian, bart"):
        branch_out(GPT2Model(config))


def test_a_module_that_is_no_model_of_transformers_is_refused_by_its_class():
    with pytest.raises(UserError, match=r"a Linear is no model of transformers: .*from_torch"):
        branch_out(torch.nn.Linear(2, 2))


def test_an_unsupported_family_in_a_folder_is_named(tmp_path):
    GPT2Model(GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=20)).save_pretrained(tmp_path)
    with pytest.raises(UserError, match="'gpt2'"):
        branch_out(tmp_path)


def test_an_already_branched_model_is_refused(make_model, tmp_path):
    branched = branch_out(make_model("bert"), branches=2)
    with pytest.raises(UserError, match="already with 2 branches"):
        branch_out(branched)
    branched.save_pretrained(tmp_path)
    with pytest.raises(UserError, match="multi-branch model already"):
        branch_out(tmp_path)


@pytest.mark.parametrize("branches", [1, 3])
def test_one_of_our_own_models_is_sent_to_what_branches_it_out(branches, tmp_path):
    shape = {"source_vocabulary": 12, "target_vocabulary": 12, "width": 16, "hidden": 32}
    config = MultiBranchConfig(
        **shape, heads=2, encoder_layers=1, branches=branches, drop_branch=0.3
    )
    model = MultiBranchForSequenceClassification(config)
    model.save_pretrained(tmp_path)
    for given in (model, tmp_path):
        with pytest.raises(
            UserError, match=r"multibranch's own: multibranch\.nn\.branch_out .* has"
        ):
            branch_out(given)
    if branches == 1:
        branched = multibranch.nn.branch_out(model.model, branches=2)
        assert [layer.branches for layer in attention_layers(branched)] == [2]


def test_a_class_to_load_as_is_no_name(make_model, tmp_path):
    make_model("bert").save_pretrained(tmp_path)
    with pytest.raises(TypeError, match="auto_class must be a class such as AutoModel, not 'Auto"):
        branch_out(tmp_path, auto_class="AutoModel")


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_pickled_and_copied(family, make_model, inputs):
    branched = branch_out(make_model(family), branches=2)
    wanted = branched(**inputs(family)).logits
    for again in (pickle.loads(pickle.dumps(branched)), copy.deepcopy(branched)):
        assert type(again) is type(branched)
        assert torch.equal(again(**inputs(family)).logits, wanted)


def test_pickled_for_another_process(make_model, inputs, tmp_path):
    """It has made none of the classes; nobody imports multibranch there."""
    branched = branch_out(make_model("bart"), branches=2)
    given = inputs("bart")
    with torch.no_grad():
        logits = branched(**given).logits
    (tmp_path / "model").write_bytes(pickle.dumps((branched, branched.config, given, logits)))
    code = """
import pickle, sys, torch
model, config, given, logits = pickle.load(open(sys.argv[1], "rb"))
with torch.no_grad():
    same = torch.allclose(model(**given).logits, logits, atol=1e-5)
print(type(model).__name__, type(config).__name__, same)
"""
    words = [sys.executable, "-c", code, str(tmp_path / "model")]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [
        "MultiBranchBartForConditionalGeneration",
        "MultiBranchBartConfig",
        "True",
    ]


class Adapted(nn.Module):
    """A projection with something beside it, as adapters are put into a model."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base


class Quantised(nn.Linear):
    """A projection whose weights are whole numbers."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__(base.in_features, base.out_features)
        self.weight = nn.Parameter(base.weight.to(torch.int8), requires_grad=False)


@pytest.mark.parametrize("kind", [Adapted, Quantised])
@pytest.mark.parametrize("place", ["self.value", "output.dense"])
def test_projections_that_cannot_be_copied_are_refused_by_name(kind, place, make_model):
    model = make_model("bert")
    attention = model.bert.encoder.layer[1].attention
    parent, name = place.split(".")
    part = getattr(attention, parent)
    setattr(part, name, kind(getattr(part, name)))
    with pytest.raises(UserError, match=f"of the class {kind.__name__}, .* before it is quantised"):
        branch_out(model)


def test_without_network_a_name_asks_for_a_folder():
    with pytest.raises(UserError, match=r"'no-such/encoder'.*without network.*folder") as raised:
        branch_out("no-such/encoder")
    assert "\n" not in str(raised.value)


def test_a_network_that_does_not_answer_is_asked_once(monkeypatch):
    asked = []

    def nowhere(host, *_, **__):
        asked.append(host)
        raise socket.gaierror("Name or service not known")

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    # What huggingface_hub asks for by itself, once a process, is no matter of ours.
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", True)
    monkeypatch.setattr(socket, "getaddrinfo", nowhere)
    monkeypatch.setattr(time, "sleep", lambda seconds: pytest.fail("waits to ask again"))
    with pytest.raises(UserError, match=r"'no-such/encoder'.*without network.*folder"):
        branch_out("no-such/encoder")
    assert len(asked) == 1


@pytest.mark.parametrize("answers", [False, True])
def test_the_hub_is_asked_once_for_all_parts_of_a_model(answers, monkeypatch):
    asked, loaded = [], []
    monkeypatch.setattr(
        "multibranch.hub.backbone._answered", lambda name: asked.append(name) or answers
    )
    config = BertConfig(
        vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
    )
    for auto_class, part in ((AutoConfig, config), (AutoModel, BertModel(config))):
        monkeypatch.setattr(
            auto_class,
            "from_pretrained",
            lambda name, part=part, **load: loaded.append(load) or copy.deepcopy(part),
        )
    branch_out("some/encoder")
    assert asked == ["some/encoder"]
    assert loaded == [{"local_files_only": not answers}] * 2
    branch_out("some/encoder", local_files_only=True)
    assert len(asked) == 1, "who says so need not be told"


@pytest.mark.parametrize("path", ["./encoder", "~/encoder", "runs/my/encoder", "/no/such"])
def test_a_path_that_leads_nowhere_is_not_looked_for_on_the_network(path, monkeypatch):
    monkeypatch.setattr("multibranch.hub.backbone.AutoConfig.from_pretrained", None)
    with pytest.raises(UserError, match=f"there is no folder {path}"):
        branch_out(path)


def test_a_folder_without_a_model_is_named(tmp_path):
    with pytest.raises(UserError, match=f"{tmp_path} holds no pretrained model"):
        branch_out(tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"branches": 0}, "branches must be at least 1"),
        ({"branches": 2.5}, "branches must be a whole number, not 2.5"),
        ({"drop_branch": "0.3"}, "drop_branch must be a number, not .0.3"),
        ({"drop_branch": 1.0}, "drop_branch must be at least 0 and less than 1"),
        ({"layer_drop": -0.1}, "layer_drop"),
        ({"drop_ffn": 2.0}, "drop_ffn"),
        ({"noise": -0.1}, "noise must be a number of at least 0, not -0.1"),
        ({"noise": float("nan")}, "noise must be a number of at least 0, not nan"),
    ],
)
def test_impossible_settings_are_refused(options, message, make_model):
    with pytest.raises(UserError, match=message):
        branch_out(make_model("bert"), **options)


@pytest.mark.parametrize("extra", ["auto_class", "drop_rate"])
def test_what_a_model_has_no_use_for_is_not_passed_over(extra, make_model):
    with pytest.raises(TypeError, match=f"of a model takes no argument {extra}"):
        branch_out(make_model("bert"), **{extra: AutoModel})


def test_a_name_that_is_empty_is_refused():
    with pytest.raises(UserError, match="the name of the pretrained model is empty"):
        branch_out("")


def test_equal_branches_that_would_stay_equal_are_warned_of(make_model):
    model = make_model("bert", attention_probs_dropout_prob=0.0)
    with pytest.warns(UserWarning, match="stay equal for ever"):
        branch_out(model, branches=2, drop_branch=0.0)
