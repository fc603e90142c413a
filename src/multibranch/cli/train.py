"""Train a model from a YAML configuration.

  multibranch train configs/builtin.yaml --model.branches 2
  multibranch train configs/iwslt14-de-en-mat.yaml --two-stage
  multibranch train configs/iwslt14-de-en-mat.yaml \\
      --data.folder prepared/iwslt14-de-en --train.max_minutes 60
  torchrun --nproc-per-node 8 -m multibranch train configs/wmt14-en-de-mat.yaml

Any key can be overridden on the command line, after the file, as --section.key value;
configs/reference.yaml explains all keys. The result is a model directory at train.output, with the
best, the last and, if requested, the averaged weights in sub-folders.

Ctrl-C and SIGTERM save and stop. To resume a run that was stopped or killed, repeat the command; it
continues from its last checkpoint, which is at most train.checkpoint_minutes old. Fine-tuning an
encoder (task: understanding) takes minutes and has no checkpoints: it starts again and replaces the
classifier in train.output.

Exit status: 0 done, 2 an error that one line explains, 130 or 143 stopped by Ctrl-C or SIGTERM.
"""

import argparse
from typing import Any


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", metavar="CONFIG", help="a YAML file (see configs/)")
    parser.add_argument(
        "--two-stage",
        action="store_true",
        help="train the standard Transformer first, then the MAT from it (proximal "
        "initialisation), in the folders transformer and mat under train.output",
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--quiet", action="store_true", help="show no progress")
    parser.set_defaults(takes_overrides=True)


def run(args: argparse.Namespace) -> int:
    import os
    from pathlib import Path

    from multibranch import configuration
    from multibranch.cli import streams
    from multibranch.cli.output import print_result
    from multibranch.errors import UserError
    from multibranch.tasks import translation
    from multibranch.training import Config
    from multibranch.training.telling import ending

    # The value of an override that stands before the file is taken for the file.
    misplaced = [word for word in args.overrides if word.endswith((".yaml", ".yml"))]
    if misplaced and not Path(args.config).is_file():
        raise UserError(f"give the configuration file first: multibranch train {misplaced[0]} …")
    if configuration.peek(args.config, "task") == "understanding":
        return _train_classifier(args)
    config = configuration.load(Config, args.config, args.overrides).check()
    if args.two_stage:
        outcomes = translation.two_stage(config, quiet=args.quiet)
    else:
        name = translation.model_name(config.model.branches)
        outcomes = [(name, translation.train(config, quiet=args.quiet))]
    last = outcomes[-1][1]  # the only one that may have been stopped
    if os.environ.get("RANK", "0") == "0":
        rows = [_row(name, outcome) for name, outcome in outcomes]
        if not args.json:
            rows = [{name: row[key] for name, key in SHOWN.items() if key in row} for row in rows]
        title = "Training, stopped" if last.interrupted else "Training"
        if last.interrupted and args.quiet:  # else the run has said so
            said = ending(last.stopped, last.folder, last.progress, stopped=True)
            streams.complain(f"multibranch train: {said}")
        print_result(rows, as_json=args.json, title=title)
    return 0 if last.signal is None else 128 + last.signal


def _train_classifier(args: argparse.Namespace) -> int:
    import os

    from multibranch import configuration
    from multibranch.cli.output import print_scores
    from multibranch.errors import UserError
    from multibranch.tasks.understanding import train_classifier
    from multibranch.tasks.understanding_config import UnderstandingConfig

    if args.two_stage:
        raise UserError("--two-stage is for translation and code: a pretrained encoder is stage 1")
    if os.environ.get("WORLD_SIZE", "1") != "1":  # each would train the same, into one folder
        raise UserError("fine-tuning an encoder takes one process: start it without torchrun")
    config = configuration.load(UnderstandingConfig, args.config, args.overrides)
    outcome = train_classifier(config, quiet=args.quiet)
    row: dict[str, Any] = {"model": str(outcome.folder), "epochs": len(outcome.epochs)}
    row |= {name: round(score.value, 2) for name, score in outcome.scores.items()}
    row["minutes"] = round(outcome.seconds / 60, 2)
    print_scores(row, outcome.scores, as_json=args.json, title="Fine-tuning, validation scores")
    return 0


# The columns of the table, which fit 80 characters; the lines above it say the rest.
SHOWN = {
    "model": "model",
    "parameters": "parameters",
    "updates": "updates",
    "valid loss": "validation_loss",
    "perplexity": "perplexity",
    "score": "score",
    "minutes": "minutes",
}


def _row(name: str, outcome: Any) -> dict[str, Any]:
    import math

    from multibranch.metrics.score import perplexity

    def finite(value: float | None) -> float | None:  # JSON has no other numbers
        return None if value is None or not math.isfinite(value) else value

    progress = outcome.progress
    # Where weights were averaged, the run's model is the average.
    loss, plain = progress.best_loss, progress.best_plain
    if outcome.averaged is not None:
        loss, plain = outcome.averaged["loss"], outcome.averaged["plain"]
    row = {
        "model": name,
        "folder": str(outcome.folder),
        "parameters": outcome.parameters,
        "updates": progress.update,
        "validation_loss": finite(loss),
        "perplexity": None if plain is None else perplexity(plain),
        "best_update": progress.best_update,
        "best_validation_loss": finite(progress.best_loss),
    }
    if progress.best_score is not None:
        row["score"] = progress.best_score
    return {**row, "minutes": round(progress.seconds / 60, 2), "ended": outcome.stopped}
