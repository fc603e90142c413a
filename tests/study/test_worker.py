"""Workers in processes of their own, on SQLite and on a real PostgreSQL."""

import errno
import json
import multiprocessing
import os
import re
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable
from multiprocessing.context import SpawnProcess
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import pytest

from multibranch.cli import main
from multibranch.cli.study import _tell
from multibranch.errors import STOPS
from multibranch.study.bench import Bench
from multibranch.study.leases import POLL
from multibranch.study.plan import choose, load_study
from multibranch.study.storage import Queue, open_storage
from multibranch.study.trial import run_trial
from multibranch.study.trial_folder import claimed
from multibranch.study.worker import Work, _stop, run_workers
from multibranch.training import Trainer

pytest.importorskip("optuna")
Start = Callable[..., subprocess.Popen]
BASELINE = "tiny.scratch.1-16-16.m4.l1+1.r0.s1"


def finish(*processes: subprocess.Popen, status: int = 0) -> list[str]:
    """Wait for all; what they said on standard error."""
    said = []
    for process in processes:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == status, errors
        said.append(errors)
    return said


def trials_of(url: str, study: Path) -> list[Any]:
    queue = Queue(open_storage(url), study.stem, [])
    return queue.storage.get_all_trials(queue.study_id)


def check_shared(url: str, file: Path, *, only: str = "") -> None:
    """Two workers took part, and everything was done once, the shared stage among it."""
    experiments = choose(load_study(str(file)).experiments(), [only] if only else [])
    every = trials_of(url, file)
    # Of two commands that start at once both may add a trial; the second one is struck out again.
    assert {trial.state.name for trial in every} <= {"COMPLETE", "FAIL"}
    trials = [trial for trial in every if trial.state.name == "COMPLETE"]
    done = Counter(trial.user_attrs["key"] for trial in trials)
    assert done == Counter(experiment.key for experiment in experiments)
    assert done[BASELINE] == 1
    assert len({trial.user_attrs["lease"]["worker"] for trial in trials}) == 2


def begun(said: str) -> list[str]:
    """The keys of the trials that a command says it began."""
    return re.findall(r"^\S+ (tiny\.\S+): (?:Transformer|MAT)", said, flags=re.MULTILINE)


def study(*words: str | Path) -> int:
    """`multibranch study …` in this process."""
    return main(["study", *map(str, words)])


def test_two_commands_share_the_trials_of_one_study(
    write_study: Callable[..., Path],
    study_command: Start,
    tmp_path: Path,
    capsys: pytest.CaptureFixture,
) -> None:
    file, out = write_study(), tmp_path / "out"
    place = ("--output", out, "--storage", f"sqlite:///{tmp_path}/trials.db")
    words = ("run", file, *place, "--device", "cpu")
    said = finish(study_command(*words), study_command(*words))
    check_shared(f"sqlite:///{tmp_path}/trials.db", file)
    keys = [experiment.key for experiment in load_study(str(file)).experiments()]
    assert sorted(begun(said[0]) + begun(said[1])) == sorted(keys)
    assert "; 6 of 6 done\n" in said[0] + said[1]
    assert ": multi_bleu " in said[0] + said[1]  # as the tables have it
    # Done once, it is not done again; and the report has every cell with its command.
    assert study(*words) == 0
    assert capsys.readouterr().err == ""
    assert study("report", file, *place, "--record", out / "record.json") == 0
    recorded = json.loads((out / "record.json").read_text(encoding="utf-8"))
    assert len(recorded["trials"]) == 6
    pair = f"{BASELINE.replace('scratch', 'continued')} > {BASELINE}"
    assert pair in recorded["comparisons"]
    page = (out / "tiny.html").read_text(encoding="utf-8")
    for trial in recorded["trials"]:
        assert trial["scores"]["multi_bleu"]["signature"].startswith("multi-bleu|")
        as_run = f"--only {trial['key']} {' '.join(map(str, place))} --device cpu"
        assert trial["command"].endswith(as_run)
        assert trial["command"].replace(trial["key"], "KEY") in page
        assert f"<code>{trial['cell']}</code>" in page
    assert "<svg" in page and "http" not in page.replace("http://www.w3.org/", "")


@pytest.mark.parametrize("workers", [1, 2])
def test_how_a_trial_goes_is_told_while_it_is_run(
    workers: int,
    write_study: Callable[..., Path],
    tmp_path: Path,
    capfd: pytest.CaptureFixture,
) -> None:
    bench = Bench(load_study(str(write_study())), tmp_path / "out", device="cpu")
    experiments = choose(bench.study.experiments(), [BASELINE])
    url = f"sqlite:///{tmp_path}/study.db"
    job = Work(bench, experiments, url, threads=1, tell_every=0.0)
    assert run_workers(job, workers, tell=_tell) == {"done": 1}
    told = re.findall(
        rf"^\S+ {re.escape(BASELINE)}: (update .*, validation loss(?= \d\.\d{{4}}$)|translating$)",
        capfd.readouterr().err,
        flags=re.MULTILINE,
    )
    validations = [f"update {update} of 6, validation loss" for update in (5, 6)]
    assert told == [*validations, "translating"]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_run_ends_when_its_time_is_up_and_gives_back_what_it_was_at(
    workers: int,
    write_study: Callable[..., Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture,
) -> None:
    file, out = write_study(updates=100_000, every=50_000), tmp_path / "out"
    words = ("run", file, "--device", "cpu", "--output", out, "--workers", workers)
    for minutes in (0.05 * workers**2, 1, 2):  # until it is time enough to begin on a busy machine
        assert study(*words, "--minutes", minutes, "--json") == 1
        captured = capsys.readouterr()
        states = {"study": "tiny", "experiments": 6, "done": 0, "waiting": 6}
        assert json.loads(captured.out) == states
        assert " the time is up\n" in captured.err
        assert captured.err.endswith(" 6 experiments left to run: the same command goes on\n")
        if list(out.glob("trials/*/resume/update-*")):
            break
    assert list(out.glob("trials/tiny.scratch*/resume/update-*"))  # where it goes on


def test_nothing_is_begun_after_the_time_though_a_training_passed_over_its_end(
    write_study: Callable[..., Path],
    pass_the_end: Callable[[], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def late(*args: Any, **options: Any) -> dict:
        pass_the_end()
        return run_trial(*args, **options)

    monkeypatch.setattr("multibranch.study.trial.run_trial", late)
    bench = Bench(load_study(str(write_study())), tmp_path / "out", device="cpu")
    job = Work(bench, bench.study.experiments(), f"sqlite:///{tmp_path}/study.db", threads=1)
    told: list[str] = []
    assert run_workers(job, 1, tell=told.append, minutes=60) == {"done": 1, "waiting": 5}
    assert told[-1] == "the time is up"


def test_a_killed_workers_trial_goes_on_where_it_was_saved(
    write_study: Callable[..., Path],
    study_command: Start,
    tmp_path: Path,
    capsys: pytest.CaptureFixture,
) -> None:
    file, out = write_study(updates=150, every=100), tmp_path / "out"
    words = ("run", file, "--device", "cpu", "--only", BASELINE, "--output")
    first = study_command(*words, out)
    deadline = time.monotonic() + 60
    while not list(out.glob("trials/*/resume/update-*")):
        assert time.monotonic() < deadline and first.poll() is None
        time.sleep(0.05)
    first.send_signal(signal.SIGKILL)
    first.wait()
    folder = next(out.glob("trials/tiny*.s1-*"))
    log = folder / "metrics.jsonl"
    before = log.read_text(encoding="utf-8").splitlines()[0]
    assert not (folder / "trial.json").exists()
    assert study(*words, out) == 0
    said = capsys.readouterr().err
    assert f"{BASELINE}: its worker is gone; taking it up again" in said
    trials = trials_of(f"sqlite:///{out}/study.db", file)
    assert [trial.state.name for trial in trials] == ["FAIL", "COMPLETE"]
    assert trials[1].user_attrs["retry_of"] == 0
    # The first update's record, with its own time, is still the killed worker's.
    assert log.read_text(encoding="utf-8").splitlines()[0] == before
    assert json.loads((folder / "trial.json").read_text(encoding="utf-8"))["updates"] == 150


def test_a_trial_that_another_process_is_at_is_looked_for_again_without_filling_the_storage(
    write_study: Callable[..., Path], tmp_path: Path
) -> None:
    """As where two studies of one output folder have an experiment in common."""
    bench = Bench(load_study(str(write_study())), tmp_path / "out", device="cpu")
    experiments = choose(bench.study.experiments(), [BASELINE])
    url, lines = f"sqlite:///{tmp_path}/study.db", []
    held, waiting = threading.Event(), threading.Event()

    def hold() -> None:
        with claimed(bench.folder(experiments[0])):
            held.set()
            waiting.wait(60)
            time.sleep(3 * POLL)  # it looks again meanwhile

    def tell(line: str) -> None:
        lines.append(line)
        if line.endswith("waiting for that one"):
            waiting.set()

    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(60)
    assert run_workers(Work(bench, experiments, url), 1, tell=tell) == {"done": 1}
    holder.join()
    assert lines.count(f"{BASELINE}: another process is at it; waiting for that one") == 1
    states = [trial.state.name for trial in trials_of(url, Path("tiny"))]
    assert states == ["FAIL", "COMPLETE"]


def models_in(out: Path) -> set[str]:
    """How those trials started whose models are kept."""
    return {path.parent.name.split(".")[1] for path in out.glob("trials/*/model.safetensors")}


def test_models_that_the_rest_of_the_study_starts_from_are_not_discarded(
    write_study: Callable[..., Path], tmp_path: Path
) -> None:
    file, out = write_study(), tmp_path / "out"
    words = ("run", file, "--output", out, "--device", "cpu", "--discard-models")
    assert study(*words, "--only", "proximal") == 0
    assert models_in(out) == {"scratch", "proximal"}  # some of the latter are yet to be pruned
    assert study(*words) == 0
    assert models_in(out) == {"scratch", "proximal"}
    records = Queue(open_storage(f"sqlite:///{out}/study.db"), "tiny", []).records()
    assert sorted(key.split(".")[1] for key in records) == [
        "continued", "proximal", "proximal", "pruned", "pruned", "scratch"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("by", "workers"), [(signal.SIGINT, "1"), (signal.SIGTERM, "1"), (signal.SIGTERM, "2")]
)
def test_ctrl_c_and_sigterm_give_the_trials_back_and_the_status_tells_them_apart(
    by: signal.Signals,
    workers: str,
    write_study: Callable[..., Path],
    study_command: Start,
    tmp_path: Path,
) -> None:
    file = write_study(updates=100000, every=1000)
    out = tmp_path / "out"
    keys = (BASELINE, BASELINE.replace("s1", "s2"))[: int(workers)]
    words = ("run", file, "--device", "cpu", "--output", out, "--workers", workers)
    process = study_command(*words, "--seeds", workers, "--only", *keys)
    deadline = time.monotonic() + 60
    while len(list(out.glob("trials/*/metrics.jsonl"))) < len(keys):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(by)
    (said,) = finish(process, status=128 + by)
    told = " stopped: the same command goes on\nmultibranch study: interrupted\n"
    assert said.endswith(told)
    assert ("stopping: what is at work is saved" in said) == (workers == "2")
    trials = trials_of(f"sqlite:///{out}/study.db", file)
    states = sorted(trial.state.name for trial in trials)
    assert states == ["FAIL"] * len(keys) + ["WAITING"] * len(keys)


def test_a_signal_at_the_end_of_a_training_ends_the_study_too(
    write_study: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(trainer: Trainer) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        finish(trainer)

    finish, out = Trainer._finish, tmp_path / "out"
    keys = (BASELINE, BASELINE.replace("s1", "s2"))
    words = ("run", write_study(), "--device", "cpu", "--output", out, "--seeds", 2, "--only")
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_finish", interrupted)
        assert study(*words, *keys) == 143
    (ended,) = out.glob("trials/*/config.json")
    assert ended.parent.name.startswith(BASELINE)
    assert study(*words, *keys) == 0
    assert len(list(out.glob("trials/*/config.json"))) == 2


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="children are read from /proc")
@pytest.mark.parametrize("begun", [False, True], ids=["importing", "training"])
def test_ctrl_c_at_a_terminal_reaches_workers_too_and_is_no_traceback_of_theirs(
    begun: bool, write_study: Callable[..., Path], study_command: Start, tmp_path: Path
) -> None:
    file, out = write_study(updates=100000, every=1000), tmp_path / "out"
    words = ("run", file, "--device", "cpu", "--output", out, "--workers", "2", "--seeds", "2")
    process = study_command(*words, "--only", BASELINE, BASELINE.replace("s1", "s2"))
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    deadline = time.monotonic() + 60
    while (
        len(list(out.glob("trials/*/metrics.jsonl"))) < 2
        if begun
        else len(children.read_text().split()) < 3  # with what tracks the resources of all
    ):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(1)
    for one in map(int, children.read_text().split()):
        os.kill(one, signal.SIGINT)
    time.sleep(1)  # however late the command itself hears of it
    process.send_signal(signal.SIGINT)
    (said,) = finish(process, status=130)
    lines = [line.partition(" ")[2] for line in said.splitlines() if "tiny." not in line]
    told = [
        "stopping: what is at work is saved and given back",
        "stopped: the same command goes on",
    ]
    assert lines == [*told, "study: interrupted"]
    states = Counter(trial.state.name for trial in trials_of(f"sqlite:///{out}/study.db", file))
    given_back = states.pop("FAIL", 0)  # a quick worker may have begun before the command heard
    assert states == {"WAITING": 2}
    assert given_back == 2 if begun else given_back <= 2


@pytest.mark.parametrize("number", STOPS)
def test_an_interrupt_while_workers_begin_leaves_none_of_them_at_work(
    number: int, write_study: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(process: SpawnProcess) -> None:
        start(process)
        if len(multiprocessing.active_children()) == 1:
            os.kill(os.getpid(), number)

    start = SpawnProcess.start
    monkeypatch.setattr(SpawnProcess, "start", interrupted)
    words = ("run", write_study(), "--device", "cpu", "--output", tmp_path / "out")
    try:
        assert study(*words, "--workers", 2) == 128 + number
        assert multiprocessing.active_children() == []
    finally:
        for process in multiprocessing.active_children():
            process.kill()


def test_whoever_insists_is_heard_however_often_a_worker_passes_over_it() -> None:
    def work(begun: Event) -> None:
        """Until SIGTERM came four times; after each but the last somebody insists."""
        heard = []

        def insist(number: int, frame: object) -> None:
            heard.append(number)
            if len(heard) < 4:
                os.kill(os.getppid(), signal.SIGINT)

        signal.signal(signal.SIGTERM, insist)
        begun.set()
        while len(heard) < 4:
            time.sleep(0.01)

    context = multiprocessing.get_context("fork")
    begun = context.Event()
    process = context.Process(target=work, args=(begun,))
    process.start()
    try:
        assert begun.wait(60)
        _stop([process])
        assert process.exitcode == 0
    finally:
        process.kill()


def test_workers_that_were_killed_are_no_success(
    write_study: Callable[..., Path], study_command: Start, tmp_path: Path
) -> None:
    file, out = write_study(updates=100000, every=1000), tmp_path / "out"
    words = ("run", file, "--device", "cpu", "--workers", "2", "--output", out, "--json")
    process = study_command(*words)
    deadline = time.monotonic() + 60
    while not list(out.glob("trials/*/metrics.jsonl")):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.05)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    for child in children:
        if "spawn_main" in Path(f"/proc/{child}/cmdline").read_text():
            os.kill(int(child), signal.SIGKILL)
    output, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "2 of 2 workers ended early\n" in said
    assert "6 experiments left to run: the same command goes on\n" in said
    assert json.loads(output)["done"] == 0


def test_a_failure_of_what_was_not_asked_for_is_none_of_this_command(
    write_study: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    file, out = write_study(), tmp_path / "out"
    experiments = load_study(str(file)).experiments()
    queue = Queue(open_storage(f"sqlite:///{out}/study.db"), "tiny", experiments)
    queue.fill()
    other = next(e for e in experiments if e.start == "proximal")
    trial = queue.take(other)
    assert trial is not None
    queue.failed(trial, "it broke")
    words = ("run", file, "--output", out, "--device", "cpu", "--only", BASELINE, "--retry-failed")
    assert study(*words) == 0
    assert "it broke" not in capsys.readouterr().err
    assert queue.errors() == {other.key: "it broke"}


def test_a_full_disk_is_no_failure_of_a_trial_and_the_same_command_goes_on(
    write_study: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    def full(path: Path, value: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    file, out = write_study(), tmp_path / "out"
    words = ("run", file, "--output", out, "--device", "cpu", "--only", "scratch", "--seeds", 2)
    with monkeypatch.context() as patch:
        patch.setattr("multibranch.study.trial.write_json", full)
        assert study(*words) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 3  # the first trial begins, translates, and no other is tried
    assert said[-1].startswith(
        f"multibranch study: the disk is full (No space left on device): {out}/trials/{BASELINE}"
    )
    assert said[-1].endswith(": make room, and start the same command again")
    assert study(*words) == 0


def test_what_failed_and_what_starts_from_it_go_on_as_is_said(
    write_study: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    def broken(*args: Any, **options: Any) -> list[dict[str, Any]]:
        raise RuntimeError("it broke")

    again = "with that put right, the same command goes on with --retry-failed\n"
    words = ("run", write_study(), "--output", tmp_path / "out", "--device", "cpu", "--only")
    with monkeypatch.context() as patch:
        patch.setattr("multibranch.study.worker.run_trials", broken)
        for key, left in ((BASELINE, ""), ("continued", "1 experiment left to run: ")):
            assert study(*words, key) == 1
            said = capsys.readouterr().err
            assert f" {BASELINE} failed: RuntimeError: it broke\n" in said
            assert said.endswith(f" {left}{again}")
    assert study(*words, "continued", "--retry-failed") == 0


# -- PostgreSQL -----------------------------------------------------------------------------------


def test_two_workers_of_one_command_share_a_postgresql(
    postgresql: Any, write_study: Callable[..., Path], tmp_path: Path
) -> None:
    file, out = write_study(), tmp_path / "out"
    words = ("run", file, "--output", out, "--device", "cpu", "--storage", postgresql.url)
    assert study(*words, "--only", "proximal", "--workers", "2", "--discard-models") == 0
    check_shared(postgresql.url, file, only="proximal")
    assert not list(out.glob("*.db"))
    assert models_in(out) == {"scratch", "proximal"}
