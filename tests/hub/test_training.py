"""Branched models in training: what is dropped, how often, and the tools of transformers."""

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    BertLMHeadModel,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
    pipeline,
)

from multibranch.hub import FAMILIES, attention, branch_out, layers
from multibranch.nn import branch_similarity

QUIET = {
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}


@pytest.fixture(params=["skipping", "masking"])
def both_ways(request, monkeypatch):
    """Dropped work is left out, or, as where graphs are recorded, computed and masked."""
    for module in (attention, layers):
        monkeypatch.setattr(module, "may_skip", lambda: request.param == "skipping")
    return request.param


def _tensor(output):
    return output[0] if isinstance(output, tuple) else output


@pytest.mark.parametrize("family", ["bert", "mpnet"])
def test_attention_branches_are_dropped_at_their_rate(family, both_ways, make_model):
    torch.manual_seed(0)
    model = branch_out(make_model(family, **QUIET), branches=2, drop_branch=0.3)
    block = next(each for each in model.modules() if isinstance(each, layers.BranchedBlock))
    core = next(each for each in block.modules() if isinstance(each, layers.BranchedAttention))
    states = torch.randn(2, 4, 32)
    whole = core.eval()(states)[0].detach()
    core.train()
    counts = [0, 0, 0]
    for _ in range(400):
        found = core(states)[0].detach()
        share = float((found * whole).sum() / whole.square().sum())
        # k of 2 equal branches kept: k/2 of the output, over 1 − ρ.
        kept = round(share * 2 * 0.7)
        torch.testing.assert_close(found, whole * kept / 2 / 0.7, atol=1e-5, rtol=1e-4)
        counts[kept] += 1
    expected = [400 * p for p in (0.09, 0.42, 0.49)]
    assert all(abs(c - e) < 40 for c, e in zip(counts, expected)), counts


def test_feed_forward_layers_are_dropped_at_their_rate(both_ways, make_model):
    torch.manual_seed(0)
    model = branch_out(make_model("distilbert", dropout=0.0), drop_branch=0.1, drop_ffn=0.4)
    feed_forward = model.distilbert.transformer.layer[0].ffn
    states = torch.randn(2, 4, 32)
    whole = feed_forward.eval()(states)
    feed_forward.train()
    dropped = 0
    for _ in range(300):
        found = feed_forward(states)
        if found.abs().max() == 0:
            dropped += 1
        else:
            torch.testing.assert_close(found, whole / 0.6)
    assert abs(dropped - 120) < 35


@pytest.mark.parametrize("family", ["bert", "mpnet", "bart"])
def test_layer_drop_leaves_out_whole_blocks(family, both_ways, make_model):
    torch.manual_seed(0)
    model = branch_out(make_model(family), branches=1, drop_branch=0.0, layer_drop=0.25)
    block = next(each for each in model.modules() if isinstance(each, layers.BranchedBlock))
    states = torch.randn(2, 4, 32)
    arguments = (None,) if family == "bart" else ()
    block.train()
    left_out = sum(torch.equal(_tensor(block(states, *arguments)), states) for _ in range(300))
    assert abs(left_out - 75) < 30
    block.eval()
    assert not any(torch.equal(_tensor(block(states, *arguments)), states) for _ in range(20))


def test_what_is_dropped_has_a_gradient_of_zero_when_masking(monkeypatch, make_model, inputs):
    for module in (attention, layers):
        monkeypatch.setattr(module, "may_skip", lambda: False)
    model = branch_out(make_model("bert"), drop_branch=0.9, layer_drop=0.9).train()
    model(**inputs("bert"), labels=torch.tensor([0, 1, 0])).loss.backward()
    assert all(each.grad is not None for each in model.parameters())


@pytest.mark.parametrize("family", FAMILIES)
def test_gradient_checkpointing_gives_the_same_gradients(family, make_model, inputs, labels):
    model = branch_out(make_model(family), drop_branch=0.3, layer_drop=0.2).train()
    gradients = []
    for checkpointing in (False, True):
        if checkpointing:
            model.gradient_checkpointing_enable()
            assert model.is_gradient_checkpointing
        model.zero_grad()
        torch.manual_seed(3)
        model(**inputs(family), labels=labels(family)).loss.backward()
        gradients.append([each.grad for each in model.parameters()])
    plain, checkpointed = gradients
    assert any(each is not None and each.abs().max() > 0 for each in plain)
    for one, other in zip(plain, checkpointed):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)


def test_drop_branch_parts_the_branches(make_model, inputs, labels):
    torch.manual_seed(0)
    model = branch_out(make_model("bert"), branches=2, drop_branch=0.3).train()
    assert all(abs(value - 1) < 1e-5 for value in branch_similarity(model).values())
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(5):
        optimiser.zero_grad()
        model(**inputs("bert"), labels=labels("bert")).loss.backward()
        optimiser.step()
    assert all(value < 0.999 for value in branch_similarity(model).values())


def test_compiled_as_one_graph_everything_is_still_dropped(make_model, inputs, labels):
    model = branch_out(make_model("bert", **QUIET), drop_branch=0.3, layer_drop=0.2)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    with torch.no_grad():
        expected = model(**inputs("bert")).logits
        torch.testing.assert_close(compiled(**inputs("bert")).logits, expected)
    compiled.train()
    losses = [compiled(**inputs("bert"), labels=labels("bert")).loss for _ in range(6)]
    assert len({loss.item() for loss in losses}) > 3  # drawn anew each time, not once
    losses[0].backward()
    assert all(each.grad is not None for each in model.parameters())


class Signs(torch.utils.data.Dataset):
    """Sentences of one word repeated; the label is which of two words."""

    def __len__(self):
        return 32

    def __getitem__(self, number):
        word = 10 + number % 2
        return {"input_ids": [word] * 5, "attention_mask": [1] * 5, "labels": number % 2}


def test_the_trainer_trains_saves_and_resumes(make_model, tmp_path):
    model = branch_out(make_model("bert"), branches=2, drop_branch=0.1)
    arguments = TrainingArguments(
        output_dir=str(tmp_path),
        max_steps=30,
        save_steps=20,
        per_device_train_batch_size=16,
        learning_rate=5e-3,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = Trainer(model, arguments, train_dataset=Signs())
    result = trainer.train()
    assert result.training_loss < 0.5
    again = Trainer(branch_out(make_model("bert")), arguments, train_dataset=Signs())
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-20"))
    assert again.state.global_step == 30
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path / "checkpoint-20")
    assert isinstance(loaded, type(model))


def test_smoothed_losses_of_a_causal_model_are_of_the_next_tokens(make_model, tmp_path):
    model = BertLMHeadModel(make_model("bert", is_decoder=True).config).eval()
    arguments = TrainingArguments(
        output_dir=str(tmp_path), label_smoothing_factor=0.1, report_to=[], use_cpu=True
    )
    ids = torch.arange(4, 28).view(2, 12)

    def loss(model: BertLMHeadModel) -> float:
        given = {"input_ids": ids, "labels": ids}
        return Trainer(model, arguments).compute_loss(model, given).item()

    branched = branch_out(model, branches=2).eval()
    assert loss(branched) == pytest.approx(loss(model), abs=1e-6)
    branched.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert loss(loaded) == pytest.approx(loss(model), abs=1e-6)


def test_a_pipeline_runs_from_the_folder(make_model, tmp_path):
    model = branch_out(make_model("bert"), branches=2)
    model.config.id2label = {0: "no", 1: "yes"}
    model.save_pretrained(tmp_path)
    _tokenizer().save_pretrained(tmp_path)
    classify = pipeline("text-classification", model=str(tmp_path))
    answers = classify(["w5 w6", "w7"], top_k=None)
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([[5, 6]])).logits.softmax(-1)
    expected = {"no": float(logits[0, 0]), "yes": float(logits[0, 1])}
    assert {each["label"]: each["score"] for each in answers[0]} == pytest.approx(expected)


def _tokenizer() -> PreTrainedTokenizerFast:
    from tokenizers import Tokenizer, models, pre_tokenizers

    vocabulary = {f"w{number}": number for number in range(99)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="w3"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="w1", unk_token="w3")
