"""Trials recorded where only PyTorch is, and docs/results.md from the records."""

import gzip
import json
import multiprocessing
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest

import claims
import results_page
import results_speed
import study_gpu
from multibranch.cli import main
from multibranch.errors import UserError
from multibranch.study import reporting
from multibranch.study.bench import Bench
from multibranch.study.plan import load_study
from multibranch.study.storage import Queue, open_storage
from multibranch.study.trial_folder import HYPOTHESES, claimed, read_lines

ROOT = Path(__file__).resolve().parents[2]

# What a bare GPU machine lacks cannot be imported where this is sitecustomize.py.
BARE = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"optuna", "sacrebleu", "matplotlib", "sacremoses", "psycopg",
                                      "transformers", "tree_sitter", "tensorboard", "zstandard"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
"""


def test_trials_of_a_bare_machine_are_scored_and_taken_in(
    write_study: Callable[..., Path],
    tiny_data: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture,
) -> None:
    file, out = write_study(), tmp_path / "recorded"
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "sitecustomize.py").write_text(BARE, encoding="utf-8")
    path = os.pathsep.join([str(tmp_path / "bare"), str(ROOT / "src")])
    words = [ROOT / "benchmarks" / "study_gpu.py", f"tiny={tiny_data}", out, "--study", file]
    words += ["--minutes", "3", "--workers", "1", "--device", "cpu", "--work", tmp_path / "work"]
    done = subprocess.run(
        [sys.executable, *map(str, words), "--only", "r0.3"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("3 trials, 1 worker, 3 minutes\n")
    assert "\n3 of 3 trials done in " in done.stdout
    assert sorted(path.name for path in out.iterdir()) == [
        "hypotheses.jsonl.gz",
        "summary.json",
        "trials.jsonl",
    ]
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    assert (summary["done"], summary["left"]) == (3, [])
    lines = (out / "trials.jsonl").read_text(encoding="utf-8").splitlines()
    records = {record["key"]: record for record in map(json.loads, lines)}
    assert [record["experiment"]["start"] for record in records.values()] == [
        "scratch",
        "proximal",
        "pruned",
    ]
    assert all("scores" not in record for record in records.values())
    # Only the models that others start from are kept.
    kept = {path.parent.name.split(".")[1] for path in tmp_path.glob("work/trials/*/model.*")}
    assert kept == {"scratch", "proximal"}
    place = ["--output", str(tmp_path / "here"), "--data", str(tiny_data)]
    assert main(["study", "import", str(file), str(out), *place]) == 0
    assert capsys.readouterr().out == "3 trials taken, 0 known already\n"
    assert main(["study", "import", str(file), str(out), *place]) == 0
    assert capsys.readouterr().out == "0 trials taken, 3 known already\n"
    written = tmp_path / "study-tiny.json"
    assert main(["study", "report", str(file), "--record", str(written), *place]) == 0
    content = json.loads(written.read_text(encoding="utf-8"))
    assert content["drivers"] == [summary["command"]]
    assert len(content["comparisons"]) == 3
    for trial in content["trials"]:
        assert set(trial["scores"]) == {"bleu", "multi_bleu", "chrf"}
        assert trial["curve"] or trial["experiment"]["start"] == "pruned"


def test_trials_of_one_architecture_are_trained_together(
    write_study: Callable[..., Path], tiny_data: Path, tmp_path: Path
) -> None:
    """Both seeds of the Transformer, its continuation, and four MATs; pruning is by itself."""
    file, out = write_study(), tmp_path / "recorded"
    words = [ROOT / "benchmarks" / "study_gpu.py", f"tiny={tiny_data}", out, "--study", file]
    words += ["--minutes", "3", "--workers", "1", "--device", "cpu", "--work", tmp_path / "work"]
    done = subprocess.run(
        [sys.executable, *map(str, words), "--seeds", "2", "--together", "4"],
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = (out / "trials.jsonl").read_text(encoding="utf-8").splitlines()
    found = Counter(
        (record["experiment"]["start"], record.get("together")) for record in map(json.loads, lines)
    )
    assert found == {
        ("scratch", 2): 2,
        ("continued", 2): 2,
        ("proximal", 4): 4,
        ("pruned", None): 4,
    }


def test_what_fails_together_is_tried_apart_and_what_had_ended_counts(
    write_study: Callable[..., Path], tiny_data: Path, tmp_path: Path
) -> None:
    study = load_study(str(write_study()))
    bench = Bench(study=study, output=tmp_path / "work", data={"tiny": str(tiny_data)})
    jobs = {
        one.key: study_gpu.Job(bench, one, False) for one in study.experiments(3) if not one.parent
    }
    run = study_gpu.Run(jobs, tmp_path, time.monotonic() + 60, together=3)
    worker = study_gpu.Worker(process=None, pipe=None, jobs=run.next(""))
    one, two, three = (job.experiment.key for job in worker.jobs)
    folder = bench.folder(jobs[two].experiment)
    folder.mkdir(parents=True)
    (folder / "trial.json").write_text(json.dumps({"key": two}), encoding="utf-8")
    run.take(worker, ("failed", "RuntimeError: one of them"))
    assert run.states == {one: "waiting", two: "done", three: "waiting"}
    assert json.loads((tmp_path / "trials.jsonl").read_text(encoding="utf-8")) == {"key": two}
    assert set(run.errors) == {one, three}
    worker.jobs = run.next("")
    assert len(worker.jobs) == 1
    run.take(worker, ("failed", "RuntimeError: this one"))
    assert sorted(run.states.values()) == ["done", "failed", "waiting"]


def _recorded(file: Path, place: Path) -> Path:
    """A folder as benchmarks/study_gpu.py writes it, of the study's first trial."""
    study = load_study(str(file))
    bench, experiment = Bench(study=study, output=place), study.experiments()[0]
    record = {
        "key": experiment.key,
        "cell": experiment.cell,
        "fingerprint": bench.fingerprint(experiment),
        "experiment": asdict(experiment),
        "command": bench.command(experiment),
        "device": "a machine",
        "curve": [[5, 3.0, 2.0]],
    }
    place.mkdir()
    (place / "trials.jsonl").write_text(json.dumps(record) + "\n", encoding="utf-8")
    (place / "summary.json").write_text('{"command": "python"}', encoding="utf-8")
    line = json.dumps({"key": experiment.key, "lines": ["one"] * 20}) + "\n"
    (place / "hypotheses.jsonl.gz").write_bytes(gzip.compress(line.encode()))
    return place


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("summary.json", lambda text: text[:-1], "summary.json is no JSON file"),
        ("summary.json", lambda text: '{"command": ["python"]}', "['python'], which is no text"),
        ("trials.jsonl", lambda text: "5\n", "holds no recorded trials: a trial is no object"),
        ("trials.jsonl", lambda text: text.replace("{", '{"valid_score": "x", ', 1), "score 'x'"),
        ("trials.jsonl", lambda text: text.replace("{", '{"scores": [1], ', 1), "no recorded"),
        (
            "trials.jsonl",
            lambda text: text.replace("{", '{"scores": {"bleu": {"value": 1}}, ', 1),
            "it has no 'signature'",
        ),
        ("trials.jsonl", lambda text: text.replace('"key"', '"kez"'), "it has no 'key'"),
        ("trials.jsonl", lambda text: text.replace('"seed"', '"sead"'), "mean experiment.seed?"),
        ("trials.jsonl", lambda text: text + text.replace("3.0", "2.5"), "s1 twice, and"),
        (
            "trials.jsonl",
            lambda text: text.replace("1-16-16", "2-16-16", 1),
            "not its experiment's",
        ),
        (
            "trials.jsonl",
            lambda text: re.sub('("fingerprint": )"[^"]*"', r'\1"../../../out"', text),
            "has the fingerprint '../../../out'",
        ),
        ("hypotheses.jsonl.gz", lambda data: data[:-12], "Compressed file ended before"),
        (
            "hypotheses.jsonl.gz",
            lambda data: gzip.compress(gzip.decompress(data).replace(b'"one", ', b"", 3)),
            "has 17 translations of the test set's 20 sentences",
        ),
        (
            "hypotheses.jsonl.gz",
            lambda data: gzip.compress(gzip.decompress(data).replace(b'"one"', b"1")),
            "has translations that are no text",
        ),
        ("hypotheses.jsonl.gz", lambda data: gzip.compress(b""), "has 0 translations of"),
        (
            "hypotheses.jsonl.gz",
            lambda data: data + gzip.compress(gzip.decompress(data).replace(b"one", b"two")),
            "s1 has translations twice, and not alike",
        ),
    ],
    ids=[
        "summary",
        "command",
        "none",
        "valid",
        "scores",
        "signature",
        "key",
        "sead",
        "twice",
        "named",
        "folder",
        "cut",
        "17",
        "numbers",
        "empty",
        "texts-twice",
    ],
)
def test_a_damaged_folder_of_trials_is_one_line_and_leaves_nothing(
    write_study: Callable[..., Path], tmp_path: Path, capsys, name: str, change, said: str
) -> None:
    pytest.importorskip("optuna")
    file = write_study()
    folder = _recorded(file, tmp_path / "recorded")
    words = ["study", "import", str(file), str(folder), "--output", str(tmp_path / "a" / "b")]
    path = folder / name
    if name.endswith(".gz"):
        path.write_bytes(change(path.read_bytes()))
    else:
        path.write_text(change(path.read_text(encoding="utf-8")), encoding="utf-8")
    assert main(words) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"multibranch study: {folder}") and said in line
    assert not [path for path in tmp_path.glob("**/*") if path.name in ("test.txt.gz", "out")]


def test_what_was_imported_is_json_for_programs(
    write_study: Callable[..., Path], tmp_path: Path, capsys
) -> None:
    pytest.importorskip("optuna")
    file = write_study()
    folder = _recorded(file, tmp_path / "recorded")
    words = ["study", "import", str(file), str(folder), "--output", str(tmp_path / "out"), "--json"]
    for taken in (1, 0):
        assert main(words) == 0
        found = json.loads(capsys.readouterr().out)
        assert found == {"study": "tiny", "taken": taken, "known": 1 - taken}


def test_the_commands_of_a_report_are_for_where_trials_were_imported_to(
    write_study: Callable[..., Path], tiny_data: Path, tmp_path: Path, capsys
) -> None:
    pytest.importorskip("optuna")
    file, out = write_study(), tmp_path / "the output"
    folder = _recorded(file, tmp_path / "recorded")
    place = ["--data", f"tiny={tiny_data}", "--output", str(out)]
    place += ["--storage", f"sqlite:///{tmp_path}/trials.db"]
    assert main(["study", "import", str(file), str(folder), *place]) == 0
    assert main(["study", "report", str(file), *place]) == 0
    assert "runs them again" not in capsys.readouterr().err
    command = ["multibranch", "study", "run", str(file)]
    text = (out / "tiny.md").read_text(encoding="utf-8")
    assert f"\n{shlex.join([*command, '--only', 'KEY', *place])}\n" in text
    changed = file.read_text(encoding="utf-8").replace("[1.0]", "[0.6]")
    file.write_text(changed, encoding="utf-8")
    assert main(["study", "report", str(file), *place]) == 0
    again = shlex.join([*command, *place])
    assert f" than the study has now: `{again}` runs them again\n" in capsys.readouterr().err


def test_an_import_says_how_far_it_is_and_scores_nothing_twice(
    write_study: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("optuna")
    file = write_study()
    bench = Bench(load_study(str(file)), tmp_path / "out")
    folder, url = _recorded(file, tmp_path / "recorded"), f"sqlite:///{tmp_path}/s.db"
    monkeypatch.setattr(reporting, "TELL_EVERY", 0.0)
    told: list[str] = []
    assert reporting.import_trials(bench, folder, url=url, tell=told.append) == (1, 0)
    assert told[0] == "0 of 1 trial taken in"
    monkeypatch.setattr(reporting, "scored", lambda *args: pytest.fail("scored again"))
    [lines] = (tmp_path / "out").glob("trials/*/test.txt.gz")
    lines.unlink()
    assert reporting.import_trials(bench, folder, url=url, tell=told.append) == (0, 1)
    assert lines.is_file()  # translations that were lost come back
    other = json.dumps({"key": lines.parent.name.rpartition("-")[0], "lines": ["two"] * 20})
    (folder / "hypotheses.jsonl.gz").write_bytes(gzip.compress(other.encode()))
    assert reporting.import_trials(bench, folder, url=url, tell=told.append) == (0, 1)
    assert read_lines(lines) == ["one"] * 20  # by which the trial was scored


def test_an_import_puts_nothing_where_another_process_runs_the_trial(
    write_study: Callable[..., Path], tmp_path: Path
) -> None:
    """Its translations would be replaced by that one's, and not be those that were scored."""
    pytest.importorskip("optuna")
    file = write_study()
    bench = Bench(load_study(str(file)), tmp_path / "out")
    folder, url = _recorded(file, tmp_path / "recorded"), f"sqlite:///{tmp_path}/s.db"
    [record], _ = reporting.read_trials(folder)
    target = tmp_path / "out" / "trials" / f"{record['key']}-{record['fingerprint']}"
    with (
        claimed(target),
        pytest.raises(UserError, match=r"another process runs this trial .* and import again"),
    ):
        reporting.import_trials(bench, folder, url=url, tell=print)
    assert not target.exists()
    assert reporting.import_trials(bench, folder, url=url, tell=print) == (1, 0)
    assert read_lines(target / HYPOTHESES) == ["one"] * 20


def test_another_run_of_a_trial_does_not_take_the_place_of_what_was_scored(
    write_study: Callable[..., Path], tmp_path: Path
) -> None:
    pytest.importorskip("optuna")
    file, out = write_study(), tmp_path / "out"
    folder, url = _recorded(file, tmp_path / "recorded"), f"sqlite:///{tmp_path}/s.db"

    def take(name: str, *, finished: str, words: str) -> tuple[tuple[int, int], list[str]]:
        """Import that run into the study of that name: how many were taken, and what was told."""
        study = load_study(str(file))
        study.name = name
        record = json.loads((folder / "trials.jsonl").read_text(encoding="utf-8"))
        record["finished"] = finished
        (folder / "trials.jsonl").write_text(json.dumps(record) + "\n", encoding="utf-8")
        line = json.dumps({"key": record["key"], "lines": [words] * 20})
        (folder / "hypotheses.jsonl.gz").write_bytes(gzip.compress(line.encode()))
        told: list[str] = []
        found = reporting.import_trials(Bench(study, out), folder, url=url, tell=told.append)
        return found, [line for line in told if "another run" in line]

    assert take("one", finished="in May", words="one") == ((1, 0), [])
    [lines] = out.glob("trials/*/test.txt.gz")
    # A study that shares the folder shares its trials: comparisons of both read these translations.
    found, told = take("two", finished="in June", words="two")
    assert found == (1, 0) and len(told) == 1
    assert told[0].endswith(f"{lines.parent} holds another run of it, which is taken in its place")
    assert read_lines(lines) == ["one"] * 20
    storage = open_storage(url)
    records = [Queue(storage, name, []).records().popitem()[1] for name in ("one", "two")]
    assert [record["finished"] for record in records] == ["in May", "in May"]
    assert records[0]["scores"] == records[1]["scores"]
    # Translations that were lost come back of the run that was scored, and of no other.
    lines.unlink()
    assert take("one", finished="in June", words="two") == ((0, 1), [])
    assert not lines.exists()
    assert take("one", finished="in May", words="one") == ((0, 1), [])
    assert read_lines(lines) == ["one"] * 20


@pytest.mark.parametrize("wrong", [["--workers", "0"], ["--minutes", "-1"], ["--seeds", "0"]])
def test_the_driver_refuses_a_number_that_means_nothing(
    write_study: Callable[..., Path], tmp_path: Path, monkeypatch, capsys, wrong: list[str]
) -> None:
    words = ["study_gpu.py", "x", str(tmp_path / "out"), "--study", str(write_study())]
    monkeypatch.setattr(sys, "argv", [*words, "--minutes", "1", *wrong])
    assert study_gpu.main() == 2
    assert capsys.readouterr().err.startswith(f"study_gpu: {wrong[0]} must be above 0, not ")
    assert not (tmp_path / "out").exists()


def test_a_time_that_is_up_at_once_leaves_all_to_be_done_as_the_status_says(
    write_study: Callable[..., Path], tiny_data: Path, tmp_path: Path
) -> None:
    words = [ROOT / "benchmarks" / "study_gpu.py", f"tiny={tiny_data}", "out", "--workers", "1"]
    words += ["--study", write_study()]
    done = subprocess.run(
        [sys.executable, *map(str, words), "--minutes", "0.002", "--device", "cpu"],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert (done.returncode, done.stderr) == (1, ""), done.stderr
    assert " trials done in " in done.stdout
    summary = json.loads((tmp_path / "out" / "summary.json").read_text(encoding="utf-8"))
    assert summary["done"] == 0 and summary["left"] and not summary["errors"]


def test_no_trial_is_begun_that_would_not_end_in_time(tmp_path: Path) -> None:
    study = load_study("multi30k-heads")
    bench = Bench(study=study, output=tmp_path)
    experiments = study.experiments(seeds=1)
    jobs = {e.key: study_gpu.Job(bench, e, True) for e in experiments}
    run = study_gpu.Run(jobs, tmp_path, deadline=study_gpu.time.monotonic() + 30)
    (first,) = run.next("")  # nothing is known yet
    run.states[first.experiment.key] = "done"
    run.seconds[study_gpu._kind(first.experiment)] = {1: [40.0, 10.0, 12.0]}
    (same,) = run.next(first.experiment.group)
    assert same.experiment.group == first.experiment.group
    run.seconds[study_gpu._kind(first.experiment)] = {1: [40.0, 41.0]}
    assert run.next(first.experiment.group) == []


def test_fewer_trials_that_are_trained_together_are_expected_to_take_less(
    write_study: Callable[..., Path], tiny_data: Path, tmp_path: Path
) -> None:
    study = load_study(str(write_study()))
    bench = Bench(study=study, output=tmp_path / "work", data={"tiny": str(tiny_data)})
    jobs = {
        one.key: study_gpu.Job(bench, one, False) for one in study.experiments(6) if not one.parent
    }
    run = study_gpu.Run(jobs, tmp_path, time.monotonic() + 90, together=4)
    worker = study_gpu.Worker(process=None, pipe=None, jobs=run.next(""))
    worker.began = time.monotonic() - 120
    for job in worker.jobs:
        bench.folder(job.experiment).mkdir(parents=True)
    run.take(worker, ("done", [{"key": job.experiment.key} for job in worker.jobs]))
    [by_size] = run.seconds.values()
    assert list(by_size) == [4] and by_size[4] == [pytest.approx(120, abs=5)]
    by_size[4] = [100.0, 120.0, 200.0]
    left = run.next("")
    assert len(left) == 2  # in half of the time that four took
    assert [run.expected(left[0], size) for size in (1, 2, 4, 8)] == [30, 60, 120, 240]
    by_size[2] = [95.0]
    assert run.expected(left[0], 2) == 95 and run.next("") == []
    run.companies.apart.add(left[0].experiment.key)  # by itself, it still would end
    by_size[1] = [40.0]
    assert run.next("") == left[:1]


@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="needs Linux's /proc")
def test_what_does_not_train_goes_on_when_the_time_is_up() -> None:
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=study_gpu.serve, args=(theirs, 1))
    process.start()
    while signal.SIGTERM not in _ignored(process.pid):
        time.sleep(0.01)
    process.terminate()  # as the first process does
    ours.send(None)  # a worker that heard it would not read this
    process.join(30)
    assert process.exitcode == 0


def _ignored(process: int | None) -> set[int]:
    """The signals that a process ignores."""
    status = Path(f"/proc/{process}/status").read_text(encoding="utf-8")
    mask = int(status.partition("SigIgn:")[2].split()[0], 16)
    return {number for number in range(1, 65) if mask >> (number - 1) & 1}


def test_a_short_second_stage_is_not_held_to_the_time_of_a_long_first_one(tmp_path: Path) -> None:
    study = load_study("ted-beyond")
    bench = Bench(study=study, output=tmp_path)
    jobs = {e.key: study_gpu.Job(bench, e, True) for e in study.experiments()}
    first = next(job for job in jobs.values() if job.experiment.start == "scratch")
    second = next(job for job in jobs.values() if job.experiment.start == "proximal")
    share = 900 * study.second_updates / study.updates
    run = study_gpu.Run(jobs, tmp_path, deadline=study_gpu.time.monotonic() + share + 60)
    run.states[first.experiment.key] = "done"
    run.seconds[study_gpu._kind(first.experiment)] = {1: [900.0]}
    assert run.expected(second) == share < 840
    (begun,) = run.next(first.experiment.group)
    assert begun.experiment.second_stage


def test_what_a_record_has_is_left_out_unless_something_starts_from_it(tmp_path: Path) -> None:
    study = load_study("ted-paper")
    bench = Bench(study=study, output=tmp_path)
    jobs = {e.key: study_gpu.Job(bench, e, True) for e in study.experiments(seeds=1)}
    known = tmp_path / "study.json"

    def write(experiments: list) -> None:
        trials = [{"key": e.key, "fingerprint": bench.fingerprint(e)} for e in experiments]
        known.write_text(json.dumps({"trials": trials}), encoding="utf-8")

    def left() -> list[str]:
        found = study_gpu.left_to_run(jobs, study_gpu.known_trials([known]))
        return [f"{job.experiment.start} {job.experiment.drop_branch}" for job in found.values()]

    experiments = [job.experiment for job in jobs.values()]
    proximal = [e for e in experiments if e.start == "proximal"]
    write([e for e in experiments if e not in proximal[1:2]])
    assert left() == ["scratch 0.0", f"proximal {proximal[1].drop_branch}"]
    write([e for e in experiments if e.start != "scratch" or e.branches > 1])
    assert left() == ["scratch 0.0"]
    write(experiments)
    assert left() == []
    study.second_updates = 5  # other settings: another trial
    other = Bench(study=study, output=tmp_path)
    jobs.update({e.key: study_gpu.Job(other, e, True) for e in proximal})
    assert len(left()) == 1 + len(proximal)
    known.write_text("[]", encoding="utf-8")
    with pytest.raises(UserError, match=r"study\.json is no record of a study"):
        left()
    known.write_text('{"trials": 3}', encoding="utf-8")  # as a search's record
    with pytest.raises(UserError, match="is no record of a study: its trials are no list"):
        left()
    known.write_text("{}", encoding="utf-8")
    with pytest.raises(UserError, match="is no record of a study: it has no 'trials'"):
        left()
    known.unlink()
    with pytest.raises(UserError, match="is no record of a study: No such file or directory"):
        left()


def test_how_much_a_record_leaves_out_is_told(
    write_study: Callable[..., Path],
    tiny_data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A record of other data or settings leaves out nothing: known before the hours are spent."""
    monkeypatch.setattr(study_gpu, "work", lambda run, *_: None)
    file, known = write_study(), tmp_path / "study.json"
    study = load_study(str(file))
    bench = Bench(study=study, output=tmp_path, data={"tiny": tiny_data})
    experiments = study.experiments(1)
    words = [f"tiny={tiny_data}", tmp_path / "out", "--study", file, "--minutes", 1, "--seeds", 1]
    words += ["--known", known, "--work", tmp_path / "work"]
    monkeypatch.setattr("sys.argv", ["study_gpu.py", *map(str, words)])
    for kept in (len(experiments), 0):
        trials = [{"key": e.key, "fingerprint": bench.fingerprint(e)} for e in experiments[:kept]]
        known.write_text(json.dumps({"trials": trials}), encoding="utf-8")
        assert study_gpu.main() == (0 if kept else 1)  # nothing was done: an error if there was any
        told = f"--known leaves out {kept} of {len(experiments)} trials\n"
        assert capsys.readouterr().out.startswith(told)


def test_the_results_page_is_what_the_records_give() -> None:
    written = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    assert written == results_page.page(), "run: python benchmarks/results_page.py"
    for path in (ROOT / "benchmarks" / "results").glob("*.json"):
        assert f"(../benchmarks/results/{path.name})" in written


def test_a_record_of_before_a_block_was_one_call_says_so_until_it_is_made_again() -> None:
    results = ROOT / "benchmarks" / "results"
    shown = results_page.page()
    for stem in results_speed.ONE_CALL_AN_OPERATION:
        path = results / f"{stem}.json"
        section = shown.split(f"### {stem}\n")[1].split("\n### ")[0]
        assert "**Taken before our int8 stepped through a whole decoder block" in section
        content = json.loads(path.read_text(encoding="utf-8"))
        section_of = results_speed.exported if stem.startswith("export") else results_speed.decoding
        again = "\n".join(section_of(path, {**content, "int8_step": "one call a block"}))
        assert "Our int8 steps with one call a block." in again and "Taken before" not in again
    assert shown.count("Taken before our int8") == len(results_speed.ONE_CALL_AN_OPERATION)


def test_the_main_study_of_a_corpus_stands_before_what_builds_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["ted-beyond", "ted-de-en", "ted-paper", "builtin", "multi30k-ffn", "multi30k-small"]
    for name in names:
        (tmp_path / f"study-{name}-h200.json").write_text("{}", encoding="utf-8")
    sections = [
        (head, start, lambda path, content: [path.stem]) for head, start, _ in results_page.SECTIONS
    ]
    monkeypatch.setattr(results_page, "SECTIONS", sections)
    monkeypatch.setattr(results_page, "claims", lambda folder: "")
    shown = [line for line in results_page.page(tmp_path).splitlines() if line.startswith("study-")]
    order = ["ted-paper", "ted-de-en", "ted-beyond", "multi30k-small", "multi30k-ffn", "builtin"]
    assert shown == [f"study-{name}-h200" for name in order]


@pytest.mark.parametrize(
    ("asked", "told"), [(8, "5 trials of the 8 asked for, 2 of"), (5, "5 trials, 2")]
)
def test_a_search_that_was_stopped_is_shown_as_such(asked: int, told: str) -> None:
    one = {"trial": 0, "validation_loss": 1.5, "branches": "1 2", "drop_branch": "0.00 0.10"}
    one |= {"drop_ffn": "0.00 0.00", "ffn_branches": "1 1", "drop_kind": "head", "parameters": 9}
    one["seconds"] = 12.0
    content = {"title": "Search", "claims": "", "asked": asked, "trials": 5, "pruned": 2}
    content |= {"best": [one], "own": None, "started_from": None, "space": {"branches": [1, 2]}}
    content |= {"model": "x.s3", "seed": 3, "updates": 1000, "minutes": None, "seconds": 60.0}
    [_, _, text] = results_page.searched(Path("search-x.json"), content)
    assert told in text
    assert "`x.s3`. All started from scratch, for at most 1,000 updates each." in text


def test_a_claim_is_told_seed_by_seed() -> None:
    line = claims.Finding("c", "1 → 2", "w", [30.0, 31.0], [31.0, 30.5], (2, 1)).row()
    assert line == ["c", "1 → 2", "w", "30.50 ± 0.71", "30.75 ± 0.35", "+0.25", "1 of 2", "1 of 2"]


def test_code_and_encoders_are_compared_seed_by_seed_whatever_the_order_of_a_record(
    tmp_path: Path,
) -> None:
    def run(name: str, seed: int, value: float) -> dict:
        scores = {"sentence_bleu": value, "pov": 10 * value}
        gain = {score: {"interval": [1.0, 2.0] if seed == 2 else [-1.0, 2.0]} for score in scores}
        told = {"run": f"{name}-seed{seed}", "name": name, "seed": seed, "paper": ["1", "2"]}
        return {**told, "scores": scores, "against_baseline": gain}

    # By their order, the first pair would be of the seeds 2 and 1.
    runs = [run("baseline", 2, 8.0), run("baseline", 3, 5.0), run("mat-0.1", 1, 9.0)]
    runs += [run("mat-0.1", 3, 4.5), run("mat-0.1", 2, 8.25), run("mat-0.0", 4, 1.0)]
    content = {"language": "java", "runs": runs}
    (tmp_path / "code-java.json").write_text(json.dumps(content), encoding="utf-8")
    values = {"plain": {100: 99.0, 3: 70.0, 1: 80.0}, "mat-0.3": {1: 81.0, 2: 60.0, 3: 71.0}}
    rows = [
        {"task": "rte", "system": system, "seed": seed, "best": {"accuracy": value}}
        for system, each in values.items()
        for seed, value in each.items()
    ]
    content = {"summary": {"rte": {"plain": {}, "mat-0.3": {}}}, "runs": rows}
    (tmp_path / "understanding-1.json").write_text(json.dumps(content), encoding="utf-8")
    lines = claims.claims(tmp_path).splitlines()
    told = [line for line in lines if "Java" in line or "RTE" in line]
    assert [" | ".join(line.strip("| ").split(" | ")[-6:]) for line in told] == [
        "Java, sentence BLEU | 6.50 ± 2.12 | 6.38 ± 2.65 | −0.12 | 1 of 2 | 1 of 2",
        "Java, valid (PoV) | 65.00 ± 21.21 | 63.75 ± 26.52 | −1.25 | 1 of 2 | 1 of 2",
        "RTE, accuracy | 75.00 ± 7.07 | 76.00 ± 7.07 | +1.00 | 2 of 2 | –",
    ]  # and nothing on ρ=0, which has no seed in common with the other


def test_claims_are_the_records_and_shared_trials_count_once(tmp_path: Path) -> None:
    names = ["study-ted-paper-h200.json", "study-ted-de-en-h200.json", "study-ted-beyond-h200.json"]
    for name in names:
        shutil.copy(ROOT / "benchmarks" / "results" / name, tmp_path)
    lines = claims.claims(tmp_path).splitlines()
    found = [line for line in lines if "TED De→En" in line]
    by_claim = [sum(line.startswith(f"| {claim} |") for line in found) for claim in claims.CLAIMS]
    assert by_claim[:4] == [1, 1, 1, 1]  # said once
    assert len(found) == 6  # two claims of two studies, two of one; the last adds no trials
    record = json.loads((tmp_path / names[0]).read_text(encoding="utf-8"))
    scores = {t["key"]: t["scores"]["multi_bleu"]["value"] for t in record["trials"]}
    seeds = [1, 2, 3]
    shape = "256-2048.m4.l6+6"
    first = [scores[f"de-en.scratch.1-{shape}.r0.s{seed}"] for seed in seeds]
    second = [scores[f"de-en.proximal.3-{shape}.r0.3.s{seed}"] for seed in seeds]
    told = next(line for line in found if claims.FROM_TRANSFORMER in line)
    assert f"| 34.66 → 36.22 | {record['title'].split(':')[0]} |" in told
    assert f"| {sum(first) / 3:.2f} ± " in told and f"| {sum(second) / 3:.2f} ± " in told
    assert told.endswith("| 3 of 3 | 3 of 3 |")


def test_code_is_told_by_both_scores_of_the_paper(tmp_path: Path) -> None:
    path = ROOT / "benchmarks" / "results" / "code-java-h200.json"
    shutil.copy(path, tmp_path)
    found = [line for line in claims.claims(tmp_path).splitlines() if "| Java, " in line]
    assert [line.split(" | ")[2] for line in found] == 2 * [
        "Java, sentence BLEU",
        "Java, valid (PoV)",
    ]
    told = next(line for line in found if "| 83.1 → 88.9 |" in line)
    assert told.endswith("| 0 of 1 | 0 of 1 |")  # the baseline's is the highest


def test_records_hold_no_sentences() -> None:
    for path in (ROOT / "benchmarks" / "results").glob("study-*.json"):
        for trial in json.loads(path.read_text(encoding="utf-8"))["trials"]:
            assert not {"lines", "hypotheses", "outputs"} & set(trial)
            assert trial["scores"] and trial["command"] and trial["wall_seconds"]


def test_a_lower_cased_corpus_is_scored_as_evaluate_scores_it(
    tiny_data: Path, tmp_path: Path
) -> None:
    from multibranch.data import PreparedData
    from multibranch.study.comparing import Comparisons
    from multibranch.study.scoring import scores_of
    from multibranch.study.trial_folder import write_lines

    shutil.copytree(tiny_data, tmp_path / "lower")
    settings = json.loads((tmp_path / "lower" / "text.json").read_text(encoding="utf-8"))
    (tmp_path / "lower" / "text.json").write_text(json.dumps({**settings, "lowercase": True}))
    data = PreparedData.open(tmp_path / "lower")
    perfect = [data.text.tokenise(line, "target") for line in data.lines("test", "target")]
    assert any(line != line.lower() for line in data.lines("test", "target"))
    for name, score in scores_of(perfect, data, task="translation").items():
        assert score["value"] == pytest.approx(100), name
        assert "case:lc" in score["signature"], name
    lines = {"one": perfect, "two": [*perfect[:-1], "something else"]}
    for key, translations in lines.items():
        write_lines(tmp_path / key, translations)
    files = {key: tmp_path / key for key in lines}
    comparisons = Comparisons({"lower": perfect}, lowercase={"lower"})
    tested = comparisons.compare("two", "one", "lower", files)
    assert tested["difference"] < 0
    assert tested["signature"].startswith("nrefs:1|bs:1000|seed:12345|case:lc|eff:no|tok:none|")
