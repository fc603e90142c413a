"""Write a trained model for another engine: CTranslate2 (fast, int8) or ONNX.

  multibranch export runs/mat --format ctranslate2 --quantization int8 \\
      --output exported
  multibranch translate --engine ctranslate2 exported < input.de > output.en

  multibranch export runs/mat --format onnx --output exported
  multibranch export runs/sst2 --format onnx --output exported      a classifier

The branches are folded into heads, so that the engine computes the same function. Before --output
appears, the engine runs the exported model and the result is compared with PyTorch's. The largest
difference is reported: of a token's log-probability (ctranslate2) or of a logit (onnx). --output
must not exist yet. A model that cannot be exported is refused, and nothing is written.
"""

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="DIR", help="a model directory, or a classifier's folder")
    parser.add_argument(
        "--format", required=True, choices=["ctranslate2", "onnx"], help="format to write"
    )
    parser.add_argument("--output", required=True, metavar="DIR", help="folder to write")
    parser.add_argument(
        "--quantization",
        metavar="NAME",
        help="for ctranslate2: how the weights are stored, such as int8 (default: float32); an "
        "unknown name is refused with a list of the known ones",
    )
    parser.add_argument(
        "--positions",
        type=int,
        metavar="N",
        help="for ctranslate2: the longest sequence, in tokens (default: 2048)",
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--quiet", action="store_true", help="print errors only on standard error")


def run(args: argparse.Namespace) -> None:
    import sys
    from pathlib import Path

    from multibranch.cli.interrupts import uninterruptible_once
    from multibranch.cli.output import print_result
    from multibranch.export import export
    from multibranch.export.folder import check_output

    def tell(step: str) -> None:
        if not args.quiet:
            print(step, file=sys.stderr, flush=True)

    output = Path(args.output)
    check_output(output)  # what is there later was put there, whole, by the export
    with uninterruptible_once(output.exists):
        row = export(
            args.model,
            output,
            format=args.format,
            quantization=args.quantization,
            positions=args.positions,
            tell=tell,
        )
        print_result([row], as_json=args.json, title="Exported")
