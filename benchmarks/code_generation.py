"""The paper's Section 5 on a prepared corpus: the baseline and the MAT at four rates ρ.

It also trains `narrow`, a control that the paper lacks: the Transformer with the MAT's width, which
separates the effect of the branches from that of the smaller width.

    python benchmarks/code_generation.py DATA OUTPUT --minutes 9 [--only NAME …] [--seeds 1 2]
        [--settle UPDATES] [--section.key value …]
    python benchmarks/code_generation.py DATA OUTPUT --score [FILE …] [--json FILE]

The first command trains the models of configs/code-*.yaml, any key of which can be overridden, and
decodes the test set. A run ends when its score on the validation pairs stops rising, or when its
share of the minutes is over. Remaining time is given to the runs that ran out of time; so is the
time of the next start, which leaves converged runs alone. With --settle, a run that converged is
followed by another from its best weights, whose learning rate falls to zero.

The second command scores the outputs, on a machine where the parsers are installed. It only needs
OUTPUT/results (*.txt: the best outputs; *.n-best.tsv.xz: line number, score, number of positions
where <unk> was the most probable token, tokens; *.json: how the run went).
"""

import argparse
import gc
import json
import lzma
import math
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from code_scores import NAMES, SETTLED, references, score, table
from multibranch import configuration
from multibranch.data import PackedBatches, PreparedData
from multibranch.device import device_name
from multibranch.errors import UserError
from multibranch.metrics import exact_match, mean_sentence_bleu, multi_bleu
from multibranch.tasks.code import CodeGenerator, code_output, language_of, validation_score
from multibranch.training import Config, Trainer
from multibranch.training.display import read_records
from multibranch.training.progress import reason_to_stop
from multibranch.training.schedule import learning_rate

CONFIGS = Path(__file__).resolve().parents[1] / "configs"
# An epoch is about 1,000 updates; full checkpoints are large. The BLEU of greedy outputs changes by
# half a point from one validation to the next, rises long after the loss was least, and can be high
# by chance early on. The patience is 8,000 updates.
DEFAULTS = {
    "train.validate_every": 2000,
    "train.patience": 4,
    "train.judge_from": 20000,
    "train.checkpoint_minutes": 60,
    "train.keep_checkpoints": 1,
    "train.log_every": 500,
    "train.tensorboard": "false",
}
VALIDATION_BEAM = 1
GPU_BATCH_TOKENS = 8192  # source tokens decoded together: 600 sentences, 10 GB with their beams


@dataclass(frozen=True)
class Run:
    """One model to train, by its name and seed, or one that converged to settle."""

    name: str
    seed: int
    output: Path
    settles: "Run | None" = None

    @property
    def label(self) -> str:
        return f"{self.name}-seed{self.seed}" + (SETTLED if self.settles else "")

    @property
    def folder(self) -> Path:
        return self.output / "runs" / self.label

    def result(self, ending: str = ".json") -> Path:
        return self.output / "results" / f"{self.label}{ending}"

    @property
    def converged(self) -> bool:
        return self.result().is_file() and json.loads(self.result().read_text())["converged"]

    def config(self, data: PreparedData, args: argparse.Namespace, overrides: list[str]) -> Config:
        kind, _, rate = self.name.partition("-")
        words = [f"--{key}={value}" for key, value in DEFAULTS.items()]
        words += [f"--data.folder={data.folder}", f"--train.output={self.folder}"]
        words += [f"--train.seed={self.seed}", *overrides]
        words += [f"--model.drop_branch={rate}"] if rate else []
        if kind == "narrow":
            kind, words = "mat", [*words, "--model.branches=1", "--model.drop_branch=0"]
        words += [f"--train.device={args.device}"]
        file = CONFIGS / f"code-{language_of(data.text)}-{kind}.yaml"
        config = configuration.load(Config, file, words)
        return self.settling(config, args.settle) if self.settles else config

    def settling(self, config: Config, updates: int) -> Config:
        """From the best weights on, for so many updates, to a learning rate of zero."""
        assert self.settles is not None
        train, best = config.train, json.loads(self.settles.result().read_text())["best_update"]
        rate = learning_rate(best, peak=train.learning_rate, warmup=train.warmup)
        changed = replace(
            train,
            init_from=str(self.settles.folder),
            learning_rate=rate,
            warmup=1,
            schedule="constant",  # the cool-down alone
            max_updates=updates,
            cool_down=1.0,
            patience=None,
            judge_from=0,
        )
        return replace(config, train=changed).check()


class Clock:
    """Shares the minutes out among the runs."""

    def __init__(self, minutes: float) -> None:
        self.end = time.monotonic() + 60 * minutes
        # Until measured: setting up and compiling, decoding, writing.
        self.overhead = min(40.0, 6 * minutes)

    def training_seconds(self, runs_left: int) -> float:
        """How long the next of so many runs may train."""
        return (self.end - time.monotonic()) / runs_left - self.overhead


def train(run: Run, data: PreparedData, config: Config, seconds: float) -> dict[str, Any]:
    """Train a run for so many more seconds at most; how it went, from its beginning."""
    places = sorted(run.folder.glob("resume/update-*/progress.json"))
    before = json.loads(places[-1].read_text())["seconds"] if places else 0.0
    config.train.max_minutes = (before + seconds) / 60
    search = replace(config.decode, beam=VALIDATION_BEAM, batch_tokens=GPU_BATCH_TOKENS)
    score = validation_score(replace(config, decode=search), data)
    outcome = Trainer(config, data, score=score).run()
    if outcome.interrupted:
        raise KeyboardInterrupt
    progress, patience = outcome.progress, config.train.patience or 10**9
    ended = reason_to_stop(config.train, progress, out_of_time=False) is not None
    steps = read_records(run.folder, "train")
    return {
        "run": run.label,
        "name": run.name,
        "seed": run.seed,
        "parameters": outcome.parameters,
        "settings": {key: value for key, _, value in configuration.differences(Config(), config)},
        "updates": progress.update,
        "epochs": progress.epoch,
        "seconds": round(progress.seconds, 1),
        "seconds_this_time": round(progress.seconds - before, 1),
        "stopped": outcome.stopped,
        "ended": ended,
        "converged": progress.stale >= patience or (run.settles is not None and ended),
        "best_update": progress.best_update,
        "best_score": progress.best_score,
        "best_loss": progress.best_loss,
        "tokens_per_second": [round(record["tokens_per_second"]) for record in steps][-5:],
        "validation": [
            f"update {v['update']}: loss {v['loss']:.4f}, perplexity {math.exp(v['plain']):.2f}, "
            f"BLEU {v['score']:.4f}"
            for v in read_records(run.folder, "validation")
        ],
    }


def decode(run: Run, data: PreparedData, args: argparse.Namespace) -> dict[str, Any]:
    """Decode the test set with a run's model into files; scores that need no parser."""
    on_gpu = args.device.startswith("cuda")
    generator = CodeGenerator.load(
        run.folder,
        device=args.device,
        precision="float16" if on_gpu else "float32",
        cuda_graphs=on_gpu,
    )
    begin = time.perf_counter()
    found = generator.generate(
        data.lines("test", "source")[: args.limit],
        beam=args.beam,
        n_best=args.beam,
        length_penalty=1.0,
        batch_tokens=GPU_BATCH_TOKENS if on_gpu else None,
    )
    seconds = time.perf_counter() - begin
    output = code_output(run.label, found, references(data, len(found)), generator.language)
    run.result(".txt").write_text("".join(line + "\n" for line in output.words), "utf-8")
    with lzma.open(run.result(".n-best.tsv.xz"), "wt", encoding="utf-8") as file:
        for number, hypotheses in enumerate(found):
            for each in hypotheses:
                file.write(f"{number}\t{each.score:.5f}\t{each.unknowns}\t{each.text}\n")
    pairs = (output.words, output.reference_words)
    return {
        "seconds_to_decode": round(seconds, 1),
        "outputs": len(found),
        "beam": args.beam,
        "sentence_bleu": round(mean_sentence_bleu(*pairs).value, 2),
        "bleu": round(multi_bleu(*pairs).value, 2),
        "exact_match": round(exact_match(*pairs).value, 2),
    }


def experiments(args: argparse.Namespace, data: PreparedData, overrides: list[str]) -> None:
    """Train and decode what has not converged yet, and settle what has, within the minutes."""
    clock = Clock(args.minutes)
    (args.output / "results").mkdir(parents=True, exist_ok=True)
    runs = [Run(name, seed, args.output) for seed in args.seeds for name in args.only]
    rounds(runs, clock, args, data, overrides)
    if args.settle:
        settling = [replace(run, settles=run) for run in runs if run.converged]
        rounds(settling, clock, args, data, overrides)


def rounds(
    runs: list[Run],
    clock: Clock,
    args: argparse.Namespace,
    data: PreparedData,
    overrides: list[str],
) -> None:
    """Train and decode what has not converged yet, round after round.

    In a round every run may train for the same time, so that none owes its score to its place.
    """
    waiting = [run for run in runs if not run.converged]
    while waiting:
        most = clock.training_seconds(len(waiting))
        left: list[Run] = []
        for position, run in enumerate(waiting):
            seconds = min(most, clock.training_seconds(len(waiting) - position))
            if seconds < 60 * args.least:
                say(f"no time left: {len(waiting) - position + len(left)} runs have not converged")
                return
            begin = time.monotonic()
            say(f"{run.label}: training for {seconds:.0f} seconds at most")
            record = one(run, data, args, overrides, seconds)
            spent = time.monotonic() - begin
            say(f"{run.label}: {record['stopped']}; {record['test']}; {spent:.0f} s in all")
            clock.overhead = 1.1 * (spent - record["seconds_this_time"]) + 2
            left += [] if record["ended"] else [run]
        waiting = left


def one(
    run: Run, data: PreparedData, args: argparse.Namespace, overrides: list[str], seconds: float
) -> dict[str, Any]:
    """Train a run for so many seconds at most, and decode; the record that is kept of it."""
    config = run.config(data, args, overrides)
    record = train(run, data, config, seconds)
    record |= {"command": shlex.join(["python", *args.command]), **machine(args.device)}
    batches = PackedBatches(
        data.split("train"), tokens=config.train.tokens, max_length=config.data.max_length
    )
    record["pairs"] = str(batches.report)
    record["test"] = decode(run, data, args)
    run.result().write_text(json.dumps(record, indent=1) + "\n", "utf-8")
    forget()
    return record


def machine(device: str) -> dict[str, str]:
    return {"device": device_name(device), "torch": torch.__version__}


def forget() -> None:
    """Give the memory of a run back; its compiled code would count against the next one's."""
    if torch.cuda.is_available():
        torch._dynamo.reset()
    gc.collect()
    torch.cuda.empty_cache()


def say(message: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {message}", flush=True)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", help="a prepared folder, code-java or code-python")
    parser.add_argument("output", type=Path, help="where runs/ and results/ are written")
    parser.add_argument("--minutes", type=float, default=9, help="for all runs together")
    parser.add_argument("--least", type=float, default=0.25, help="begin no run with fewer minutes")
    parser.add_argument("--only", nargs="+", default=list(NAMES), choices=NAMES, metavar="NAME")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    parser.add_argument(
        "--settle", type=int, metavar="UPDATES", help="to a learning rate of 0, once converged"
    )
    parser.add_argument("--beam", type=int, default=5)
    parser.add_argument("--limit", type=int, help="decode only the first so many test sentences")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--score", nargs="*", metavar="FILE", help="score *.n-best.tsv.xz")
    parser.add_argument("--json", type=Path, help="where to write the scores")
    args, overrides = parser.parse_known_args(words)
    args.command = ["benchmarks/code_generation.py", *(sys.argv[1:] if words is None else words)]
    try:
        data = PreparedData.open(args.data)
        if args.score is None:
            experiments(args, data, overrides)
            return 0
        result = score(args, data)
    except UserError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n", "utf-8")
    print(table(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
