"""benchmarks/code_generation.py: trains, decodes, goes on, and scores what it decoded."""

import contextlib
import io
import json
import lzma
from pathlib import Path

import pytest

from code_generation import main
from code_scores import patience_over
from multibranch.data import PreparedData
from multibranch.data.builtin import builtin
from multibranch.metrics import mean_sentence_bleu, pov

TINY = {
    "model.width": 16,
    "model.hidden": 16,
    "model.encoder_layers": 1,
    "model.decoder_layers": 1,
    "train.tokens": 256,
    "train.validate_every": 2,
    "train.validate_sentences": 2,
    "train.patience": 99,
    "train.threads": 1,
    "decode.max_length": 24,
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("code") / "data"
    return builtin("code", folder, pairs=100, valid=4, test=6, jobs=1)


@pytest.fixture(scope="module")
def output(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("benchmark")
    for updates in (2, 4):
        asked = ["--minutes", "20", "--beam", "2", "--only", "mat-0.3", "baseline", "narrow"]
        settings = {**TINY, "train.max_updates": updates}
        script(data, folder, *asked, *(f"--{key}={value}" for key, value in settings.items()))
    return folder


def script(*words: str | Path, status: int = 0) -> str:
    """What the script prints: its table, or what is wrong."""
    out, wrong = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(wrong):
        assert main([*map(str, words), "--device", "cpu"]) == status
    return (wrong if status else out).getvalue()


def test_a_run_that_time_ended_goes_on(output: Path) -> None:
    for name, branches, rate in (("baseline", 1, 0.0), ("narrow", 1, 0.0), ("mat-0.3", 4, 0.3)):
        record = json.loads((output / "results" / f"{name}-seed1.json").read_text())
        assert record["updates"] == 4
        assert [line.split(":")[0] for line in record["validation"]] == ["update 2", "update 4"]
        assert record["converged"] is False
        assert record["settings"]["model.share_embeddings"] == "target"
        assert record["settings"]["model.branches"] == branches
        assert record["settings"].get("model.drop_branch", 0.3) == rate
        assert record["test"]["outputs"] == 6
        assert "--train.max_updates=4" in record["command"]


def test_scores_are_those_of_the_files(data: Path, output: Path, tmp_path: Path) -> None:
    shown = script(data, output, "--score", "--json", tmp_path / "scores.json")
    result = json.loads((tmp_path / "scores.json").read_text())
    references = PreparedData.open(data).lines("test", "target")
    rows = {row["run"]: row for row in result["runs"]}
    assert list(rows) == ["baseline-seed1", "narrow-seed1", "mat-0.3-seed1"]
    for label, row in rows.items():
        words = (output / "results" / f"{label}.txt").read_text().splitlines()
        value = round(mean_sentence_bleu(words, references).value, 2)
        assert row["scores"]["sentence_bleu"] == row["test"]["sentence_bleu"] == value
        assert row["scores"]["pov"] == pov(words, "python").value
        assert row["distinct_outputs"] == len(set(words))
        assert row["most_repeated_output"] == max(map(words.count, words))
        assert row["invalid"]["outputs"] == round(len(words) * (1 - row["scores"]["pov"] / 100))
        assert row["scores"]["reference_pov"] == 100
        assert f"| {label} |" in shown
    gain = rows["mat-0.3-seed1"]["against_baseline"]["sentence_bleu"]
    values = [row["scores"]["sentence_bleu"] for row in rows.values()]
    assert gain["difference"] == pytest.approx(values[2] - values[0], abs=0.011)
    assert gain["interval"][0] <= gain["difference"] <= gain["interval"][1]
    assert "| 12.85 | 75.3 |" in shown  # the paper's, ρ = 0.3 on Python


def test_a_run_that_converged_settles(data: Path, tmp_path: Path) -> None:
    settings = {**TINY, "train.patience": 1, "train.judge_from": 3}
    settings |= {"train.learning_rate": 1e-9, "train.log_every": 1}
    words = [f"--{key}={value}" for key, value in settings.items()]
    asked = ["--minutes", "20", "--beam", "2", "--only", "mat-0.3", "baseline", "--settle", "4"]
    script(data, tmp_path, *asked, *words)
    script(data, tmp_path, "--score", "--json", tmp_path / "scores.json")
    rows = {row["run"]: row for row in json.loads((tmp_path / "scores.json").read_text())["runs"]}
    assert list(rows) == [
        "baseline-seed1",
        "mat-0.3-seed1",
        "baseline-seed1-settled",
        "mat-0.3-seed1-settled",
    ]
    settled = rows["mat-0.3-seed1-settled"]
    assert settled["updates"] == 4 and settled["converged"]
    assert settled["best_score"] == rows["mat-0.3-seed1"]["best_score"]  # the rate is next to 0
    assert settled["settings"]["train.init_from"].endswith("mat-0.3-seed1")
    assert settled["against_baseline"]["baseline"] == "baseline-seed1-settled"
    assert rows["mat-0.3-seed1"]["against_baseline"]["baseline"] == "baseline-seed1"
    steps = (tmp_path / "runs" / "mat-0.3-seed1-settled" / "metrics.jsonl").open()
    rates = [each["learning_rate"] for each in map(json.loads, steps) if each["kind"] == "train"]
    assert [rate / rates[0] for rate in rates] == pytest.approx([1, 0.75, 0.5, 0.25])


def test_where_another_patience_would_have_ended_a_run() -> None:
    scores = {10: 9.0, 20: 5.0, 30: 6.0, 40: 5.5, 50: 5.9, 60: 7.0, 70: 6.5}
    lines = [
        f"update {update}: loss 2.0000, perplexity 5.00, BLEU {score:.2f}"
        for update, score in scores.items()
    ]
    row = {"settings": {"train.judge_from": 20}, "validation": lines}
    assert patience_over(row, 20) == {"update": 50, "best_update": 30, "best_score": 6.0}
    assert patience_over(row, 10)["update"] == 40
    # Update 60 is better in time, and the run ends before another 30.
    assert patience_over(row, 30) is None
    late = [line.replace("0:", "0000:", 1) for line in lines]  # judged from the end of the warm-up
    assert patience_over({"settings": {}, "validation": late}, 50000)["update"] == 60000


def test_outputs_for_other_references_are_refused(data: Path, output: Path, tmp_path: Path) -> None:
    file = output / "results" / "baseline-seed1.n-best.tsv.xz"
    with lzma.open(file, "rt") as lines:
        kept = [line for line in lines if not line.startswith("3\t")]
    short = tmp_path / "short.n-best.tsv.xz"
    with lzma.open(short, "wt") as lines:
        lines.writelines(kept)
    said = script(data, output, "--score", short, status=2)
    assert said.endswith("has outputs for 5 of 6 references\n")
