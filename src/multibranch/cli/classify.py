"""Classify lines from standard input with a fine-tuned encoder or another saved classifier.

  multibranch classify runs/sst2 < reviews.txt > labels.tsv
  echo "What a film." | multibranch classify runs/sst2 --json
  paste first.txt second.txt | multibranch classify runs/mrpc

A line is one text or, for a model of pairs, two texts separated by a tab. If the folder does not
say which (one that transformers saved), the first line decides. For every line, standard output
has one line: the label, then each label with its probability, separated by tabs; with --json, an
object with the label and the probabilities.
"""

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from multibranch.cli.searching import add_device

    parser.add_argument(
        "model", metavar="DIR", help="a folder written by `multibranch train` or save_pretrained"
    )
    add_device(parser)
    parser.add_argument("--json", action="store_true", help="write one JSON object per line")


def run(args: argparse.Namespace) -> int:
    import json

    from multibranch.cli.lines import one_line, open_input, read_lines
    from multibranch.tasks.understanding_classifier import Classifier

    classifier = Classifier.load(args.model, device=args.device)
    with open_input(None) as (stream, name):
        for answer in classifier.classify(read_lines(stream, name)):
            if args.json:
                print(json.dumps(answer, ensure_ascii=False))
            else:
                shares = [f"{name}={share:.4f}" for name, share in answer["probabilities"].items()]
                fields = [answer["label"], *shares]
                print("\t".join(one_line(field).replace("\t", " ") for field in fields))
    return 0
