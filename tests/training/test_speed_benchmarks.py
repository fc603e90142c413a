"""benchmarks/repeatable.py and together.py: a tiny run, and what is refused in one line."""

import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

import repeatable
import together
from multibranch.data.builtin import builtin

CONFIG = Path(__file__).resolve().parents[2] / "configs" / "builtin.yaml"
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
Run = Callable[..., int]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("speed") / "tiny"
    return builtin("translation", folder, pairs=120, valid=12, test=20, merges=150, jobs=1)


@pytest.fixture
def run(data: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    def run(script: ModuleType, *words: str | Path) -> int:
        settings = {**SMALL, "data.folder": data}
        options = [f"--{key}={value}" for key, value in settings.items()]
        monkeypatch.setattr(sys, "argv", ["script", str(CONFIG), *options, *map(str, words)])
        return script.main()

    return run


def test_runs_on_a_cpu_repeat_each_other(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "my record.json"
    assert run(repeatable, "--updates", "8", "--train.log_every=1", "--json", file) == 0
    record = json.loads(file.read_text(encoding="utf-8"))
    assert [found["differing"] for found in record["results"].values()] == [0, 0, 0]
    assert shlex.split(record["command"]) == ["python", *sys.argv]


@pytest.mark.parametrize(
    ("script", "words", "told"),
    [
        (repeatable, ["--updates", "8"], "too few reports of a speed: more --updates, or"),
        (together, ["--runs", "2", "--updates", "8"], "too few reports of a speed"),
        (together, ["--runs", "1", "0"], "--runs must be at least 1, not 0"),
    ],
)
def test_what_gives_no_speed_is_one_line(
    run: Run,
    script: ModuleType,
    words: list[str],
    told: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(script, *words) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{script.__name__}: ") and told in line
