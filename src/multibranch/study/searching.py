"""Beyond the grid: a search over branches and rates of every layer, and over the FFN's branches.

Optuna's TPE proposes, and a trial that is worse than the median of the others at the same update is
pruned. The first trial is the study's own model, where the space has it: what is to be beaten.
Trials start as that one does, from scratch or from a trained Transformer. The search sees the
validation set only; its best model, the study's own, and what they started from are then scored on
the test set, once. The paper leaves this to future work.
"""

import dataclasses
import itertools
import json
import secrets
import signal
import time
import warnings
from collections.abc import Callable
from typing import Any

from multibranch.errors import Interrupted, UserError, counted
from multibranch.study.bench import Bench
from multibranch.study.findings import found_so_far, reported
from multibranch.study.leases import LEASE, POLL, Leases, Lost
from multibranch.study.proposing import describe, own_model, propose
from multibranch.study.space import Search
from multibranch.study.starting import Beginning, beginning, check_same, train_start
from multibranch.study.stopping import end_of, is_over, terminable
from multibranch.study.storage import open_storage
from multibranch.study.telling import TELL_EVERY, Tell, telling
from multibranch.study.trial import Stopped, Watch
from multibranch.study.trial_folder import tidy
from multibranch.training import Config, Trainer
from multibranch.training.bad_batches import Diverged


def search(
    bench: Bench,
    *,
    url: str,
    trials: int | None = None,
    seed: int = 1,
    lease: float = LEASE,
    minutes: float | None = None,
    keep: Callable[[dict[str, Any]], None] | None = None,
    tell: Tell,
    tell_every: float = TELL_EVERY,
) -> dict[str, Any]:
    """Run trials until there are so many in all, by whichever workers; the best of them.

    lease: seconds after which the trial of a worker that gives no sign does not count any more.
    minutes: after which the trial at work is stopped; the best of the others are given back.
    keep: given what was found by then, test scores excepted, where something else ends the search.
    """
    import optuna

    begun = beginning(bench, seed)
    space = begun.space
    wanted = space.trials if trials is None else trials
    storage = open_storage(url, patience=lease / 2, tell=tell)
    leases = Leases(storage, seconds=lease)
    optuna_study = optuna.create_study(
        storage=storage,
        study_name=f"{bench.study.name}-search",
        direction="minimize",
        load_if_exists=True,
        # Processes that search together must not draw the same: each trial has draws of its own.
        sampler=_sampler(space, seed, done=0),
        pruner=optuna.pruners.MedianPruner(
            n_startup_trials=max(2, space.first_trials // 2), n_warmup_steps=space.warm_up
        ),
    )
    check_same(optuna_study, begun)
    end = end_of(minutes)
    at_once = begun.start is None or begun.started_from() is not None
    try:
        with terminable(end):
            train_start(begun, url, lease=lease, end=end, tell=tell, tell_every=tell_every)
            _try(begun, optuna_study, leases, wanted, end, tell, tell_every)
    except BaseException as error:
        found = found_so_far(begun, optuna_study, wanted)
        if not (isinstance(error, KeyboardInterrupt) and is_over(end)):
            if found["best"] and keep is not None:
                keep(found)
            raise
        tell("the time is up")
        if not found["best"] and not at_once:
            return found  # the time went into what trials start from, which the next command has
        if not found["best"]:  # the same command would not come further
            raise UserError(
                "no trial of the search was finished within --minutes, and the one at work does "
                "not count: give more"
            ) from None
    return reported(begun, optuna_study, wanted, tell=tell)


def _try(
    begun: Beginning,
    study: Any,
    leases: Leases,
    wanted: int,
    end: float | None,
    tell: Tell,
    tell_every: float,
) -> None:
    """Run trials until there are as many as wanted."""
    while not is_over(end) and _wants_another(study, wanted, leases, tell):
        trial = _begin(begun, study, leases, wanted)
        if trial is None:
            continue
        config = propose(trial, begun.space, begun.base)
        name = f"trial {trial.number}"
        tell(f"{name}: {describe(config)}")
        told = telling(name, tell, updates=config.train.max_updates, every=tell_every)
        try:
            with leases.renewed(trial._trial_id):
                value = _run(begun, study, trial, config, told, leases)
        except Stopped as stopped:
            tell(f"{name}: stopped, and does not count")
            raise Interrupted(stopped.signal) from None
        except Lost:
            tell(f"{name}: another worker took this one for gone: it does not count")
            continue
        tell(f"{name}: {'pruned' if value is None else f'loss {value:.4f}'}")


def _begin(begun: Beginning, study: Any, leases: Leases, wanted: int) -> Any | None:
    """Begin a trial; None where other workers have begun the last ones in the meantime.

    Its number, which no other worker's has, decides what it draws. The first one that counts is the
    study's own model.
    """
    import optuna

    taken = study.ask()
    leases.renew(taken._trial_id)
    trials = study.get_trials(deepcopy=False)
    before = [one for one in trials if one.number < taken.number and one.state.name != "FAIL"]
    if len(before) >= wanted:
        leases.end(taken._trial_id)
        return None
    # One that has just begun may be it, though it does not say so yet.
    tried = any(one.user_attrs.get("own", one.state.name == "RUNNING") for one in before)
    fixed = None if tried else own_model(begun.space, begun.base)
    study.sampler = _sampler(begun.space, begun.own.seed, done=taken.number, fixed=fixed)
    trial = optuna.trial.Trial(study, taken._trial_id)
    trial.set_user_attr("own", fixed is not None)
    return trial


def _wants_another(study: Any, wanted: int, leases: Leases, tell: Tell) -> bool:
    """Whether another trial is to be begun; False when there are as many as wanted, all ended.

    Where those that other workers are at would be enough, it waits for them: the trial of a worker
    that is gone does not count.
    """
    waiting = False
    while True:
        trials = study.get_trials(deepcopy=False)
        running = [trial for trial in trials if trial.state.name == "RUNNING"]
        gone = [trial for trial in running if leases.is_gone(trial)]
        for trial in gone:
            if leases.end(trial._trial_id):
                tell(f"trial {trial.number}: its worker is gone: it does not count")
        if gone:
            continue  # one may have ended in the meantime after all
        ended = sum(trial.state.name in ("COMPLETE", "PRUNED") for trial in trials)
        if ended >= wanted or ended + len(running) < wanted:
            return ended < wanted
        if not waiting:
            tell(f"waiting for {counted(len(running), 'trial')} of other workers")
        waiting = True
        time.sleep(POLL)


def _sampler(space: Search, seed: int, *, done: int, fixed: dict[str, Any] | None = None) -> Any:
    import optuna

    draws = (1000 * seed + done) % 2**32  # NumPy takes no larger seed
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # multivariate TPE is called experimental
        sampler = optuna.samplers.TPESampler(
            multivariate=True, n_startup_trials=space.first_trials, seed=draws
        )
        return sampler if fixed is None else optuna.samplers.PartialFixedSampler(fixed, sampler)


def _run(
    begun: Beginning, study: Any, trial: Any, config: Config, told: Watch, leases: Leases
) -> float | None:
    """Train a proposal; its validation loss, or None when it was pruned, or fell apart.

    One that anything else stopped, a signal or another worker that ended its lease, does not count,
    and leaves no weights: the next proposal is another.
    """
    import optuna

    # Searches of several storages may share an output folder, and have trials of the same number.
    name = f"{study.study_name}-{trial.number}-{secrets.token_hex(3)}"
    folder = begun.bench.output / "search" / name
    config = dataclasses.replace(
        config, train=dataclasses.replace(config.train, output=str(folder))
    )
    own = trial.user_attrs["own"]
    step = itertools.count()

    def hold() -> None:
        if not leases.renew(trial._trial_id):
            raise Lost

    def watch(record: dict[str, Any]) -> None:
        told({**record, "loss": record["plain"]})  # which the search compares
        hold()
        trial.report(record["plain"], next(step))
        if trial.should_prune() and not own:  # the one to beat is seen through
            raise optuna.TrialPruned

    trainer = None
    try:
        trainer = Trainer(config, begun.bench.open(begun.own), watch=watch, quiet=True)
        outcome = trainer.run()
        if outcome.signal is not None:
            raise Stopped(outcome.signal)
        if outcome.progress.best_plain is None:
            raise Diverged(f"no validation loss of trial {trial.number} is a number")
        value = float(outcome.progress.best_plain)
        hold()
    except BaseException as error:
        tidy(folder, model=True)
        # Where the one to beat falls apart, there is something to put right first.
        fell_apart = isinstance(error, Diverged) and not own
        if not fell_apart and not isinstance(error, optuna.TrialPruned):
            leases.end(trial._trial_id)
            raise
        study.tell(trial, state=optuna.trial.TrialState.PRUNED, skip_if_finished=True)
        if trainer and trainer.interruption.signal:  # which training had yet to obey
            signal.raise_signal(trainer.interruption.signal)
        return None
    trial.set_user_attr("parameters", outcome.parameters)
    trial.set_user_attr("folder", str(folder))
    trial.set_user_attr("model", json.dumps(dataclasses.asdict(config.model)))
    study.tell(trial, value)
    tidy(folder)
    outcome.before_more()
    return value
