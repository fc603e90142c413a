"""`multibranch params`: the counts of a configuration and of the paper's tables."""

import json
import re
from pathlib import Path

import pytest

from multibranch.cli import main

CONFIG = """\
model:
  width: 256
  hidden: 2048
  heads: 4
  branches: 3
  encoder_layers: 6
  decoder_layers: 6
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "iwslt.yaml"
    path.write_text(CONFIG)
    return path


def test_a_configuration_is_counted_by_place_and_by_kind(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["params", str(config), "--vocabulary", "10152", "--json"]) == 0
    counts = json.loads(capsys.readouterr().out)
    attention, feed_forward = 3 * (4 * 256**2 + 4 * 256), 2 * 256 * 2048 + 2048 + 256
    assert counts["embeddings"] == 10152 * 256
    assert counts["attention"] == 18 * attention
    assert counts["feed_forward"] == 12 * feed_forward
    assert counts["norms"] == 30 * 512
    assert counts["encoder"] == 6 * (attention + feed_forward + 1024)
    assert counts["decoder"] == 6 * (2 * attention + feed_forward + 1536)
    assert round(counts["total"] / 1e6, 1) == 29.4
    assert counts["total"] == counts["embeddings"] + counts["encoder"] + counts["decoder"]


def test_the_table_for_people_has_the_same_numbers(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["params", str(config), "--vocabulary", "10152"]) == 0
    lines = capsys.readouterr().out.splitlines()
    total = next(line for line in lines if line.startswith("│ total"))
    words = [word for word in total.split() if word != "│"]
    assert words == ["total", "2,598,912", "14,211,072", "12,610,560", "15,360", "29,435,904"]


def test_separate_vocabularies(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config.write_text(CONFIG + "  share_embeddings: target\n")
    assert main(["params", str(config), "--vocabulary", "27008", "50008", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["embeddings"] == (27008 + 50008) * 256


def test_numbers_are_read_as_training_reads_them(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config.write_text(CONFIG + "  drop_branch: 1e-1\n")
    assert main(["params", str(config), "--vocabulary", "10152", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["total"] == 29435904


def test_the_papers_architectures(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["params", "--paper", "--json"]) == 0
    records = json.loads(capsys.readouterr().out)
    assert len(records) == 155
    first = records[0]
    assert {key: first[key] for key in ("table", "branches", "width", "hidden", "heads")} == {
        "table": 1, "branches": 1, "width": 512, "hidden": 1024, "heads": 4,
    }  # fmt: skip
    assert (first["layers"], first["vocabulary"]) == ([6, 6], 10152)
    assert (first["parameters"], first["paper_millions"]) == (36741120, 36.7)
    unmet = [(one["table"], one["paper_millions"]) for one in records if one["met"] is False]
    assert unmet == [(4, 209.8), (8, 55), (8, 37), (8, 37)]
    assert all(one["note"] for one in records if not one["met"])


def test_the_papers_table_for_people_says_what_does_not_follow(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["params", "--paper"]) == 0
    out = capsys.readouterr().out
    mat = next(line for line in out.splitlines() if "32,351,232" in line)
    assert [word for word in mat.split() if word != "│"] == (
        ["8", "4/256/1024", "1", "4", "3+3", "27,008+50,008", "32,351,232", "32.4", "37", "[3]"]
    )
    note = next(line for line in out.splitlines() if line.startswith("[3]"))
    assert "About 37M does not follow" in note


@pytest.mark.parametrize(
    ("content", "words", "message"),
    [
        (CONFIG.replace("branches", "brances"), [], "model.brances is no setting of the model; "
         "did you mean branches?"),
        (CONFIG, [], "add --vocabulary SIZE"),
        (CONFIG, ["--vocabulary", "1", "2", "3"], "takes one size, or the source's and"),
        (CONFIG, ["--vocabulary", "9" * 23], "must be at least 1 and below 2,147,483,648, not"),
        (CONFIG.replace("heads: 4", "heads: " + "9" * 23), ["--vocabulary", "8"], "model.heads "
         "must be at least 0 and below 2,147,483,648, not 999"),
        (CONFIG.replace("heads: 4", "heads: 3"), ["--vocabulary", "8"], "heads"),
        ("model:\n  backbone: x\n", [], "branches a pretrained encoder out, whose size is not"),
        ("width: 256\n", [], "has no section `model:`"),
        ("a: [", [], "line 1 is no YAML"),
        (CONFIG + "  heads: 8\n", ["--vocabulary", "8"], "the key heads is given twice"),
        (None, [], "there is no configuration file"),
        (CONFIG, ["--paper"], "give either a configuration file or --paper"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_and_exit_status_2(
    config: Path,
    capsys: pytest.CaptureFixture[str],
    content: str | None,
    words: list[str],
    message: str,
) -> None:
    if content is None:
        config.unlink()
    else:
        config.write_text(content)
    assert main(["params", str(config), *words]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 1
    assert message in captured.err


def test_the_papers_vocabularies_are_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["params", "--paper", "--vocabulary", "7"]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and "--vocabulary is for a configuration file" in captured.err


@pytest.mark.parametrize("columns", [80, 50])
def test_no_number_is_cut_in_a_terminal(
    columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("FORCE_COLOR", "1")  # what rich asks to know a terminal by
    monkeypatch.setenv("TERM", "xterm")
    assert main(["params", "--paper"]) == 0
    table = re.sub("\x1b\\[[0-9;]*m", "", capsys.readouterr().out).partition("[1] ")[0]
    assert max(map(len, table.splitlines())) <= columns and "…" not in table
    if columns == 80:
        first = table.splitlines()[2].split()
        assert first == ["1", "1/512/1024", "1", "4", "6+6", "10,152", "36,741,120", "36.7", "36.7"]
        assert "27,008+50,008" in table
