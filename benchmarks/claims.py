"""The paper's claims beside what the records say: the table at the top of docs/results.md.

A claim compares two systems. The paper's figures come from its tables as the package has them, ours
from the records; a record that lacks one of the two systems is left out.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from multibranch.metrics.score import mean_and_deviation
from multibranch.study.bench import Bench
from multibranch.study.experiment import Experiment
from multibranch.study.markdown import grid
from multibranch.study.paper import cells
from multibranch.study.plan import load_study
from multibranch.study.reporting import read_recorded
from multibranch.study.results import CellResult, Results, signed

INTRODUCTION = """## The paper's claims, and what these runs say

Each line compares two systems; the claim is that the second is better. Scores are BLEU unless
another score is named, as mean ± deviation over the seeds that both systems have. "Higher" counts
the seeds in which the second system scores higher. "Beyond chance" counts those in which a paired
bootstrap over the test set finds the gain significant (p < 0.05; – if not tested). The paper's
figures are for its own corpora and models."""
HEADER = [
    "claim",
    "paper",
    "here, on",
    "first",
    "second",
    "second − first",
    "higher",
    "beyond chance",
]

FROM_TRANSFORMER = "MAT 3/256/2048 from a Transformer, ρ=0.3, is better than that Transformer"
NOT_TIME = "… and than that Transformer, continued for as many updates"
DROPPING = "The same MAT is better with drop-branch, ρ=0.3, than with ρ=0"
PROXIMAL = "The same MAT is better from a Transformer than from scratch"
WIDE = "MAT of two branches and a wide FFN from a Transformer is better than that Transformer"
WIDE_NOT_TIME = "… and than that wide Transformer, continued for as many updates"
CODE = "MAT, ρ=0.1, writes code that scores higher than a larger Transformer's"
CODE_DROPPING = "… and than that of the same MAT with ρ=0"
ENCODER = "A pretrained encoder is better with two branches, ρ=0.3, than unchanged"
ENCODER_LEAST = "… and with ρ=0.1, the paper's lowest rate"
CLAIMS = [FROM_TRANSFORMER, NOT_TIME, DROPPING, PROXIMAL, WIDE, WIDE_NOT_TIME]
CLAIMS += [CODE, CODE_DROPPING, ENCODER, ENCODER_LEAST]
# The scores of the paper's table on code, in its order.
CODE_SCORES = {"sentence_bleu": "sentence BLEU", "pov": "valid (PoV)"}
TASKS = {"mrpc": "MRPC", "rte": "RTE", "cola": "CoLA", "sst2": "SST-2"}


Run = dict[str, Any]  # of a record


@dataclass(frozen=True)
class Finding:
    """One line: a claim, what the paper has for it, and two systems on the same seeds.

    beyond: of the seeds that were tested (how many, and in how many the second is better).
    """

    claim: str
    paper: str
    where: str
    first: list[float]
    second: list[float]
    beyond: tuple[int, int] | None = None

    def row(self) -> list[str]:
        """The cells of its line."""
        gains = [after - before for before, after in zip(self.first, self.second, strict=True)]
        higher = sum(gain > 0 for gain in gains)
        tested = "–" if self.beyond is None else f"{self.beyond[1]} of {self.beyond[0]}"
        return [
            self.claim,
            self.paper,
            self.where,
            _mean(self.first),
            _mean(self.second),
            signed(sum(gains) / len(gains)),
            f"{higher} of {len(gains)}",
            tested,
        ]


def claims(folder: Path) -> str:
    """The table of all claims that the records say something on."""
    found = _translation(sorted(folder.glob("study-*.json")))
    for path in sorted(folder.glob("code-*.json")):
        found += _code(path, json.loads(path.read_text(encoding="utf-8")))
    for path in sorted(folder.glob("understanding-*.json")):
        found += _understanding(json.loads(path.read_text(encoding="utf-8")))
    rows = []
    for claim in CLAIMS:
        lines = [finding.row() for finding in found if finding.claim == claim]
        for line in lines[1:]:
            line[0] = ""  # said once
        rows += lines
    return f"{INTRODUCTION}\n\n{grid(HEADER, rows)}"


def _mean(values: list[float]) -> str:
    mean, deviation = mean_and_deviation(values)
    return f"{mean:.2f}" + ("" if deviation is None else f" ± {deviation:.2f}")


def _printed(table: int, **settings: Any) -> str:
    """The paper's score for a system."""
    (value,) = {
        cell.printed
        for cell in cells(table)
        if all(getattr(cell, name) == wanted for name, wanted in settings.items())
    }
    return value


def _pairs(first: dict[int, Run], second: dict[int, Run]) -> list[tuple[Run, Run]]:
    """Two systems' runs of the same seed, of all seeds that both have."""
    return [(first[seed], second[seed]) for seed in sorted(first.keys() & second.keys())]


def _arrow(first: str, second: str) -> str:
    return f"{first} → {second}"


# -- Translation --------------------------------------------------------------------------------


def _translation(paths: list[Path]) -> list[Finding]:
    """What studies say of MATs as the paper's best, small and wide; shared trials once."""
    studies = []
    for path in paths:
        name = json.loads(path.read_text(encoding="utf-8"))["study"]
        studies.append(read_recorded(path, Bench(study=load_study(name), output=Path("runs"))))
    # Those of one corpus first; then those with more trials, which have more to be compared with.
    studies.sort(key=lambda results: (len(results.study.corpora), -len(results.records)))
    found: list[Finding] = []
    seen: set[tuple[str, str]] = set()
    for results in studies:
        for cell in results.cells.values():
            trials = {(record["key"], record["fingerprint"]) for record in cell.records}
            if trials <= seen:
                continue
            if _is_best(cell.experiment):
                found += _of_best(results, cell)
            elif _is_wide(cell.experiment):
                found += _of_wide(results, cell)
            seen |= trials
    return found


def _of_best(results: Results, cell: CellResult) -> Iterator[Finding]:
    """That MAT against the systems that lack one thing that it has."""
    shape = {"branches": 3, "width": 256, "hidden": 2048}
    best = _printed(2, **shape, drop_branch=0.3)
    plain = _printed(1, branches=1, width=256, hidden=2048, drop_branch=0.0)
    still = _printed(2, **shape, drop_branch=0.0)
    scratch = _printed(1, **shape, drop_branch=0.3)
    for claim, other, printed in (
        (FROM_TRANSFORMER, cell.experiment.baseline, _arrow(plain, best)),
        (NOT_TIME, cell.experiment.continued, "not tried"),
        (DROPPING, replace(cell.experiment, drop_branch=0.0), _arrow(still, best)),
        (PROXIMAL, replace(cell.experiment, start="scratch"), _arrow(scratch, best)),
    ):
        yield from _compared(claim, printed, _where(results, cell), results, other, cell)


def _of_wide(results: Results, cell: CellResult) -> Iterator[Finding]:
    """That MAT against the Transformer that it starts from; the paper's FFN is wider still."""
    one = cell.experiment
    plain = _printed(4, row="1/512/12288")
    wide = _printed(4, row="2/512/12288", drop_branch=one.drop_branch)
    where = f"{_where(results, cell)}, {one.branches}/{one.width}/{one.hidden}, ρ={one.drop_branch}"
    for claim, other, printed in (
        (WIDE, one.baseline, _arrow(plain, wide)),
        (WIDE_NOT_TIME, one.continued, "not tried"),
    ):
        yield from _compared(claim, printed, where, results, other, cell)


def _where(results: Results, cell: CellResult) -> str:
    """The corpus, in words."""
    title = results.study.title.split(":")[0]
    direction = cell.experiment.corpus.title().replace("-", "→")
    return f"{title} {direction}" if len(results.study.corpora) > 1 else title


def _is_best(one: Experiment) -> bool:
    """Whether it is the architecture and the rate of the paper's best model on IWSLT."""
    shape = (one.branches, one.width, one.hidden, one.ffn_branches, one.heads)
    plain = one.drop_kind == "branch" and one.drop_ffn is None and not one.r_drop
    rate = one.drop_branch == 0.3
    return one.start == "proximal" and shape == (3, 256, 2048, 1, 4) and plain and rate


def _is_wide(one: Experiment) -> bool:
    """Whether it is a MAT as the paper's best on WMT, its FFN at least as wide as a big model's."""
    shape = (one.branches, one.width, one.ffn_branches) == (2, 512, 1) and one.hidden >= 4096
    plain = one.drop_kind == "branch" and one.drop_ffn is None and not one.r_drop
    rate = one.drop_branch in (0.1, 0.2, 0.3)
    return one.start == "proximal" and shape and plain and rate


def _compared(
    claim: str, printed: str, where: str, results: Results, other: Experiment, second: CellResult
) -> Iterator[Finding]:
    """Two cells on the seeds that both have, if any."""
    first = results.find(other)
    seeds = [seed for seed in second.seeds if first is not None and seed in first.seeds]
    if first is None or not seeds:
        return
    pairs = [
        (first.records[first.seeds.index(seed)], second.records[second.seeds.index(seed)])
        for seed in seeds
    ]
    tests = [
        test
        for before, after in pairs
        if (test := results.comparisons.get(f"{after['key']} > {before['key']}")) is not None
    ]
    better = sum(test["significant"] and test["difference"] > 0 for test in tests)
    yield Finding(
        claim,
        printed,
        where,
        [results.score(before) for before, _ in pairs],
        [results.score(after) for _, after in pairs],
        (len(tests), better) if tests else None,
    )


# -- Code ---------------------------------------------------------------------------------------


def _code(path: Path, content: dict[str, Any]) -> Iterator[Finding]:
    """Code generation: by both scores of the paper's table."""
    runs: dict[str, dict[int, Run]] = {}
    for run in content.get("runs", []):
        if not run["run"].endswith("-settled"):
            runs.setdefault(run["name"], {})[run["seed"]] = run
    if not runs:  # a record of the corpora, say
        return
    language = content["language"].capitalize()
    where = f"{language} trained longer" if "-long" in path.stem else language
    for column, (score, called) in enumerate(CODE_SCORES.items()):
        for claim, first in ((CODE, "baseline"), (CODE_DROPPING, "mat-0.0")):
            pairs = _pairs(runs.get(first, {}), runs.get("mat-0.1", {}))
            if not pairs:
                continue
            tests = None
            if claim == CODE:
                lows = [run["against_baseline"][score]["interval"][0] for _, run in pairs]
                tests = len(lows), sum(low > 0 for low in lows)
            yield Finding(
                claim,
                _arrow(*(run["paper"][column] for run in pairs[0])),
                f"{where}, {called}",
                [run["scores"][score] for run, _ in pairs],
                [run["scores"][score] for _, run in pairs],
                tests,
            )


# -- Understanding ------------------------------------------------------------------------------


def _understanding(content: dict[str, Any]) -> Iterator[Finding]:
    """GLUE with a small encoder, by the first score of each task."""
    runs: dict[tuple[str, str], dict[int, Run]] = {}
    for run in content.get("runs", []):  # as they ended, which is no order of seeds
        runs.setdefault((run["task"], run["system"]), {})[run["seed"]] = run
    for claim, system in ((ENCODER, "mat-0.3"), (ENCODER_LEAST, "mat-0.1")):
        for task, systems in content.get("summary", {}).items():
            pairs = _pairs(runs.get((task, "plain"), {}), runs.get((task, system), {}))
            if not pairs:
                continue
            printed = [systems[name].get("paper") for name in ("plain", system)]
            score = next(iter(pairs[0][0]["best"]))
            yield Finding(
                claim,
                _arrow(*map(str, printed)) if all(printed) else "–",
                f"{TASKS.get(task, task)}, {score}",
                [run["best"][score] for run, _ in pairs],
                [run["best"][score] for _, run in pairs],
            )
