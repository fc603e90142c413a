"""The paper's procedure on a prepared corpus: Transformer, continued Transformer, and MAT from it.

    python benchmarks/two_stage.py DATA OUTPUT --first 4 --second 3 [--continued] [--json FILE]

--first and --second are minutes of training. Every stage is decoded on the test set, with the
length penalty that is best on the validation set, and scored with BLEU on tokenised text.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

from multibranch.data import PreparedData
from multibranch.decoding import Translator
from multibranch.directory import load_model
from multibranch.metrics import multi_bleu
from multibranch.nn import branch_similarity
from multibranch.training import Config, DataConfig, ModelConfig, TrainConfig, Trainer
from multibranch.training.display import read_records
from origin import origin

BEAM = 5


def train(args: argparse.Namespace, data: PreparedData, name: str, **changes: Any) -> dict:
    """One run of the trainer; what it printed last."""
    model = {"width": args.width, "hidden": args.hidden, "branches": 1, "drop_branch": 0.0}
    model |= {"encoder_layers": args.layers, "decoder_layers": args.layers}
    model |= changes.pop("model", {})
    config = Config(
        data=DataConfig(folder=str(data.folder), max_length=args.max_length),
        model=ModelConfig(**model),
        train=TrainConfig(
            output=str(args.output / name),
            seed=args.seed,
            tokens=args.tokens,
            learning_rate=args.learning_rate,
            warmup=args.warmup,
            validate_every=args.validate_every,
            average=args.average,
            checkpoint_minutes=60,
            log_every=200,
            device=args.device,
            tensorboard=False,
            **changes,
        ),
    )
    outcome = Trainer(config, data).run()
    validations = read_records(args.output / name, "validation")
    return {
        "name": name,
        "updates": outcome.progress.update,
        "epochs": outcome.progress.epoch,
        "seconds": outcome.progress.seconds,
        "best_validation_loss": outcome.progress.best,
        "best_update": outcome.progress.best_update,
        "validation": [
            [v["update"], round(v["loss"], 4), round(v["plain"], 4)] for v in validations
        ],
    }


def decode(
    folder: Path, data: PreparedData, split: str, alpha: float, device: str, limit: int
) -> tuple[float, str, float, list[str]]:
    """BLEU of a model directory on a split, its signature, the seconds it took, the output."""
    store = data.split(split)
    sources = [store.source(i).tolist() for i in range(min(len(store), limit))]
    references = data.text.decode(
        [store.target(i).tolist() for i in range(len(sources))], side="target", tokenised=True
    )
    on_gpu = device == "cuda"
    precision = "float16" if on_gpu else "float32"
    translator = Translator.load(folder, device=device, precision=precision, cuda_graphs=on_gpu)
    begin = time.perf_counter()
    found = translator.search(sources, translator.options(beam=BEAM, length_penalty=alpha))
    seconds = time.perf_counter() - begin
    ids = [hypotheses[0].ids if hypotheses else () for hypotheses in found]
    lines = data.text.decode(ids, side="target", tokenised=True)
    score = multi_bleu(lines, references)
    return score.value, f"{score.signature} {score.details}", seconds, lines


def evaluate(args: argparse.Namespace, data: PreparedData, name: str) -> dict[str, Any]:
    """Scores of a run's averaged weights, or of its best where there are none."""
    rows: dict[str, Any] = {}
    for weights in ("averaged", "best"):
        folder = args.output / name / weights
        if rows or not folder.is_dir():
            continue
        tuned = {
            alpha: decode(folder, data, "valid", alpha, args.device, args.limit)[0]
            for alpha in args.length_penalties
        }
        best = max(tuned, key=lambda alpha: tuned[alpha])
        bleu, signature, seconds, lines = decode(
            folder, data, "test", best, args.device, args.limit
        )
        (args.output / f"{name}.{weights}.txt").write_text("\n".join(lines) + "\n")
        rows[weights] = {
            "length_penalty": best,
            "valid_bleu": tuned,
            "test_bleu": bleu,
            "signature": signature,
            "seconds_to_decode_test": seconds,
            "sentences": len(lines),
        }
        print(name, weights, json.dumps(rows[weights]), flush=True)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data")
    parser.add_argument("output", type=Path)
    parser.add_argument("--first", type=float, default=4, help="minutes for the Transformer")
    parser.add_argument("--second", type=float, default=3, help="minutes for the MAT")
    parser.add_argument("--continued", action="store_true", help="continue the Transformer too")
    parser.add_argument("--branches", type=int, default=3)
    parser.add_argument("--drop-branch", type=float, default=0.3)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--max-length", type=int, default=256)
    parser.add_argument("--learning-rate", type=float, default=5e-4)
    parser.add_argument("--warmup", type=int, default=4000)
    parser.add_argument("--validate-every", type=int, default=1200)
    parser.add_argument("--average", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit", type=int, default=10**9, help="sentences to decode")
    parser.add_argument("--length-penalties", type=float, nargs="+", default=[0.6, 1.0, 1.4])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    data = PreparedData.open(args.data)
    first = str(args.output / "transformer")
    mat = {"branches": args.branches, "drop_branch": args.drop_branch}
    stages: list[tuple[str, dict[str, Any]]] = [("transformer", {"max_minutes": args.first})]
    second = {"init_from": first, "max_minutes": args.second}
    stages += [("mat", {**second, "model": mat})]
    stages += [("continued", second)] if args.continued else []
    record: dict[str, Any] = {
        **origin(args.device),
        "stages": [],
    }
    for name, changes in stages:
        stage = train(args, data, name, **changes)
        stage["scores"] = evaluate(args, data, name)
        stage["branch_similarity"] = branch_similarity(load_model(args.output / name))
        record["stages"].append(stage)
        if args.json:
            args.json.write_text(json.dumps(record, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
