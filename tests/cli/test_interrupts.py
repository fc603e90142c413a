"""Ctrl-C while PyTorch is imported: one line and 130, whatever becomes of the exception there."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from multibranch.cli import main

SOURCE = Path(__file__).parents[2] / "src"
INTERRUPT = "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n"
SWALLOW = f"try:\n    exec({INTERRUPT!r})\nexcept BaseException:\n    pass\n"
CHANGE = f"try:\n    exec({INTERRUPT!r})\nexcept BaseException:\n    raise ImportError('half')\n"


def interrupted(folder: Path, content: str) -> subprocess.CompletedProcess:
    (folder / "torch.py").write_text(content)
    return subprocess.run(
        [sys.executable, "-m", "multibranch", "translate", "model"],
        env={**os.environ, "PYTHONPATH": f"{folder}:{SOURCE}"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("content", [INTERRUPT, SWALLOW, CHANGE])
def test_ctrl_c_in_an_import_is_one_line(tmp_path: Path, content: str) -> None:
    result = interrupted(tmp_path, content)
    assert (result.returncode, result.stdout) == (130, "")
    assert result.stderr == "multibranch translate: interrupted\n"


def test_ctrl_c_before_the_verb_runs_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def parser(verb: str | None) -> None:
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("multibranch.cli._parser", parser)
    before = signal.getsignal(signal.SIGINT)
    assert main(["translate", "model"]) == 130
    assert capsys.readouterr().err == "multibranch translate: interrupted\n"
    assert signal.getsignal(signal.SIGINT) is before
