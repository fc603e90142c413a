"""A study so small that a trial takes a second, and the corpus for it."""

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from multibranch.data.builtin import builtin
from multibranch.training.signals import Interruption

ROOT = Path(__file__).resolve().parents[2]

TINY = """
title: Tiny
config: {root}/configs/builtin.yaml
corpora: [{{name: tiny, folder: {data}}}]
seeds: 1
updates: {updates}
second_updates: 20
length_penalties: [1.0]
settings:
  train.tokens: 128
  train.warmup: 4
  train.learning_rate: 1e-2
  train.validate_every: {every}
  train.log_every: 1
  train.checkpoint_minutes: 0.005
  train.patience: null
  train.threads: 1
  decode.beam: 1
grids:
  - {{starts: [scratch], branches: [1], shapes: [16/16], encoder_layers: 1, decoder_layers: 1}}
  - {{starts: [proximal], branches: [2], shapes: [16/16], encoder_layers: 1, decoder_layers: 1,
     drop_branch: [0.1, 0.3], keep: [1]}}
{search}
"""


@pytest.fixture(scope="session")
def tiny_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prepared corpus of 120 pairs."""
    folder = tmp_path_factory.mktemp("tiny") / "tiny"
    return builtin("translation", folder, pairs=120, valid=12, test=20, merges=150, jobs=1)


@pytest.fixture
def write_study(tmp_path: Path, tiny_data: Path) -> Callable[..., Path]:
    """Writes the study's file, for so many updates of a first stage, with what may be searched."""

    def write(*, updates: int = 6, every: int = 5, search: str = "search: {}") -> Path:
        path = tmp_path / "tiny.yaml"
        content = TINY.format(
            root=ROOT, data=tiny_data, updates=updates, every=every, search=search
        )
        path.write_text(content, encoding="utf-8")
        return path

    return write


@pytest.fixture
def study_command() -> Callable[..., subprocess.Popen]:
    """Starts `multibranch study …` in a process of its own."""

    def start(*words: str | Path) -> subprocess.Popen:
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
        return subprocess.Popen(
            [sys.executable, "-m", "multibranch", "study", *map(str, words)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=ROOT,
        )

    return start


@pytest.fixture
def pass_the_end(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Has the time of a command be up when it is called, in a training that passes over its end.

    Until then that time stands still: it is as long as a busy machine needs.
    """
    clock = SimpleNamespace(now=0.0)
    clock.monotonic = lambda: clock.now
    monkeypatch.setattr("multibranch.study.stopping.time", clock)

    def pass_over() -> None:
        with Interruption(quiet=True) as interruption:  # as of a training that has just ended
            clock.now = float("inf")
            (timer,) = (one for one in threading.enumerate() if isinstance(one, threading.Timer))
            timer.function()
            while interruption.signal is None:
                time.sleep(0.01)

    return pass_over


class PostgreSQL:
    """A server of our own, below `place`. It refuses to run as root: another user then has that."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.url = f"postgresql://study@/postgres?host={place}"
        self._prefix: list[str] = []
        if os.getuid() == 0:
            shutil.chown(place, "nobody")
            self._prefix = ["setpriv", "--reuid=nobody", "--clear-groups"]
        # The plainest locale gives a database without an encoding, which must do as well.
        words = ("-U", "study", "--auth=trust", "--locale=C", "--no-sync")
        self._call("initdb", "-D", f"{place}/data", *words)
        self.start()

    def start(self) -> None:
        options = f"-k {self.place} -c listen_addresses='' -c fsync=off"
        self._control("-w", "-o", options, "-l", f"{self.place}/log", "start")

    def stop(self) -> None:
        self._control("-m", "immediate", "stop")

    def _control(self, *words: str) -> None:
        self._call("pg_ctl", "-D", f"{self.place}/data", *words)

    def _call(self, name: str, *words: str) -> None:
        command = [*self._prefix, _postgresql(name), *words]
        subprocess.run(command, check=True, capture_output=True, timeout=60, cwd=self.place)


def _postgresql(name: str) -> str:
    """Where a program of PostgreSQL's is; Debian has servers of several versions side by side."""
    found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    program = str(found[-1]) if found else shutil.which(name)
    if program is None:
        pytest.skip("there is no PostgreSQL here (Debian: apt-get install postgresql)")
    return program


@pytest.fixture(scope="module")
def postgresql() -> Iterator[PostgreSQL]:
    """A server that lives as long as a module's tests."""
    pytest.importorskip("psycopg")
    _postgresql("initdb")
    place = Path("/tmp") / f"multibranch-postgres-{os.getpid()}"
    place.mkdir(mode=0o755)
    try:
        server = PostgreSQL(place)
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(place)
