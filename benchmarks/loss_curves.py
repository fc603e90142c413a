"""Train with every fast path and with none, from the same seeds, and compare the loss curves.

    python benchmarks/loss_curves.py DATA [--updates 1000] [--seeds 1 2 3] [--json FILE]
    python benchmarks/loss_curves.py --draw PICTURE --json FILE

"fast" is the default: on a GPU, compiled code, CUDA graphs, Triton kernels, and bf16 weights beside
float32 masters. "reference" is plain PyTorch in float32, operation by operation, with padded
attention. Both use the same batches and drop the same branches; ordinary dropout differs, as it
does between seeds. Along the curve, the table shows both means over the seeds, their difference,
the deviation between seeds (does the difference matter?) and the deviation of the differences of
runs with the same seed (is it chance?).
"""

import argparse
import json
import math
import shutil
import statistics
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from multibranch.data import PreparedData
from multibranch.nn.plainly import use_reference
from multibranch.training import Config, DataConfig, ModelConfig, TrainConfig, Trainer
from multibranch.training.display import read_records
from origin import origin

MODELS = {
    "cuda": {"width": 256, "hidden": 2048, "heads": 4},
    "cpu": {"width": 64, "hidden": 256, "heads": 4, "encoder_layers": 2, "decoder_layers": 2},
}
REFERENCE = {"compile": False, "precision": "float32"}


def train(data: str, args: argparse.Namespace, *, fast: bool, seed: int) -> dict[str, Any]:
    """One run: its training losses by update, its validation loss at the end, its seconds."""
    folder = Path(tempfile.mkdtemp())
    model = MODELS[args.device] | {"branches": 3, "drop_branch": 0.3}
    config = Config(
        data=DataConfig(folder=data),
        model=ModelConfig(**model),  # type: ignore[arg-type]
        train=TrainConfig(
            output=str(folder / "run"),
            seed=seed,
            tokens=args.tokens,
            warmup=max(1, args.updates // 4),
            max_updates=args.updates,
            validate_every=args.updates,
            log_every=max(1, args.updates // args.points),
            device=args.device,
            tensorboard=False,
            **({} if fast else REFERENCE),  # type: ignore[arg-type]
        ),
    )
    started = time.perf_counter()
    with nullcontext() if fast else use_reference():
        Trainer(config, PreparedData.open(data), quiet=True).run()
    seconds = time.perf_counter() - started
    steps, validations = (read_records(folder / "run", kind) for kind in ("train", "validation"))
    shutil.rmtree(folder)
    return {
        "path": "fast" if fast else "reference",
        "seed": seed,
        "updates": [record["update"] for record in steps],
        "losses": [round(record["loss"], 5) for record in steps],
        "validation_loss": validations[-1]["loss"],
        "seconds": round(seconds, 1),
    }


def compare(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Means over the seeds along the curve and at the end, and how far they are apart."""
    curves = {
        path: [run["losses"] + [run["validation_loss"]] for run in runs if run["path"] == path]
        for path in ("fast", "reference")
    }
    places = [*runs[0]["updates"], "validation"]
    rows = []
    for place, *values in zip(places, zip(*curves["fast"]), zip(*curves["reference"])):
        fast, reference = values
        row = {
            "update": place,
            "fast": statistics.fmean(fast),
            "reference": statistics.fmean(reference),
            "difference": statistics.fmean(fast) - statistics.fmean(reference),
        }
        if min(len(fast), len(reference)) > 1:
            spread = [statistics.variance(side) for side in (fast, reference)]
            row["deviation_between_seeds"] = math.sqrt(statistics.fmean(spread))
            pairs = [one - other for one, other in zip(fast, reference)]
            row["deviation_of_differences"] = statistics.stdev(pairs)
        rows.append(row)
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    lines = [f"{'update':>10} {'fast':>8} {'reference':>10} {'apart':>8} {'seeds':>7} {'pairs':>7}"]
    for row in rows:
        spread = f"{row.get('deviation_between_seeds', math.nan):7.4f}"
        pairs = f"{row.get('deviation_of_differences', math.nan):7.4f}"
        lines.append(
            f"{row['update']:>10} {row['fast']:8.4f} {row['reference']:10.4f} "
            f"{row['difference']:+8.4f} {spread} {pairs}"
        )
    return "\n".join(lines)


def draw(record: dict[str, Any], picture: Path) -> None:
    """Every run's curve, one colour for each path, and how far the means are apart below."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (above, below) = plt.subplots(
        2, sharex=True, figsize=(7, 5), height_ratios=(3, 1), layout="constrained"
    )
    for path, colour, style in (("reference", "#ee6677", "-"), ("fast", "#4477aa", "--")):
        runs = [run for run in record["runs"] if run["path"] == path]
        for number, run in enumerate(runs):
            label = f"{path}, {len(runs)} seeds" if number == 0 else None
            above.plot(run["updates"], run["losses"], style, color=colour, lw=1.2, label=label)
    rows = [row for row in record["comparison"] if row["update"] != "validation"]
    updates = [row["update"] for row in rows]
    spread = [row["deviation_between_seeds"] for row in rows]
    below.fill_between(
        updates, [-s for s in spread], spread, color="#bbbbbb", label="deviation between seeds"
    )
    below.plot(updates, [row["difference"] for row in rows], color="#222222", label="fast − ref.")
    above.set_ylabel("training loss")
    below.set_ylabel("apart")
    below.set_xlabel("update")
    below.set_ylim(-1.3 * max(spread), 2.4 * max(spread))  # room for the legend
    for axes, columns in ((above, 1), (below, 2)):
        axes.legend(frameon=False, loc="upper right", ncols=columns)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(picture, dpi=110)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", nargs="?", help="a prepared folder")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--updates", type=int, default=1000)
    parser.add_argument("--tokens", type=int, default=4096, help="target tokens a batch")
    parser.add_argument("--points", type=int, default=20, help="points of each curve")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--json", type=Path, help="where to write the results")
    parser.add_argument("--draw", type=Path, help="train nothing: draw what --json holds")
    args = parser.parse_args()
    if args.draw:
        if args.json is None:
            parser.error("--draw needs --json FILE")
        draw(json.loads(args.json.read_text(encoding="utf-8")), args.draw)
        return 0
    if args.data is None:
        parser.error("name a prepared folder")
    runs = []
    for seed in args.seeds:
        for fast in (True, False):
            runs.append(train(args.data, args, fast=fast, seed=seed))
            shown = {
                name: runs[-1][name] for name in ("path", "seed", "validation_loss", "seconds")
            }
            print(json.dumps(shown), flush=True)
            if args.json:  # what is done stays, should time run out
                args.json.write_text(json.dumps(_record(args, runs), indent=1) + "\n")
    print(table(compare(runs)))
    return 0


def _record(args: argparse.Namespace, runs: list[dict[str, Any]]) -> dict[str, Any]:
    both = {run["path"] for run in runs} == {"fast", "reference"}
    return {
        **origin(args.device),
        "model": MODELS[args.device] | {"branches": 3, "drop_branch": 0.3},
        "comparison": compare(runs) if both else [],
        "runs": runs,
    }


if __name__ == "__main__":
    sys.exit(main())
