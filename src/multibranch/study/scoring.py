"""Scores of a trial's translations, with signatures.

Trials are scored where sacreBLEU is, which need not be where they were run.
"""

from pathlib import Path
from typing import Any

from multibranch.data import PreparedData
from multibranch.metrics import Score
from multibranch.study.trial_folder import HYPOTHESES, read_lines
from multibranch.tasks.code import CodeOutput, language_of
from multibranch.tasks.evaluation import make_output


def scores_of(words: list[str], data: PreparedData, *, task: str) -> dict[str, dict[str, Any]]:
    """All scores of tokenised outputs of the test set: value, signature, details."""
    found: dict[str, Score]
    if task == "code":
        references = [data.text.tokenise(line, "target") for line in data.lines("test", "target")]
        found = CodeOutput("trial", words, references, language_of(data.text)).scores()
    else:
        found = make_output("trial", words, data.text, data, split="test").quick_scores()
    return {name: _content(score) for name, score in found.items()}


def _content(score: Score) -> dict[str, Any]:
    details = {name: round(value, 4) for name, value in score.details.items()}
    content: dict[str, Any] = {"value": round(score.value, 4), "signature": score.signature}
    return content | ({"details": details} if details else {})


def scored(record: dict[str, Any], folder: Path, data: PreparedData | None) -> dict[str, Any]:
    """The record with its scores; they are computed where the translations and the data are."""
    path = folder / HYPOTHESES
    if "scores" in record or data is None or not path.is_file():
        return record
    scores = scores_of(read_lines(path), data, task=record.get("task", "translation"))
    return {**record, "scores": scores}
