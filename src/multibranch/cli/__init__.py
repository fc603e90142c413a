"""The command `multibranch`: one thin module a verb, found by the table below.

A verb's module holds add_arguments(parser) and run(args); its docstring is what `--help` says. Only
the module of the verb that is called is imported, and what it needs is imported inside run(), so
that help is instant.
"""

import argparse
import gc
import importlib
import os
import re
import sys
from collections.abc import Sequence
from typing import NoReturn

from multibranch import __version__
from multibranch.cli import streams
from multibranch.cli.formatting import HelpFormatter
from multibranch.cli.interrupts import STATUS, ignore_interrupts, interruptible
from multibranch.errors import Interrupted, UserError, is_out_of_memory, nearest

VERBS = {
    "demo": "run the whole procedure on a built-in corpus in a few minutes",
    "params": "count the parameters of a configuration, or of every architecture in the paper",
    "prepare": "turn a corpus into a prepared folder: cleaned, tokenised, binary",
    "train": "train a model from a configuration file",
    "branch": "add branches to a trained model (proximal initialisation)",
    "translate": "translate lines from standard input",
    "interactive": "translate line by line as you type",
    "generate": "write code from descriptions in natural language",
    "classify": "label lines from standard input with a fine-tuned encoder",
    "evaluate": "score a model on a split of its corpus",
    "study": "run the paper's tables, or a search, and report them beside the paper's numbers",
    "inspect": "draw the attention of every branch for one sentence",
    "export": "write a model for another engine: CTranslate2 (int8) or ONNX",
    "serve": "serve translations over HTTP, with a page to try the model",
}

# How often a thread of PyTorch's looks for work before it sleeps; 300,000 times are usual. On a
# busy machine looking keeps the core from those that it waits for, and training takes many times as
# long; sleeping earlier costs an idle one a few hundredths.
SPINS = "1000"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb; give back the exit status.

    It is 0 where it is done, 2 where the input is wrong, 130 after Ctrl-C and 143 after SIGTERM,
    which clean up alike. Without arguments it is the command itself, which ends with the verb: once
    that is done, Ctrl-C does nothing. After an interrupt another one still ends what is left of it.
    """
    if arguments is None:
        streams.settle()
        if "OMP_WAIT_POLICY" not in os.environ:
            os.environ.setdefault("GOMP_SPINCOUNT", SPINS)  # PyTorch is yet to be loaded
    words = list(sys.argv[1:] if arguments is None else arguments)
    verb = next((word for word in words if word in VERBS), None)
    answer = f"multibranch {verb}: interrupted" if verb else "multibranch: interrupted"
    with interruptible(answer):
        try:
            status = _run(words, verb)
            if arguments is None:
                ignore_interrupts()
            return status
        except KeyboardInterrupt as error:
            streams.complain(answer)
            return error.status if isinstance(error, Interrupted) else STATUS
        finally:
            streams.let_go()
            if arguments is None:
                gc.freeze()  # or Python looks for garbage in all of PyTorch, again and again


def _run(words: Sequence[str], verb: str | None) -> int:
    """Run the verb; errors that are no mistakes of ours become one line."""
    try:
        try:
            status = _obey(words, verb)
        except SystemExit:  # of a help, whose text may still wait to be written
            sys.stdout.flush()
            raise
        sys.stdout.flush()
        return status
    except UserError as error:
        said = " ".join(str(error).split())
    except BrokenPipeError:
        return 0  # the reader of our output has gone (`| head`)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        said = (
            "there is not enough memory for this: make the model, the beam or the batches smaller"
        )
    except OSError as error:
        if error.errno is None:
            raise
        where = f"{error.filename}: " if error.filename else ""
        said = f"{where}{os.strerror(error.errno)}"
    streams.complain(f"multibranch {verb}: {said}" if verb else f"multibranch: {said}")
    return 2


def _obey(words: Sequence[str], verb: str | None) -> int:
    """Read the words and run the verb that they name."""
    parser = _parser(verb)
    _check_encoding(words, parser, verb)
    args, rest = parser.parse_known_args(words)
    rest = _take_more(args, rest)
    if rest and not getattr(args, "takes_overrides", False):
        parser.prog = f"multibranch {args.verb}"
        parser.error(f"unrecognised arguments: {' '.join(rest)}")
    args.overrides = rest
    return importlib.import_module(f"multibranch.cli.{args.verb}").run(args) or 0


def _take_more(args: argparse.Namespace, rest: list[str]) -> list[str]:
    """Give a verb the words of its list that stand behind an option; what is left then.

    argparse ends a list of words at the first option, and does not know those that come later.
    """
    name = getattr(args, "takes_more", None)
    if name is None:
        return rest
    # Behind an option that is not known, a word may be its value.
    unknown = next((at for at, word in enumerate(rest) if word.startswith("-")), len(rest))
    setattr(args, name, [*getattr(args, name), *rest[:unknown]])
    return rest[unknown:]


def _check_encoding(words: Sequence[str], parser: "_Parser", verb: str | None) -> None:
    """Refuse what is not UTF-8: neither tokenizers nor the files that we write can hold it."""
    for word in words:
        if any("\udc80" <= sign <= "\udcff" for sign in word):  # how Python keeps such bytes
            shown = os.fsencode(word).decode(errors="backslashreplace")
            parser.prog = f"multibranch {verb}" if verb else "multibranch"
            parser.error(f"the argument {shown} is not UTF-8: convert it, or rename that file")


class _Parser(argparse.ArgumentParser):
    """Says in one line what is wrong; the usage of a verb with many options would bury it."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {_with_nearest(message)}; see {self.prog} --help\n")


def _with_nearest(message: str) -> str:
    """argparse's message on a wrong choice with the nearest in place of all, if one is near."""
    wrong = re.fullmatch(r"(.*invalid choice: '(.*)') \(choose from (.*)\)", message)
    if wrong is None:
        return message
    choices = [choice.strip("'") for choice in wrong[3].split(", ")]
    near = nearest(wrong[2], choices)
    return f"{wrong[1]}; did you mean {near}?" if near else message


def _parser(verb: str | None) -> _Parser:
    parser = _Parser(
        prog="multibranch",
        description="Train, run, study and ship Multi-branch Attentive Transformers.",
        epilog="`multibranch VERB --help` explains each, with examples.",
    )
    parser.add_argument("--version", action="version", version=f"multibranch {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for name, help_line in VERBS.items():
        if name == verb:
            module = importlib.import_module(f"multibranch.cli.{name}")
            sub = verbs.add_parser(
                name,
                help=help_line,
                description=module.__doc__,
                formatter_class=HelpFormatter,
            )
            module.add_arguments(sub)
        else:
            verbs.add_parser(name, help=help_line)
    return parser
