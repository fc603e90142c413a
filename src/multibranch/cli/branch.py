"""Add branches to a trained model (proximal initialisation), without training it.

  multibranch branch runs/transformer --branches 3 --output runs/transformer-3

The new model has N_a copies of every attention layer and computes exactly what the old one does.
Training with drop-branch then makes the copies differ. `multibranch train` with train.init_from
does both in one step.

  multibranch branch runs/mat-2 --branches 4 --tile --output runs/mat-4

--tile repeats the branches of a model that already has several. --noise makes the copies slightly
different, for training without drop-branch and attention dropout, where they would otherwise stay
equal forever.
"""

import argparse
from typing import Any

_MOST_NOISE = 10  # times the weights' own deviation: beyond, nothing of the model is left


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="DIR", help="a model directory")
    parser.add_argument(
        "--branches", type=int, required=True, metavar="N", help="N_a of the new model"
    )
    parser.add_argument("--output", required=True, metavar="DIR", help="where the new model goes")
    parser.add_argument(
        "--noise",
        type=float,
        default=0.0,
        metavar="FLOAT",
        help="noise on the copies, relative to the weights' standard deviation, at most 10 "
        "(default: 0, exact copies)",
    )
    parser.add_argument(
        "--tile", action="store_true", help="repeat the branches of a model that has several"
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(args: argparse.Namespace) -> None:
    import warnings
    from pathlib import Path

    from multibranch.cli.interrupts import uninterruptible_once
    from multibranch.cli.output import print_result
    from multibranch.directory import load_model, load_text, read_config, save_model
    from multibranch.disk import check_place, full_disk
    from multibranch.errors import UserError
    from multibranch.nn import branch_out

    output = Path(args.output)
    if output.exists():
        raise UserError(f"{output} exists already: choose another --output, or remove it")
    check_place(output, "--output")
    if not 0 <= args.noise <= _MOST_NOISE:
        raise UserError(f"--noise must be at least 0 and at most {_MOST_NOISE}, not {args.noise}")
    if args.branches < 1:
        raise UserError(f"--branches must be at least 1, not {args.branches}")
    model = load_model(args.model)
    text = load_text(args.model)
    if any(block.attention.branches > 1 for block in model.blocks) and not args.tile:
        raise UserError(
            f"{args.model} has {model.settings['branches']} branches already: add --tile to repeat "
            "them, or branch a model of one branch out"
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what drops is the business of the training to come
            branched = branch_out(
                model,
                branches=args.branches,
                noise=args.noise,
                how="tile",
            )
    except ValueError as error:
        raise UserError(f"{args.model} cannot be branched out: {error}") from None
    except OverflowError:
        raise UserError(f"--branches {args.branches:,}: no memory holds so many") from None
    config = read_config(args.model)
    kept: dict[str, Any] = {
        name: config[name] for name in ("task", "training", "decoding") if name in config
    }
    row = {
        "model": str(output),
        "branches": args.branches,
        "parameters_before": sum(p.numel() for p in model.parameters()),
        "parameters": sum(p.numel() for p in branched.parameters()),
    }
    with uninterruptible_once(output.exists):
        try:
            save_model(output, branched, text, extra={**kept, "branched_from": str(args.model)})
        except OSError as error:
            advice = "Nothing was left behind: make room, or choose another --output."
            raise full_disk(error, output, advice=advice) or error from None
        print_result([row], as_json=args.json, title="Branched out")
