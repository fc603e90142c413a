"""Train a model from a YAML configuration.

  multibranch train configs/iwslt14-de-en-mat.yaml --data.folder prepared/iwslt14-de-en
  multibranch train configs/builtin.yaml --train.max_minutes 5 --model.branches 2
  multibranch train configs/iwslt14-de-en-mat.yaml --two-stage
  torchrun --nproc-per-node 8 -m multibranch train configs/wmt14-en-de-mat.yaml

Every key of the file can be given on the command line as --section.key value; configs/reference.yaml
explains them all. The result is a model directory at train.output, with the best, the last and, where
asked for, the averaged weights. Started again with the same configuration, a run that was stopped
goes on exactly where it was.
"""

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", help="a YAML file (see configs/)")
    parser.add_argument(
        "--two-stage",
        action="store_true",
        help="train the standard Transformer first, then the MAT from it, under train.output",
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--quiet", action="store_true", help="show no progress")
    parser.set_defaults(takes_overrides=True)


def run(args: argparse.Namespace) -> int:
    import os

    from multibranch import configuration
    from multibranch.cli.output import print_result
    from multibranch.tasks import translation
    from multibranch.training import Config

    config = configuration.load(Config, args.config, args.overrides)
    if args.two_stage:
        outcomes = translation.two_stage(config, quiet=args.quiet)
    else:
        outcomes = [(config.task, translation.train(config, quiet=args.quiet))]
    rows = [
        {
            "model": name,
            "folder": str(outcome.folder),
            "updates": outcome.progress.update,
            "best_validation": outcome.progress.best,
            "best_update": outcome.progress.best_update,
            "minutes": round(outcome.progress.seconds / 60, 2),
            "stopped": outcome.stopped,
        }
        for name, outcome in outcomes
    ]
    if os.environ.get("RANK", "0") == "0":
        print_result(rows, as_json=args.json, title="Training")
    return 130 if any(outcome.interrupted for _, outcome in outcomes) else 0
