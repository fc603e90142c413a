"""A database that is away for a moment, as while its server is started again."""

import logging
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from multibranch.cli import main
from multibranch.errors import UserError
from multibranch.study import worker
from multibranch.study.bench import Bench
from multibranch.study.experiment import Experiment
from multibranch.study.plan import choose, load_study
from multibranch.study.storage import Queue, answering, open_storage
from multibranch.study.worker import Work, run_workers

pytest.importorskip("optuna")
BASE = Experiment(corpus="c", seed=1)
RECORD = {"key": BASE.key, "valid_bleu": {"1": 30.5}}
BASELINE = "tiny.scratch.1-16-16.m4.l1+1.r0.s1"


@pytest.fixture
def server(postgresql: Any) -> Iterator[Any]:
    """A server that each test finds running, with no study."""
    yield postgresql
    if not (postgresql.place / "data" / "postmaster.pid").exists():
        postgresql.start()
    import optuna

    storage = open_storage(postgresql.url)
    for name in optuna.get_all_study_names(storage):
        optuna.delete_study(study_name=name, storage=storage)


def queue(url: str, tell: Callable[[str], None], *, patience: float = 60.0) -> Queue:
    made = Queue(open_storage(url, patience=patience, tell=tell), "s", [BASE])
    made.fill()
    return made


def cut_off(mine: Queue, server: Any, words: str) -> None:
    """Have the server end the connection as it is asked the first statement with these words."""
    import psycopg
    import sqlalchemy

    left = [words]

    def end(connection: Any, cursor: Any, statement: str, *rest: Any) -> None:
        if left and left[0] in statement:
            left.clear()
            process = connection.connection.dbapi_connection.info.backend_pid
            with psycopg.connect(server.url) as other:
                other.execute("SELECT pg_terminate_backend(%s, 10000)", [process])

    sqlalchemy.event.listen(mine.storage.engine, "before_cursor_execute", end)


@pytest.mark.parametrize(
    "words",
    ["SELECT studies", "SELECT trials", "SELECT trial_user_attributes", "UPDATE trials"],
)
def test_what_is_cut_off_in_the_middle_is_done_again(
    server: Any, words: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Optuna itself goes on after some of these, over the connection that was lost, and warns."""
    told: list[str] = []
    mine = queue(server.url, told.append)
    monkeypatch.setattr(logging.getLogger("optuna"), "propagate", True)
    cut_off(mine, server, words)
    trial = mine.take(BASE)
    assert trial is not None
    assert mine.done(trial, RECORD)
    assert mine.records() == {BASE.key: RECORD}
    [line] = told
    assert line.startswith("the storage does not answer (")
    assert line.endswith("): trying again for 60 seconds")
    assert caplog.text == ""


def test_a_worker_waits_for_a_database_that_is_away_when_its_trial_ends(
    server: Any, write_study: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(*args: Any, **options: Any) -> list[dict[str, Any]]:
        found = run_trials(*args, **options)
        server.stop()
        return found

    def tell(line: str) -> None:
        lines.append(line)
        if "does not answer" in line:
            threading.Timer(1, server.start).start()

    run_trials, lines = worker.run_trials, []
    monkeypatch.setattr(worker, "run_trials", run)
    bench = Bench(load_study(str(write_study())), tmp_path / "out", device="cpu")
    experiments = choose(bench.study.experiments(), [BASELINE])
    job = Work(bench, experiments, server.url, lease=240)
    assert run_workers(job, 1, tell=tell) == {"done": 1}
    assert [line.partition(" (")[0] for line in lines if "answer" in line] == [
        "the storage does not answer"
    ]


def test_patience_ends_and_what_begins_without_a_database_says_so_in_one_line(
    server: Any, write_study: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    told: list[str] = []
    mine = queue(server.url, told.append, patience=0.5)
    trial = mine.take(BASE)
    assert trial is not None
    server.stop()
    said = r"^--storage postgresql://\S+ failed: .* goes on$"
    with pytest.raises(UserError, match=said), answering(server.url):
        mine.done(trial, RECORD)
    assert len(told) == 1
    for what in ("run", "report", "search"):
        words = [what, str(write_study()), "--output", str(tmp_path), "--storage", server.url]
        assert main(["study", *words]) == 2
        err = capsys.readouterr().err
        assert err.startswith(f"multibranch study: --storage {server.url} cannot be opened: ")
        assert err.count("\n") == 1


def test_a_file_whose_disk_is_full_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(connection: Any) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    told: list[str] = []
    mine = queue(url := f"sqlite:///{tmp_path}/study.db", told.append)
    monkeypatch.setattr(mine.storage.engine.dialect, "do_commit", full)
    with pytest.raises(UserError, match=r"failed: .* disk is full; what"), answering(url):
        mine.take(BASE)
    assert told == []
