"""Time training a branched encoder against the plain one, on the same batches, in one run.

    python benchmarks/branching_cost.py --layers 6 --width 384 --heads 12 --hidden 1536 \\
        --batch 8 --length 64 --json cost.json

The encoder is a random BERT of the given size (default: MiniLM's), since the time of an update does
not depend on the weights. Rounds of both models alternate, so other load on the machine affects
both; the ratio is that of the medians. On a GPU, updates are timed both as CUDA graphs and run
operation by operation. On a CPU, processor time is measured, which other programs do not affect.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
from transformers import BertConfig, BertForSequenceClassification

from multibranch.hub import branch_out
from multibranch.tasks.understanding_config import ClassifierTraining
from multibranch.tasks.understanding_loop import make_updates
from multibranch.tasks.understanding_tokens import Batch
from origin import origin

LIMIT = 1.35


def encoders(args: argparse.Namespace) -> dict[str, Any]:
    """The plain encoder, and the same with branches for every ρ that is asked for."""
    config = BertConfig(
        hidden_size=args.width,
        num_hidden_layers=args.layers,
        num_attention_heads=args.heads,
        intermediate_size=args.hidden,
    )
    torch.manual_seed(0)
    plain = BertForSequenceClassification(config)
    branched = {
        f"branches {args.branches}, drop_branch {rate:g}": branch_out(
            plain, branches=args.branches, drop_branch=rate
        )
        for rate in args.drop_branch
    }
    return {"plain": plain, **branched}


def some_batch(args: argparse.Namespace, device: torch.device) -> Batch:
    shape = (args.batch, args.length)
    generator = torch.Generator().manual_seed(1)
    return Batch(
        ids=torch.randint(5, 30000, shape, generator=generator).to(device),
        mask=torch.ones(shape, dtype=torch.int64, device=device),
        types=torch.zeros(shape, dtype=torch.int64, device=device),
        labels=torch.zeros(args.batch, dtype=torch.int64, device=device),
        weights=torch.ones(args.batch, device=device),
    )


def measure(args: argparse.Namespace, device: torch.device, *, graphs: bool) -> dict[str, Any]:
    """Seconds of an update of each model, median over the rounds."""
    training = ClassifierTraining(precision=args.precision, graphs=graphs)
    batch = some_batch(args, device)
    updates = {
        name: make_updates(model.to(device).train(), training, device)
        for name, model in encoders(args).items()
    }
    times: dict[str, list[float]] = {name: [] for name in updates}
    clock = time.perf_counter if device.type == "cuda" else time.process_time
    for turn in range(args.rounds + 1):
        for name, runner in updates.items():
            _wait(device)
            started = clock()
            for _ in range(args.steps):
                runner.run(batch, 1e-6)
            _wait(device)
            if turn:  # the first round warms up
                times[name].append((clock() - started) / args.steps)
    seconds = {name: statistics.median(values) for name, values in times.items()}
    return {
        "graphs": graphs,
        "milliseconds": {name: 1000 * value for name, value in seconds.items()},
        "ratio": {name: seconds[name] / seconds["plain"] for name in seconds if name != "plain"},
    }


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--hidden", type=int, default=1536)
    parser.add_argument("--branches", type=int, default=2)
    parser.add_argument("--drop-branch", type=float, nargs="+", default=[0.1, 0.3, 0.5])
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=4, help="updates of a round")
    parser.add_argument("--precision", default="auto", choices=["auto", "float32", "bfloat16"])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, help="CPU threads")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    device = torch.device(args.device)
    ways = [True, False] if device.type == "cuda" else [False]
    content: dict[str, Any] = {
        **origin(device),
        "measured": [measure(args, device, graphs=graphs) for graphs in ways],
    }
    print(json.dumps(content, indent=1))
    if args.json is not None:
        args.json.write_text(json.dumps(content, indent=1) + "\n")
    worst = max(ratio for way in content["measured"] for ratio in way["ratio"].values())
    print(f"at most {worst:.3f} times the plain encoder (the limit is {LIMIT})")
    return 0 if worst <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
