"""`multibranch classify` with a classifier that `transformers` saved: its own answers."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"

import io
import json
import re

import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    BertTokenizer,
    ByT5Tokenizer,
    GPT2Config,
    LlamaConfig,
    PreTrainedTokenizerFast,
    T5Config,
    XLNetConfig,
)

from multibranch.cli import main
from multibranch.errors import UserError
from multibranch.hub import (
    MultiBranchConfig,
    MultiBranchEncoderModel,
    MultiBranchForSequenceClassification,
    MultiBranchTokenizer,
    branch_out,
)
from multibranch.tasks.understanding import evaluate_classifier
from multibranch.tasks.understanding_classifier import Classifier
from multibranch.text import TextPipeline, TextSettings, WordCounter, learn_words

WORDS = ["the", "film", "is", "a", "good", "bad", "great", "poor"]
NAMES = {0: "minus", 1: "plus", 2: "neither"}
SMALL = {
    "source_vocabulary": len(WORDS) + 4,  # the entries that fill the tokenizer's up have no vector
    "target_vocabulary": len(WORDS) + 4,
    "width": 16,
    "hidden": 32,
    "heads": 2,
    "encoder_layers": 2,
    "max_length": 24,
}
BERT = {"vocab_size": 12, "hidden_size": 16, "num_hidden_layers": 2, "pad_token_id": 1}
BERT |= {"num_attention_heads": 2, "intermediate_size": 32, "max_position_embeddings": 24}


def save_tokenizer(folder) -> None:
    counter = WordCounter()
    counter.update(dict.fromkeys(WORDS, 9))
    settings = TextSettings(kind="classification", source="en", target="en")
    TextPipeline(settings, learn_words(counter, size=len(WORDS) + 4)).save(folder)
    MultiBranchTokenizer.from_pretrained(folder).save_pretrained(folder)


def drawn_anew(model):
    """Weights that tell texts apart."""
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return model.eval()


def made(kind: str):
    """A small classifier: our own, a branched BERT, a plain one, or such as see only backwards."""
    if kind == "ours":
        return drawn_anew(
            MultiBranchForSequenceClassification(MultiBranchConfig(**SMALL, id2label=NAMES))
        )
    config = LlamaConfig if kind == "llama" else BertConfig
    settings = {"is_decoder": True} if kind == "decoder" else {}
    model = AutoModelForSequenceClassification.from_config(
        config(**BERT, **settings, id2label=NAMES)
    )
    return drawn_anew(branch_out(model, branches=2) if kind == "branched" else model)


@pytest.fixture(scope="module", params=["ours", "branched", "decoder", "llama"])
def saved(request, tmp_path_factory):
    """A folder with a classifier and a tokenizer."""
    folder = tmp_path_factory.mktemp(request.param)
    save_tokenizer(folder)
    made(request.param).save_pretrained(folder)
    return folder


@torch.no_grad()
def wanted(folder, *texts):
    """What `transformers` makes of each example by itself."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    rows = []
    for text in texts:
        inputs = tokenizer(*text, truncation=True, max_length=24, return_tensors="pt")
        inputs.pop("token_type_ids", None)
        rows.append(model(**inputs).logits.softmax(-1))
    return torch.cat(rows)


def lines_of(*texts):
    return io.TextIOWrapper(io.BytesIO("".join(f"{text}\n" for text in texts).encode()), "utf-8")


def classified(folder, lines, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", lines_of(*lines))
    assert main(["classify", str(folder), "--device", "cpu", "--json"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize("pairs", [False, True])
def test_the_answers_are_those_of_transformers(saved, pairs, monkeypatch, capsys):
    """Texts of several lengths, one of them longer than the encoder reads, in one batch."""
    texts = [("the film is good",), ("bad",), ("a great film " * 12,), ("poor is the film",)]
    if pairs:
        texts = [(*text, "a poor film") for text in texts]
    found = classified(saved, ["\t".join(text) for text in texts], monkeypatch, capsys)
    expected = wanted(saved, *texts)
    for answer, row in zip(found, expected, strict=True):
        assert list(answer["probabilities"]) == list(NAMES.values())
        assert list(answer["probabilities"].values()) == pytest.approx(row.tolist(), abs=1e-5)
        assert answer["label"] == NAMES[int(row.argmax())]
    assert expected.std(0).max() > 0.01  # they do not answer the same to everything


@pytest.mark.parametrize(
    "config",
    [
        GPT2Config(vocab_size=12, n_embd=16, n_layer=1, n_head=2, n_positions=24),
        T5Config(vocab_size=12, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2),
    ],
    ids=["no padding", "any length"],
)
def test_what_a_model_does_not_say_is_the_tokenizer_s(config, tmp_path, monkeypatch, capsys):
    """Which id pads, by which GPT-2 seeks a text's end; and how long a text may be."""
    save_tokenizer(tmp_path)
    config.id2label = NAMES
    if config.model_type == "t5":
        config.update({"pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1})
    drawn_anew(AutoModelForSequenceClassification.from_config(config)).save_pretrained(tmp_path)
    texts = [("the film is good",), ("bad",), ("a great film " * 7,)]
    found = classified(tmp_path, [text for (text,) in texts], monkeypatch, capsys)
    for answer, row in zip(found, wanted(tmp_path, *texts), strict=True):
        assert list(answer["probabilities"].values()) == pytest.approx(row.tolist(), abs=1e-5)
    [alone] = classified(tmp_path, ["bad"], monkeypatch, capsys)
    assert alone["probabilities"] == pytest.approx(found[1]["probabilities"], abs=1e-5)


def test_a_model_that_reads_the_last_place_is_refused(tmp_path):
    save_tokenizer(tmp_path)
    config = XLNetConfig(vocab_size=12, d_model=16, n_layer=1, n_head=2, d_inner=32)
    AutoModelForSequenceClassification.from_config(config).save_pretrained(tmp_path)
    with pytest.raises(UserError, match="reads a text's label off its last place"):
        Classifier.load(tmp_path, device="cpu")


@pytest.mark.parametrize("kind", ["ours", "branched"])
def test_an_answer_that_is_no_number_is_refused(kind, tmp_path, monkeypatch, capsys):
    save_tokenizer(tmp_path)
    model = made(kind)
    model.get_input_embeddings().weight.data[5] = torch.nan  # "bad"
    model.save_pretrained(tmp_path)
    monkeypatch.setattr("sys.stdin", lines_of("a film", "a bad film"))
    capsys.readouterr()
    assert main(["classify", str(tmp_path), "--device", "cpu"]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1
    assert "line 2: what the model makes of it is no number: its weights hold" in captured.err


def test_a_label_is_one_field_of_a_line(tmp_path, monkeypatch, capsys):
    save_tokenizer(tmp_path)
    model = made("plain")
    model.config.id2label = {0: "no\tlabel", 1: "two\nlines", 2: 3}
    model.save_pretrained(tmp_path)
    monkeypatch.setattr("sys.stdin", lines_of("a film"))
    capsys.readouterr()
    assert main(["classify", str(tmp_path), "--device", "cpu"]) == 0
    [line] = capsys.readouterr().out.splitlines()
    label, *shares = line.split("\t")
    names = ["no label", "two lines", "3"]
    assert label in names and [share.split("=")[0] for share in shares] == names


def test_the_first_line_says_whether_lines_are_pairs(saved):
    classifier = Classifier.load(saved, device="cpu")
    assert len(list(classifier.classify(["a film\n", "a\tfilm\n"]))) == 2  # a blank like others
    with pytest.raises(UserError, match=r"line 2: the first line has a tab, .* this line has 1"):
        list(classifier.classify(["a\tfilm\n", "a film\n"]))
    with pytest.raises(UserError, match=r"line 1: .* this line has 3"):
        list(classifier.classify(["a\tgood\tfilm\n"]))


def test_it_cannot_be_evaluated_and_that_says_why(saved, capsys):
    with pytest.raises(UserError, match=r"has no config.yaml, which says what data it is for"):
        evaluate_classifier(saved)
    assert main(["evaluate", str(saved)]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "`multibranch classify`" in said


@pytest.mark.parametrize(
    ("kind", "settings", "said"),
    [
        (MultiBranchEncoderModel, {}, "is no classifier: config.json names"),
        (MultiBranchForSequenceClassification, {"num_labels": 1}, "one of several labels"),
        (
            MultiBranchForSequenceClassification,
            {"problem_type": "multi_label_classification"},
            "does not choose one of several labels: use it with `transformers`",
        ),
    ],
)
def test_what_does_not_choose_a_label_is_refused_in_one_line(
    tmp_path, capsys, kind, settings, said
):
    kind(MultiBranchConfig(**SMALL, **settings)).save_pretrained(tmp_path)
    save_tokenizer(tmp_path)
    capsys.readouterr()
    assert main(["classify", str(tmp_path)]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1
    assert said in captured.err


@pytest.mark.parametrize("settings", [False, True])
@pytest.mark.parametrize("kind", ["ours", "branched", "plain"])
def test_a_folder_without_a_tokenizer_is_told_which_files_it_lacks(
    kind, settings, tmp_path, capsys
):
    """Of a plain BERT's folder `transformers` makes a tokenizer to which every word is unknown."""
    made(kind).save_pretrained(tmp_path)
    if settings:
        (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
    capsys.readouterr()
    assert main(["classify", str(tmp_path)]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1
    assert f"{tmp_path} has no tokenizer: put the files there that" in captured.err
    assert "tokenizer_config.json and tokenizer.json" in captured.err


def test_a_tokenizer_of_bytes_needs_no_vocabulary(tmp_path):
    made("plain").save_pretrained(tmp_path)
    ByT5Tokenizer().save_pretrained(tmp_path)
    assert isinstance(Classifier.load(tmp_path, device="cpu").tokenizer, ByT5Tokenizer)


def test_a_token_without_a_vector_is_named_with_its_line(saved, monkeypatch, capsys):
    """Entries of the tokenizer that no text needs are no mistake; what a text needs is."""
    monkeypatch.setattr("multibranch.tasks.understanding_classifier._LOT", 2)
    monkeypatch.setattr("sys.stdin", lines_of("bad", "good", "a film", "a <unused2> film"))
    assert len(AutoTokenizer.from_pretrained(saved)) == 16
    assert main(["classify", str(saved), "--device", "cpu"]) == 2
    captured = capsys.readouterr()
    assert len(captured.out.splitlines()) == 2  # the lot before
    assert captured.err == (
        "multibranch classify: line 4: the tokenizer gives '<unused2>' the id 14, and the ids that "
        "the model knows end at 11: a token was added without resize_token_embeddings, or this is "
        "another model's tokenizer\n"
    )
    with pytest.raises(UserError, match="example 2: the tokenizer gives '<unused0>' the id 12"):
        Classifier.load(saved, device="cpu").probabilities([("bad",), ("<unused0>",)])


@torch.no_grad()
def test_padding_is_the_model_s_own_and_no_token_of_a_text(tmp_path, monkeypatch, capsys):
    """One that no text has does no harm, whatever the tokenizer's is; a word's would hide it."""
    for spoken in ("poor", "</s>"):
        folder = tmp_path / spoken.strip("</>")
        save_tokenizer(folder)
        padding = AutoTokenizer.from_pretrained(folder).convert_tokens_to_ids(spoken)
        config = MultiBranchConfig(**SMALL, id2label=NAMES, padding=padding)
        drawn_anew(MultiBranchForSequenceClassification(config)).save_pretrained(folder)
        texts = ["a film", "the film is good", "a poor film"]
        if spoken == "poor":
            found = classified(folder, texts[:2], monkeypatch, capsys)
            for each, row in zip(found, wanted(folder, *([text] for text in texts[:2]))):
                assert each["label"] == NAMES[int(row.argmax())]
        capsys.readouterr()
        monkeypatch.setattr("sys.stdin", lines_of(*texts))
        assert main(["classify", str(folder), "--device", "cpu"]) == 2
        line = 3 if spoken == "poor" else 1
        assert capsys.readouterr().err == (
            f"multibranch classify: line {line}: the tokenizer gives {spoken!r} the id {padding}, "
            'which the model takes for padding, the tokenizer\'s own being 1: put "padding" in '
            "config.json right, or this is another model's tokenizer\n"
        )


@pytest.mark.parametrize("kind", ["ours", "plain"])
def test_an_empty_text_without_a_token_has_an_answer_too(kind, tmp_path, monkeypatch, capsys):
    """A tokenizer may add no token of its own; the longest come first, 128 at a time."""
    vocabulary = {"[UNK]": 0, "[PAD]": 1, "the": 2}
    bare = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    PreTrainedTokenizerFast(tokenizer_object=bare, pad_token="[PAD]").save_pretrained(tmp_path)
    made(kind).save_pretrained(tmp_path)
    [empty] = classified(tmp_path, [""], monkeypatch, capsys)
    *texts, first, last = classified(tmp_path, ["the"] * 127 + ["", ""], monkeypatch, capsys)
    assert sum(empty["probabilities"].values()) == pytest.approx(1)
    for answer in (first, last):
        assert answer["probabilities"] == pytest.approx(empty["probabilities"], abs=1e-5)
    assert texts[0]["probabilities"] != pytest.approx(empty["probabilities"], abs=1e-3)


def save_bert(folder, *, padding: str | None = "[PAD]", longest: object = 24, **settings):
    """A plain BERT with a tokenizer of its kind, which marks the texts of a pair."""
    words = ["[UNK]", "[PAD]", "[CLS]", "[SEP]", *WORDS]
    vocabulary = {word: number for number, word in enumerate(words)}
    tokenizer = BertTokenizer(vocab=vocabulary, pad_token=padding, model_max_length=longest)
    tokenizer.save_pretrained(folder)
    BertForSequenceClassification(BertConfig(**BERT, **settings)).save_pretrained(folder)


@pytest.mark.parametrize(
    ("settings", "line", "said"),
    [
        (
            {"type_vocab_size": 1},
            "a film\tbad",
            r"line 1: the tokenizer gives a token the kind 1 \(token_type_ids\), and the kinds "
            "that the model knows end at 0: it does not tell the texts of a pair apart",
        ),
        ({"padding": None}, "bad", 'has no padding token, .* name one .* as "pad_token"'),
        ({"longest": 2}, "bad", 'cut to 2 tokens, of which .* adds 2 by itself: put "model_max_le'),
        ({"longest": 3}, "a\tbad", "cut to 3 tokens, of which the tokenizer adds 3 by itself"),
        ({"longest": "many"}, "bad", "\"model_max_length\" .* must be a number .*, not 'many'"),
    ],
)
def test_a_tokenizer_that_does_not_fit_is_said_in_one_line(
    settings, line, said, tmp_path, monkeypatch, capsys
):
    save_bert(tmp_path, **settings)
    capsys.readouterr()
    monkeypatch.setattr("sys.stdin", lines_of(line))
    assert main(["classify", str(tmp_path), "--device", "cpu"]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1
    assert re.search(said, captured.err)
