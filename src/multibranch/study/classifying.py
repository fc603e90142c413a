"""Trials of understanding: a pretrained encoder, branched out and fine-tuned."""

import shutil
from collections.abc import Callable
from typing import Any

from multibranch.study.bench import Bench
from multibranch.study.experiment import Experiment
from multibranch.tasks.understanding import train_classifier
from multibranch.tasks.understanding_loop import Epoch


def run_classifier(
    bench: Bench, experiment: Experiment, watch: Callable[[dict[str, Any]], None] | None = None
) -> tuple[dict[str, Any], None]:
    """Fine-tune an experiment's encoder; its record, and no translations."""
    config = bench.classifier(experiment)
    shutil.rmtree(config.train.output, ignore_errors=True)  # of one that was stopped half-way
    outcome = train_classifier(
        config,
        quiet=True,
        watch=None if watch is None else lambda epoch: watch(_as_record(epoch)),
    )
    scores = {
        name: {"value": round(score.value, 4), "signature": score.signature}
        for name, score in outcome.scores.items()
    }
    first = next(iter(scores.values()))
    record: dict[str, Any] = {
        "task": "understanding",
        "epochs": len(outcome.epochs),
        "updates": None,
        "train_seconds": round(outcome.seconds, 2),
        "scores": scores,
        "valid_score": first["value"],
        "curve": [],
        "similarity": {},
        "mean_similarity": None,
    }
    return record, None


def _as_record(epoch: Epoch) -> dict[str, Any]:
    return {"epoch": epoch.number, "scores": epoch.scores}
