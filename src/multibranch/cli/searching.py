"""The arguments that every verb which decodes takes, and the Translator they ask for."""

import argparse
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from multibranch.errors import UserError

if TYPE_CHECKING:
    from multibranch.decoding import Translator

_OPTIONS = {
    "beam": (int, "live hypotheses per sentence; 1 is greedy search (default: 5)"),
    "n_best": (
        int,
        "hypotheses to print per line, at most --beam; with --sample any number (default: 1)",
    ),
    "length_penalty": (
        float,
        "α of score = log-probability / length^α; higher prefers longer output (default: 1)",
    ),
    "min_length": (int, "no output has fewer tokens (default: 0)"),
    "max_length": (int, "no output has more tokens (default: a multiple of the source's)"),
    "max_ratio": (
        float,
        "without --max-length, the limit is this times the source's tokens (default: 1.5) …",
    ),
    "max_extra": (int, "… plus this many (default: 10)"),
    "repetition_penalty": (
        float,
        "above 1, makes tokens that the output already contains less likely (default: 1)",
    ),
    "no_repeat_ngram": (int, "no sequence of this many tokens occurs twice (default: 0, off)"),
    "temperature": (
        float,
        "with --sample: below 1 sharpens the distribution, above 1 flattens it (default: 1)",
    ),
    "top_k": (int, "with --sample: use only this many most probable tokens (default: all)"),
    "top_p": (
        float,
        "with --sample: use the fewest tokens with this total probability (default: 1)",
    ),
    "seed": (int, "with --sample: fixes the samples (default: 1)"),
}
_OF_SAMPLING = {"temperature", "top_k", "top_p", "seed"}


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """DIR …, and how to run it."""
    parser.add_argument(
        "models",
        metavar="DIR",
        nargs="+",
        help="a model directory; several with the same vocabulary decode as an ensemble",
    )
    parser.set_defaults(takes_more="models")
    parser.add_argument(
        "--branches",
        metavar="1,3",
        help="decode with these branches only, counted from 1, to see what each is worth",
    )
    parser.add_argument(
        "--engine",
        default="torch",
        choices=["torch", "ctranslate2"],
        help="inference engine; ctranslate2 takes what `multibranch export` wrote (default: torch)",
    )
    add_device(parser)
    add_precision(parser)
    parser.add_argument(
        "--cuda-graphs", action="store_true", help="record and replay steps; needs a GPU"
    )


def add_device(parser: argparse.ArgumentParser, *, default: str = "auto") -> None:
    """Where to compute."""
    parser.add_argument("--device", default=default, help=f"auto, cpu or cuda (default: {default})")


def add_precision(parser: argparse.ArgumentParser) -> None:
    """What the torch engine computes in."""
    parser.add_argument(
        "--precision",
        default="float32",
        choices=["float32", "bfloat16", "float16", "int8"],
        help="precision to compute in (default: float32). int8, on a CPU, makes models with "
        "millions of weights faster: most translations stay the same or nearly so, but that of a "
        "text outside the vocabulary may change completely",
    )


def add_search_arguments(
    parser: argparse.ArgumentParser,
    *,
    differing: Mapping[str, str] | None = None,
    without: Collection[str] = (),
) -> None:
    """How to search; what is not said is what the model directory says.

    `differing`: the help of options that mean something else for this verb; `without`: those that
    would mean nothing.
    """
    group = parser.add_argument_group(
        "search", "settings in the model directory override these defaults"
    )
    for name, (kind, what) in _OPTIONS.items():
        if name in without:
            continue
        group.add_argument(
            f"--{name.replace('_', '-')}",
            type=kind,
            metavar=kind.__name__.upper(),
            help=(differing or {}).get(name, what),
        )
    group.add_argument(
        "--sample", action="store_true", default=None, help="sample instead of searching"
    )
    group.add_argument(
        "--allow-unknown", action="store_true", default=None, help="allow <unk> in the output"
    )


def search_settings(args: argparse.Namespace) -> dict[str, Any]:
    """The search options that were given."""
    names = [*_OPTIONS, "sample", "allow_unknown"]
    given = {name: getattr(args, name, None) for name in names}
    given = {name: value for name, value in given.items() if value is not None}
    if not args.sample:
        for name in _OF_SAMPLING & given.keys():
            raise UserError(f"--{name.replace('_', '-')} is for draws: add --sample, or remove it")
    elif args.beam is not None:
        raise UserError("--beam is for searching, and --sample draws: remove one of them")
    return given


def load_translator(args: argparse.Namespace) -> "Translator":
    """The Translator that `add_model_arguments` asked for."""
    from multibranch.decoding import Translator

    for word in args.models[1:]:
        if not Path(word).is_dir():
            what = "it is a file" if Path(word).is_file() else "there is no such folder"
            raise UserError(
                f"{word} is no model directory: {what}; what to translate is read from standard "
                f"input, as in `multibranch {args.verb} {args.models[0]} < FILE`"
            )
    engine: type[Translator] = Translator
    if args.engine == "ctranslate2":
        from multibranch.export import CTranslate2Engine

        engine = CTranslate2Engine
    translator = engine.load(
        args.models,
        device=args.device,
        branches=parse_branches(args.branches),
        precision=args.precision,
        cuda_graphs=args.cuda_graphs,
    )
    tell_of_kernels(args)
    _tell_of_layout(args, translator)
    return translator


def tell_of_kernels(args: argparse.Namespace) -> None:
    """Say which kernels int8 lacks on this machine, and why, on standard error."""
    from multibranch.device import choose_device
    from multibranch.nn.int8_kernels import lacking

    if args.precision != "int8" or getattr(args, "quiet", False):
        return
    said = lacking()
    if said is not None and choose_device(args.device).type == "cpu":
        print(f"multibranch {args.verb}: {said}", file=sys.stderr)


def _tell_of_layout(args: argparse.Namespace, translator: "Translator") -> None:
    """Say that code which is put on one line has lost its layout, on standard error."""
    from multibranch.text.code import LANGUAGES

    kept = args.tokenised or getattr(args, "json", False)
    quiet = getattr(args, "quiet", False)
    if translator.text.settings.target in LANGUAGES and not kept and not quiet:
        print(
            f"multibranch {args.verb}: {args.models[0]} writes code, which loses its layout on one "
            "line: `multibranch generate` keeps it, and so do the tokens that --tokenised gives",
            file=sys.stderr,
        )


def parse_branches(said: str | None) -> list[int] | None:
    """ "1,3" → [0, 2]"""
    if said is None:
        return None
    try:
        numbers = [int(number) for number in said.split(",")]
    except ValueError:
        raise UserError(
            f"--branches takes numbers separated by commas, such as 1,3, not {said!r}"
        ) from None
    if min(numbers) < 1:
        raise UserError(f"--branches counts from 1: there is no branch {min(numbers)}")
    return [number - 1 for number in numbers]
