"""What `multibranch study` takes: the arguments of its verbs, and what they say of themselves."""

import argparse
from typing import Any

from multibranch.cli.formatting import HelpFormatter
from multibranch.cli.searching import add_device

OUTPUT = "runs/study"
_LIST = """List the studies, with the tables that they mirror, or the experiments of one study.

  multibranch study list
  multibranch study list multi30k-small     its experiments, for `run --only`
"""
_RUN = """Run the trials of a study that have not been run yet.

  multibranch study run builtin              needs no corpus
  multibranch study run multi30k-small --workers 4 --together 12
  multibranch study run multi30k-small --only 'de-en.proximal.3-*.s1'
  multibranch study run table-1 --data prepared/iwslt14-de-en --seeds 1

To resume after a stop or after --minutes, repeat the command. Several such commands at once share
the work. Failed trials are listed at the end with their reasons; --retry-failed runs them again.
"""
_REPORT = """Write a study's page and Markdown file: its numbers beside the paper's.

  multibranch study report multi30k-small
  multibranch study report multi30k-small --record study.json   as data, too
  multibranch study report multi30k-small --from study.json     from such data

Reports the trials that have been run so far.
"""
_IMPORT = """Score trials recorded on a machine with only PyTorch, and put them in the storage.

  python benchmarks/study_gpu.py prepared/multi30k-de-en OUT \\
      --study multi30k-small --minutes 8
  multibranch study import multi30k-small OUT \\
      --data de-en=prepared/multi30k-de-en

Trials that the storage already has, with the same settings, are kept.
"""
_SEARCH = """Search over N_a, ρ and N_f of every layer, and over what is dropped.

  multibranch study search builtin           needs no corpus
  multibranch study search multi30k-search --trials 30

Optuna's TPE proposes trials; those worse than the median at the same update are pruned. The model
to beat is the first model of the study's first grid; if the search space contains it, it is the
first trial. All trials start as it does: from scratch, or from a Transformer that is trained once
and branched out in each trial (proximal). The search sees the validation set only. At the end, its
best model and the model to beat are scored on the test set.

--trials counts the trials of all commands together; to continue a search, repeat the command with a
larger number. Several commands at once share the search. A search that is stopped, or ended by
--minutes, leaves a --record of its trials so far.
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
    every = _verb(verbs, "list", "list the studies, or the experiments of one", _LIST)
    every.add_argument("name", nargs="?", metavar="NAME", help="list this study's experiments")
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
        "worker trains at once, for small models on a GPU (default: 1)",
    )  # fmt: skip
    add_device(run)
    _add_lease(run, "another one resumes its trial")
    _add_minutes(run, "running trials are saved and given back")
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
    report.add_argument("--record", metavar="FILE", help="save the study as JSON, without texts")
    report.add_argument("--json", action="store_true", help="print the cells as JSON")
    take = _verb(verbs, "import", "score recorded trials and put them in the storage", _IMPORT)
    _add_place(take)
    take.add_argument("folder", metavar="FOLDER", help="the output of benchmarks/study_gpu.py")
    take.add_argument("--json", action="store_true", help="print the number of trials as JSON")
    search = _verb(verbs, "search", "search over branches and ρ of every layer", _SEARCH)
    _add_place(search)
    search.add_argument(
        "--trials", type=int, metavar="N", help="trials in all (default: the study's)"
    )
    search.add_argument(
        "--seed", type=int, default=1, metavar="N", help="seed of search and models (default: 1)"
    )
    add_device(search)
    _add_lease(search, "another trial replaces its trial")
    _add_minutes(search, "the running trial is dropped, and the best so far is scored")
    search.add_argument("--record", metavar="FILE", help="save the outcome as JSON")
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
        help="the prepared folder, a folder that holds several, or NAME=DIR for one of them "
        "(default: as in the study's file)",
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
        "--lease", type=float, default=60.0, metavar="SECONDS", help="a worker without a sign of "
        f"life for this long counts as dead, and {then} (default: 60)",
    )  # fmt: skip


def _add_minutes(parser: argparse.ArgumentParser, then: str) -> None:
    parser.add_argument(
        "--minutes", type=float, help=f"time limit, after which {then} (default: no limit)"
    )


def _add_choice(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--only",
        nargs="+",
        default=[],
        metavar="KEY",
        help="run only experiments with these keys, or parts of keys between dots; * matches "
        "anything (`study list NAME` shows the keys); models that they start from are run too",
    )
    _add_seeds(parser)


def check_bounds(args: argparse.Namespace) -> None:
    """Refuse numbers that mean nothing."""
    from multibranch.errors import UserError

    for name, (least, most) in _BOUNDS.items():
        value = getattr(args, name, None)
        if value is not None and not least <= value <= most:
            raise UserError(f"--{name} must be {least} to {most:,}, not {value}")
