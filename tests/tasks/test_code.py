"""Code generation as a task: a tiny model learns it; every score, choice and refusal."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from multibranch.cli import main
from multibranch.cli.code_scores import show_code_scores
from multibranch.data import PreparedData
from multibranch.data.builtin import builtin
from multibranch.decoding import Hypothesis, Translator
from multibranch.directory import load_model, save_model
from multibranch.errors import UserError
from multibranch.metrics import (
    exact_match,
    mean_sentence_bleu,
    multi_bleu,
    parses,
    pov,
)
from multibranch.nn import MultiBranchTransformer
from multibranch.tasks.code import (
    CodeGenerator,
    CodeOutput,
    code_output,
    evaluate_code,
    valid_ones_first,
    validation_score,
)
from multibranch.text import UNK
from multibranch.training import Config, DataConfig, DecodeConfig, ModelConfig, TrainConfig, Trainer
from multibranch.training.outputs import Outputs

VALID = "def f ( ) : NEWLINE INDENT return 1 NEWLINE DEDENT"
BROKEN = "def f ( : NEWLINE INDENT return 1 NEWLINE DEDENT"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> PreparedData:
    folder = tmp_path_factory.mktemp("code") / "data"
    return PreparedData.open(builtin("code", folder, pairs=3000, valid=50, test=200, jobs=1))


@pytest.fixture(scope="module")
def trained(data: PreparedData, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A MAT of two branches, trained for 300 updates of 512 tokens."""
    folder = tmp_path_factory.mktemp("run") / "mat"
    config = Config(
        task="code",
        data=DataConfig(folder=str(data.folder)),
        model=ModelConfig(
            width=64,
            hidden=128,
            encoder_layers=1,
            decoder_layers=2,
            branches=2,
            drop_branch=0.0,
            dropout=0.0,
            share_embeddings="target",
        ),
        train=TrainConfig(
            output=str(folder),
            tokens=512,
            learning_rate=4e-3,
            warmup=80,
            label_smoothing=0.0,
            max_updates=300,
            validate_every=300,
            validate_score=True,
            validate_sentences=20,
            tensorboard=False,
            device="cpu",
        ),
        decode=DecodeConfig(beam=2, max_length=60),
    )
    Trainer(config, data, score=validation_score(config, data), quiet=True).run()
    return folder


@pytest.fixture(scope="module")
def result(trained: Path, data: PreparedData) -> dict[str, Any]:
    return evaluate_code(trained, data, valid_only=True, beam=3, limit=100)


def model_for(text: Any, folder: Path, *, task: str = "code") -> Path:
    """A model directory with random weights."""
    torch.manual_seed(1)
    model = MultiBranchTransformer(
        source_vocabulary=text.source_size,
        target_vocabulary=text.target_size,
        width=16,
        hidden=16,
        encoder_layers=1,
        decoder_layers=1,
        branches=2,
        share_embeddings="target",
    )
    return save_model(folder, model, text, extra={"task": task})


def test_whatever_decodes_lets_code_be_as_long_as_generate_does(
    data: PreparedData, tmp_path: Path
) -> None:
    model = load_model(model_for(data.text, tmp_path / "random"))
    for given, most in ((None, 256), (60, 60)):
        config = Config(task="code", decode=DecodeConfig(max_length=given))
        outputs = Outputs(tmp_path, config, model, data.text)
        outputs.write("best", model.state_dict(), update=1, loss=None)
        assert Translator.load(tmp_path / "best").options().max_length == most


# -- What a tiny model reaches ----------------------------------------------------------------


def test_a_tiny_model_learns_the_built_in_corpus(result: dict[str, Any]) -> None:
    best = result["without_valid_only"]
    assert best["sentence_bleu"] >= 70
    assert best["bleu"] >= 70
    assert best["pov"] >= 65
    assert best["exact_match"] >= 3
    assert best["reference_pov"] == 100


def test_valid_only_trades_score_for_validity(result: dict[str, Any]) -> None:
    best = result["without_valid_only"]
    assert result["pov"] >= best["pov"]
    assert best["changed_outputs"] == round(result["pov"] - best["pov"])
    assert abs(result["sentence_bleu"] - best["sentence_bleu"]) < 3


def test_validation_recorded_the_mean_sentence_bleu(trained: Path, data: PreparedData) -> None:
    records = [json.loads(line) for line in (trained / "metrics.jsonl").open()]
    (validation,) = (record for record in records if record["kind"] == "validation")
    assert validation["score_name"] == "sentence BLEU"
    found = CodeGenerator.load(trained).generate(data.lines("valid", "source")[:20], beam=2)
    words = [each[0].text for each in found]
    expected = mean_sentence_bleu(words, data.lines("valid", "target")[:20]).value
    assert validation["score"] == pytest.approx(expected)


def test_a_model_that_finds_nothing_is_scored_0(data: PreparedData, tmp_path: Path) -> None:
    """Where a validation overflows, no hypothesis has a score: that shall not end the training."""
    model = load_model(model_for(data.text, tmp_path / "model"))
    with torch.no_grad():
        model.decoder[-1].feed_forward_norm.bias.fill_(float("nan"))
    config = Config(task="code", decode=DecodeConfig(beam=2, max_length=5))
    assert validation_score(config, data)(model) == (0.0, "sentence BLEU")


def test_outputs_are_not_cut_to_a_multiple_of_the_source(trained: Path, data: PreparedData) -> None:
    """What suits translation, 1.5 times the source's tokens and 10 more, would cut many short."""
    sources = data.lines("test", "source")[:60]
    found = [each[0] for each in CodeGenerator.load(trained).generate(sources)]
    longer = [
        (source, one)
        for source, one in zip(sources, found)
        if len(one.ids) > 1.5 * (len(source.split()) + 1) + 10
    ]
    whole = [one for _, one in longer if parses(one.text, "python")]
    assert len(longer) >= 10 and len(whole) > len(longer) / 2
    source, one = longer[0]
    (plain,) = Translator.load(trained, device="cpu").generate([source])
    assert plain[0].ids == one.ids  # `translate` keeps the configuration's limit too
    (short,) = CodeGenerator.load(trained).generate([source], max_length=5)
    assert len(short[0].ids) <= 5


# -- Scores -----------------------------------------------------------------------------------


def test_scores_are_those_of_the_metrics_each_with_its_signature() -> None:
    references = [VALID, VALID, BROKEN]
    output = CodeOutput("x", [VALID, BROKEN, VALID + " = ="], references, "python", [0, 2, 1])
    scores = output.scores()
    assert scores["sentence_bleu"] == mean_sentence_bleu(output.words, references)
    assert scores["bleu"] == multi_bleu(output.words, references)
    assert scores["exact_match"] == exact_match(output.words, references)
    assert scores["pov"] == pov(output.words, "python")
    assert scores["pov"].value == pytest.approx(100 / 3)
    assert scores["reference_pov"].value == pytest.approx(200 / 3)
    # 11, 10 and 13 tokens, and their ends.
    assert scores["unknown"].value == pytest.approx(100 * 3 / (12 + 11 + 14))
    assert scores["unknown"].signature == "unknown|tokens:37"
    assert scores["outputs_with_unknown"].value == pytest.approx(200 / 3)
    assert all(score.signature for score in scores.values())


def test_unknown_tokens_are_counted_and_never_generated(data: PreparedData, tmp_path: Path) -> None:
    """A model whose <unk> always wins writes none, and says how often it would have."""
    folder = model_for(data.text, tmp_path / "model")
    model = load_model(folder)
    with torch.no_grad():
        model.decoder[-1].feed_forward_norm.bias.fill_(100.0)
        model.output_vectors[UNK] = 1.0
    save_model(folder, model, data.text, extra={"task": "code"})
    generator = CodeGenerator.load(folder)
    found = generator.generate(["count all players ."], beam=2, min_length=7, max_length=7)
    output = code_output("x", found, [VALID], "python")
    assert len(found[0][0].ids) == 7
    assert "<unk>" not in output.words[0]
    # At its greatest length an output ends whatever the model says: 7 of 8 tokens were chosen.
    assert output.scores()["unknown"].value == 100 * 7 / 8
    assert output.scores()["outputs_with_unknown"].value == 100
    (allowed,) = generator.generate(
        ["count all players ."], beam=2, max_length=7, allow_unknown=True
    )
    assert set(allowed[0].ids) == {UNK}


def test_valid_hypotheses_come_first_in_the_order_of_their_scores() -> None:
    found = [
        Hypothesis((), -score, 0.0, 0, text)
        for score, text in enumerate([BROKEN, VALID, BROKEN + " x", VALID.replace(" f ", " g ")])
    ]
    assert [each.score for each in valid_ones_first(found, "python")] == [-1, -3, 0, -2]
    assert valid_ones_first(found[:1], "python") == found[:1]


def test_valid_only_keeps_the_best_scored_output_where_nothing_parses(
    data: PreparedData, tmp_path: Path
) -> None:
    folder = model_for(data.text, tmp_path / "model")
    generator = CodeGenerator.load(folder)
    sources = data.lines("test", "source")[:5]
    plain = generator.generate(sources, beam=3, n_best=3, max_length=20)
    assert not any(parses(each.text, "python") for found in plain for each in found)
    chosen = generator.generate(sources, beam=3, valid_first=True, max_length=20)
    assert chosen == [found[:1] for found in plain]


def test_the_table_shows_both_choices(
    result: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    show_code_scores(result)
    shown = capsys.readouterr().out
    for value in (result["pov"], result["without_valid_only"]["pov"], result["sentence_bleu"]):
        assert f"{value:.2f}" in shown
    plain = {**result["without_valid_only"], "changed_outputs": 1}
    one = {"outputs": 1, "split_size": 1, "without_valid_only": plain}
    show_code_scores({**result, **one})
    shown = " ".join(capsys.readouterr().out.split())
    assert "on test, 1 output, in float32 " in shown
    assert shown.endswith("--valid-only changed 1 output")


def test_the_verb_evaluate_gives_the_same_scores(
    trained: Path, data: PreparedData, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["evaluate", str(trained), "--valid-only", "--beam", "3", "--limit", "10"]
    assert main([*words, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said == evaluate_code(trained, data, valid_only=True, beam=3, limit=10)
    assert main(words) == 0
    shown = capsys.readouterr().out
    whole = len(data.lines("test", "source"))
    assert (said["outputs"], said["split_size"], said["precision"]) == (10, whole, "float32")
    assert (said["beam"], said["branches"]) == (3, None)
    assert f"on test, the first 10 of {whole} outputs, in float32" in " ".join(shown.split())
    assert f"{said['sentence_bleu']:.2f}" in shown
    assert "smooth:method4" in shown.replace("\n", "").replace("│", "").replace(" ", "")


# -- Own files --------------------------------------------------------------------------------


def test_two_files_are_scored_as_the_split_they_were_taken_from(
    trained: Path, data: PreparedData, tmp_path: Path
) -> None:
    names = {}
    for side in ("source", "target"):
        names[side] = tmp_path / f"own.{side}"
        names[side].write_text("".join(line + "\n" for line in data.lines("test", side)[:8]))
    output = tmp_path / "output.txt"
    own = evaluate_code(trained, sources=names["source"], references=names["target"], output=output)
    split = evaluate_code(trained, data, limit=8)
    same = ("sentence_bleu", "bleu", "exact_match", "pov", "unknown", "outputs", "language")
    assert {name: own[name] for name in same} == {name: split[name] for name in same}
    lines = output.read_text().splitlines()
    assert len(lines) == 8
    score = mean_sentence_bleu(lines, data.lines("test", "target")[:8])
    assert own["sentence_bleu"] == round(score.value, 2)


def test_references_of_another_length_are_refused(
    trained: Path, data: PreparedData, tmp_path: Path
) -> None:
    source, target = tmp_path / "a.nl", tmp_path / "a.code"
    source.write_text("count all players .\n" * 3)
    target.write_text(VALID + "\n")
    with pytest.raises(UserError, match=r"a\.code has 1 reference for the 3 lines of .*a\.nl"):
        evaluate_code(trained, sources=source, references=target)
    copy = tmp_path / "copy"
    shutil.copytree(data.folder, copy)
    (copy / "test.target.txt").write_text(VALID + "\n")
    with pytest.raises(UserError, match=r"1 reference for the 200 lines of test\.source\.txt"):
        evaluate_code(trained, PreparedData.open(copy))
    with pytest.raises(UserError, match="come in twos"):
        evaluate_code(trained, sources=source)
    with pytest.raises(UserError, match=r"cannot read .*none\.nl: No such file"):
        evaluate_code(trained, sources=tmp_path / "none.nl", references=target)
    target.write_bytes(b"\xff\n")
    with pytest.raises(UserError, match=r"a\.code is not UTF-8"):
        evaluate_code(trained, sources=source, references=target)


# -- What is no code model --------------------------------------------------------------------


def with_language(folder: Path, language: str) -> None:
    settings = json.loads((folder / "text.json").read_text())
    (folder / "text.json").write_text(json.dumps({**settings, "target": language}))


def test_a_language_that_the_task_does_not_know_is_refused(
    data: PreparedData, tmp_path: Path
) -> None:
    folder = model_for(data.text, tmp_path / "model")
    with_language(folder, "cobol")
    with pytest.raises(UserError, match=r"'cobol', which is no language .* java and python"):
        evaluate_code(folder, data)
    copy = tmp_path / "data"
    shutil.copytree(data.folder, copy)
    with_language(copy, "cobol")
    with pytest.raises(UserError, match="'cobol'"):
        validation_score(Config(task="code"), PreparedData.open(copy))


def test_data_of_another_language_are_refused(data: PreparedData, tmp_path: Path) -> None:
    folder = model_for(data.text, tmp_path / "model")
    with_language(folder, "java")
    with pytest.raises(UserError, match=r"the model writes java and .* holds python"):
        evaluate_code(folder, data)


def test_a_model_of_another_task_is_refused(data: PreparedData, tmp_path: Path) -> None:
    folder = model_for(data.text, tmp_path / "model", task="translation")
    with pytest.raises(UserError, match="is a model of the task translation, not of code"):
        evaluate_code(folder, data)
    with pytest.raises(UserError, match="there is no such folder"):
        evaluate_code(tmp_path / "none", data)
