"""`multibranch train` and `multibranch branch` as people type them."""

import errno
import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import yaml

from multibranch.cli import main
from multibranch.data import PreparedData
from multibranch.data.builtin import builtin
from multibranch.directory import load_model, load_text, read_config
from multibranch.errors import STOPS
from multibranch.training import Trainer

CONFIG = {
    "model": {
        "width": 16,
        "hidden": 32,
        "heads": 2,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "branches": 2,
        "drop_branch": 0.2,
    },
    "train": {
        "tokens": 400,
        "max_updates": 6,
        "warmup": 4,
        "device": "cpu",
        "threads": 1,
        "log_every": 2,
        "tensorboard": False,
    },
}
EXPORT = ["--format", "onnx", "--output", "exported"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("train") / "corpus"
    return builtin("translation", folder, pairs=300, valid=20, test=20, jobs=1)


@pytest.fixture
def config(tmp_path: Path, corpus: Path) -> Path:
    content = {**CONFIG, "data": {"folder": str(corpus)}}
    content["train"] = {**CONFIG["train"], "output": str(tmp_path / "run")}
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """What the command says, on one line, with exit status 2."""
    assert main(words) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert printed.err.startswith("multibranch train: ")
    return printed.err


def test_a_run_ends_with_a_table(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", str(config)]) == 0
    printed = capsys.readouterr()
    assert "Training" in printed.out and "perplexity" in printed.out
    assert "The model is in" in printed.err and "valid loss" in printed.err
    assert load_model(tmp_path / "run").settings["branches"] == 2


@pytest.mark.parametrize("rate", ["1e2", "1e30"])
def test_a_run_that_fell_apart_ends_with_one_too(
    rate: str, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = ["--train.learning_rate", rate, "--train.warmup", "1", "--train.average", "1"]
    assert main(["train", str(config), *changes, "--json"]) == 0
    row = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert row["perplexity"] is None
    assert (row["validation_loss"] or math.inf) > 709


def test_json_is_for_programs(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", str(config), "--quiet", "--json", "--train.max_updates", "3"]
    assert main([*words, "--model.branches=3"]) == 0
    printed = capsys.readouterr()
    result = json.loads(printed.out)
    assert printed.err == ""
    assert (result["updates"], result["ended"]) == (3, "3 updates are done")
    assert result["folder"] == str(tmp_path / "run")
    assert result["model"] == "MAT, 3 branches"
    model = load_model(tmp_path / "run")
    assert result["parameters"] == sum(p.numel() for p in model.parameters())
    assert model.settings["branches"] == 3
    saved = read_config(tmp_path / "run" / "best")["training"]
    assert result["validation_loss"] == saved["validation_loss"]
    resolved = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert resolved["model"]["branches"] == 3 and resolved["train"]["warmup"] == 4


def test_fine_tuning_takes_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Under torchrun each of them would train the same, and write it into one folder."""
    config = tmp_path / "u.yaml"
    config.write_text("task: understanding\n")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(["train", str(config)]) == 2
    assert "takes one process: start it without torchrun" in capsys.readouterr().err


def test_two_stages_end_with_a_table_of_both(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", str(config), "--two-stage", "--json", "--quiet"]) == 0
    first, second = json.loads(capsys.readouterr().out)
    assert (first["model"], second["model"]) == ("Transformer", "MAT, 2 branches")
    assert first["parameters"] < second["parameters"]
    assert load_model(tmp_path / "run" / "transformer").settings["branches"] == 1
    assert load_model(tmp_path / "run" / "mat").settings["branches"] == 2
    again = ["train", str(config), "--two-stage"]
    assert main(again) == 0  # both have ended: it only says so again
    out, error = capsys.readouterr()
    assert "MAT, 2 branches" in out
    stages = [line for line in error.splitlines() if line.startswith("Stage")]
    assert stages == ["Stage 1 of 2: Transformer", "Stage 2 of 2: MAT, 2 branches"]


@pytest.mark.parametrize("number", STOPS)
def test_a_signal_at_the_end_of_the_first_stage_begins_no_second(
    number: int, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(trainer: Trainer) -> None:
        os.kill(os.getpid(), number)
        finish(trainer)

    finish = Trainer._finish
    words = ["train", str(config), "--two-stage", "--quiet"]
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_finish", interrupted)
        assert main(words) == 128 + number
    assert load_model(tmp_path / "run" / "transformer").settings["branches"] == 1
    assert not (tmp_path / "run" / "mat").exists()
    assert main(words) == 0
    assert load_model(tmp_path / "run" / "mat").settings["branches"] == 2


def test_the_validation_score_is_bleu(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--train.validate_score", "true", "--train.validate_sentences", "8"]
    words += ["--decode.beam", "2", "--train.max_updates", "2", "--json"]
    assert main(["train", str(config), *words]) == 0
    printed = capsys.readouterr()
    assert "BLEU" in printed.err
    assert 0 <= json.loads(printed.out)["score"] <= 100
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    record = json.loads(lines[-1])
    assert record["kind"] == "validation" and record["score_name"] == "BLEU"


def test_the_built_in_corpus_is_used_where_no_folder_is_given(config: Path, tmp_path: Path) -> None:
    words = ["--data.folder", "null", "--data.builtin_pairs", "120", "--train.max_updates", "1"]
    assert main(["train", str(config), "--quiet", *words]) == 0
    folder = tmp_path / "builtin-translation-120"
    assert len(PreparedData.open(folder).split("train")) == 120


# -- What is refused ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--model.branchs", "3"], "no option --model.branchs; did you mean --model.branches?"),
        (["--branches", "3"], "did you mean --model.branches?"),
        (["--train.tokens", "many"], "train.tokens must be a whole number, not 'many'"),
        (["--train.tokens", "0"], "train.tokens must be at least 1, not 0"),
        (["--train.seed", "99999999999999999999"], "train.seed must be at least"),
        (["--train.cool_down", "1.5"], "train.cool_down must be at least 0 and at most 1, not 1.5"),
        (["--model.dropout", "1"], "model.dropout must be at least 0 and below 1, not 1.0"),
        (["--train.max_updates", "null"], "the run would never end"),
        (
            ["--train.max_updates", "null", "--train.max_epochs", "1", "--train.cool_down", "0.3"],
            "a share of train.max_updates",
        ),
        (["--model.heads", "3"], "model: 3 heads do not divide a width of 16"),
        (["--data.folder", "/nowhere"], "/nowhere is not a prepared folder"),
        (["--train.init_from", "/nowhere"], "/nowhere is no model directory"),
        (["--train.device", "abacus"], "'abacus' is no device"),
        (["--two-stage", "--model.branches", "1"], "--two-stage needs model.branches above 1"),
        (["--two-stage", "--train.init_from", "x"], "remove train.init_from"),
    ],
)
def test_mistakes_are_one_line(
    config: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert message in refused(["train", str(config), "--quiet", *words], capsys)


def test_what_the_second_stage_could_not_build_is_refused_before_the_first(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--two-stage", "--model.branches", "[2, 2, 2]"]
    message = refused(["train", str(config), "--quiet", *words], capsys)
    assert "model: branches must hold one value a layer: 2, not 3" in message
    assert not (tmp_path / "run").exists()


def test_mistakes_in_the_file_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text("model: {branches: 2\ntrain:\n")
    assert "line 2 is no YAML" in refused(["train", str(path)], capsys)
    path.write_text("trian: {seed: 1}\n")
    assert "no key trian; did you mean train?" in refused(["train", str(path)], capsys)
    assert "no configuration file" in refused(["train", str(tmp_path / "none.yaml")], capsys)


def test_an_override_before_the_file_is_explained(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    message = refused(["train", "--train.max_updates", "5", str(config)], capsys)
    assert f"give the configuration file first: multibranch train {config}" in message


def test_another_configuration_s_folder_is_refused(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", str(config), "--quiet"]) == 0
    capsys.readouterr()
    message = refused(["train", str(config), "--model.hidden", "48"], capsys)
    assert "model.hidden: 32 → 48" in message


def test_help_is_worth_reading(capsys: pytest.CaptureFixture[str]) -> None:
    for verb, words in (("train", ["--two-stage", "torchrun", "Ctrl-C"]), ("branch", ["--tile"])):
        with pytest.raises(SystemExit) as caught:
            main([verb, "--help"])
        assert caught.value.code == 0
        text = capsys.readouterr().out
        assert all(word in text for word in words)


# -- Signals, as a shell sees them -------------------------------------------------------------


def test_ctrl_c_saves_says_so_and_the_next_start_goes_on(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", str(config), "--train.max_updates", "100000", "--train.log_every", "1"]
    process = subprocess.Popen(
        [sys.executable, "-m", "multibranch", *words],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    while process.poll() is None and not (tmp_path / "run" / "metrics.jsonl").is_file():
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "stopping after this update" in told
    assert "stopped by SIGINT after update" in told and "to go on" in told
    assert "Traceback" not in told
    (saved,) = (tmp_path / "run" / "resume").glob("update-*")
    done = int(saved.name.removeprefix("update-"))
    run = str(tmp_path / "run")
    for verb in (["translate", run], ["evaluate", run], ["export", run, *EXPORT]):
        assert main(verb) == 2
        message = capsys.readouterr().err
        assert f"{run} holds a training that has not ended: `multibranch train " in message
    going_on = message.split("`")[1].split()[1:]
    assert main([*going_on, "--train.max_updates", str(done + 1)]) == 0
    assert f"resuming after update {done}" in capsys.readouterr().err


def test_a_quiet_run_that_was_stopped_says_so(
    config: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(trainer: Trainer) -> None:
        update(trainer)
        signal.raise_signal(signal.SIGINT)

    update = Trainer._update
    monkeypatch.setattr(Trainer, "_update", interrupted)
    for done, words in enumerate(([], ["--json"]), start=1):
        assert main(["train", str(config), "--quiet", *words]) == 130
        out, error = capsys.readouterr()
        assert error == (
            f"multibranch train: stopped by SIGINT after update {done}, which is saved: start the "
            "same command again to go on\n"
        )
        assert ('"ended": "SIGINT"' if words else "Training, stopped") in out


# -- branch ------------------------------------------------------------------------------------


def test_branching_gives_the_same_function(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", str(config), "--quiet", "--model.branches", "1"]) == 0
    capsys.readouterr()
    run, output = str(tmp_path / "run"), str(tmp_path / "three")
    assert main(["branch", run, "--branches", "3", "--output", output, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    one, three = load_model(run), load_model(output)
    assert three.settings["branches"] == 3
    assert result["parameters"] == sum(p.numel() for p in three.parameters())
    ids = torch.tensor([[5, 9, 2]]), torch.tensor([[0, 7, 8]])
    torch.testing.assert_close(one(*ids), three(*ids), rtol=1e-5, atol=1e-5)
    assert load_text(output).target_size == load_text(run).target_size
    assert read_config(output)["task"] == "translation"
    assert main(["branch", output, "--branches", "6", "--tile", "--output", f"{output}x"]) == 0
    assert load_model(f"{output}x").settings["branches"] == 6
    capsys.readouterr()
    for words, message in (
        ([run, "--branches", "3", "--output", output], "exists already"),
        ([output, "--branches", "6", "--output", "x"], "has 3 branches already: add --tile"),
        ([output, "--branches", "4", "--tile", "--output", "x"], "cannot be made by repeating 3"),
        ([run, "--branches", "0", "--output", "x"], "branches must be at least 1"),
        ([run, "--branches", "1" + 20 * "0", "--output", "x"], ",000: no memory holds so many"),
        ([run, "--branches", "2", "--output", f"{run}/config.json/x"], "config.json is a file; "),
        ([run, "--branches", "2", "--noise", "-1", "--output", "x"], "--noise must be at least 0"),
        ([run, "--branches", "2", "--noise", "inf", "--output", "x"], "and at most 10, not inf"),
        ([str(tmp_path), "--branches", "2", "--output", "x"], "is no model directory"),
    ):
        assert main(["branch", *words]) == 2
        assert message in capsys.readouterr().err


def test_branching_onto_a_full_disk_says_what_to_do_and_leaves_nothing(
    config: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(path: Path, weights: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    assert main(["train", str(config), "--quiet", "--model.branches", "1"]) == 0
    monkeypatch.setattr("multibranch.directory.save_weights", full)
    before = set(tmp_path.iterdir())
    words = ["--branches", "2", "--output", str(tmp_path / "two")]
    assert main(["branch", str(tmp_path / "run"), *words]) == 2
    said = capsys.readouterr().err
    assert "two could not be written to. Nothing was left behind: make room, or choose an" in said
    assert set(tmp_path.iterdir()) == before


def test_one_branch_in_every_layer_is_branched_out_like_one_branch(
    config: Path, tmp_path: Path
) -> None:
    assert main(["train", str(config), "--quiet", "--model.branches", "[1, 1]"]) == 0
    run, output = str(tmp_path / "run"), str(tmp_path / "three")
    assert main(["branch", run, "--branches", "3", "--output", output]) == 0
    assert read_config(run)["branches"] == [1, 1]
    assert load_model(output).settings["branches"] == 3


def test_the_loss_that_is_told_is_that_of_the_model_that_is_named(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--train.average", "2", "--train.validate_every", "2", "--train.learning_rate", "0.1"]
    assert main(["train", str(config), "--json", *words]) == 0
    printed = capsys.readouterr()
    row = json.loads(printed.out)
    saved = read_config(tmp_path / "run")
    assert saved["weights"] == "averaged"
    assert row["validation_loss"] == saved["training"]["validation_loss"]
    best = read_config(tmp_path / "run" / "best")["training"]["validation_loss"]
    assert row["best_validation_loss"] == best != row["validation_loss"]
    worse = row["validation_loss"] > best
    assert ("the average is worse than the best weights" in printed.err) == worse
