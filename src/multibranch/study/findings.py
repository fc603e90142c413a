"""What a search has found: its best trials, their scores on the test set, and the record of it."""

import json
from pathlib import Path
from typing import Any

import torch

from multibranch import __version__
from multibranch.data import PreparedData
from multibranch.device import device_name
from multibranch.disk import write_json
from multibranch.errors import UserError
from multibranch.study.bench import Bench
from multibranch.study.scoring import scores_of
from multibranch.study.telling import Tell
from multibranch.tasks.evaluation import decode_split

SHOWN = 5  # trials that a search tells of at its end


def _is_own(trial: Any) -> bool:
    """Whether a trial is the study's own model."""
    return bool(trial.user_attrs.get("own"))


def finished(study: Any) -> list[Any]:
    """The trials that were seen through, the best one first."""
    trials = study.get_trials(deepcopy=False)
    return sorted((t for t in trials if t.state.name == "COMPLETE"), key=lambda t: t.value)


def found_so_far(bench: Bench, study: Any, wanted: int) -> dict[str, Any] | None:
    """The best trials so far and the study's own model; None where there is none yet.

    asked: how many trials the search is to have; trials: how many of them have ended.
    """
    done = finished(study)
    if not done:
        return None
    own = next(filter(_is_own, done), None)
    pruned = sum(trial.state.name == "PRUNED" for trial in study.get_trials(deepcopy=False))
    return {
        "study": bench.study.name,
        "asked": wanted,
        "trials": len(done) + pruned,
        "pruned": pruned,
        "best": [_row(trial) for trial in done[:SHOWN]],
        "own": None if own is None else _row(own),
    }


def reported(
    bench: Bench, study: Any, data: PreparedData, wanted: int, *, task: str, tell: Tell
) -> dict[str, Any]:
    """What was found, with the test scores of the best model and of the study's own."""
    found = found_so_far(bench, study, wanted)
    if found is None:
        raise UserError("no trial of the search was finished")
    done = finished(study)
    own = next(filter(_is_own, done), None)
    scores = {}
    chosen = {trial.number: trial for trial in (done[0], own) if trial is not None}
    for trial in chosen.values():
        folder = Path(trial.user_attrs["folder"])
        if (folder / "config.json").is_file():
            output = decode_split(folder, data, split="test", device=bench.device)
            scores[trial.number] = scores_of(output.words, data, task=task)
        else:
            tell(f"trial {trial.number} is not scored here: there is no model {folder}")
    for name, which in (("scores", done[0]), ("own_scores", own)):
        if which is not None and which.number in scores:
            found[name] = scores[which.number]
    found["folder"] = done[0].user_attrs["folder"]
    return found


def _row(trial: Any) -> dict[str, Any]:
    """A finished trial, for a table."""
    model = json.loads(trial.user_attrs["model"])
    return {
        "trial": trial.number,
        "validation_loss": round(trial.value, 4),
        "branches": " ".join(map(str, model["branches"])),
        "drop_branch": " ".join(f"{rate:.2f}" for rate in model["drop_branch"]),
        "drop_ffn": " ".join(f"{rate:.2f}" for rate in model["drop_ffn"]),
        "ffn_branches": " ".join(map(str, model["ffn_branches"])),
        "drop_kind": model["drop_kind"],
        "parameters": trial.user_attrs["parameters"],
    }


def write_search(path: Path, bench: Bench, found: dict[str, Any], *, command: str) -> None:
    """Write what a search found down, with where and how it was run."""
    record = {
        "command": command,
        "title": bench.study.title,
        "claims": bench.study.claims,
        "device": device_name(bench.device),
        "torch": str(torch.__version__),
        "version": __version__,
        **{name: value for name, value in found.items() if name != "folder"},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, record)
