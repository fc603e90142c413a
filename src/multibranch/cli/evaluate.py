"""Score a model on a split of its corpus.

  multibranch evaluate runs/mat
  multibranch evaluate runs/mat --compare runs/baseline    more than chance?
  multibranch evaluate runs/seed1 runs/seed2 runs/seed3    mean and deviation
  multibranch evaluate runs/mat --precision int8           what does int8 cost?
  multibranch evaluate runs/mat --split valid --json

BLEU is computed twice, each with its signature: by sacreBLEU on detokenised text, and as
multi-bleu.perl does on tokenised text. chrF and TER are sacreBLEU's. A model that writes code is
scored by sentence BLEU, exact match and the share of outputs that parse. A classifier is scored by
its task's metrics, by default on its validation split. A corpus of another task, language or
direction than the model's is refused.

The table and --json name the precision, the branches if they were chosen, and how many of the
split's sentences were scored: in JSON "sentences" ("outputs" for code) of "split_size". JSON also
has the beam and the length penalty.
"""

import argparse
from typing import Any


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from multibranch.cli.searching import add_device, add_precision

    parser.add_argument("models", nargs="+", metavar="DIR", help="model directories, one per seed")
    parser.add_argument("--data", metavar="FOLDER", help="prepared corpus (default: the model's)")
    parser.add_argument(
        "--split",
        choices=["valid", "test", "valid_mismatched"],
        help="default: test; for a classifier, valid (MNLI also has valid_mismatched)",
    )
    parser.add_argument(
        "--compare", metavar="DIR", help="a baseline to compare the first model with"
    )
    parser.add_argument("--beam", type=int, metavar="INT", help="beam size (default: the model's)")
    parser.add_argument(
        "--length-penalty", type=float, metavar="FLOAT", help="α (default: the model's)"
    )
    parser.add_argument("--branches", metavar="1,3", help="decode with these branches only, from 1")
    parser.add_argument(
        "--limit",
        type=int,
        metavar="N",
        help="score only the first N sentences or descriptions",
    )
    parser.add_argument(
        "--valid-only", action="store_true", help="for code: use the best output that parses"
    )
    parser.add_argument("--output", metavar="FILE", help="write the first model's output here")
    add_device(parser)
    add_precision(parser)
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(args: argparse.Namespace) -> None:
    from multibranch.cli.output import check_writable
    from multibranch.cli.searching import parse_branches
    from multibranch.errors import UserError
    from multibranch.tasks.evaluation import task_of

    if args.limit is not None and args.limit < 1:
        raise UserError("--limit must be at least 1")
    if args.output is not None:
        check_writable(args.output)
    task = task_of(args.models[0])
    if args.valid_only and task != "code":
        raise UserError(f"--valid-only is for models that write code, not for {task}")
    if task != "translation" and (args.compare is not None or len(args.models) > 1):
        raise UserError(f"--compare and several models are for translation, not for {task}")
    if task == "understanding":
        _refuse_search_options(args)
        _evaluate_classifier(args)
        return
    args.branches = parse_branches(args.branches)
    if task == "code":
        _evaluate_code(args)
    else:
        _evaluate_translation(args)


def _refuse_search_options(args: argparse.Namespace) -> None:
    from multibranch.errors import UserError

    for name in ("beam", "length_penalty", "branches", "limit", "output"):
        if getattr(args, name) is not None:
            option = name.replace("_", "-")
            raise UserError(f"--{option} is for models that write text, not for a classifier")
    if args.precision != "float32":
        raise UserError("--precision is for models that write text, not for a classifier")


def _evaluate_classifier(args: argparse.Namespace) -> None:
    from multibranch.cli.output import print_scores
    from multibranch.tasks.understanding import evaluate_classifier

    split = args.split or "valid"
    scores = evaluate_classifier(
        args.models[0], split=split, data_folder=args.data, device=args.device
    )
    row: dict[str, Any] = {"model": args.models[0], "split": split}
    row |= {name: round(score.value, 2) for name, score in scores.items()}
    print_scores(row, scores, as_json=args.json, title="Scores")


def _evaluate_code(args: argparse.Namespace) -> None:
    import json

    from multibranch.cli.code_scores import show_code_scores
    from multibranch.cli.progress import counting
    from multibranch.cli.searching import tell_of_kernels
    from multibranch.tasks.code import evaluate_code
    from multibranch.tasks.evaluation import data_of

    split = args.split or "test"
    data = data_of(args.models[0], args.data)
    total = len(data.lines(split, "source")[: args.limit])
    tell_of_kernels(args)
    with counting(f"decoding {args.models[0]}", total) as progress:
        result = evaluate_code(
            args.models[0],
            data,
            split=split,
            valid_only=args.valid_only,
            limit=args.limit,
            output=args.output,
            device=args.device,
            precision=args.precision,
            branches=args.branches,
            progress=progress,
            **_search(args),
        )
    if args.json:
        print(json.dumps(result, indent=2, ensure_ascii=False))
    else:
        show_code_scores(result)


def _evaluate_translation(args: argparse.Namespace) -> None:
    from pathlib import Path

    from multibranch.cli.searching import tell_of_kernels
    from multibranch.disk import naming, replaced_file
    from multibranch.tasks import evaluation

    args.split = args.split or "test"
    folders = [*args.models, *([args.compare] if args.compare is not None else [])]
    corpora = {  # of every model before the first is decoded, which may take long
        folder: evaluation.checked_data(
            folder, split=args.split, given=args.data, branches=args.branches
        )
        for folder in folders
    }
    tell_of_kernels(args)
    outputs = [_decode(folder, corpora[folder], args) for folder in args.models]
    each = [output.scores() for output in outputs]
    scores = each[0]
    result: dict[str, Any] = {
        "model": args.models[0],
        "split": args.split,
        "sentences": len(outputs[0].lines),
        "split_size": len(corpora[args.models[0]].lines(args.split, "target")),
        "precision": args.precision,
        **_told_search(args.models[0], args),
    }
    result |= {name: round(score.value, 2) for name, score in scores.items()}
    result["signatures"] = {name: score.signature for name, score in scores.items()}
    if len(outputs) > 1:
        result["seeds"] = evaluation.over_seeds(outputs, each)
    if args.compare is not None:
        baseline = _decode(args.compare, corpora[args.compare], args)
        result["comparison"] = evaluation.compare(outputs[0], baseline)
        result["comparison"] |= {"with": args.compare, **_told_search(args.compare, args)}
    if args.output:
        text = "".join(line + "\n" for line in outputs[0].lines)
        with naming(args.output), replaced_file(Path(args.output)) as file:
            file.write(text.encode())
    if args.json:
        import json

        print(json.dumps(result, indent=2, ensure_ascii=False))
    else:
        _show(result)


def _decode(folder: str, data: Any, args: argparse.Namespace) -> Any:
    from multibranch.cli.progress import counting
    from multibranch.tasks import evaluation

    total = len(data.lines(args.split, "source")[: args.limit])
    with counting(f"decoding {folder}", total) as progress:
        return evaluation.decode_split(
            folder,
            data,
            split=args.split,
            limit=args.limit,
            device=args.device,
            precision=args.precision,
            branches=args.branches,
            progress=progress,
            **_search(args),
        )


def _search(args: argparse.Namespace) -> dict[str, Any]:
    """The search options that were given."""
    asked = {"beam": args.beam, "length_penalty": args.length_penalty}
    return {name: value for name, value in asked.items() if value is not None}


def _told_search(folder: str, args: argparse.Namespace) -> dict[str, Any]:
    from multibranch.tasks import evaluation

    return evaluation.search_of(folder, branches=args.branches, **_search(args))


def _show(result: dict[str, Any]) -> None:
    """Print a result as a table, and how its scores were computed."""
    from rich.table import Table

    from multibranch.cli import streams
    from multibranch.cli.output import print_signatures, scored

    console = streams.console()
    console.print(f"{result['model']} on {scored(result, 'sentence')}", soft_wrap=True)
    table = Table()
    table.add_column("metric")
    table.add_column("score", justify="right")
    seeds = result.get("seeds")
    if seeds:
        table.add_column("mean ± deviation", justify="right")
    for name in result["signatures"]:
        cells = [name, f"{result[name]:.2f}"]
        if seeds:
            cells.append(f"{seeds[name]['mean']:.2f} ± {seeds[name]['deviation']:.2f}")
        table.add_row(*cells)
    console.print(table)
    print_signatures(result["signatures"])
    if "comparison" in result:
        found = result["comparison"]
        verdict = "more than chance" if found["significant"] else "within chance"
        console.print(
            f"{found['difference']:+.2f} multi_bleu against {found['with']}: {verdict} "
            f"(p = {found['p_value']:.4f})",
            soft_wrap=True,
        )
        print_signatures({"comparison": found["signature"]})
