"""Count the parameters of a model, or of every architecture in the paper.

For a configuration file, the table shows where the parameters are (embeddings, encoder, decoder)
and what they are (attention, feed-forward, norms). Vocabulary sizes come from the data; if there
are none yet, give the sizes with --vocabulary.

With --paper, each architecture in the paper's tables is listed with its parameter count according
to the paper's own description, the figure that the paper prints, and why the two differ if they do.

Examples:
  multibranch params configs/iwslt14-de-en-mat.yaml --vocabulary 10152
  multibranch params --paper
  multibranch params --paper --json
"""

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from multibranch.errors import UserError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "config", nargs="?", type=Path, metavar="CONFIG", help="a YAML file with a `model:` section"
    )
    parser.add_argument(
        "--vocabulary",
        type=int,
        nargs="+",
        metavar="SIZE",
        help="for CONFIG: size of the joint vocabulary, or of the source's and the target's",
    )
    parser.add_argument("--paper", action="store_true", help="list the paper's architectures")
    parser.add_argument("--json", action="store_true", help="print JSON for programs")


def run(args: argparse.Namespace) -> None:
    if args.paper == (args.config is not None):
        raise UserError("give either a configuration file or --paper")
    if args.paper and args.vocabulary:
        raise UserError("--vocabulary is for a configuration file: --paper has the paper's own.")
    if args.paper:
        _paper(as_json=args.json)
    else:
        _config(args.config, args.vocabulary, as_json=args.json)


def _config(path: Path, vocabulary: Sequence[int] | None, *, as_json: bool) -> None:
    from multibranch import configuration
    from multibranch.study.counting import KINDS, PLACES, count_parameters, read_model_section

    settings = read_model_section(path)
    configuration.check_range("--vocabulary", list(vocabulary or ()), (1, math.inf))
    if vocabulary:
        settings["source_vocabulary"], settings["target_vocabulary"] = vocabulary[0], vocabulary[-1]
    missing = [key for key in ("source_vocabulary", "target_vocabulary") if key not in settings]
    if len(vocabulary or ()) > 2:
        raise UserError("--vocabulary takes one size, or the source's and the target's.")
    if missing:
        raise UserError(
            f"the size of the vocabulary is not known from {path}; "
            "add --vocabulary SIZE, or --vocabulary SOURCE TARGET for separate ones"
        )
    try:
        counts = count_parameters(**settings)
    except (ValueError, TypeError) as error:
        raise UserError(f"{path}: {error}") from error
    by_kind = {kind: sum(counts[place][kind] for place in PLACES) for kind in KINDS}
    by_place = {place: sum(counts[place].values()) for place in PLACES}
    total = sum(by_place.values())
    if as_json:
        print(json.dumps({"config": str(path), **by_place, **by_kind, "total": total}, indent=2))
        return
    rows = [[place, *(counts[place][kind] for kind in KINDS), by_place[place]] for place in PLACES]
    rows.append(["total", *by_kind.values(), total])
    _table(["", *(kind.replace("_", "-") for kind in KINDS), "total"], rows, title=str(path))


def _paper(*, as_json: bool) -> None:
    from multibranch.study.architectures import architectures, met, parameters

    found = architectures()
    if as_json:
        records = [
            {**one.record(), "layers": [one.encoder_layers, one.decoder_layers], "met": met(one)}
            for one in found
        ]
        print(json.dumps(records, indent=2, ensure_ascii=False))
        return
    notes: list[str] = []
    rows = []
    for one in found:
        if one.note and one.note not in notes:
            notes.append(one.note)
        shape = f"{one.branches}/{one.width}/{one.hidden}"
        vocabulary = f"{one.vocabulary:,}"
        if one.source_vocabulary:
            vocabulary = f"{one.source_vocabulary:,}+{vocabulary}"
        layers = f"{one.encoder_layers}+{one.decoder_layers}"
        figure = "" if one.paper_millions is None else f"{one.paper_millions}"
        mark = f"[{notes.index(one.note) + 1}]" if one.note else ""
        size = f"{parameters(one) / 1e6:.1f}"
        count = f"{parameters(one):,}"
        rows.append(
            [one.table, shape, one.ffn_branches, one.heads, layers, vocabulary, count, size, figure]
            + [mark]
        )
    header = ["Table", "N_a/d/d_h", "N_f", "M", "layers", "vocabulary", "parameters", "M here"]
    title = "The architectures of the paper's tables"
    _table([*header, "M paper", "note"], rows, title=title, boxed=False)  # fits 80 columns without
    for number, note in enumerate(notes, 1):
        print(f"[{number}] {note}")


def _table(
    header: Sequence[str], rows: Sequence[Sequence[Any]], *, title: str, boxed: bool = True
) -> None:
    from rich.box import HEAVY_HEAD
    from rich.table import Table
    from rich.text import Text

    from multibranch.cli import streams

    look: dict[str, Any] = {"box": HEAVY_HEAD} if boxed else {"box": None, "pad_edge": False}
    table = Table(title=title, title_justify="left", collapse_padding=not boxed, **look)
    for index, name in enumerate(header):
        # Folded, not cut: in a narrow terminal every number is there to read.
        table.add_column(name, justify="left" if index == 0 else "right", overflow="fold")
    for row in rows:
        cells = [f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row]
        table.add_row(*(Text(cell) for cell in cells))
    console = streams.console(highlight=True)
    if not console.is_terminal:
        console.width = 120  # a file or a pipe has none to keep to
    console.print(table)
