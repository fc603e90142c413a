"""Translate lines: one line of output for every line of input, in order.

  multibranch translate runs/mat < input.de > output.en
  multibranch translate runs/mat --input input.de --output output.en --beam 8
  multibranch translate runs/mat-1 runs/mat-2 < input.de      an ensemble
  multibranch translate runs/mat --branches 1 < input.de      one branch only
  multibranch translate runs/mat --n-best 3 < input.de        line, score, text
  multibranch translate runs/mat --sample --top-p 0.9 --seed 7 < input.de
  multibranch translate exported --engine ctranslate2 < input.de

Input and output are ordinary UTF-8 text; with --tokenised both are words separated by blanks. A
blank line stays blank. Input of any length is read, decoded and written in chunks; progress goes to
standard error.

With --n-best N, every input line gives up to N output lines, each with the number of the input
line (from 1), the score and the text, separated by tabs. With --json, every input line becomes one
line of JSON: {"line", "source", "hypotheses": [{"text", "score", "log_probability", "unknowns"}]}.
Scores are log-probability / length^α.
"""

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from multibranch.decoding import Hypothesis

_MOST = 1_000_000_000  # lines or tokens; no memory holds more


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from multibranch.cli.searching import add_model_arguments, add_search_arguments

    add_model_arguments(parser)
    parser.add_argument("--input", metavar="FILE", help="read this file, not standard input")
    parser.add_argument(
        "--output", metavar="FILE", help="write to this file, which appears complete or not at all"
    )
    parser.add_argument(
        "--tokenised", action="store_true", help="input and output are words separated by blanks"
    )
    parser.add_argument(
        "--prefixes",
        metavar="FILE",
        help="a file with what each output must begin with, one line per input line",
    )
    parser.add_argument("--json", action="store_true", help="write one JSON object per line")
    parser.add_argument(
        "--chunk",
        type=int,
        metavar="N",
        help="lines to read and sort at a time (default: 512; on a GPU, 16384)",
    )
    parser.add_argument(
        "--batch-tokens",
        type=int,
        metavar="N",
        help="source tokens to decode together (default: 1024; with ctranslate2, 256; fewer with a "
        "beam above 5; on a GPU, what its memory holds)",
    )
    parser.add_argument("--quiet", action="store_true", help="print errors only on standard error")
    add_search_arguments(parser)


def run(args: argparse.Namespace) -> None:
    import itertools

    from multibranch.cli.lines import check_apart, count_lines, open_input, open_output, read_lines
    from multibranch.cli.progress import Progress
    from multibranch.cli.searching import load_translator, search_settings
    from multibranch.errors import UserError

    for option, value in (("--chunk", args.chunk), ("--batch-tokens", args.batch_tokens)):
        if value is not None and value < 1:
            raise UserError(f"{option} must be at least 1, not {value}")
        if value is not None and value > _MOST:
            raise UserError(f"{option} must be at most {_MOST:,}, not {value:,}")
    settings = search_settings(args)
    translator = load_translator(args)
    translator.options(**settings)  # wrong ones are refused before anything is read
    prefixes: list[str] | None = None
    if args.prefixes is not None:
        with open_input(args.prefixes) as (stream, name):
            check_apart(stream, name, args.output)
            prefixes = list(read_lines(stream, name))
    shape = _json_line if args.json else _tab_lines if "n_best" in settings else _text_line
    with open_input(args.input) as (stream, name):
        check_apart(stream, name, args.output)
        _check_counts(count_lines(stream), name, prefixes, args.prefixes)
        lines = read_lines(stream, name)
        first = list(itertools.islice(lines, 1))  # a file is checked before any output is begun
        with open_output(args.output) as output, Progress(quiet=args.quiet) as progress:
            found = translator.stream(
                itertools.chain(first, lines),
                prefixes=prefixes,
                chunk=args.chunk,
                tokenised=args.tokenised,
                batch_tokens=args.batch_tokens,
                progress=progress.advance,
                **settings,
            )
            for number, (line, hypotheses) in enumerate(found, start=1):
                output.write(shape(number, line, hypotheses).encode())
                output.flush()
                progress.note(hypotheses)


def _check_counts(lines: int | None, name: str, prefixes: list[str] | None, file: str) -> None:
    """Refuse another number of prefixes; lines of a pipe are counted as they are translated."""
    from multibranch.errors import UserError, counted

    if lines is not None and prefixes is not None and lines != len(prefixes):
        raise UserError(
            f"{file} has {counted(len(prefixes), 'line')} and {name} {counted(lines, 'line')}: "
            "--prefixes needs one line for every line of input, a blank one for no prefix"
        )


def _text_line(number: int, source: str, hypotheses: list["Hypothesis"]) -> str:
    from multibranch.cli.lines import one_line

    return (one_line(hypotheses[0].text) if hypotheses else "") + "\n"


def _tab_lines(number: int, source: str, hypotheses: list["Hypothesis"]) -> str:
    from multibranch.cli.lines import one_line

    return "".join(
        f"{number}\t{h.score:.4f}\t{one_line(h.text).replace(chr(9), ' ')}\n" for h in hypotheses
    )


def _json_line(number: int, source: str, hypotheses: list["Hypothesis"]) -> str:
    import json

    listed = [
        {
            "text": h.text,
            "score": round(h.score, 6),
            "log_probability": round(h.log_probability, 6),
            "unknowns": h.unknowns,
        }
        for h in hypotheses
    ]
    said = {"line": number, "source": source, "hypotheses": listed}
    return json.dumps(said, ensure_ascii=False) + "\n"
