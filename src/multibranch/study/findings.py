"""What a search has found: its best trials, their scores on the test set, and the record of it."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import torch

from multibranch import __version__
from multibranch.device import device_name
from multibranch.disk import json_text, replaced_file
from multibranch.errors import UserError
from multibranch.study.bench import Bench
from multibranch.study.scoring import scores_of
from multibranch.study.starting import Beginning
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


def found_so_far(begun: Beginning, study: Any, wanted: int) -> dict[str, Any]:
    """The best trials so far, the study's own model, and what they started from.

    asked: how many trials the search is to have; trials: how many of them have ended, which took
    so many seconds added up. updates, minutes: of a trial, at most.
    """
    done = finished(study)
    own = next(filter(_is_own, done), None)
    pruned = [t for t in study.get_trials(deepcopy=False) if t.state.name == "PRUNED"]
    space = dataclasses.asdict(begun.space)
    return {
        "study": begun.bench.study.name,
        "model": begun.own.key,
        "seed": begun.own.seed,
        "updates": begun.base.train.max_updates,
        "minutes": begun.base.train.max_minutes,
        "space": {n: value for n, value in space.items() if n not in ("trials", "updates")},
        "asked": wanted,
        "trials": len(done) + len(pruned),
        "pruned": len(pruned),
        "seconds": round(sum(_seconds(trial) for trial in [*done, *pruned]), 1),
        "best": [_row(trial) for trial in done[:SHOWN]],
        "own": None if own is None else _row(own),
        "started_from": _started_from(begun),
    }


def reported(begun: Beginning, study: Any, wanted: int, *, tell: Tell) -> dict[str, Any]:
    """What was found, with the test scores of the best model, of the study's own, and of what they
    started from, all of them decoded alike."""
    found = found_so_far(begun, study, wanted)
    if not found["best"]:
        raise UserError("no trial of the search was finished")
    bench, data = begun.bench, begun.bench.open(begun.own)
    done = finished(study)
    own = next(filter(_is_own, done), None)
    models = {"scores": _model(done[0])}
    if own is not None:
        models["own_scores"] = _model(own)
    if begun.start is not None:
        models["started_from_scores"] = (begun.start.key, bench.folder(begun.start))
    scores = {}
    for name, folder in dict.fromkeys(models.values()):
        if (folder / "config.json").is_file():
            output = decode_split(folder, data, split="test", device=bench.device)
            scores[name] = scores_of(output.words, data, task=begun.base.task)
        else:
            tell(f"{name} is not scored here: there is no model {folder}")
    found |= {which: scores[name] for which, (name, _) in models.items() if name in scores}
    found["folder"] = done[0].user_attrs["folder"]
    return found


def _model(trial: Any) -> tuple[str, Path]:
    """A finished trial's name for people, and where its model lies."""
    return f"trial {trial.number}", Path(trial.user_attrs["folder"])


def _started_from(begun: Beginning) -> dict[str, Any] | None:
    """The Transformer that trials start from, beside which theirs are to be read."""
    record = begun.started_from()
    if record is None:
        return None
    loss = record["validation_plain"]
    return {
        "key": record["key"],
        "validation_loss": None if loss is None else round(loss, 4),
        "parameters": record["parameters"],
        "updates": record["updates"],
        "seconds": record["wall_seconds"],
    }


def _seconds(trial: Any) -> float:
    """How long a trial that has ended took."""
    return float(trial.duration.total_seconds())


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
        "seconds": round(_seconds(trial), 1),
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
    with replaced_file(path) as file:  # it is written again and again, and may be read meanwhile
        file.write(json_text(record).encode())
