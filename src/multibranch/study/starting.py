"""What a search begins with: the study's own model, and what all its trials start from.

Where the study's own model is a Transformer branched out (proximal initialisation), every trial is
one: the Transformer is trained once, as an experiment of the study, and the trials are second
stages. Otherwise they start from scratch.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

from multibranch.errors import UserError
from multibranch.study.bench import Bench
from multibranch.study.experiment import Experiment
from multibranch.study.plan import SEEDS
from multibranch.study.space import Search
from multibranch.study.telling import Tell
from multibranch.study.trial_folder import read_record
from multibranch.study.worker import Work, work
from multibranch.training import Config


@dataclass(frozen=True)
class Beginning:
    """What a search begins with.

    own: the study's own model, of the search's seed: what is to be beaten.
    space: what may be chosen.
    base: the configuration that proposals change, that of the own model.
    """

    bench: Bench
    own: Experiment
    space: Search
    base: Config

    @property
    def start(self) -> Experiment | None:
        """The standard Transformer that all trials start from; None where that is nothing."""
        return self.own.parent

    def started_from(self) -> dict[str, Any] | None:
        """The record of that Transformer, where it has been trained and lies here."""
        return None if self.start is None else read_record(self.bench.folder(self.start))


def beginning(bench: Bench, seed: int) -> Beginning:
    """What the search of a study begins with; a study that has none is refused.

    The search compares losses, so that by these weights are kept and patience ends, too.
    """
    study = bench.study
    own = study.own(seed)
    if bench.task(own) == "understanding" or own.start == "pretrained":
        raise UserError(
            f"{study.name} has nothing to search: its encoders are pretrained, and a search "
            "starts from scratch or from a Transformer that is trained for it"
        )
    if study.search is None:
        raise UserError(
            f"{study.path} has no key search, which says what may be chosen: add one, or "
            "`search: {}` for the usual choices, which docs/study.md names"
        )
    if own.start not in ("scratch", "proximal"):
        raise UserError(
            f"{study.path}: a search starts as the study's own model does, the first that its "
            f"first grid lists, and {own.key} is neither from scratch nor proximal: let another "
            "be the first"
        )
    start = own.parent
    if start is not None and not 1 <= seed <= SEEDS:
        raise UserError(
            f"--seed must be 1 to {SEEDS:,}, not {seed}, where a search starts from a Transformer: "
            "that is an experiment of the study"
        )
    space = study.search.completed(None if start is None else start.ffn_branches)
    if start is not None and space.ffn_branches != [start.ffn_branches]:
        raise UserError(
            f"{study.path}: search.ffn_branches: every trial starts from {start.key}, and has its "
            f"FFN: leave the key out, or write [{start.ffn_branches}]"
        )
    bench.check([own] if start is None else [start, own])
    config = bench.config(own)
    base = dataclasses.replace(
        config,
        data=dataclasses.replace(config.data, folder=str(bench.open(own).folder)),
        train=dataclasses.replace(
            config.train,
            max_updates=space.updates or config.train.max_updates,
            stop_on="loss",
            validate_score=False,
        ),
    )
    return Beginning(bench, own, space, base)


def check_same(study: Any, begun: Beginning) -> None:
    """Refuse to go on with a search that began with other settings, data, or from another model.

    Its losses are not to be compared with those that would come now.
    """
    # From scratch, searches of several seeds may share their trials.
    own = begun.own if begun.start is not None else dataclasses.replace(begun.own, seed=1)
    now: dict[str, Any] = {
        "space": {**dataclasses.asdict(begun.space), "trials": None},
        "fingerprint": begun.bench.fingerprint(own),
    }
    if begun.start is not None:
        now["started_from"] = begun.start.key
    before = study.user_attrs.get("began_with")
    if before is None:
        study.set_user_attr("began_with", now)
    elif before != now:
        was, would = (one.get("started_from", "scratch") for one in (before, now))
        what = "began with other settings or data: put them back"
        if was != would:
            what = (
                f"started from {was}, and this one would from {would}: put back --seed or the "
                "study's first grid"
            )
        raise UserError(
            f"the search of {begun.bench.study.name} in this storage {what}, or begin another with "
            "another --output or --storage"
        )


def train_start(
    begun: Beginning,
    url: str,
    *,
    lease: float,
    end: float | None,
    tell: Tell,
    tell_every: float,
) -> None:
    """Have the Transformer that trials start from, as a worker of the study would.

    It may be done already, or another worker be at it, of this search or of the study.
    """
    bench, start = begun.bench, begun.start
    if start is None:
        return
    job = Work(bench, [start], url, lease=lease, tell_every=tell_every, end=end)
    work(job, tell=tell)
    why = job.queue().errors().get(start.key)
    if why is not None:
        raise UserError(
            f"{start.key}, which the search starts from, failed: {why}; with that put right: "
            f"{bench.command(start)} --retry-failed"
        )
    if begun.started_from() is None:
        raise UserError(
            f"{start.key}, which the search starts from, was trained elsewhere: there is no model "
            f"{bench.folder(start)}; share the --output with where it was, or begin with another "
            "--storage"
        )
    tell(f"every trial starts from {start.key}")
