"""Write code from descriptions in natural language.

  multibranch generate runs/code-python-mat "sort a list of integers"
  multibranch generate runs/code-java-mat "Returns the name." --n-best 3
  multibranch generate runs/code-java-mat --valid-only --json < descriptions.txt
  multibranch generate runs/code-java-mat --input wanted.txt --output code.java

A comment above every output says whether it parses, and its score. The programming language is the
model's. Without arguments, every line of standard input, or of the --input file, is a description.
Progress, and words that the model does not know, go to standard error. A blank line stays blank.
Code is highlighted in a terminal.

With --valid-only, an option beyond the paper, outputs that parse come before the others that the
beam found. With --json, every description becomes one line of JSON: {"line", "source", "language",
"hypotheses": [{"code", "tokens", "parses", "score", "log_probability", "unknowns"}]}. `code` is
formatted, `tokens` is what the model wrote, and `unknowns` the number of positions at which <unk>
was the most probable token. A blank line has one hypothesis with empty `code` and null for
`parses`. Scores are log-probability / length^α.
"""

import argparse
from typing import TYPE_CHECKING, Any, NamedTuple

from multibranch.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import TextIO

    from rich.console import Console

    from multibranch.decoding import Hypothesis
    from multibranch.tasks.code import CodeGenerator

_COMMENT = {"java": "//", "python": "#"}
_HELP = {"max_length": "no output has more tokens (default: the model directory's, else 256)"}
# A description does not say how long its code is: no multiple of its length bounds the output.
_WITHOUT = ("max_ratio", "max_extra")
_CHUNK = 256  # descriptions of a file that are decoded together


class Program(NamedTuple):
    """One output for one description."""

    code: str
    tokens: str
    parses: bool | None  # None for a blank line, which asks for no program
    score: float
    log_probability: float
    unknowns: int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from multibranch.cli.searching import add_device, add_search_arguments

    parser.add_argument("model", metavar="DIR", help="a model directory of the task code")
    parser.add_argument(
        "descriptions", metavar="TEXT", nargs="*", help="what the code should do, in words"
    )
    parser.set_defaults(takes_more="descriptions")
    parser.add_argument(
        "--valid-only", action="store_true", help="prefer hypotheses of the beam that parse"
    )
    parser.add_argument("--input", metavar="FILE", help="a file of descriptions, one per line")
    parser.add_argument(
        "--output", metavar="FILE", help="write to this file, which appears complete or not at all"
    )
    parser.add_argument("--json", action="store_true", help="write one JSON object per description")
    parser.add_argument("--quiet", action="store_true", help="print errors only on standard error")
    add_device(parser)
    add_search_arguments(parser, differing=_HELP, without=_WITHOUT)


def run(args: argparse.Namespace) -> None:
    import io
    import sys
    from contextlib import ExitStack

    from multibranch.cli import streams
    from multibranch.cli.lines import check_apart, open_input, open_output, read_lines
    from multibranch.cli.progress import Progress
    from multibranch.cli.searching import search_settings
    from multibranch.tasks.code import CodeGenerator

    settings = search_settings(args)
    if args.descriptions and args.input is not None:
        raise UserError("give descriptions, or a file of them with --input, not both")
    if not all(text.strip() for text in args.descriptions):
        raise UserError("a description is empty: say in words what the code should do")
    generator = CodeGenerator.load(args.model, device=args.device)
    generator.translator.options(**settings)  # wrong ones are refused before anything is read
    with ExitStack() as stack:
        lines: Iterable[str] = args.descriptions
        typed = args.input is None and sys.stdin is not None and sys.stdin.isatty()
        if not args.descriptions:
            stream, name = stack.enter_context(open_input(args.input))
            check_apart(stream, name, args.output)
            lines = read_lines(stream, name)
        file: TextIO = sys.stdout
        if args.output is not None:
            written = stack.enter_context(open_output(args.output))
            file = io.TextIOWrapper(written, "utf-8", write_through=True)
            stack.callback(file.detach)  # what is below is not its own to close
        console = streams.console(file, markup=True, soft_wrap=True)
        quiet = args.quiet or typed or bool(args.descriptions)
        progress = stack.enter_context(Progress(quiet=quiet, did="wrote code for"))
        number = 0
        # Somebody who types waits for an answer to every line.
        for lot in _lots(lines, 1 if typed else _CHUNK):
            found = generator.generate(lot, valid_first=args.valid_only, **settings)
            for source, hypotheses in zip(lot, found):
                number += 1
                where = "" if args.descriptions or typed else f"line {number}: "
                words = generator.translator.text.tokenise(source, "source").split()
                if not args.quiet:
                    _tell_unknown_words(generator, words, where)
                programs = [
                    _program(each, generator.language, asked=bool(words)) for each in hypotheses
                ]
                if args.json:
                    line = _json_line(number, source, generator.language, programs)
                    print(line, file=file, flush=True)
                else:
                    alone = len(args.descriptions) == 1
                    _show(console, "" if alone else source, generator.language, programs)
            progress.advance(len(lot))


def _lots(lines: "Iterable[str]", size: int) -> "Iterator[list[str]]":
    """So many lines at a time."""
    import itertools

    iterator = iter(lines)
    while lot := list(itertools.islice(iterator, size)):
        yield lot


def _program(hypothesis: "Hypothesis", language: str, *, asked: bool) -> Program:
    from multibranch.metrics import parses
    from multibranch.text.code import code_to_text

    return Program(
        code=code_to_text(hypothesis.text, language),
        tokens=hypothesis.text,
        parses=parses(hypothesis.text, language) if asked else None,
        score=round(hypothesis.score, 6),
        log_probability=round(hypothesis.log_probability, 6),
        unknowns=hypothesis.unknowns,
    )


def _tell_unknown_words(generator: "CodeGenerator", words: list[str], where: str) -> None:
    """Words that the model has never seen are read as <unk>: say so, on standard error."""
    import sys

    known = generator.translator.text.tokenizer("source").token_to_id
    missing = [word for word in dict.fromkeys(words) if known(word) is None]
    if missing:
        print(f"{where}not in the model's vocabulary: {', '.join(missing)}", file=sys.stderr)


def _json_line(number: int, source: str, language: str, programs: list[Program]) -> str:
    import json

    said: dict[str, Any] = {"line": number, "source": source, "language": language}
    said["hypotheses"] = [program._asdict() for program in programs]
    return json.dumps(said, ensure_ascii=False)


def _show(console: "Console", source: str, language: str, programs: list[Program]) -> None:
    """The programs, each under a comment; all of it is code that can be pasted."""
    from rich.syntax import Syntax
    from rich.text import Text

    comment = _COMMENT[language]
    if all(program.parses is None for program in programs):
        console.print()
        return
    if source:
        console.print(Text(f"{comment} {source}", style="bold"))
    for number, program in enumerate(programs, 1):
        verdict = "parses" if program.parses else "does not parse"
        said = f"{comment} {number}: {verdict}, score {program.score:.4f}"
        console.print(Text(said, style="green" if program.parses else "red"))
        code = program.code.rstrip("\n")
        if console.is_terminal:
            console.print(Syntax(code, language, theme="ansi_dark", background_color="default"))
        else:
            print(code, file=console.file)
        console.print()
