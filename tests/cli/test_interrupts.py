"""Ctrl-C while PyTorch is imported or weights are loaded: one line and 130, whatever becomes of
the exception there."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from multibranch.cli import main
from multibranch.directory import save_model
from multibranch.nn import MultiBranchTransformer
from multibranch.text import TextPipeline, TextSettings, WordCounter, learn_words

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


def test_ctrl_c_while_weights_are_loaded_is_not_told_as_a_damaged_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    counter = WordCounter()
    counter.update({"ein": 1})
    settings = TextSettings(kind="classification", source="de", target="en")
    text = TextPipeline(settings, learn_words(counter, size=5))
    sizes = {"width": 16, "hidden": 16, "heads": 2, "encoder_layers": 1, "decoder_layers": 1}
    sizes |= {"source_vocabulary": text.source_size, "target_vocabulary": text.target_size}
    model = MultiBranchTransformer(**sizes)
    save_model(tmp_path / "model", model, text)

    def load(path: Path) -> None:
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:  # as PyTorch does where it is asked for a tensor of some bytes
            raise ValueError("could not determine the shape of object") from None

    monkeypatch.setattr("multibranch.directory.load_file", load)
    assert main(["translate", str(tmp_path / "model")]) == 130
    assert capsys.readouterr() == ("", "multibranch translate: interrupted\n")
