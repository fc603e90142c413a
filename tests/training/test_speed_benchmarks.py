"""benchmarks/repeatable.py and together.py: a tiny run, and what is refused in one line."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from multibranch.data.builtin import builtin

ROOT = Path(__file__).resolve().parents[2]
SMALL = {
    "model.width": 16,
    "model.hidden": 16,
    "model.encoder_layers": 1,
    "model.decoder_layers": 1,
    "train.tokens": 128,
    "train.threads": 1,
    "train.warmup": 4,
    "train.device": "cpu",
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("speed") / "tiny"
    return builtin("translation", folder, pairs=120, valid=12, test=20, merges=150, jobs=1)


def run(script: str, data: Path, *words: str | Path) -> subprocess.CompletedProcess:
    settings = {**SMALL, "data.folder": data}
    return subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / script), str(ROOT / "configs/builtin.yaml")]
        + [f"--{key}={value}" for key, value in settings.items()]
        + [str(word) for word in words],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"},
    )


def test_runs_on_a_cpu_repeat_each_other(data: Path, tmp_path: Path) -> None:
    file = tmp_path / "record.json"
    done = run("repeatable.py", data, "--updates", "8", "--train.log_every=1", "--json", file)
    assert done.returncode == 0, done.stderr
    results = json.loads(file.read_text(encoding="utf-8"))["results"]
    assert [found["differing"] for found in results.values()] == [0, 0, 0]


@pytest.mark.parametrize(
    ("script", "words", "told"),
    [
        ("repeatable.py", ["--updates", "8"], "too few reports of a speed: more --updates, or"),
        ("together.py", ["--runs", "2", "--updates", "8"], "too few reports of a speed"),
        ("together.py", ["--runs", "1", "0"], "--runs must be at least 1, not 0"),
    ],
)
def test_what_gives_no_speed_is_one_line(
    data: Path, script: str, words: list[str], told: str
) -> None:
    done = run(script, data, *words)
    assert done.returncode == 2
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"{script.removesuffix('.py')}: ") and told in last
