"""Turn a corpus into a prepared folder: cleaned, tokenised, ready to train on.

A recipe knows a public corpus: where it is, how it is cleaned, split and tokenised, and how large
its vocabulary is. Without --from, the files are downloaded. --from takes files that you already
have: folders, files or archives, plain or .gz, .bz2, .xz, .zst, .tgz, .zip.

  multibranch prepare --list
  multibranch prepare iwslt14-de-en --output prepared/iwslt14-de-en
  multibranch prepare iwslt14-en-de --from ~/Downloads/de-en.tgz \\
      --output prepared/iwslt14-en-de
  multibranch prepare glue --from glue_data --tasks mrpc rte \\
      --output prepared/glue

For your own text, use the recipe "parallel", with one sentence per line on each side. With --source
and --target alone, validation and test pairs are held out of them:

  multibranch prepare parallel --source corpus.de --target corpus.en \\
      --output prepared/mine
  multibranch prepare parallel --train a.de.xz a.en.xz \\
      --valid b.de b.en --test c.de c.en --languages de en \\
      --tokenised --merges 8000 --output prepared/mine

The folder holds the tokenizer, a memory-mapped store for each split, and manifest.json: what was
kept, what was dropped and why, the settings and the checksums. It appears only when it is complete.
Repeating the command does nothing; a different request for the same folder is refused.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from multibranch.data.progress import Progress
    from multibranch.data.recipe import Corpus


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the verb."""
    parser.add_argument("recipe", nargs="?", help="the name of a recipe (see --list)")
    parser.add_argument("--list", action="store_true", help="list the recipes")
    parser.add_argument("--output", metavar="DIR", type=Path, help="the folder to create")
    parser.add_argument(
        "--from",
        dest="places",
        metavar="PLACE",
        nargs="+",
        type=Path,
        default=[],
        help="folders, files or archives to take the corpus from, instead of downloading it",
    )
    parser.add_argument("--reverse", action="store_true", help="translate in the other direction")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    _add_own_files(parser.add_argument_group("your own files (recipe: parallel)"))
    _add_settings(parser.add_argument_group("settings that differ from the recipe's"))
    _add_running(parser.add_argument_group("running"))


def _add_own_files(group: Any) -> None:
    group.add_argument("--source", metavar="FILE", help="source sentences; some are held out")
    group.add_argument("--target", metavar="FILE", help="their translations, line by line")
    for split in ("train", "valid", "test"):
        group.add_argument(
            f"--{split}", nargs=2, metavar=("SOURCE", "TARGET"), help=f"the files of {split}"
        )
    group.add_argument(
        "--languages",
        nargs=2,
        metavar=("SOURCE", "TARGET"),
        help="the languages, if the file names do not end in them",
    )
    group.add_argument(
        "--tokenised", action="store_true", help="the text is already tokenised by Moses' rules"
    )
    group.add_argument(
        "--hold-out",
        type=int,
        metavar="N",
        help="hold out every N-th pair if no validation file is given (default: 50); at least 2, "
        "or 3 if there is no test file either",
    )


def _add_settings(group: Any) -> None:
    group.add_argument("--merges", type=int, metavar="N", help="merges of the joint BPE")
    group.add_argument(
        "--vocabulary",
        type=int,
        nargs="+",
        metavar="N",
        help="size of the joint BPE vocabulary, or of the word vocabularies SOURCE TARGET",
    )
    group.add_argument("--lowercase", action=argparse.BooleanOptionalAction, help="lower-case")
    group.add_argument(
        "--max-length", type=int, metavar="N", help="drop longer training pairs (0: keep them)"
    )
    group.add_argument(
        "--max-ratio",
        type=float,
        metavar="R",
        help="drop training pairs whose lengths differ by more than this factor (0: keep them)",
    )
    group.add_argument(
        "--first-pairs",
        type=int,
        metavar="N",
        help="train on the first N pairs only, as if the corpus were smaller; held-out pairs stay "
        "the same",
    )
    group.add_argument("--tasks", nargs="+", default=[], help="GLUE tasks (default: all found)")


def _add_running(group: Any) -> None:
    group.add_argument(
        "--skip-bad-lines",
        action="store_true",
        help="leave out and count lines that cannot be read, instead of stopping at the first",
    )
    group.add_argument("--overwrite", action="store_true", help="replace the folder if it exists")
    group.add_argument("--jobs", type=int, metavar="N", help="processes (default: all processors)")
    group.add_argument(
        "--cache",
        metavar="DIR",
        type=Path,
        help="where downloads are kept (default: ~/.cache/multibranch)",
    )


def run(args: argparse.Namespace) -> int:
    """Prepare what the arguments ask for."""
    from multibranch.data.own_files import requested
    from multibranch.data.prepare import prepare
    from multibranch.data.recipes import RECIPES
    from multibranch.errors import UserError

    if args.list:
        _show_recipes(list(RECIPES.values()), as_json=args.json)
        return 0
    if not args.recipe:
        raise UserError(
            "say what to prepare: `multibranch prepare RECIPE --output DIR`; `multibranch prepare "
            "--list` shows the recipes."
        )
    recipe, places = requested(**_request(args))
    if not args.output:
        raise UserError("say where to write it: add --output DIR.")
    with _reporter() as progress:
        manifest, made = prepare(
            recipe,
            args.output,
            places=places,
            tasks=args.tasks,
            cache=args.cache,
            skip_bad_lines=args.skip_bad_lines,
            overwrite=args.overwrite,
            jobs=args.jobs,
            progress=progress,
        )
    if args.json:
        print(json.dumps({"output": str(args.output), "made": made, **manifest}, indent=2))
    else:
        _show_result(args.output, manifest, made)
    return 0


def _request(args: argparse.Namespace) -> dict[str, Any]:
    names = (
        "recipe places reverse source target train valid test languages tokenised hold_out merges "
        "vocabulary lowercase max_length max_ratio first_pairs"
    )
    return {name: getattr(args, name) for name in names.split()}


def _show_recipes(recipes: "list[Corpus]", *, as_json: bool) -> None:
    if as_json:
        keys = ("name", "title", "pairs", "licence", "home")
        listed = [
            {key: getattr(recipe, key) for key in keys}
            | {"downloads": [download.url for download in recipe.downloads]}
            for recipe in recipes
        ]
        print(json.dumps(listed, indent=2))
        return
    from multibranch.cli import streams

    console = streams.console(markup=True, soft_wrap=True)
    for recipe in recipes:
        console.print(f"[bold]{recipe.name}[/bold]  {recipe.title}")
        console.print(f"    {recipe.pairs} pairs (train / valid / test); {recipe.licence}")
        console.print(f"    {recipe.home}", style="dim")
    console.print("Translation recipes work in both directions: wmt14-en-de and wmt14-de-en.")


def _show_result(output: Path, manifest: dict[str, Any], made: bool) -> None:
    from rich.table import Table

    from multibranch.cli import streams

    console = streams.console()
    done = "prepared" if made else "was prepared already"
    console.print(f"{output}: {done}", soft_wrap=True)
    table = Table(box=None, pad_edge=False, header_style="bold")
    if "tasks" in manifest:
        headings = ["task", "split", "examples", "unreadable", "labels"]
        rows = list(_task_rows(manifest["tasks"]))
    else:
        headings = ["split", "pairs", "dropped", "source tokens", "target tokens", "unknown"]
        rows = list(_split_rows(manifest["splits"]))
        sizes = manifest["vocabulary"]
        shared = f"{sizes['source_size']:,} entries, shared"
        apart = f"{sizes['source_size']:,} source, {sizes['target_size']:,} target entries"
        console.print(f"vocabulary: {shared if sizes['shared'] else apart}")
    for heading in headings:
        text = heading in ("task", "split", "dropped", "labels")
        table.add_column(heading, justify="left" if text else "right", overflow="fold")
    for row in rows:
        table.add_row(*row)
    console.print(table)


def _split_rows(splits: dict[str, Any]) -> Iterator[list[str]]:
    for name, facts in splits.items():
        dropped = ", ".join(f"{count:,} {why}" for why, count in facts["dropped"].items())
        yield [
            name,
            f"{facts['pairs']:,}",
            dropped or "none",
            f"{facts['source_tokens']:,}",
            f"{facts['target_tokens']:,}",
            f"{facts['source_unknown'] + facts['target_unknown']:,}",
        ]


def _task_rows(tasks: dict[str, Any]) -> Iterator[list[str]]:
    for task, results in tasks.items():
        for split, facts in results["splits"].items():
            labels = ", ".join(f"{count:,} {label}" for label, count in facts["labels"].items())
            yield [task, split, f"{facts['examples']:,}", f"{facts['unreadable']:,}", labels]


@contextmanager
def _reporter() -> "Iterator[Progress]":
    """Progress on standard error: a bar a stage on a terminal, a line a stage in a log."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    shown: dict[str, Any] = {}
    if not console.is_terminal:

        def tell(stage: str, done: int, total: int | None) -> None:
            if stage not in shown:
                shown[stage] = True
                print(stage, file=sys.stderr)

        yield tell
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("{task.completed:,.0f}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as display:

        def move(stage: str, done: int, total: int | None) -> None:
            if stage not in shown:
                for earlier in shown.values():
                    finished = display.tasks[earlier].completed
                    display.update(earlier, total=max(finished, 1), completed=max(finished, 1))
                shown[stage] = display.add_task(stage, total=total)
            display.update(shown[stage], completed=done, total=total)

        yield move
