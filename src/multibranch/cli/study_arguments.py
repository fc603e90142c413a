"""What `multibranch study` takes: the arguments of its verbs, and what they say of themselves."""

import argparse
from typing import Any

from multibranch.cli.formatting import HelpFormatter
from multibranch.cli.searching import add_device

OUTPUT = "runs/study"
_LIST = """The studies there are, with the tables they mirror, or the experiments of one.

  multibranch study list
  multibranch study list multi30k-small     its experiments, for `run --only`
"""
_RUN = """Run the trials of a study, or what is left of them.

  multibranch study run builtin              needs no corpus
  multibranch study run multi30k-small --workers 4 --together 12
  multibranch study run multi30k-small --only 'de-en.proximal.3-*.s1'
  multibranch study run table-1 --data prepared/iwslt14-de-en --seeds 1

Stopped anywhere, or ended by --minutes, the same command goes on. Started twice, both share the
work. A trial that failed is told at the end with its reason, and tried again with --retry-failed.
"""
_REPORT = """Write a study's page and Markdown file: its numbers beside the paper's.

  multibranch study report multi30k-small
  multibranch study report multi30k-small --record study.json   as data, too
  multibranch study report multi30k-small --from study.json     from such data

What has been run so far is reported; more trials, and the same command again, make it complete.
"""
_IMPORT = """Score trials recorded where only PyTorch is, and put them in the storage.

  python benchmarks/study_gpu.py prepared/multi30k-de-en OUT \\
      --study multi30k-small --minutes 8
  multibranch study import multi30k-small OUT \\
      --data de-en=prepared/multi30k-de-en

Trials that the storage has already, run with the same settings, are left as they are.
"""
_SEARCH = """Search beyond the grid: N_a, ρ and N_f of every layer, and what is dropped.

  multibranch study search builtin           needs no corpus
  multibranch study search multi30k-search --trials 30

Optuna's TPE proposes; what is worse than the median at the same update is pruned. The first trial
is the study's own model, where the space has it: what is to be beaten. The search sees the
validation set only, and its best model and the study's own are scored on the test set at the end.
Trials start as the study's own model does, the first that its first grid lists: from scratch, or
from a Transformer, which is trained once and then branched out in each trial (proximal).
--trials counts those of all commands together: the same command with a larger number goes on.
Commands that search together end when all trials have; that of a worker that is gone is replaced.
Stopped, or ended by --minutes, it leaves a --record of the trials so far; the same command goes on.
"""
_BOUNDS = {
    "seeds": (1, 1000),
    "workers": (1, 1000),
    "together": (1, 1000),
    "lease": (1, 86_400),
    "trials": (1, 1_000_000),
    "minutes": (0.01, 1_000_000),
    "seed": (0, 2**32 - 1),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="what", metavar="list|run|report|import|search")
    verbs.required = True
    every = _verb(verbs, "list", "the studies there are, or the experiments of one", _LIST)
    every.add_argument("name", nargs="?", metavar="NAME", help="list the experiments of this one")
    _add_seeds(every)
    every.add_argument("--json", action="store_true", help="print the list as JSON")
    run = _verb(verbs, "run", "run the trials of a study", _RUN)
    _add_place(run)
    _add_choice(run)
    run.add_argument(
        "--workers", type=int, metavar="N", help="processes (default: 4 on a GPU, 1 on a CPU)"
    )
    run.add_argument(
        "--together", type=int, default=1, metavar="N", help="trials of one architecture that a "
        "worker trains as one, which suits small models on a GPU (default: 1)",
    )  # fmt: skip
    add_device(run)
    _add_lease(run, "its trial is taken up by another")
    _add_minutes(run, "what is at work then is saved and given back")
    run.add_argument(
        "--discard-models", action="store_true", help="keep only models that others start from"
    )
    run.add_argument("--retry-failed", action="store_true", help="try failed experiments again")
    run.add_argument("--json", action="store_true", help="print the outcome as JSON")
    report = _verb(verbs, "report", "write the page and the Markdown file of a study", _REPORT)
    _add_place(report)
    report.add_argument("--from", dest="source", metavar="FILE", help="a recorded study (JSON)")
    report.add_argument("--html", metavar="FILE", help="default: NAME.html in the output folder")
    report.add_argument("--markdown", metavar="FILE", help="default: NAME.md beside it")
    report.add_argument("--record", metavar="FILE", help="write the study down as JSON, no texts")
    report.add_argument("--json", action="store_true", help="print the cells as JSON")
    take = _verb(verbs, "import", "score recorded trials and put them in the storage", _IMPORT)
    _add_place(take)
    take.add_argument("folder", metavar="FOLDER", help="what benchmarks/study_gpu.py wrote")
    take.add_argument("--json", action="store_true", help="print how many were taken as JSON")
    search = _verb(verbs, "search", "search beyond the grid: branches and ρ by layer", _SEARCH)
    _add_place(search)
    search.add_argument(
        "--trials", type=int, metavar="N", help="trials in all (default: the study's)"
    )
    search.add_argument(
        "--seed", type=int, default=1, metavar="N", help="of search and models (default: 1)"
    )
    add_device(search)
    _add_lease(search, "another trial takes its trial's place")
    _add_minutes(search, "the trial at work then does not count; the best so far is scored")
    search.add_argument("--record", metavar="FILE", help="write what was found down as JSON")
    search.add_argument("--json", action="store_true", help="print the best trials as JSON")


def _verb(verbs: Any, name: str, line: str, description: str) -> argparse.ArgumentParser:
    added: argparse.ArgumentParser = verbs.add_parser(
        name,
        help=line,
        description=description,
        formatter_class=HelpFormatter,
    )
    return added


def _add_seeds(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--seeds", type=int, metavar="N", help="run every cell with seeds 1 to N (default: the "
        "study's)",
    )  # fmt: skip


def _add_place(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="a study, its file, or table-N")
    parser.add_argument(
        "--data",
        action="append",
        default=[],
        metavar="DIR",
        help="the prepared folder, the folder that holds several, or NAME=DIR for one of them "
        "(default: where the study's file says)",
    )
    parser.add_argument(
        "--output",
        default=OUTPUT,
        metavar="DIR",
        help=f"models, records, storage, reports (default: {OUTPUT})",
    )
    parser.add_argument(
        "--storage", metavar="URL", help="sqlite:///FILE or postgresql://… (default: a SQLite "
        "file in the output folder)",
    )  # fmt: skip


def _add_lease(parser: argparse.ArgumentParser, then: str) -> None:
    parser.add_argument(
        "--lease", type=float, default=60.0, metavar="SECONDS", help="silence after which a worker "
        f"counts as gone and {then} (default: 60)",
    )  # fmt: skip


def _add_minutes(parser: argparse.ArgumentParser, then: str) -> None:
    parser.add_argument(
        "--minutes", type=float, help=f"begin nothing after so many; {then} (default: no limit)"
    )


def _add_choice(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--only",
        nargs="+",
        default=[],
        metavar="KEY",
        help="experiments by key, or by parts of one that are whole between its dots (`study list "
        "NAME` shows them), * for anything; what they start from is run too",
    )
    _add_seeds(parser)


def check_bounds(args: argparse.Namespace) -> None:
    """Refuse numbers that mean nothing."""
    from multibranch.errors import UserError

    for name, (least, most) in _BOUNDS.items():
        value = getattr(args, name, None)
        if value is not None and not least <= value <= most:
            raise UserError(f"--{name} must be {least} to {most:,}, not {value}")
