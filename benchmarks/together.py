"""Measure what training several runs as one (training/together.py) gains, in one process.

    python benchmarks/together.py configs/multi30k-de-en-baseline.yaml --runs 1 3 12 \\
        --updates 600 --json FILE --model.branches 3 --model.drop_branch 0.3

For every number of runs, that many seeds of the configuration are trained: one alone as CUDA
graphs, several as one. The speed is the target tokens per second of all runs together: the median
of what they reported after the first tenth. Any key of the configuration can be overridden.
"""

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from multibranch.errors import UserError, counted
from multibranch.training import Trainer
from multibranch.training.together import run_together
from origin import origin
from repeatable import configured, speed


def trainer(config: Path, words: list[str], place: Path, seed: int, updates: int) -> Callable:
    """A run as a function of the table that it meets others at."""
    said = {"output": place, "seed": seed, "max_updates": updates, "max_epochs": "null"}
    said |= {"max_minutes": "null", "patience": "null"}  # so that all end together
    said |= {"validate_every": updates, "tensorboard": "false"}
    loaded, data = configured(config, words, **said)
    return lambda table: Trainer(loaded, data, table=table, quiet=True).run()


def measure(
    config: Path, words: list[str], folder: Path, runs: int, updates: int
) -> dict[str, Any]:
    places = [folder / f"{runs}-{seed}" for seed in range(1, runs + 1)]
    each = [
        trainer(config, words, place, seed, updates) for seed, place in enumerate(places, start=1)
    ]
    began = time.monotonic()
    if runs == 1:
        each[0](None)
    else:
        run_together(each)
    return {
        "runs": runs,
        "tokens_per_second": sum(speed(place) for place in places),
        "seconds": round(time.monotonic() - began, 1),
        "peak_memory_gib": torch.cuda.max_memory_allocated() / 2**30
        if torch.cuda.is_available()
        else None,
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("config", type=Path)
    parser.add_argument("--runs", type=int, nargs="+", default=[1, 3, 12])
    parser.add_argument("--updates", type=int, default=600)
    parser.add_argument("--json", type=Path)
    args, words = parser.parse_known_args()
    folder = Path(tempfile.mkdtemp(prefix="together-"))
    results: list[dict[str, Any]] = []
    try:
        if min(args.runs) < 1:
            raise UserError(f"--runs must be at least 1, not {min(args.runs)}")
        for runs in args.runs:
            found = measure(args.config, words, folder, runs, args.updates)
            results.append(found)
            of = f"{found['tokens_per_second']:,.0f} target tokens a second"
            print(f"{counted(runs, 'run')}: {of}, {found['seconds']} s in all", flush=True)
    except UserError as error:
        print(f"together: {error}", file=sys.stderr)
        return 2
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if args.json and results:
            record = {
                **origin(),
                "updates": args.updates,
                "results": results,
            }
            args.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
