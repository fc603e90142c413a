"""Run the whole procedure on a built-in corpus in minutes, without files, network or GPU.

  multibranch demo
  multibranch demo --seed 2 --output runs/demo-2

Generates the corpus and trains three models: a standard Transformer; that Transformer, continued;
and the MAT that it is branched out to, for as many updates as the continued one. Compares the
three, and writes the models, results.json, report.html and pictures of the attention under
--output; attention.png needs matplotlib, which is in the extra `study`. To resume after a stop,
repeat the command.
"""

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--output",
        default="runs/demo",
        metavar="DIR",
        help="where everything goes (default: runs/demo)",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=1,
        metavar="N",
        help="seed of weights, data order, dropout and drop-branch (default: 1)",
    )
    parser.add_argument("--json", action="store_true", help="print the results as JSON")


def run(args: argparse.Namespace) -> None:
    import json

    from rich.console import Console
    from rich.table import Table

    from multibranch.cli import streams
    from multibranch.cli.output import print_signatures
    from multibranch.errors import UserError
    from multibranch.tasks import demo, demo_report

    if not 0 <= args.seed < 2**32:
        raise UserError(f"--seed must be 0 to {2**32 - 1:,}, not {args.seed}")
    progress = Console(stderr=True, highlight=False)
    results = demo.run(
        args.output,
        seed=args.seed,
        tell=lambda line: progress.print(line, style="bold", markup=False, soft_wrap=True),
    )
    examples, stages = results.pop("examples"), results.pop("stages")
    picture, folder = results.pop("picture"), results.pop("folder")
    if args.json:
        print(json.dumps(results, indent=2))
        return
    console = streams.console(markup=True)
    for example in examples[:3]:
        console.print(f"\n[dim]source     [/dim] {example['source']}")
        console.print(f"[dim]reference  [/dim] {example['reference']}")
        for stage in stages:
            console.print(f"[dim]{stage.name:<11}[/dim] {example[stage.name]}")
    table = Table(title="\nResults", title_justify="left")
    table.add_column("model")
    for name in ("BLEU", "parameters", "seconds"):
        table.add_column(name, justify="right")
    for stage in stages:
        cells = (f"{stage.bleu:.2f}", f"{stage.parameters:,}", f"{stage.seconds:.0f}")
        table.add_row(stage.title, *cells)
    console.print(table)
    print_signatures({"BLEU": results["signature"]})
    console.print(demo_report.verdict(results))
    console.print(
        f"\nModels: {folder}/baseline, {folder}/continued, {folder}/mat\n"
        f"Report: {folder}/report.html   Attention: {folder}/attention.html"
        f"{'' if picture is None else ', attention.png'}\n"
        f"Try:    multibranch interactive {folder}/mat   with sentences like those above\n"
        f"        multibranch serve {folder}/mat   for a page in the browser",
        soft_wrap=True,  # a path that is broken cannot be copied
        markup=False,
    )
