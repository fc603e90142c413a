"""What a verb imports, and has Python tidy up: most of the time that a small task takes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from reference_decoding import save_model_directory

SOURCE = Path(__file__).parents[2] / "src"
# It takes as long to import as PyTorch itself, with what it needs.
COMPILER = ["torch._dynamo", "sympy"]


def at_its_end(expression: str, *words: str, folder: Path) -> str:
    """What an expression is when the command has ended, all but for what Python does then."""
    script = folder / "run.py"
    script.write_text(
        "import atexit, gc, sys\nfrom multibranch.__main__ import main\n"
        f"atexit.register(lambda: print({expression}))\nsys.exit(main())\n"
    )
    ended = subprocess.run(
        [sys.executable, script, *words],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
    )
    return ended.stdout.splitlines()[-1]


def imported(names: list[str]) -> str:
    return f"[name for name in {names} if name in sys.modules]"


def test_preparing_a_corpus_needs_no_pytorch(tmp_path: Path) -> None:
    for language in ("de", "en"):
        (tmp_path / f"a.{language}").write_text("ein Haus\n" * 60)
    words = ["prepare", "parallel", "--source", "a.de", "--target", "a.en", "--merges", "5"]
    assert at_its_end(imported(["torch"]), *words, "--output", "out", folder=tmp_path) == "[]"
    assert (tmp_path / "out" / "manifest.json").is_file()


@pytest.mark.parametrize("words", [["study", "list"], ["params", "--paper"], ["prepare", "--list"]])
def test_lists_need_no_pytorch(words: list[str], tmp_path: Path) -> None:
    assert at_its_end(imported(["torch"]), *words, folder=tmp_path) == "[]"


def test_a_model_is_counted_and_loaded_without_pytorchs_compiler(tmp_path: Path) -> None:
    save_model_directory(tmp_path / "model")
    config = str(SOURCE.parent / "configs" / "builtin.yaml")
    for words in (["translate", "model"], ["params", config, "--vocabulary", "100"]):
        found = at_its_end(imported(["torch", *COMPILER]), *words, folder=tmp_path)
        assert found == "['torch']"


def test_python_does_not_look_for_garbage_at_its_end(tmp_path: Path) -> None:
    """In all the objects of PyTorch that would take half as long as its import."""
    few = "len(gc.get_objects()) < gc.get_freeze_count()"
    assert at_its_end(few, "study", "list", folder=tmp_path) == "True"
