"""The help of every verb: that it fits the terminal, and that its defaults are told."""

import argparse
import dataclasses
from collections.abc import Iterator

import pytest

from multibranch.cli import VERBS, _parser, main
from multibranch.decoding import SearchOptions

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


def test_the_first_help_says_where_the_others_are(capsys):
    assert shown([], capsys).endswith("`multibranch VERB --help` explains each, with examples.\n")


def test_every_study_verb_is_looked_at(capsys):
    said = shown(["study"], capsys)
    assert "|".join(words[1] for words in ALL if len(words) == 2) in said


def options(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Every argument of a parser and of the verbs below it."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from options(below)
        elif action.help != argparse.SUPPRESS:
            yield action


@pytest.mark.parametrize("verb", VERBS)
def test_every_default_is_told(verb):
    untold = []
    for option in options(_parser(verb)):
        default = option.default
        if default in (None, False, [], argparse.SUPPRESS):
            continue
        shown = f"{default:,.10g}" if isinstance(default, int | float) else str(default)
        if not any(f"default: {said}" in str(option.help) for said in (shown, str(default))):
            untold.append((option.option_strings, option.help))
    assert untold == []


def test_the_defaults_of_the_search_are_those_it_has():
    told = {option.dest: str(option.help) for option in options(_parser("translate"))}
    for field in dataclasses.fields(SearchOptions):
        if field.name in told and field.default not in (None, False):
            shown = "all" if field.name == "top_k" else f"{field.default:g}"
            assert f"(default: {shown}" in told[field.name], field.name
