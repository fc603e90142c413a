"""Scores of a trial's translations, with signatures, and whether differences are more than chance.

Trials are scored where sacreBLEU is, which need not be where they were run.
"""

from collections.abc import Container
from pathlib import Path
from typing import Any

from multibranch.data import PreparedData
from multibranch.metrics import Score
from multibranch.metrics.bootstrap import Bootstrap, Resampled
from multibranch.study.trial import HYPOTHESES, read_lines
from multibranch.tasks.code import CodeOutput, language_of
from multibranch.tasks.evaluation import make_output

SAMPLES = 1000


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


class Comparisons:
    """Paired bootstraps between trials' translations, each computed once."""

    def __init__(
        self,
        references: dict[str, list[str]],
        known: dict[str, Any] | None = None,
        *,
        lowercase: Container[str] = (),
    ):
        """references: the tokenised ones of every corpus, by its name; lowercase: whose are so."""
        self.found: dict[str, Any] = dict(known or {})
        self._bootstraps = {
            corpus: Bootstrap(lines, samples=SAMPLES, lowercase=corpus in lowercase)
            for corpus, lines in references.items()
            if lines
        }
        self._resampled: dict[str, Resampled] = {}

    def compare(self, system: str, baseline: str, corpus: str, files: dict[str, Path]) -> Any:
        """The difference of `system` to `baseline`, both keys; None where a file is missing."""
        name = f"{system} > {baseline}"
        if name in self.found:
            return self.found[name]
        if corpus not in self._bootstraps or not all(
            key in files and files[key].is_file() for key in (system, baseline)
        ):
            return None
        bootstrap = self._bootstraps[corpus]
        for key in (system, baseline):
            if key not in self._resampled:
                self._resampled[key] = bootstrap.resample(read_lines(files[key]))
        got = bootstrap.compare(self._resampled[baseline], self._resampled[system])
        self.found[name] = {
            "difference": round(got["difference"], 4),
            "p_value": round(got["p_value"], 5),
            "significant": got["significant"],
            "signature": bootstrap.signature,
        }
        return self.found[name]
