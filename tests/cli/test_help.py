"""The help of every verb: that it fits the terminal, and that its defaults are told."""

import pytest

from multibranch.cli import VERBS, main

ALL = [
    [],
    *([verb] for verb in VERBS),
    *(["study", what] for what in ("list", "run", "report", "import", "search")),
]


def shown(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as stopped:
        main([*words, "--help"])
    assert stopped.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("words", ALL, ids=lambda words: " ".join(words) or "multibranch")
def test_help_fits_80_columns(words, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    assert [line for line in shown(words, capsys).splitlines() if len(line) > 80] == []


def test_prose_fills_the_width_and_examples_stay(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "60")
    said = shown(["export"], capsys)
    assert (
        "\nThe branches are folded into heads, so that the engine\ncomputes the same function."
        in said
    )
    assert "\n  multibranch export runs/mat --format onnx --output exported\n" in said
    monkeypatch.setenv("COLUMNS", "300")
    prose = shown(["export"], capsys).partition("positional arguments:")[0].splitlines()
    assert max(len(line) for line in prose if not line.startswith("usage")) <= 100


def test_every_study_verb_is_looked_at(capsys):
    said = shown(["study"], capsys)
    assert "|".join(words[1] for words in ALL if len(words) == 2) in said
