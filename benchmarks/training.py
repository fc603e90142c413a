"""Time training as users run it: the loop with its data and logging, without validation.

    python benchmarks/training.py DATA [--device cuda] [--only NAME …] [--json FILE]

DATA is a prepared folder. Every row is a run of the trainer itself; tokens are target tokens. The
rows marked "reference" are without the fast paths, those "without kernels in C" without those that
are compiled when the package is installed. On a GPU, the table has the paper's models; on a CPU, a
smaller model shows the cost of branches and the share of time spent outside forward, backward and
update.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import torch

from multibranch.data import PreparedData
from multibranch.nn import DecoderBlock, training_kernels
from multibranch.nn.plainly import use_reference
from multibranch.training import Config, DataConfig, ModelConfig, TrainConfig, Trainer
from multibranch.training.display import read_records
from multibranch.training.graphed import GraphedStep
from origin import origin


@dataclass
class Row:
    """One thing to time."""

    name: str
    model: dict[str, Any]
    tokens: int = 4096
    updates: int = 400
    vocabulary: int | None = None
    train: dict[str, Any] = field(default_factory=dict)
    reference: bool = False
    kernels_in_c: bool = True


IWSLT = {"width": 256, "hidden": 2048, "heads": 4, "drop_branch": 0.3}
WMT = {"width": 512, "hidden": 12288, "heads": 16, "branches": 2, "dropout": 0.3}
WMT_TRAIN: dict[str, Any] = {"vocabulary": 32768, "tokens": 32768, "updates": 60}

GPU_ROWS = [
    Row("N_a=1", {**IWSLT, "branches": 1}),
    Row("N_a=2", {**IWSLT, "branches": 2}),
    Row("N_a=3", {**IWSLT, "branches": 3}),
    Row("N_a=4", {**IWSLT, "branches": 4}),
    Row("N_a=3, 32768 tokens", {**IWSLT, "branches": 3}, tokens=32768, updates=120),
    Row("WMT 2/512/12288, ρ=0", {**WMT, "drop_branch": 0.0}, **WMT_TRAIN),
    Row("WMT 2/512/12288, ρ=0.3, masked", {**WMT, "drop_branch": 0.3}, **WMT_TRAIN),
    Row(
        "WMT 2/512/12288, ρ=0.3, skipped",
        {**WMT, "drop_branch": 0.3},
        train={"skip_dropped": True},
        **WMT_TRAIN,
    ),
    Row("N_a=3, reference", {**IWSLT, "branches": 3}, reference=True, updates=60),
    Row("N_a=3, eager", {**IWSLT, "branches": 3}, train={"compile": False}, updates=60),
]

SMALL = {"width": 128, "hidden": 512, "heads": 4, "encoder_layers": 3, "decoder_layers": 3}
CPU_ROWS = [
    Row(f"N_a={n}", {**SMALL, "drop_branch": 0.3, "branches": n}, tokens=1024, updates=60)
    for n in (1, 2, 3, 4)
]
for n in (1, 3):
    row = CPU_ROWS[n - 1]
    CPU_ROWS += [
        replace(row, name=f"{row.name}, without kernels in C", kernels_in_c=False),
        replace(row, name=f"{row.name}, reference", reference=True),
    ]


class _OtherVocabulary:
    """A text pipeline that claims another number of tokens."""

    def __init__(self, text: Any, size: int) -> None:
        self._text = text
        self.source_size = self.target_size = size

    def __getattr__(self, name: str) -> Any:
        return getattr(self._text, name)


def run(row: Row, data: PreparedData, device: str) -> dict[str, Any]:
    """Train for a few updates and read the trainer's own records."""
    folder = Path(tempfile.mkdtemp())
    shown = DataConfig(folder=str(data.folder), max_length=256)
    train = TrainConfig(
        output=str(folder / "run"),
        tokens=row.tokens,
        max_updates=row.updates,
        validate_every=10**9,
        device=device,
        log_every=max(5, row.updates // 12),
        tensorboard=False,
        **row.train,
    )
    prepared = PreparedData.open(data.folder)
    if row.vocabulary:
        prepared.__dict__["text"] = _OtherVocabulary(prepared.text, row.vocabulary)
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    started = time.perf_counter()
    trainer = Trainer(Config(data=shown, model=ModelConfig(**row.model), train=train), prepared)
    trainer.display.console.quiet = True
    inside = _time_steps(trainer)
    trainer._validate = lambda: None  # type: ignore[method-assign]
    without = patch.object(training_kernels, "library", return_value=None)
    with (
        use_reference() if row.reference else nullcontext(),
        nullcontext() if row.kernels_in_c else without,
    ):
        trainer._set_up()
        ready = time.perf_counter()
        trainer._epochs()
    records = read_records(folder / "run", "train")
    first = records[0]["seconds"] + ready - started
    speeds = [record["tokens_per_second"] for record in records[len(records) // 3 :]]
    result = {
        "name": row.name,
        "tokens_per_second": statistics.median(speeds),
        "parameters": sum(p.numel() for p in trainer.model.parameters()),
        "seconds_to_first_update": first,
        "fill": trainer.batches.fill,
        "loss_at_end": records[-1]["loss"],
        "settings": asdict(row),
    }
    if device == "cuda":
        result["peak_memory_gib"] = torch.cuda.max_memory_allocated() / 2**30
        result.update(_device_time(trainer, row, result["tokens_per_second"]))
    else:
        result["share_outside"] = 1 - inside["steps"] / inside["all"]()
        # Of all threads: other programs disturb it less than the time on the clock.
        tokens = row.tokens * trainer.batches.fill * inside["updates"]
        result["tokens_per_processor_second"] = tokens / inside["processor"]
    del trainer
    shutil.rmtree(folder)
    return result


def _time_steps(trainer: Trainer) -> dict[str, Any]:
    """Adds up the time inside forward, backward and update, on a CPU."""
    spent: dict[str, Any] = {"steps": 0.0, "processor": 0.0, "updates": 0, "begin": None}
    update = trainer._update

    def timed() -> None:
        now = time.perf_counter()
        if trainer.progress.update == 2:  # past the first ones, which set things up
            spent["begin"] = now
            original = trainer.step.run

            def run_timed(*args: Any, **kwargs: Any) -> None:
                begin, processor = time.perf_counter(), time.process_time()
                original(*args, **kwargs)
                spent["steps"] += time.perf_counter() - begin
                spent["processor"] += time.process_time() - processor
                spent["updates"] += 1

            trainer.step.run = run_timed  # type: ignore[method-assign]
        update()
        spent["end"] = time.perf_counter()

    trainer._update = timed  # type: ignore[method-assign]
    spent["all"] = lambda: spent["end"] - spent["begin"]
    return spent


def _device_time(trainer: Trainer, row: Row, speed: float) -> dict[str, Any]:
    """The captured graphs alone, the share of time beside them, and the use of the chip."""
    found: dict[str, Any] = {}
    flops = _flops(trainer)
    found["model_flops_per_second"] = flops * speed
    found["utilisation_of_989_tflops"] = flops * speed / 989e12
    if isinstance(trainer.step, GraphedStep):
        for _ in range(3):
            trainer.step._replay("first")
            trainer.step._replay("update")
        torch.cuda.synchronize()
        begin = time.perf_counter()
        repeats = 30
        for _ in range(repeats):
            trainer.step._replay("first")
            trainer.step._replay("update")
        torch.cuda.synchronize()
        alone = (time.perf_counter() - begin) / repeats
        whole = row.tokens * trainer.batches.fill / speed
        found["milliseconds_of_graphs"] = 1000 * alone
        found["share_outside"] = max(0.0, 1 - alone / whole)
    return found


def _flops(trainer: Trainer) -> float:
    """Floating-point operations a target token: 6 for every weight a token passes through."""
    source = trainer.batches.store.source_lengths.sum() / trainer.batches.target_lengths.sum()
    encoder = sum(p.numel() for p in trainer.model.encoder.parameters() if p.dim() > 2)
    decoder = sum(p.numel() for p in trainer.model.decoder.parameters() if p.dim() > 2)
    # Keys and values of encoder-decoder attention are computed for source tokens.
    blocks = cast(list[DecoderBlock], list(trainer.model.decoder))
    cross = sum(block.cross_attention.qkv_weight[1:].numel() for block in blocks)
    output = trainer.model.output_vectors.numel()
    return 6 * (encoder * source + (decoder - cross) + cross * source + output)


def startup(data: PreparedData) -> dict[str, Any]:
    """Seconds from the start of the command to its first update, cold and with a warm cache."""
    folder = Path(tempfile.mkdtemp())
    config = folder / "config.yaml"
    config.write_text("model: {branches: 3, drop_branch: 0.3}\ntrain: {max_updates: 1000000}\n")
    seconds = []
    for name in ("cold", "cached"):
        output = folder / name
        words = ["train", str(config), "--data.folder", str(data.folder)]
        words += ["--train.output", str(output), "--train.log_every", "1"]
        begin = time.perf_counter()
        command = [sys.executable, "-m", "multibranch", *words]
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        while process.poll() is None and not (output / "metrics.jsonl").is_file():
            time.sleep(0.02)
        seconds.append(time.perf_counter() - begin)
        process.kill()
        process.wait()
    shutil.rmtree(folder)
    return {"name": "start of the command to first update", "seconds": seconds}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", help="a prepared folder")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--only", nargs="*", help="rows whose names contain one of these")
    parser.add_argument("--startup", action="store_true", help="time the start of the command too")
    parser.add_argument("--json", type=Path, help="where to write the results")
    args = parser.parse_args()
    rows = GPU_ROWS if args.device == "cuda" else CPU_ROWS
    if args.only:
        rows = [row for row in rows if any(part in row.name for part in args.only)]
    data = PreparedData.open(args.data)
    results = []
    for row in rows:
        try:
            results.append(run(row, data, args.device))
        except Exception as error:
            results.append({"name": row.name, "error": f"{type(error).__name__}: {error}"[:2000]})
        print(json.dumps(results[-1]), flush=True)
    record: dict[str, Any] = {
        **origin(args.device),
        "results": results,
    }
    if args.startup:
        record["startup"] = startup(data)
        print(json.dumps(record["startup"]), flush=True)
    one = next((r for r in results if r["name"] == "N_a=1" and "error" not in r), None)
    for result in results:
        if one and result["name"].startswith("N_a=") and "tokens_per_second" in result:
            result["cost_over_one_branch"] = one["tokens_per_second"] / result["tokens_per_second"]
    if args.json:
        args.json.write_text(json.dumps(record, indent=2) + "\n")
    print(table(results))
    return 0


def table(results: list[dict[str, Any]]) -> str:
    lines = [f"{'':34} {'tok/s':>11} {'cost':>6} {'outside':>8} {'MFU':>6} {'GiB':>6} {'first':>7}"]
    for r in results:
        if "error" in r:
            lines.append(f"{r['name']:34} {r['error'][:80]}")
            continue
        cells = [
            f"{r['tokens_per_second']:11,.0f}",
            f"{r['cost_over_one_branch']:5.2f}×" if "cost_over_one_branch" in r else " " * 6,
            f"{100 * r['share_outside']:7.1f}%" if "share_outside" in r else " " * 8,
            f"{100 * r['utilisation_of_989_tflops']:5.1f}%" if "peak_memory_gib" in r else " " * 6,
            f"{r['peak_memory_gib']:6.2f}" if "peak_memory_gib" in r else " " * 6,
            f"{r['seconds_to_first_update']:6.1f}s",
        ]
        lines.append(f"{r['name']:34} " + " ".join(cells))
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
