"""Compare exported models with ours on a test set: outputs, scores, and what int8 costs in BLEU.

    python benchmarks/export.py --model runs/mat --source test.de --references test.en \\
        --tokenised --sentences 1000 --json export.json

Every line is decoded by our decoder in float32 and int8, and by CTranslate2 in each --quantization,
with the search options of the model directory. For each, the table shows for how many sentences the
best hypothesis equals that of our float32, the largest difference of their scores, and BLEU:
multi-bleu on tokenised text, or sacreBLEU on detokenised text.
"""

import argparse
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import torch

from multibranch.decoding import Hypothesis, Translator
from multibranch.directory import load_model, load_text, read_config
from multibranch.export import CTranslate2Engine, export_ctranslate2
from multibranch.metrics import bleu, multi_bleu
from multibranch.nn import int8_block
from origin import origin


def main() -> None:
    args = _arguments()
    if args.threads:
        torch.set_num_threads(args.threads)
    sources = _lines(args.source)[: args.sentences]
    references = _lines(args.references)[: args.sentences]
    translator = Translator.load(args.model, device="cpu")
    ours = _decode(translator, sources, args.tokenised)
    model, text = load_model(args.model), load_text(args.model)
    said = translator.options()
    rows: list[dict[str, Any]] = []
    result = {
        **origin("cpu"),
        "model": {name: model.settings[name] for name in ("branches", "width", "hidden", "heads")},
        "sentences": len(sources),
        "source_tokens": sum(map(len, text.encode(sources, side="source", tokenised=True))),
        "beam": said.beam,
        "length_penalty": said.length_penalty,
        "cores": os.cpu_count(),
        "int8_step": "one call a block" if int8_block.runs_here() else "one call an operation",
        "engines": rows,
    }

    def note(name: str, found: list[Hypothesis], megabytes: float | None = None) -> None:
        """Add an engine's row; what is done stays, should the run be stopped."""
        row = _row(name, found, ours, references, args.tokenised)
        row["bleu_above_ours"] = round(row["bleu"] - (rows[0] if rows else row)["bleu"], 3)
        if megabytes is not None:
            row["megabytes"] = megabytes
        rows.append(row)
        print(json.dumps(row), flush=True)
        if args.json:
            Path(args.json).write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")

    note("multibranch, float32", ours)
    rounded = Translator.load(args.model, device="cpu", precision="int8")
    note("multibranch, int8", _decode(rounded, sources, args.tokenised))
    with tempfile.TemporaryDirectory() as place:
        for quantization in args.quantization:
            folder = export_ctranslate2(
                model,
                text,
                Path(place) / quantization,
                quantization=quantization,
                decoding=read_config(args.model).get("decoding"),
            )
            found = _decode(CTranslate2Engine.load(folder, device="cpu"), sources, args.tokenised)
            size = round((folder / "model.bin").stat().st_size / 1e6, 1)
            note(f"CTranslate2, {quantization}", found, size)


def _decode(engine: Translator, sources: list[str], tokenised: bool) -> list[Hypothesis]:
    return [hypotheses[0] for hypotheses in engine.generate(sources, tokenised=tokenised)]


def _row(
    name: str,
    found: list[Hypothesis],
    ours: list[Hypothesis],
    references: list[str],
    tokenised: bool,
) -> dict[str, Any]:
    score = (multi_bleu if tokenised else bleu)([one.text for one in found], references)
    same = [one.ids == other.ids for one, other in zip(found, ours)]
    differences = [abs(a.score - b.score) for a, b, equal in zip(found, ours, same) if equal]
    return {
        "engine": name,
        "same_best": sum(same),
        "same_best_share": round(sum(same) / len(same), 4),
        "largest_score_difference_where_same": max(differences, default=0.0),
        "bleu": round(score.value, 3),
        "signature": score.signature,
    }


def _lines(path: str) -> list[str]:
    return Path(path).read_text(encoding="utf-8").rstrip("\n").split("\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True, help="a model directory")
    parser.add_argument("--source", required=True, help="sentences to translate, one a line")
    parser.add_argument("--references", required=True, help="their translations")
    parser.add_argument("--tokenised", action="store_true", help="both are tokenised")
    parser.add_argument("--sentences", type=int, default=10**9, help="at most so many")
    parser.add_argument("--quantization", nargs="*", default=["float32", "int8"], metavar="NAME")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--json", help="where to write the result")
    return parser.parse_args()


if __name__ == "__main__":
    main()
