"""Run experiments such as the paper's tables, and report them beside the paper's numbers.

  multibranch study list                              the studies
  multibranch study run multi30k-small --workers 4    run what is left of one
  multibranch study run table-1 --data prepared/iwslt14-de-en --seeds 1
  multibranch study run multi30k-small --only 'de-en.proximal.3-*.s1'
  multibranch study report multi30k-small             a page and a Markdown file
  multibranch study import multi30k-small FOLDER      trials recorded elsewhere
  multibranch study search multi30k-search --trials 30

A study is a file in configs/studies, or one of your own given by its path; table-N is that table of
the paper at the paper's size. Trials are kept in one storage, by default a SQLite file in the
output folder. Several `run` commands share the work, on one machine or on several that share a
PostgreSQL database (--storage): every trial is taken by one worker, a Transformer that several
cells start from is trained once, and the trial of a killed worker is resumed by another. Ctrl-C
saves running trials and gives them back.

Exit status: 0 done, 1 an experiment failed or is left to run, 2 an error that one line explains,
130 or 143 stopped by Ctrl-C or SIGTERM.
"""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from multibranch.cli.study_arguments import OUTPUT, add_arguments, check_bounds

__all__ = ["add_arguments", "run"]


def run(args: argparse.Namespace) -> int:
    from multibranch.study.storage import answering

    check_bounds(args)
    actions = {
        "run": _run,
        "report": _report,
        "import": _import,
        "search": _search,
    }
    if args.what == "list":  # which needs no storage
        _list(args)
        return 0
    with answering(_url(args)):
        return actions[args.what](args) or 0


def _list(args: argparse.Namespace) -> None:
    from multibranch.cli.output import print_result
    from multibranch.errors import UserError
    from multibranch.study.plan import load_study, study_files

    if args.name is not None:
        study = load_study(args.name)
        experiments = study.experiments(args.seeds)
        if args.json:
            listed = [{"key": e.key, "model": study.title_of(e)} for e in experiments]
            print_result(listed, as_json=True, many=True)
        else:  # keys are for copying, so that no table may cut them
            width = max((len(experiment.key) for experiment in experiments), default=0)
            for experiment in experiments:
                print(f"{experiment.key:{width}}  {study.title_of(experiment)}")
        return
    rows: list[dict[str, Any]] = []
    for name in study_files():
        study = load_study(name)
        row: dict[str, Any] = {"study": name, "title": study.title}
        row["paper"] = ", ".join(map(str, study.papers)) or None
        row["experiments"] = len(study.experiments(args.seeds))
        rows.append(row)
    if not rows:
        raise UserError("there is no study here: give the path of a study file, or go to a clone")
    title = "Studies (paper: the tables that they mirror)"
    print_result(rows, as_json=args.json, title=title, many=True)


def _bench(args: argparse.Namespace) -> Any:
    """The study with its data and folders."""
    from pathlib import Path

    from multibranch.disk import check_place
    from multibranch.study.bench import Bench, parse_data
    from multibranch.study.plan import load_study
    from multibranch.study.storage import without_password

    study = load_study(args.name)
    if getattr(args, "source", None) is None:  # a recorded study has no storage there
        check_place(Path(args.output), "--output", filled=True)
    device = getattr(args, "device", "auto")
    words = [word for folder in args.data for word in ("--data", folder)]
    if args.output != OUTPUT:
        words += ["--output", args.output]
    if args.storage:
        words += ["--storage", without_password(args.storage)]
    if device != "auto":
        words += ["--device", device]
    return Bench(
        study=study,
        output=Path(args.output),
        data=parse_data(args.data, study),
        device=device,
        words=words,
    )


def _url(args: argparse.Namespace) -> str:
    from pathlib import Path

    from multibranch.study.storage import default_url

    return args.storage or default_url(Path(args.output))


def _tell(line: str) -> None:
    import sys
    import time

    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)


@contextmanager
def _going_on() -> Iterator[None]:
    """Tell whoever stops what is inside that nothing has to be begun anew."""
    try:
        yield
    except KeyboardInterrupt:
        _tell("stopped: the same command goes on")
        raise


def _run(args: argparse.Namespace) -> int:
    import os

    import torch

    from multibranch.cli.output import print_result
    from multibranch.errors import counted
    from multibranch.study.plan import choose
    from multibranch.study.worker import Work, run_workers

    bench = _bench(args)
    if args.seeds and args.seeds > bench.study.seeds:
        bench.words += ["--seeds", str(args.seeds)]
    experiments = choose(bench.study.experiments(args.seeds), args.only)
    bench.check(experiments)
    gpu = torch.cuda.is_available() and args.device != "cpu"
    workers = min(args.workers or (4 if gpu else 1), len(experiments))
    threads = max(1, (os.cpu_count() or 1) // workers) if workers > 1 else None
    job = Work(
        bench,
        experiments,
        _url(args),
        lease=args.lease,
        threads=threads,
        together=args.together,
        discard_models=args.discard_models,
    )
    for experiment in {e.corpus: e for e in experiments}.values():  # once, and before any worker
        if bench.task(experiment) != "understanding":
            bench.open(experiment)
    queue = job.queue()
    if args.retry_failed:
        queue.forget_failures()
    with _going_on():
        states = run_workers(job, workers, tell=_tell, minutes=args.minutes)
    for key, error in queue.errors().items():
        _tell(f"{key} failed: {error}")
    failed = states.get("failed", 0)
    left = len(experiments) - states.get("done", 0) - failed
    again = "the same command goes on"
    if failed:
        again = f"with that put right, {again} with --retry-failed"
    if left:
        again = f"{counted(left, 'experiment')} left to run: {again}"
    if left or failed:
        _tell(again)
    row = {"study": bench.study.name, "experiments": len(experiments), "done": 0, **states}
    print_result([row], as_json=args.json, title="Study")
    return 0 if states.get("done") == len(experiments) else 1


def _report(args: argparse.Namespace) -> None:
    from pathlib import Path

    from multibranch.study.reporting import write_report

    bench = _bench(args)
    written = write_report(
        bench,
        url=_url(args),
        source=args.source,
        html=args.html,
        markdown=args.markdown,
        record=args.record,
        tell=_tell,
    )
    if args.json:
        import json

        print(json.dumps(written["cells"], indent=2, ensure_ascii=False))
    else:
        for path in map(Path, written["files"]):
            inside = path.is_relative_to(Path.cwd())
            print(path.relative_to(Path.cwd()) if inside else path)


def _import(args: argparse.Namespace) -> None:
    from multibranch.cli.output import print_result
    from multibranch.errors import counted
    from multibranch.study.reporting import import_trials

    bench = _bench(args)
    taken, known = import_trials(bench, args.folder, url=_url(args), tell=_tell)
    if args.json:
        row = {"study": bench.study.name, "taken": taken, "known": known}
        print_result([row], as_json=True)
        return
    print(f"{counted(taken, 'trial')} taken, {known} known already")


def _search(args: argparse.Namespace) -> int:
    import json
    import shlex
    from pathlib import Path

    from multibranch.disk import check_file
    from multibranch.errors import counted
    from multibranch.study.findings import write_search
    from multibranch.study.searching import search

    if args.record is not None:
        check_file(Path(args.record), "--record")
    bench = _bench(args)

    def keep(found: dict[str, Any]) -> None:
        if args.record is not None:
            trials = str(max(found["asked"], found["trials"]))
            words = ["multibranch", "study", "search", args.name, "--trials", trials]
            words += ["--seed", str(args.seed), *bench.words]
            write_search(Path(args.record), bench, found, command=shlex.join(words))

    with _going_on():
        found = search(
            bench,
            url=_url(args),
            trials=args.trials,
            seed=args.seed,
            lease=args.lease,
            minutes=args.minutes,
            keep=keep,
            tell=_tell,
        )
    if found["best"]:
        keep(found)
    left = found["asked"] - found["trials"]
    if left > 0:
        _tell(f"{counted(left, 'trial')} left to run: the same command goes on")
    if args.json:
        print(json.dumps(found, indent=2, ensure_ascii=False))
    else:
        _print_found(found)
    return 1 if left > 0 else 0


def _print_found(found: dict[str, Any]) -> None:
    """The best trials of a search, then the best, the study's own and what they started from."""
    from multibranch.cli.output import print_result, print_signatures
    from multibranch.errors import counted

    if not found["best"]:
        return
    title = f"Best of {counted(found['trials'], 'trial')}, {found['pruned']} pruned early"
    # The short name leaves eight columns room in a terminal of 80.
    best = [{n.removeprefix("validation_"): v for n, v in row.items()} for row in found["best"]]
    for row in best:  # which differ in the third digit after the point
        row["loss"] = f"{row['loss']:.4f}"
        del row["seconds"]
    print_result(best, as_json=False, title=f"{title}, by validation loss")
    own, start = found["own"], found["started_from"]
    models = [(f"the best, trial {best[0]['trial']}", found["best"][0], "scores")]
    if own is not None:
        models.append((f"the study's own, trial {own['trial']}", own, "own_scores"))
    if start is not None:
        models.append(("what all started from", start, "started_from_scores"))
    signatures: dict[str, str] = {}
    for _, _, key in models:
        signatures |= {name: score["signature"] for name, score in found.get(key, {}).items()}
    rows = []
    for name, model, key in models:
        loss = model["validation_loss"]
        row = {"model": name, "loss": None if loss is None else f"{loss:.4f}"}
        row["parameters"] = model["parameters"]
        scores = found.get(key, {})
        rows.append(row | {n: scores[n]["value"] if n in scores else None for n in signatures})
    print_result(rows, as_json=False, title="Validation loss, and scores on the test set")
    if start is not None:
        print(f"all started from {start['key']}")
    print_signatures(signatures)
