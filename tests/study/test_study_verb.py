"""`multibranch study`: what it refuses, and what it lists."""

import contextlib
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from multibranch.cli import main
from multibranch.study.plan import choose, load_study
from multibranch.study.storage import Queue, open_storage

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["list", "builtin", "--seeds", "0"], "--seeds must be 1 to 1,000, not 0"),
        (["list", "builtin", "--seeds", "1000000"], "--seeds must be 1 to 1,000, not 1000000"),
        (["run", "builtin", "--seeds", "-1"], "--seeds must be 1 to 1,000, not -1"),
        (["run", "builtin", "--workers", "0"], "--workers must be 1 to 1,000, not 0"),
        (["run", "builtin", "--lease", "0"], "--lease must be 1 to 86,400, not 0.0"),
        (["run", "builtin", "--lease", "nan"], "--lease must be 1 to 86,400, not nan"),
        (["search", "builtin", "--trials", "0"], "--trials must be 1 to 1,000,000, not 0"),
        (["run", "builtin", "--minutes", "0"], "--minutes must be 0.01 to 1,000,000, not 0.0"),
        (["search", "builtin", "--minutes", "nan"], "--minutes must be 0.01 to 1,000,000, not nan"),
        (["search", "builtin", "--seed", "-1"], "--seed must be 0 to 4,294,967,295, not -1"),
        (["list", "table-99"], "no study runs table 99 of the paper; see `multibranch study list`"),
        (["run", "nope"], "there is no study nope; `multibranch study list` names all"),
        (["run", "bulitin"], "there is no study bulitin; did you mean builtin?"),
        (
            ["run", "builtin", "--only", "nope"],
            "--only nope: no experiment of the study fits; `multibranch study list NAME` shows all",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_numbers_are_one_line(words, said, capsys):
    assert main(["study", *words]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == f"multibranch study: {said}\n"


def test_the_list_of_studies_counts_the_seeds_that_are_asked_for(capsys):
    counts = []
    for seeds in (1, 3):
        assert main(["study", "list", "--seeds", str(seeds), "--json"]) == 0
        listed = {row["study"]: row["experiments"] for row in json.loads(capsys.readouterr().out)}
        counts.append(listed["builtin"])
    assert counts[1] == 3 * counts[0] == 54


def test_the_report_names_its_files_as_one_would_open_them(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    record = str(ROOT / "benchmarks" / "results" / "study-ted-de-en-h200.json")
    words = ["study", "report", "ted-de-en", "--from", record]
    assert main([*words, "--markdown", "ted.md"]) == 0
    assert capsys.readouterr().out == "runs/study/ted-de-en.html\nted.md\n"
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert main([*words, "--output", str(tmp_path / "there")]) == 0
    expected = [str(tmp_path / "there" / f"ted-de-en.{kind}") for kind in ("html", "md")]
    assert capsys.readouterr().out.splitlines() == expected


@pytest.mark.parametrize(
    "places",
    [["--html", "one.md"], ["--html", "one.html", "--record", "./one.html"], ["--record", "x.md"]],
)
def test_the_files_of_a_report_do_not_take_each_others_place(places, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    source = str(ROOT / "benchmarks" / "results" / "study-ted-de-en-h200.json")
    words = ["study", "report", "ted-de-en", "--from", source, *places]
    assert main([*words, "--markdown", "x.md"] if places[1] == "x.md" else words) == 2
    assert capsys.readouterr().err == (
        "multibranch study: page, Markdown and record must be different files: choose another "
        "--html, --markdown or --record\n"
    )
    assert not list(tmp_path.glob("**/*.*"))


@pytest.mark.parametrize("place", ["folder", ""])
@pytest.mark.parametrize("option", ["--html", "--markdown", "--record"])
def test_a_folder_is_no_place_for_a_reports_file(option, place, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    source = str(ROOT / "benchmarks" / "results" / "study-ted-de-en-h200.json")
    assert main(["study", "report", "ted-de-en", "--from", source, option, place]) == 2
    said = f"{place or '.'} is a folder: give {option} a file"
    assert capsys.readouterr().err == f"multibranch study: {said}\n"
    assert list(tmp_path.glob("**/*")) == [tmp_path / "folder"]


def test_the_models_of_a_list_stand_below_each_other(capsys):
    assert main(["study", "list", "builtin"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len({line.index(line.split("  ", 1)[1].lstrip()) for line in lines}) == 1


def test_a_list_of_one_is_a_list_in_json(tmp_path, capsys):
    file = tmp_path / "one.yaml"
    file.write_text(
        "title: one\nconfig: configs/builtin.yaml\nseeds: 1\nupdates: 1\n"
        "corpora: [{name: own, folder: prepared/own}]\n"
        "grids: [{starts: [scratch], branches: [1], shapes: [32/64]}]\n"
    )
    assert main(["study", "list", str(file), "--json"]) == 0
    [listed] = json.loads(capsys.readouterr().out)
    assert listed["key"].startswith("own.scratch.1-32-64.") and "model" in listed


@pytest.mark.parametrize("what", ["list", "run", "report", "import", "search"])
def test_the_help_of_every_part_has_an_example(what, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["study", what, "--help"])
    assert stopped.value.code == 0
    assert f"\n  multibranch study {what} " in capsys.readouterr().out


def test_a_report_of_nothing_makes_nothing(tmp_path, capsys):
    place = tmp_path / "mistyped"
    assert main(["study", "report", "builtin", "--output", str(place)]) == 2
    assert "there is no finished trial of builtin: start some" in capsys.readouterr().err
    assert not place.exists()


def test_a_study_file_that_is_not_there_is_named_as_one(capsys):
    assert main(["study", "list", "none/mine.yaml"]) == 2
    assert "multibranch study: there is no study file none/mine.yaml;" in capsys.readouterr().err


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_storage_that_fails_meanwhile_is_one_line_of_each_worker(
    write_study: Callable[..., Path], tmp_path: Path, capfd, workers: str
) -> None:
    file, url = write_study(), f"sqlite:///{tmp_path / 'study.db'}"
    words = ["study", "run", str(file), "--storage", url, "--output", str(tmp_path / "out")]
    words += ["--device", "cpu", "--seeds", "2", "--only", "scratch"]
    study = load_study(str(file))
    Queue(open_storage(url), study.name, choose(study.experiments(2), ["scratch"])).fill()
    with contextlib.closing(sqlite3.connect(tmp_path / "study.db")) as database:
        database.execute(
            "CREATE TRIGGER fails BEFORE INSERT ON trial_user_attributes "
            "BEGIN INSERT INTO nowhere VALUES (1); END"
        )
        database.commit()

    status = main([*words, "--workers", workers])

    said = capfd.readouterr().err
    assert status == (2 if workers == "1" else 1), said
    assert said.count(f"multibranch study: --storage {url} failed: ") == int(workers)
    assert said.count("nowhere; what trials have saved is kept") == int(workers)
    assert "Traceback" not in said
