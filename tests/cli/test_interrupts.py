"""Ctrl-C and SIGTERM while PyTorch is imported or weights are loaded: one line and 130 or 143,
whatever becomes of the exception there. Once a result is in place they do nothing."""

import json
import os
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from multibranch import disk
from multibranch.cli import main
from multibranch.directory import load_model, save_model
from multibranch.errors import STOPS
from multibranch.nn import MultiBranchTransformer
from multibranch.text import TextPipeline, TextSettings, WordCounter, learn_words

SOURCE = Path(__file__).parents[2] / "src"
INTERRUPT = "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n"
TERMINATE = INTERRUPT.replace("SIGINT", "SIGTERM")
SWALLOW = f"try:\n    exec({INTERRUPT!r})\nexcept BaseException:\n    pass\n"
CHANGE = f"try:\n    exec({INTERRUPT!r})\nexcept BaseException:\n    raise ImportError('half')\n"


def interrupted(folder: Path, content: str, module: str = "torch") -> subprocess.CompletedProcess:
    (folder / f"{module}.py").write_text(content)
    return subprocess.run(
        [sys.executable, "-m", "multibranch", "translate", "model"],
        env={**os.environ, "PYTHONPATH": f"{folder}:{SOURCE}"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("content", "status"), [(INTERRUPT, 130), (SWALLOW, 130), (CHANGE, 130), (TERMINATE, 143)]
)
def test_an_interrupt_in_an_import_is_one_line(tmp_path: Path, content: str, status: int) -> None:
    result = interrupted(tmp_path, content)
    assert (result.returncode, result.stdout) == (status, "")
    assert result.stderr == "multibranch translate: interrupted\n"


def test_ctrl_c_before_anything_could_answer_is_silent(tmp_path: Path) -> None:
    result = interrupted(tmp_path, INTERRUPT, module="argparse")
    assert (result.returncode, result.stdout, result.stderr) == (130, "", "")


def test_the_command_that_is_installed_is_the_one_that_is_tested() -> None:
    project = tomllib.loads((SOURCE.parent / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["scripts"] == {"multibranch": "multibranch.__main__:main"}


@pytest.mark.parametrize("number", STOPS)
def test_an_interrupt_before_the_verb_runs_is_one_line(
    number: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def parser(verb: str | None) -> None:
        signal.raise_signal(number)

    monkeypatch.setattr("multibranch.cli._parser", parser)
    before = signal.getsignal(number)
    assert main(["translate", "model"]) == 128 + number
    assert capsys.readouterr().err == "multibranch translate: interrupted\n"
    assert signal.getsignal(number) is before


LATE = "import atexit, os, signal, sys\nfrom multibranch.cli import main\n"
AT_EXIT = "atexit.register(os.kill, os.getpid(), signal.SIGINT)\n"
AT_THE_END = """
class Last:
    def __del__(self, kill=os.kill, process=os.getpid(), number=signal.SIGINT):
        kill(process, number)
last = Last()
"""


@pytest.mark.parametrize("moment", [AT_EXIT, AT_THE_END])
def test_ctrl_c_comes_too_late_once_only_pythons_own_end_is_left(
    moment: str, tmp_path: Path
) -> None:
    script = tmp_path / "multibranch.py"
    script.write_text(LATE + moment + "sys.exit(main())\n", encoding="utf-8")
    result = subprocess.run(
        [sys.executable, "-P", script, "study", "list", "builtin"],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith("builtin.")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    counter = WordCounter()
    counter.update({"ein": 1})
    settings = TextSettings(kind="classification", source="de", target="en")
    text = TextPipeline(settings, learn_words(counter, size=5))
    sizes = {"width": 16, "hidden": 16, "heads": 2, "encoder_layers": 1, "decoder_layers": 1}
    sizes |= {"source_vocabulary": text.source_size, "target_vocabulary": text.target_size}
    return save_model(tmp_path / "model", MultiBranchTransformer(**sizes, branches=1), text)


@pytest.mark.parametrize("number", STOPS)
def test_an_interrupt_while_weights_are_loaded_is_not_told_as_a_damaged_file(
    number: int, model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def load(path: Path) -> None:
        try:
            signal.raise_signal(number)
        except KeyboardInterrupt:  # as PyTorch does where it is asked for a tensor of some bytes
            raise ValueError("could not determine the shape of object") from None

    monkeypatch.setattr("multibranch.directory.load_file", load)
    assert main(["translate", str(model)]) == 128 + number
    assert capsys.readouterr() == ("", "multibranch translate: interrupted\n")


@pytest.mark.parametrize("number", STOPS)
@pytest.mark.parametrize("late", [True, False])
def test_an_interrupt_comes_too_late_once_a_branched_model_is_in_place(
    model: Path,
    late: bool,
    number: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    exchange, output = disk.exchange, tmp_path / "new" / "three"

    def interrupted(new: Path, folder: Path) -> None:
        if late:
            exchange(new, folder)
        signal.raise_signal(number)

    monkeypatch.setattr(disk, "exchange", interrupted)
    words = ["branch", str(model), "--branches", "3", "--output", str(output), "--json"]
    assert main(words) == (0 if late else 128 + number)
    out, error = capsys.readouterr()
    if late:
        assert (json.loads(out)["model"], error) == (str(output), "")
        load_model(output)
    else:
        assert (out, error) == ("", "multibranch branch: interrupted\n")
        assert not output.parent.exists()


@pytest.mark.parametrize("number", STOPS)
def test_an_interrupt_while_a_built_in_corpus_is_prepared_leaves_nothing(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*words: object, **more: object) -> None:
        assert list((tmp_path / "demo").glob(".corpus.text-*"))
        signal.raise_signal(number)

    monkeypatch.setattr("multibranch.data.builtin.prepared.prepare", interrupted)
    assert main(["demo", "--output", str(tmp_path / "demo")]) == 128 + number
    assert list(tmp_path.iterdir()) == []
