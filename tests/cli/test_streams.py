"""What the command does where its streams are closed, full, gone, or of another encoding: one clear
line and status 2, and the same result whatever the encoding."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from reference_decoding import save_model_directory

SOURCE = Path(__file__).parents[2] / "src"
PARAMS = ["params", str(SOURCE.parent / "configs" / "builtin.yaml"), "--vocabulary", "1000"]
JSON = [*PARAMS, "--json"]


def shell(redirection: str, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command as a shell does, whose output waits to be written until it ends."""
    usual = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return subprocess.run(
        ["bash", "-c", f'"$@" {redirection}', "bash", sys.executable, "-m", "multibranch", *words],
        env={**usual, "PYTHONPATH": str(SOURCE), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    "words", [["--version"], ["train", "--help"], ["prepare", "--list"], PARAMS, JSON]
)
@pytest.mark.parametrize(
    ("redirection", "why"),
    [(">/dev/full", "No space left on device"), (">&-", "Bad file descriptor")],
)
def test_output_that_cannot_be_written_is_one_line(
    words: list[str], redirection: str, why: str
) -> None:
    ended = shell(redirection, *words)

    verb = "" if words[0].startswith("-") else f" {words[0]}"
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == f"multibranch{verb}: standard output: {why}\n"


def test_output_that_is_not_buffered_is_named_too() -> None:
    ended = shell(">/dev/full", *JSON, PYTHONUNBUFFERED="1")

    assert ended.returncode == 2
    assert ended.stderr == "multibranch params: standard output: No space left on device\n"


@pytest.mark.parametrize("words", [PARAMS, JSON])
def test_a_reader_that_has_gone_is_no_error(words: list[str]) -> None:
    ended = shell("| true; exit ${PIPESTATUS[0]}", *words)

    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize("redirection", ["2>/dev/full", "2>&-"])
def test_an_error_that_cannot_be_said_is_still_a_status(redirection: str) -> None:
    ended = shell(redirection, "params", "no-such-file.yaml")

    assert (ended.returncode, ended.stdout, ended.stderr) == (2, "", "")


def test_no_file_takes_the_number_of_a_closed_stream(tmp_path: Path) -> None:
    code = (
        "import os\nfrom multibranch.cli import streams\nstreams.settle()\n"
        "with open('file', 'w') as file:\n    print('gone')\n"
        "    file.write(str(file.fileno() > 2))\nos._exit(0)\n"
    )
    subprocess.run(
        ["bash", "-c", '"$@" <&- >&- 2>&-', "bash", sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        cwd=tmp_path,
        check=True,
    )

    assert (tmp_path / "file").read_text() == "True"


def test_interactive_says_that_its_input_is_closed(tmp_path: Path) -> None:
    save_model_directory(tmp_path / "model")
    ended = shell("<&-", "interactive", str(tmp_path / "model"))

    assert ended.returncode == 2
    assert ended.stderr == (
        "multibranch interactive: standard input is closed: give it text, a file for instance\n"
    )


def test_json_is_the_same_in_every_encoding() -> None:
    one, other = (
        shell("", "params", "--paper", "--json", PYTHONIOENCODING=encoding)
        for encoding in ("utf-8", "ascii")
    )

    assert (one.returncode, other.returncode) == (0, 0)
    assert not one.stdout.isascii()
    assert other.stdout.isascii()
    assert json.loads(other.stdout) == json.loads(one.stdout)
