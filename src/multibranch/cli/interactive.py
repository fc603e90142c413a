"""Translate line by line as you type; Ctrl-D ends.

  multibranch interactive runs/mat
  multibranch interactive runs/mat --n-best 3
  multibranch interactive runs/mat --branches 2

Every line is answered at once, so another program can also use it through a pipe.
"""

import argparse
from collections.abc import Iterator


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from multibranch.cli.searching import add_model_arguments, add_search_arguments

    add_model_arguments(parser)
    parser.add_argument(
        "--tokenised", action="store_true", help="input and output are words separated by blanks"
    )
    add_search_arguments(parser)


def run(args: argparse.Namespace) -> None:
    from multibranch.cli.lines import one_line, open_output
    from multibranch.cli.searching import load_translator, search_settings

    settings = search_settings(args)
    translator = load_translator(args)
    translator.options(**settings)
    with open_output(None) as out:
        for line in _typed():
            [hypotheses] = translator.generate([line], tokenised=args.tokenised, **settings)
            if "n_best" in settings:
                answers = [f"{h.score:8.4f}  {one_line(h.text)}" for h in hypotheses]
            else:
                answers = [one_line(h.text) for h in hypotheses[:1]] or [""]
            out.write("".join(f"{answer}\n" for answer in answers).encode())
            out.flush()


def _typed() -> Iterator[str]:
    """Lines from the keyboard, with a prompt and a history; from a pipe, as they come."""
    import contextlib
    import sys

    from multibranch.cli.lines import open_input, read_lines

    if sys.stdin is None or not sys.stdin.isatty():
        with open_input(None) as (stream, name):
            yield from read_lines(stream, name)
        return
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 (gives input() its history)
    print("Type a sentence; Ctrl-D ends.", file=sys.stderr)
    with contextlib.suppress(EOFError):
        while True:
            try:
                line = input("> ")
                line.encode()  # bytes that are no UTF-8 come as half characters in some locales
            except UnicodeError:
                print("That line is not UTF-8: type it again.", file=sys.stderr)
                continue
            yield line
