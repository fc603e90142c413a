"""What the trials of a study say: one number a cell, over seeds, and its differences.

A cell is compared with the standard Transformer of its architecture, corpus and seed, and with that
Transformer trained on for as many updates as the cell's second stage has, which is the fair
comparison where there is a second stage.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from multibranch.errors import UserError
from multibranch.metrics.score import mean_and_deviation, perplexity
from multibranch.study.experiment import Experiment
from multibranch.study.plan import Study


@dataclass(frozen=True)
class Difference:
    """A cell against a reference, seed by seed."""

    mean: float
    deviation: float | None
    seeds: int
    tested: int  # seeds for which a paired bootstrap was made
    above: int  # of these, where the cell is better, and more than chance would explain
    below: int

    @property
    def mark(self) -> str:
        """▲ or ▼ where every seed that was tested says so."""
        if self.tested and self.above == self.tested:
            return "▲"
        return "▼" if self.tested and self.below == self.tested else ""

    def __str__(self) -> str:
        return f"{signed(self.mean)}{self.mark}"


@dataclass(frozen=True)
class CellResult:
    """One cell of a table: all its seeds."""

    cell: str
    experiment: Experiment
    records: tuple[dict[str, Any], ...]
    scores: tuple[float, ...]
    mean: float
    deviation: float | None
    signature: str
    against: dict[str, Difference] = field(default_factory=dict)

    @property
    def seeds(self) -> list[int]:
        return [record["experiment"]["seed"] for record in self.records]

    def average(self, name: str) -> float | None:
        """The mean over seeds of a number in the records."""
        values = [record[name] for record in self.records if record.get(name) is not None]
        return math.fsum(values) / len(values) if values else None

    @property
    def perplexity(self) -> float | None:
        """On the validation set, of the weights that were decoded with."""
        losses = [r.get("averaged_plain") or r.get("validation_plain") for r in self.records]
        found = [None if loss is None else perplexity(loss) for loss in losses]
        known = [value for value in found if value is not None]
        return math.fsum(known) / len(known) if known else None

    @property
    def similarity(self) -> float | None:
        """The cosine between branches; of a pruned model, the record has that of the whole one."""
        return None if self.experiment.start == "pruned" else self.average("mean_similarity")

    @property
    def fairest(self) -> Difference | None:
        """Against what trained as long: the baseline continued, after a second stage of its own."""
        found = self.against.get("continued") if self.experiment.start == "proximal" else None
        return found or self.against.get("baseline")

    def __str__(self) -> str:
        spread = "" if self.deviation is None else f" ± {self.deviation:.2f}"
        return f"{self.mean:.2f}{spread}"


class Results:
    """The cells of a study, by their keys without the seed.

    Args:
        study: the study.
        records: trials' records; those without the study's score are left out.
        comparisons: paired bootstraps by "KEY > KEY".
    """

    def __init__(
        self,
        study: Study,
        records: Sequence[dict[str, Any]],
        comparisons: dict[str, Any] | None = None,
    ) -> None:
        self.study = study
        self.comparisons = comparisons or {}
        self._by: dict[str, Results] = {}
        known = {name for record in records for name in record.get("scores") or {}}
        if known and study.metric not in known:
            raise UserError(
                f"{study.path}: metric: no trial has a score {study.metric!r}; those there are: "
                f"{', '.join(sorted(known))}"
            )
        self.records = [r for r in records if study.metric in (r.get("scores") or {})]
        self.by_key = {record["key"]: record for record in self.records}
        self.cells: dict[str, CellResult] = {}
        groups: dict[str, list[dict[str, Any]]] = {}
        for record in self.records:
            groups.setdefault(record["cell"], []).append(record)
        for cell, group in groups.items():
            group.sort(key=lambda record: record["experiment"]["seed"])
            self.cells[cell] = self._cell(cell, group)

    def _cell(self, cell: str, records: list[dict[str, Any]]) -> CellResult:
        experiment = Experiment(**records[0]["experiment"])
        scores = [self.score(record) for record in records]
        signatures = {record["scores"][self.study.metric]["signature"] for record in records}
        mean, deviation = mean_and_deviation(scores)
        against = {}
        for name in references(experiment):
            found = self._against(records, name)
            if found is not None:
                against[name] = found
        return CellResult(
            cell,
            experiment,
            tuple(records),
            tuple(scores),
            mean,
            deviation,
            "; ".join(sorted(signatures)),
            against,
        )

    def _against(self, records: list[dict[str, Any]], name: str) -> Difference | None:
        changes, tests = [], []
        for record in records:
            other = references(Experiment(**record["experiment"]))[name].key
            if other in self.by_key:
                changes.append(self.score(record) - self.score(self.by_key[other]))
                test = self.comparisons.get(f"{record['key']} > {other}")
                tests += [test] if test is not None else []
        if not changes:
            return None
        mean, deviation = mean_and_deviation(changes)
        certain = [test for test in tests if test["significant"]]
        above = sum(test["difference"] > 0 for test in certain)
        return Difference(mean, deviation, len(changes), len(tests), above, len(certain) - above)

    def score(self, record: dict[str, Any]) -> float:
        return float(record["scores"][self.study.metric]["value"])

    def by(self, metric: str) -> "Results":
        """The same trials by another score, of which no difference was tested."""
        if metric == self.study.metric:
            return self
        if metric not in self._by:
            records = [record for record in self.records if metric in record["scores"]]
            self._by[metric] = Results(replace(self.study, metric=metric), records)
        return self._by[metric]

    @property
    def signature(self) -> str:
        return "; ".join(sorted({cell.signature for cell in self.cells.values()}))

    def find(self, experiment: Experiment) -> CellResult | None:
        return self.cells.get(experiment.cell)


def references(experiment: Experiment) -> dict[str, Experiment]:
    """What an experiment is compared with, by name, itself left out."""
    found = {"baseline": experiment.baseline}
    if experiment.start != "pretrained":
        found["continued"] = experiment.continued
    if experiment.start == "pruned" and experiment.parent is not None:
        found["unpruned"] = experiment.parent
    return {name: other for name, other in found.items() if other.key != experiment.key}


def signed(value: float) -> str:
    """+0.52 or −0.10, with a minus that is as wide as the plus."""
    text = f"{round(value, 2) + 0.0:+.2f}"  # the sum makes −0.0 a plain 0
    return ("−" if text[0] == "-" else "+") + text[1:]
