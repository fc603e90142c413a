"""One trial: train an experiment's model, decode with it, and write down what came of it.

Nothing here needs Optuna, sacreBLEU or matplotlib, so that trials run where only PyTorch is. A
trial that was stopped or killed goes on where its training was saved; one that is done is read.
"""

import dataclasses
import gc
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from signal import Signals
from typing import Any

import torch

from multibranch import __version__
from multibranch.data import PreparedData
from multibranch.decoding import Translator
from multibranch.device import device_name
from multibranch.directory import load_model
from multibranch.disk import write_json
from multibranch.errors import UserError
from multibranch.metrics import Score, multi_bleu
from multibranch.nn import branch_similarity, prune
from multibranch.study.bench import Bench
from multibranch.study.experiment import Experiment
from multibranch.study.trial_folder import (
    HYPOTHESES,
    RECORD,
    claimed,
    read_record,
    tidy,
    write_lines,
)
from multibranch.tasks.translation import validation_score
from multibranch.training import Config, Trainer
from multibranch.training.disk import refusals_explained
from multibranch.training.display import read_records
from multibranch.training.together import Table, run_together

Watch = Callable[[dict[str, Any]], None]


class Stopped(Exception):
    """A signal stopped the trial; what was done is saved."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {Signals(number).name}")
        self.signal = number


_last_group: list[str] = [""]


def run_trial(
    bench: Bench,
    experiment: Experiment,
    *,
    watch: Watch | None = None,
    table: Table | None = None,
) -> dict:
    """Run an experiment, or read what came of it when it was run; give back its record.

    watch: called with the record of every validation, of an encoder's epoch too, and with
        {"translating": True} when that begins.
    table: where it meets the trials that are trained together with it.
    """
    folder = bench.folder(experiment)
    done = read_record(folder)
    if done is not None:
        return done
    with refusals_explained(folder), claimed(folder):
        done = read_record(folder)  # by whoever held it until now
        if done is not None:
            return done
        began = time.monotonic()
        if bench.task(experiment) == "understanding":
            from multibranch.study.classifying import run_classifier

            record, lines = run_classifier(bench, experiment, watch)
        else:
            record, lines = _run(bench, experiment, watch, table)
        record = {
            "study": bench.study.name,
            "key": experiment.key,
            "cell": experiment.cell,
            "fingerprint": bench.fingerprint(experiment),
            "experiment": dataclasses.asdict(experiment),
            "parent": None if experiment.parent is None else experiment.parent.key,
            "command": bench.command(experiment),
            **record,
            **({} if table is None else {"together": table.size}),
            "wall_seconds": round(_share(time.monotonic() - began, table), 2),
            "device": device_name(bench.device),
            "torch": str(torch.__version__),
            "version": __version__,
            "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
        if lines is not None:
            write_lines(folder / HYPOTHESES, lines)
        write_json(folder / RECORD, record)
        tidy(folder)
    return record


def run_trials(
    trials: Sequence[tuple[Bench, Experiment]], *, watches: Sequence[Watch | None] = ()
) -> list[dict[str, Any]]:
    """Run experiments of one architecture, as one as far as they are not done; their records.

    Those that were stopped at different updates cannot go on together: only those that stand at the
    same one do.

    watches: of each, as `run_trial` takes it.
    """
    watched = watches or [None] * len(trials)

    def running(place: int) -> Callable[[Table], dict]:
        bench, experiment = trials[place]
        return lambda table: run_trial(bench, experiment, watch=watched[place], table=table)

    places: dict[str, list[int]] = {}
    for place, (bench, experiment) in enumerate(trials):
        folder = bench.folder(experiment)
        if read_record(folder) is None:
            newest = max((path.name for path in folder.glob("resume/update-*")), default="")
            places.setdefault(newest, []).append(place)
    for alike in places.values():
        if len(alike) > 1:
            _make_way(trials[alike[0]][1])
            run_together([running(place) for place in alike])
    return [
        run_trial(bench, experiment, watch=watch)
        for (bench, experiment), watch in zip(trials, watched, strict=True)
    ]


def _run(
    bench: Bench, experiment: Experiment, watch: Watch | None, table: Table | None
) -> tuple[dict[str, Any], list[str]]:
    data, config = bench.open(experiment), bench.config(experiment)
    config.data = dataclasses.replace(config.data, folder=str(data.folder))
    if experiment.start == "pruned":
        assert experiment.parent is not None
        source = bench.folder(experiment.parent)
        whole = _trained(bench, experiment.parent)
        trained = {name: whole[name] for name in ("updates", "epochs", "tokens")}
        trained |= {"train_seconds": 0.0, "curve": []}
    else:
        source = Path(config.train.output)
        trained = _train(config, data, experiment, watch, table)
    # Decoding is captured as CUDA graphs, beside which no other thread may be at work.
    with _alone(table):
        if watch is not None:
            watch({"translating": True})
        return _measured(bench, experiment, config, data, source, trained)


def _measured(
    bench: Bench,
    experiment: Experiment,
    config: Config,
    data: PreparedData,
    source: Path,
    trained: dict[str, Any],
) -> tuple[dict[str, Any], list[str]]:
    """The record of a trained model, and its translations of the test set."""
    model = load_model(source)
    similarity = branch_similarity(model)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    if experiment.keep is not None:
        kept = prune(model, keep=experiment.keep)
        parameters = sum(parameter.numel() for parameter in kept.parameters())
    del model
    decoded, lines = _decode(bench, experiment, config, data, source)
    mean = sum(similarity.values()) / len(similarity) if similarity else None
    record = {
        "task": config.task,
        "parameters": parameters,
        **trained,
        "similarity": {name: round(value, 5) for name, value in similarity.items()},
        "mean_similarity": mean if mean is None else round(mean, 5),
        **decoded,
    }
    return record, lines


def _alone(table: Table | None) -> AbstractContextManager[Any]:
    """While no other trial at the table does such a thing."""
    return nullcontext() if table is None else table.alone()


def _share(seconds: float, table: Table | None) -> float:
    """What a trial took, of the time of all that were trained together."""
    return seconds if table is None else seconds / table.size


def _make_way(experiment: Experiment) -> None:
    """Forget what was compiled for other architectures, and what a failed trial left in memory."""
    _collect()
    if experiment.group != _last_group[0]:
        torch._dynamo.reset()
        _last_group[0] = experiment.group


def _collect() -> None:
    """Give back the memory of what is not needed any more."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _train(
    config: Config,
    data: PreparedData,
    experiment: Experiment,
    watch: Watch | None,
    table: Table | None,
) -> dict[str, Any]:
    folder = Path(config.train.output)
    if table is None:
        _make_way(experiment)
    score = validation_score(config, data) if config.train.validate_score else None
    trainer = Trainer(config, data, score=score, watch=watch, table=table, quiet=True)
    outcome = trainer.run()
    del trainer
    if table is not None:
        table.leave()
    with _alone(table):  # memory that is given back ends the capture of another thread's graph
        _collect()
    if outcome.signal is not None:
        raise Stopped(outcome.signal)
    outcome.before_more()
    progress = outcome.progress
    curve = [
        [r["update"], _rounded(r["loss"]), _rounded(r["plain"])]
        for r in read_records(folder, "validation")
    ]
    averaged = read_records(folder, "averaged")
    return {
        "updates": progress.update,
        "epochs": progress.epoch,
        "tokens": progress.tokens,
        "train_seconds": round(_share(progress.seconds, table), 2),
        "validation_loss": _rounded(progress.best_loss),
        "validation_plain": _rounded(progress.best_plain),
        "averaged_plain": _rounded(averaged[-1]["plain"]) if averaged else None,
        "averaged_snapshots": averaged[-1]["snapshots"] if averaged else None,
        "best_update": progress.best_update,
        "curve": curve,
        "ended": outcome.stopped,
    }


def _trained(bench: Bench, experiment: Experiment) -> dict[str, Any]:
    """The record of what an experiment starts from."""
    record = read_record(bench.folder(experiment))
    if record is None:
        raise UserError(f"{bench.folder(experiment)} holds no finished trial to start from")
    return record


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 5)


# -- Decoding -----------------------------------------------------------------------------------


def _decode(
    bench: Bench, experiment: Experiment, config: Config, data: PreparedData, source: Path
) -> tuple[dict[str, Any], list[str]]:
    """Translate the test set, with the length penalty that is best on the validation set.

    Where all models are to have the same one, that is the choice of the model that this one started
    from: what is compared then differs in its weights alone.
    """
    gpu = torch.cuda.is_available() and bench.device != "cpu"
    keep = experiment.keep
    translator = Translator.load(
        source,
        device="cuda" if gpu else "cpu",
        branches=None if keep is None else list(range(keep)),
        precision="float16" if gpu else "float32",
        cuda_graphs=gpu,
    )

    def translate(split: str, penalty: float) -> list[str]:
        store = data.split(split)
        sources = [store.source(index).tolist() for index in range(len(store))]
        options = translator.options(
            beam=config.decode.beam, length_penalty=penalty, max_length=config.longest_output
        )
        found = translator.search(sources, options)
        ids = [hypotheses[0].ids if hypotheses else () for hypotheses in found]
        return data.text.decode(ids, side="target", tokenised=True)

    def score(lines: list[str], split: str) -> Score:
        return multi_bleu(lines, _references(data, split))

    penalties = bench.study.length_penalties or [config.decode.length_penalty]
    if bench.study.same_length_penalty and experiment.parent is not None:
        penalties = [_trained(bench, experiment.parent)["length_penalty"]]
    tuned = {penalty: score(translate("valid", penalty), "valid") for penalty in penalties}
    best = max(tuned, key=lambda penalty: tuned[penalty].value)
    began = time.monotonic()
    lines = translate("test", best)
    seconds = time.monotonic() - began
    reached = score(lines, "test")
    record = {
        "length_penalty": best,
        "beam": config.decode.beam,
        "valid_bleu": {f"{penalty:g}": round(each.value, 3) for penalty, each in tuned.items()},
        "valid_brevity_penalty": round(tuned[best].details["brevity_penalty"], 4),
        "test_bleu": round(reached.value, 3),  # until the translations are scored
        "brevity_penalty": round(reached.details["brevity_penalty"], 4),
        "decode_seconds": round(seconds, 2),
        "sentences": len(lines),
    }
    return record, lines


def _references(data: PreparedData, split: str) -> list[str]:
    """The references as the vocabulary spells them: what is at hand without any tokeniser."""
    store = data.split(split)
    ids = [store.target(index).tolist() for index in range(len(store))]
    return data.text.decode(ids, side="target", tokenised=True)
