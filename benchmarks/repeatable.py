"""Check whether runs of one seed are bit-identical, with train.deterministic and without.

    python benchmarks/repeatable.py configs/multi30k-de-en-baseline.yaml --updates 600 \\
        --json FILE --model.branches 3 --model.drop_branch 0.3

The configuration is trained twice as it is, twice with `train.deterministic: true`, and once more
with it, stopped half-way and resumed. Two runs are the same if no bit of their last weights and of
the optimiser's state differs. Any key of the configuration can be overridden.
"""

import argparse
import json
import shutil
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from multibranch import configuration
from multibranch.data import PreparedData
from multibranch.errors import UserError
from multibranch.training import Config, Trainer
from multibranch.training.display import read_records
from origin import origin


def configured(config: Path, words: list[str], **settings: Any) -> tuple[Config, PreparedData]:
    """A configuration with these settings of its training, and its corpus."""
    words = [*words, *(f"--train.{name}={value}" for name, value in settings.items())]
    loaded = configuration.load(Config, config, words)
    if loaded.data.folder is None:
        raise UserError(f"{config} has no data.folder: give --data.folder FOLDER")
    return loaded, PreparedData.open(loaded.data.folder)


def train(config: Path, words: list[str], place: Path, updates: int, **settings: Any) -> None:
    """Train to this many updates, from where the run in `place` stands."""
    said = {"output": place, "max_updates": updates, "max_epochs": "null", **settings}
    Trainer(*configured(config, words, **said), quiet=True).run()


def state(place: Path) -> dict[str, torch.Tensor]:
    """What the run in `place` ended with."""
    newest = max((place / "resume").glob("update-*"))
    return load_file(newest / "state.safetensors")


def differing(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> dict[str, Any]:
    """How many numbers of two states differ, and by how much at most."""
    pairs = [(tensor, other[name]) for name, tensor in one.items() if name != "statistics"]
    return {
        "numbers": sum(a.numel() for a, _ in pairs),
        "differing": sum(int((a != b).sum()) for a, b in pairs),
        "most": max(float((a.double() - b.double()).abs().max()) for a, b in pairs),
    }


def speed(place: Path) -> float:
    """Target tokens a second: the median of what was reported after the first tenth."""
    reports = read_records(place, "train")
    counted_in = reports[len(reports) // 10 + 1 :]
    if not counted_in:
        raise UserError("too few reports of a speed: more --updates, or a lower --train.log_every")
    return statistics.median(r["tokens_per_second"] for r in counted_in)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("config", type=Path)
    parser.add_argument("--updates", type=int, default=600)
    parser.add_argument("--json", type=Path)
    args, words = parser.parse_known_args()
    folder = Path(tempfile.mkdtemp(prefix="repeatable-"))
    try:
        for name in ("as-it-is", "as-it-is-again", "deterministic", "deterministic-again"):
            alike = str(name.startswith("deterministic")).lower()
            train(args.config, words, folder / name, args.updates, deterministic=alike)
            print(f"{name}: {speed(folder / name):,.0f} target tokens a second", flush=True)
        for updates in (args.updates // 2, args.updates):
            train(args.config, words, folder / "resumed", updates, deterministic="true")
        states = {place.name: state(place) for place in folder.iterdir()}
        results = {
            f"{one}, {other}": differing(states[one], states[other])
            for one, other in (
                ("as-it-is", "as-it-is-again"),
                ("deterministic", "deterministic-again"),
                ("deterministic", "resumed"),
            )
        }
        record = {
            **origin(),
            "updates": args.updates,
            "tokens_per_second": {
                name: speed(folder / name) for name in ("as-it-is", "deterministic")
            },
            "results": results,
        }
    except UserError as error:
        print(f"repeatable: {error}", file=sys.stderr)
        return 2
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for name, found in results.items():
        print(f"{name}: {found['differing']:,} of {found['numbers']:,} numbers differ")
    if args.json:
        args.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
