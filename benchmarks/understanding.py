"""The paper's Section 6 with a MiniLM encoder: plain, LayerDrop and MAT, on four GLUE tasks.

    python benchmarks/understanding.py pack --backbone FOLDER --glue FOLDER --output packed
    python benchmarks/understanding.py run --data packed --workers 8 --json results.json

`pack` writes the encoder (float16) and the tokenised tasks into one folder of about 50 MB, so that
`run` needs neither tokenizer nor network. `run` chooses each task's learning rate with the plain
encoder and an extra seed, then fine-tunes every system with every seed, several at once, and writes
means and deviations after each result. The score of a run is that of its best epoch on the
validation set, as with RoBERTa; the last epoch's is also recorded.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import gc
import json
import os
import queue
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from torch import nn

from multibranch.metrics import Score, summarise
from multibranch.tasks.understanding_config import SCORES as FUNCTIONS
from multibranch.tasks.understanding_config import ClassifierTraining
from multibranch.tasks.understanding_glue import SCORES
from multibranch.tasks.understanding_loop import Epoch, fine_tune, predict, uses_bfloat16
from multibranch.tasks.understanding_tokens import Tokens
from origin import origin
from understanding_packed import pack, unpack

LAYER_DROP = 0.2
SYSTEMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "layerdrop": {"branches": 1, "drop_branch": 0.0, "layer_drop": LAYER_DROP},
    **{f"mat-{rho}": {"branches": 2, "drop_branch": rho} for rho in (0.1, 0.2, 0.3, 0.4, 0.5)},
}
PAPER = {
    "mrpc": {
        "plain": 90.9,
        "layerdrop": 91.0,
        "mat-0.1": 90.9,
        "mat-0.2": 90.0,
        "mat-0.3": 91.9,
        "mat-0.4": 91.2,
        "mat-0.5": 91.7,
    },
    "sst2": {"plain": 96.4, "layerdrop": 96.8, "mat": 97.0},
}
TASKS = {
    "mrpc": {"epochs": 6, "batch": 32, "seeds": 5},
    "rte": {"epochs": 10, "batch": 32, "seeds": 5},
    "cola": {"epochs": 5, "batch": 32, "seeds": 5},
    "sst2": {"epochs": 2, "batch": 64, "seeds": 2},
}
RATES = (5e-5, 1e-4, 2e-4)
TUNING_SEED = 100


@dataclasses.dataclass(frozen=True)
class Job:
    """One run: a system fine-tuned on a task with a seed and a learning rate."""

    task: str
    system: str
    seed: int
    rate: float


# -- One run ------------------------------------------------------------------------------------


class Bench:
    """What a process keeps between runs: the encoder and the tasks' tokens."""

    def __init__(self, options: dict[str, Any]) -> None:
        from transformers import AutoModelForSequenceClassification

        from multibranch.hub.backbone import quietly

        self.options = options
        self.device = torch.device(options["device"])
        self.folder = Path(options["data"])
        with quietly():
            self.encoder = AutoModelForSequenceClassification.from_pretrained(
                self.folder / "encoder", num_labels=2, dtype=torch.float32
            )
        self.tokens: dict[tuple[str, str], Tokens] = {}

    def split(self, task: str, split: str) -> Tokens:
        if (task, split) not in self.tokens:
            many = self.options["examples"]
            self.tokens[task, split] = unpack(self.folder, task, split, examples=many)
        return self.tokens[task, split]

    def model(self, job: Job) -> nn.Module:
        """The encoder with a new classifier, drawn by the seed, and branched out."""
        from multibranch.hub import branch_out

        torch.manual_seed(job.seed)
        model = copy.deepcopy(self.encoder)
        nn.init.normal_(model.classifier.weight, std=0.02)
        nn.init.zeros_(model.classifier.bias)
        return branch_out(model, **SYSTEMS[job.system]) if SYSTEMS[job.system] else model

    def run(self, job: Job, *, graphs: bool) -> dict[str, Any]:
        started = time.perf_counter()
        train, valid = self.split(job.task, "train"), self.split(job.task, "valid")
        settings = TASKS[job.task]
        training = ClassifierTraining(
            seed=job.seed,
            epochs=self.options["epochs"] or settings["epochs"],
            batch=settings["batch"],
            max_updates=self.options["updates"],
            learning_rate=job.rate,
            precision=self.options["precision"],
            graphs=graphs,
        )
        model = self.model(job)
        scores: list[dict[str, Score]] = []
        epochs: list[Epoch] = []
        bfloat16 = uses_bfloat16(training.precision, self.device)

        def after_epoch(epoch: Epoch) -> None:
            found = predict(model, valid, device=self.device, bfloat16=bfloat16).argmax(-1)
            pairs = found.tolist(), valid.labels.tolist()
            scores.append({name: FUNCTIONS[name](*pairs) for name in SCORES[job.task]})
            epochs.append(epoch)

        fine_tune(model, train, training, device=self.device, after_epoch=after_epoch)
        first = SCORES[job.task][0]
        best = max(range(len(scores)), key=lambda epoch: scores[epoch][first].value)
        return {
            **dataclasses.asdict(job),
            "best_epoch": best + 1,
            "best": {name: score.value for name, score in scores[best].items()},
            "last": {name: score.value for name, score in scores[-1].items()},
            "signatures": {name: score.signature for name, score in scores[best].items()},
            "losses": [epoch.loss for epoch in epochs],
            "training_seconds": sum(epoch.seconds for epoch in epochs),
            "seconds": time.perf_counter() - started,
            "graphs": graphs,
        }


def work(options: dict[str, Any], jobs: Any, results: Any) -> None:
    """One process: take jobs until there is none, or one fails, which may break the device."""
    torch.set_num_threads(options["threads"])
    bench = Bench(options)
    gc.freeze()  # capturing a graph collects garbage first: not among all that was imported
    while (job := jobs.get()) is not None:
        try:
            results.put(bench.run(job, graphs=options["graphs"]))
        except Exception:
            results.put({**dataclasses.asdict(job), "error": traceback.format_exc()})
            return


# -- All runs -----------------------------------------------------------------------------------


class Campaign:
    """Processes that share the jobs, and what came of them."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.started = time.perf_counter()
        self.options = {
            "data": str(args.data),
            "device": args.device,
            "precision": args.precision,
            "epochs": args.epochs,
            "updates": args.updates,
            "examples": args.examples,
            "threads": args.threads,
            "graphs": args.device.startswith("cuda") and not args.no_graphs,
        }
        self.context = torch.multiprocessing.get_context("spawn")
        self.jobs, self.results = self.context.Queue(), self.context.Queue()
        self.done: list[dict[str, Any]] = []
        self.failed: list[dict[str, Any]] = []
        self.rates: dict[str, float] = {}
        self.left_out = 0

    def run(self) -> None:
        for _ in range(self.args.workers):
            self._start()
        if len(self.args.rates) > 1:
            tuning = [
                Job(task, "plain", TUNING_SEED, rate)
                for task in self.args.tasks
                for rate in self.args.rates
            ]
            self._collect(sorted(tuning, key=_cost, reverse=True))
        self._choose_rates()
        self._collect(list(self._jobs()))
        for _ in range(self.args.workers):
            self.jobs.put(None)

    def _start(self) -> None:
        arguments = (dict(self.options), self.jobs, self.results)
        self.context.Process(target=work, args=arguments, daemon=True).start()

    def _jobs(self) -> Iterator[Job]:
        """Seed after seed, so that what is done when the time is up has all systems; long first."""
        tasks = sorted(self.args.tasks, key=lambda task: _cost(Job(task, "", 0, 0)), reverse=True)
        seeds = {task: self.args.seeds or TASKS[task]["seeds"] for task in tasks}
        for seed in range(1, max(seeds.values()) + 1):
            for task in tasks:
                for system in self.args.systems if seed <= seeds[task] else []:
                    yield Job(task, system, seed, self.rates[task])

    def _choose_rates(self) -> None:
        for task in self.args.tasks:
            first = SCORES[task][0]
            tuned = {
                row["rate"]: row["best"][first]
                for row in self.done
                if row["task"] == task and row["seed"] == TUNING_SEED
            }
            self.rates[task] = max(tuned, key=tuned.__getitem__) if tuned else self.args.rates[0]

    def _collect(self, wanted: list[Job]) -> None:
        """Hand the jobs out, never more than are under way, until the time is up."""
        waiting, running = list(wanted), 0
        while waiting or running:
            left = self.args.minutes * 60 - (time.perf_counter() - self.started)
            while waiting and running < self.args.workers and left > 0:
                self.jobs.put(waiting.pop(0))
                running += 1
            try:
                row = self.results.get(timeout=max(0, left) + 120) if running else None
            except queue.Empty:
                row = None
            if row is None:
                self.left_out += len(waiting) + running
                return
            running -= 1
            if "error" in row:
                self._failed(row, waiting)
            else:
                self.done.append(row)
                self._tell(row)
            self.write()

    def _failed(self, row: dict[str, Any], waiting: list[Job]) -> None:
        """A process has failed at a job and ended: another takes its place, without graphs."""
        print(f"failed: {row['task']} {row['system']}\n{row['error']}", file=sys.stderr, flush=True)
        self.failed.append({**row, "graphs": self.options["graphs"]})
        job = Job(row["task"], row["system"], row["seed"], row["rate"])
        tries = sum(all(each[k] == v for k, v in vars(job).items()) for each in self.failed)
        if tries < 3:
            waiting.insert(0, job)
        else:
            self.left_out += 1
        self.options["graphs"] = False
        self._start()

    def _tell(self, row: dict[str, Any]) -> None:
        scores = ", ".join(f"{name} {value:.2f}" for name, value in row["best"].items())
        print(
            f"{time.perf_counter() - self.started:6.1f} s  {row['task']} {row['system']} "
            f"seed {row['seed']} rate {row['rate']:g}: {scores} ({row['seconds']:.1f} s)",
            flush=True,
        )

    def summary(self) -> dict[str, Any]:
        """Mean and deviation of every system on every task, beside the paper's."""
        table: dict[str, Any] = {}
        for task in self.args.tasks:
            table[task] = {}
            for system in self.args.systems:
                rows = [
                    row
                    for row in self.done
                    if (row["task"], row["system"]) == (task, system) and row["seed"] < TUNING_SEED
                ]
                if rows:
                    table[task][system] = {
                        "learning_rate": self.rates[task],
                        "paper": PAPER.get(task, {}).get(system),
                        **{which: _summaries(rows, which) for which in ("best", "last")},
                    }
        return table

    def write(self) -> None:
        """The whole result as JSON, replaced at once."""
        if self.args.json is None:
            return
        content = {
            **origin(self.args.device),
            "layer_drop": LAYER_DROP,
            "tasks": TASKS,
            "rates": self.rates,
            "rates_tried": list(self.args.rates),
            "seconds": time.perf_counter() - self.started,
            "left_out": self.left_out,
            "summary": self.summary(),
            "failed": self.failed,
            "runs": self.done,
        }
        beside = self.args.json.with_suffix(".part")
        beside.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
        beside.replace(self.args.json)


def _cost(job: Job) -> int:
    examples = {"sst2": 67349, "cola": 8551, "mrpc": 3668, "rte": 2490}[job.task]
    return examples * TASKS[job.task]["epochs"]


def _summaries(rows: list[dict[str, Any]], which: str) -> dict[str, Any]:
    """The scores of some seeds, by name."""
    summaries = {}
    for name in rows[0][which]:
        scores = [Score(row[which][name], row["signatures"][name]) for row in rows]
        found = summarise(scores)
        summaries[name] = {
            "mean": found.mean,
            "deviation": found.deviation,
            "values": list(found.values),
            "signature": found.signature,
        }
    return summaries


def print_table(table: dict[str, Any]) -> None:
    """Markdown: a row a system, a column a task, the paper's RoBERTa-large in brackets."""
    tasks = list(table)
    print("\n| system | " + " | ".join(f"{task} {SCORES[task][0]}" for task in tasks) + " |")
    print("|---|" + "---|" * len(tasks))
    for system in SYSTEMS:
        cells = []
        for task in tasks:
            entry = table[task].get(system)
            if entry is None:
                cells.append("–")
                continue
            found = entry["best"][SCORES[task][0]]
            spread = "" if found["deviation"] is None else f" ± {found['deviation']:.2f}"
            paper = "" if entry["paper"] is None else f" [{entry['paper']}]"
            cells.append(f"{found['mean']:.2f}{spread}{paper}")
        print(f"| {system} | " + " | ".join(cells) + " |")


def run(args: argparse.Namespace) -> int:
    if args.device == "auto":
        args.device = "cuda" if torch.cuda.is_available() else "cpu"
    campaign = Campaign(args)
    campaign.run()
    campaign.write()
    print_table(campaign.summary())
    print(f"\n{time.perf_counter() - campaign.started:.0f} s, {campaign.left_out} runs left out")
    return 1 if campaign.left_out else 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    packing = verbs.add_parser("pack")
    packing.add_argument("--backbone", required=True, help="folder or package of the encoder")
    packing.add_argument("--glue", type=Path, required=True, help="folder of GLUE")
    packing.add_argument("--output", type=Path, required=True)
    running = verbs.add_parser("run")
    running.add_argument("--data", type=Path, required=True, help="what `pack` wrote")
    running.add_argument("--json", type=Path, help="where the results go")
    running.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    running.add_argument("--systems", nargs="+", default=list(SYSTEMS), choices=list(SYSTEMS))
    running.add_argument("--rates", nargs="+", type=float, default=RATES, help="learning rates")
    running.add_argument("--seeds", type=int, help="in place of each task's own number")
    running.add_argument("--epochs", type=int, help="likewise")
    running.add_argument("--updates", type=int, help="stop each run after so many")
    running.add_argument("--examples", type=int, help="take so many of each split")
    running.add_argument("--minutes", type=float, default=60, help="start no run after that")
    running.add_argument("--workers", type=int, default=8, help="processes")
    running.add_argument("--threads", type=int, default=1, help="CPU threads of each")
    running.add_argument("--device", default="auto")
    running.add_argument("--precision", default="auto", choices=["auto", "float32", "bfloat16"])
    running.add_argument("--no-graphs", action="store_true", help="no CUDA graphs")
    args = parser.parse_args()
    if args.verb == "pack":
        pack(args.backbone, args.glue, args.output, list(TASKS))
        return 0
    return run(args)


if __name__ == "__main__":
    sys.exit(main())
