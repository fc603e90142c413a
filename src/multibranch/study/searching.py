"""Beyond the grid: a search over branches and rates of every layer, and over the FFN's branches.

Optuna's TPE proposes, and a trial that is worse than the median of the others at the same update is
pruned. The search sees the validation set only; the best model it finds is then scored on the test
set, once. The paper leaves this to future work.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

from multibranch.errors import UserError
from multibranch.study.bench import Bench
from multibranch.study.plan import Search
from multibranch.study.scoring import scores_of
from multibranch.study.storage import is_known_dead, open_storage, worker_name
from multibranch.study.telling import TELL_EVERY, Tell, telling
from multibranch.study.trial import Busy, Watch, claimed, tidy
from multibranch.tasks.evaluation import decode_split
from multibranch.training import Config, Trainer

SHOWN = 5  # trials that the search tells of at its end


def search(
    bench: Bench,
    *,
    url: str,
    trials: int | None = None,
    seed: int = 1,
    tell: Tell,
    tell_every: float = TELL_EVERY,
) -> dict[str, Any]:
    """Run trials until there are so many in all, by whichever workers; the best of them."""
    import optuna

    space = bench.study.search
    wanted = space.trials if trials is None else trials
    base = _base(bench, seed)
    optuna_study = optuna.create_study(
        storage=open_storage(url),
        study_name=f"{bench.study.name}-search",
        direction="minimize",
        load_if_exists=True,
        # Processes that search together must not draw the same: each trial has draws of its own.
        sampler=_sampler(space, seed, done=0),
        pruner=optuna.pruners.MedianPruner(
            n_startup_trials=max(2, space.first_trials // 2), n_warmup_steps=space.warm_up
        ),
    )
    _check_same(optuna_study, bench)
    while True:
        _forget_dead(optuna_study)
        states = optuna_study.get_trials(deepcopy=False)
        begun = [t for t in states if t.state.name in ("COMPLETE", "PRUNED", "RUNNING")]
        if len(begun) >= wanted:
            break
        optuna_study.sampler = _sampler(space, seed, done=len(states))
        trial = optuna_study.ask()
        trial.set_user_attr("worker", worker_name())
        config = propose(trial, space, base)
        name = f"trial {trial.number}"
        tell(f"{name}: {describe(config)}")
        told = telling(name, tell, updates=config.train.max_updates, every=tell_every)
        value, state = _run(bench, optuna_study, trial, config, told)
        if state is optuna.trial.TrialState.FAIL:
            tell(f"{name}: stopped, and does not count")
            raise KeyboardInterrupt
        tell(f"{name}: {'pruned' if value is None else f'loss {value:.4f}'}")
    return _report(bench, optuna_study, base)


def _check_same(study: Any, bench: Bench) -> None:
    """Refuse to go on with a search that began with other settings, another space or other data.

    Its losses are not to be compared with those that would come now.
    """
    space = {**dataclasses.asdict(bench.study.search), "trials": None}
    now = {"space": space, "fingerprint": bench.fingerprint(bench.study.experiments(seeds=1)[0])}
    before = study.user_attrs.get("began_with")
    if before is None:
        study.set_user_attr("began_with", now)
    elif before != now:
        raise UserError(
            f"the search of {bench.study.name} in this storage began with other settings or data: "
            "put them back, or begin another with another --output or --storage"
        )


def _forget_dead(study: Any) -> None:
    """Trials of processes of this machine that are no more do not count."""
    import optuna

    for trial in study.get_trials(deepcopy=False):
        worker = trial.user_attrs.get("worker")
        if trial.state.name == "RUNNING" and worker is not None and is_known_dead(worker):
            study.tell(trial.number, state=optuna.trial.TrialState.FAIL, skip_if_finished=True)


def _sampler(space: Search, seed: int, *, done: int) -> Any:
    import warnings

    import optuna

    draws = (1000 * seed + done) % 2**32  # NumPy takes no larger seed
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # multivariate TPE is called experimental
        return optuna.samplers.TPESampler(
            multivariate=True, n_startup_trials=space.first_trials, seed=draws
        )


def _base(bench: Bench, seed: int) -> Config:
    """The configuration that proposals change: that of the study's first experiment."""
    first = bench.study.experiments(seeds=1)[0]
    if bench.task(first) == "understanding":
        raise UserError(
            f"{bench.study.name} has nothing to search: its encoders are pretrained, and a search "
            "trains models from scratch"
        )
    bench.check([first])
    config = bench.config(first)
    folder = str(bench.open(first).folder)
    updates = bench.study.search.updates or config.train.max_updates
    return dataclasses.replace(
        config,
        data=dataclasses.replace(config.data, folder=folder),
        train=dataclasses.replace(config.train, seed=seed, init_from=None, max_updates=updates),
    )


def propose(trial: Any, space: Search, base: Config) -> Config:
    """What Optuna would try next, as a configuration.

    Layers are counted from the encoder's first to the decoder's last; `layers_together` of them
    share what is chosen.
    """
    model = base.model
    layers = model.encoder_layers + model.decoder_layers
    each = max(1, space.layers_together)
    chosen: dict[str, Any] = {
        "branches": [],
        "drop_branch": [],
        "drop_ffn": [],
        "ffn_branches": [],
    }
    for first in range(0, layers, each):
        count = min(each, layers - first)
        where = f"layer{first + 1}"
        values = {
            "branches": trial.suggest_categorical(f"branches.{where}", space.branches),
            "drop_branch": trial.suggest_float(
                f"drop_branch.{where}", *_ends(space.drop_branch), step=0.05
            ),
            "drop_ffn": trial.suggest_float(f"drop_ffn.{where}", *_ends(space.drop_ffn), step=0.05),
            "ffn_branches": trial.suggest_categorical(f"ffn.{where}", space.ffn_branches),
        }
        for name, value in values.items():
            chosen[name] += [value] * count
    kind = trial.suggest_categorical("drop_kind", space.drop_kind)
    # The hidden width is one for all layers: FFN branches make a layer larger, and the search
    # records the model's size for that reason.
    return dataclasses.replace(base, model=dataclasses.replace(model, drop_kind=kind, **chosen))


def _ends(values: list[float]) -> tuple[float, float]:
    return min(values), max(values)


def describe(config: Config) -> str:
    """The layers of a proposal in one line."""
    model = config.model
    assert isinstance(model.branches, list) and isinstance(model.drop_branch, list)
    branches = "".join(map(str, model.branches))
    rates = " ".join(f"{rate:.2f}" for rate in model.drop_branch)
    return f"N_a by layer {branches}, ρ by layer {rates}, drop-{model.drop_kind}"


def _run(
    bench: Bench, study: Any, trial: Any, config: Config, told: Watch
) -> tuple[float | None, Any]:
    """Train a proposal; its validation loss, or None when it was pruned or stopped."""
    import optuna

    states = optuna.trial.TrialState
    folder = bench.output / "search" / f"{study.study_name}-{trial.number}"
    config = dataclasses.replace(
        config, train=dataclasses.replace(config.train, output=str(folder))
    )
    step = iter(range(10**9))

    def watch(record: dict[str, Any]) -> None:
        told({**record, "loss": record["plain"]})  # which the search compares
        trial.report(record["plain"], next(step))
        if trial.should_prune():
            raise optuna.TrialPruned

    experiment = bench.study.experiments(seeds=1)[0]
    try:
        with claimed(folder):
            trainer = Trainer(config, bench.open(experiment), watch=watch, quiet=True)
            outcome = trainer.run()
    except optuna.TrialPruned:
        study.tell(trial, state=states.PRUNED)
        tidy(folder, model=True)
        return None, states.PRUNED
    except Busy:
        raise UserError(f"{folder} is in use by another process") from None
    if outcome.interrupted:
        study.tell(trial, state=states.FAIL)
        tidy(folder, model=True)  # the next command asks for another proposal
        return None, states.FAIL
    value = outcome.progress.best_plain
    assert value is not None
    trial.set_user_attr("parameters", outcome.parameters)
    trial.set_user_attr("folder", str(folder))
    trial.set_user_attr("model", json.dumps(dataclasses.asdict(config.model)))
    study.tell(trial, value)
    tidy(folder)
    return float(value), states.COMPLETE


def _report(bench: Bench, study: Any, base: Config) -> dict[str, Any]:
    """The best trials, and the test score of the very best."""
    trials = study.get_trials(deepcopy=False)
    done = sorted((t for t in trials if t.state.name == "COMPLETE"), key=lambda t: t.value)
    if not done:
        raise UserError("no trial of the search was finished")
    rows = []
    for trial in done[:SHOWN]:
        model = json.loads(trial.user_attrs["model"])
        rows.append(
            {
                "trial": trial.number,
                "validation_loss": round(trial.value, 4),
                "branches": " ".join(map(str, model["branches"])),
                "drop_branch": " ".join(f"{rate:.2f}" for rate in model["drop_branch"]),
                "drop_ffn": " ".join(f"{rate:.2f}" for rate in model["drop_ffn"]),
                "ffn_branches": " ".join(map(str, model["ffn_branches"])),
                "drop_kind": model["drop_kind"],
                "parameters": trial.user_attrs["parameters"],
            }
        )
    pruned = sum(trial.state.name == "PRUNED" for trial in trials)
    found: dict[str, Any] = {
        "study": bench.study.name,
        "trials": len(done) + pruned,
        "pruned": pruned,
        "best": rows,
    }
    folder = Path(done[0].user_attrs["folder"])
    if (folder / "config.json").is_file():  # it may lie on another worker's machine
        data = bench.open(bench.study.experiments(seeds=1)[0])
        output = decode_split(folder, data, split="test", device=bench.device)
        found["scores"] = scores_of(output.words, data, task=base.task)
        found["folder"] = str(folder)
    return found
