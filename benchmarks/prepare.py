"""Time the preparation of a corpus, stage by stage, and watch its memory.

    python benchmarks/prepare.py --source train.de.xz --target train.en.xz
    python benchmarks/prepare.py --source train.de.xz --target train.en.xz --pairs 1000000

First each stage is timed alone, in lines (both sides counted) per second of processor time, on the
first ``--sample`` pairs; other load on the machine does not matter for this. Then the whole
preparation is timed on all processors, with the largest memory of all its processes together. If
``--pairs`` is larger than the corpus, the corpus is repeated with every number changed and a new
word in every line, so that the vocabulary grows as it does in longer corpora.
"""

import argparse
import itertools
import json
import os
import re
import resource
import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from multibranch.data.files import Source, without_compression
from multibranch.data.formats import plain
from multibranch.data.prepare import prepare
from multibranch.data.readers import Lot, read_pairs
from multibranch.data.recipe import Cleaning
from multibranch.data.recipes import parallel
from multibranch.data.store import StoreWriter
from multibranch.data.tokenising import Tokenise, too_different
from multibranch.data.workers import default_jobs
from multibranch.text import TextPipeline, WordCounter, learn_bpe

DIGITS = re.compile("[0-9]+")


def main() -> None:
    """Measure, and print a table or JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--merges", type=int, default=32_000)
    parser.add_argument("--pairs", type=int, help="pairs to prepare (default: the corpus as it is)")
    parser.add_argument("--sample", type=int, default=20_000, help="pairs for the stages alone")
    parser.add_argument("--jobs", type=int, default=default_jobs())
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    languages = tuple(
        Path(without_compression(str(path))).suffix.removeprefix(".")
        for path in (args.source, args.target)
    )
    with tempfile.TemporaryDirectory() as scratch:
        files = (args.source, args.target)
        if args.pairs is not None:
            files = lengthen(files, args.pairs, Path(scratch))
        result = {
            "stages": stages(files, languages, args.merges, args.sample, Path(scratch)),
            "whole": whole(files, languages, args.merges, args.jobs, Path(scratch)),
        }
    if args.json:
        print(json.dumps(result, indent=2))
    else:
        show(result)


def stages(
    files: tuple[Path, Path], languages: tuple[str, ...], merges: int, sample: int, scratch: Path
) -> dict[str, float]:
    """Lines a second of processor time, of every stage alone."""
    recipe = parallel(languages=(languages[0], languages[1]), train=("", ""))
    speeds: dict[str, float] = {}

    def timed(name: str, lines: int, work: Callable[[], Any]) -> Any:
        begin = time.process_time()
        made = work()
        speeds[name] = lines / (time.process_time() - begin)
        return made

    source, target = Source(files[0]), Source(files[1])
    lots: list[Lot] = list(
        itertools.islice(read_pairs((source, target), (plain, plain)), max(1, sample // 2000))
    )
    lines = 2 * sum(len(lot.source) for lot in lots)
    reading = itertools.islice(read_pairs((source, target), (plain, plain)), len(lots))
    timed("read and decode", lines, lambda: list(reading))
    split = Tokenise(recipe.text, cleaning=None)
    split(lots[0])  # compiles the rules
    words = timed("tokenise", lines, lambda: [split(lot).words for lot in lots])
    rule = Cleaning(max_length=175, max_ratio=1.5)
    timed("clean", lines, lambda: [clean(lot, rule) for lot in words])
    counter = WordCounter()
    timed("count words", lines, lambda: count(words, counter))
    vocabulary = timed("learn BPE", lines, lambda: learn_bpe(counter, merges=merges))
    text = TextPipeline(recipe.text, vocabulary)
    ids = timed("encode", lines, lambda: [encode(text, lot) for lot in words])
    timed("write", lines, lambda: store(ids, scratch))
    sides = [pair for lot in ids for side in lot for pair in side]
    back = timed("decode", lines, lambda: text.decode(sides, side="source", tokenised=True))
    timed("detokenise", lines, lambda: [text.detokenise(line, "source") for line in back])
    return speeds


def clean(words: tuple[list[str], list[str]], rule: Cleaning) -> int:
    """How many pairs a rule keeps."""
    lengths = zip(*([line.count(" ") + 1 for line in side] for side in words))
    return sum(too_different(a, b, rule) is None for a, b in lengths)


def count(lots: list[tuple[list[str], list[str]]], counter: WordCounter) -> None:
    """Count the words of all lots."""
    for lot in lots:
        for side in lot:
            counter.update(Counter(" ".join(side).split(" ")))


def encode(text: TextPipeline, lot: tuple[list[str], list[str]]) -> list[list[list[int]]]:
    """The ids of both sides of a lot."""
    return [text.encode(side, side="source", tokenised=True) for side in lot]


def store(ids: list[list[list[list[int]]]], scratch: Path) -> None:
    """Write all ids."""
    with StoreWriter(scratch / "store", "train") as writer:
        for source, target in ids:
            writer.add_many(source, target)


def whole(
    files: tuple[Path, Path], languages: tuple[str, ...], merges: int, jobs: int, scratch: Path
) -> dict[str, float]:
    """The whole preparation: seconds, seconds of processor, pairs a second, memory."""
    recipe = parallel(
        languages=(languages[0], languages[1]), train=(str(files[0]), str(files[1]))
    ).adjusted(merges=merges)
    output = scratch / "prepared"
    begin, used = time.perf_counter(), processor_seconds()
    with Memory() as memory:
        manifest, _ = prepare(recipe, output, places=files, jobs=jobs)
    seconds = time.perf_counter() - begin
    read = manifest["splits"]["train"]["read"]
    shutil.rmtree(output)
    return {
        "pairs": read,
        "jobs": jobs,
        "seconds": seconds,
        "processor_seconds": processor_seconds() - used,
        "pairs_a_second": read / seconds,
        "memory_before_mb": memory.before / 1e6,
        "largest_memory_mb": memory.largest / 1e6,
    }


def processor_seconds() -> float:
    """What this process and its finished children have used."""
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(sum(resource.getrusage(kind)[:2]) for kind in kinds)


class Memory:
    """The largest resident memory of this process and its children together.

    Pages that they share are counted once (the proportional set size that Linux keeps).
    """

    def __init__(self) -> None:
        self.before = self.largest = resident()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "Memory":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(0.2):
            self.largest = max(self.largest, resident())


def resident() -> int:
    """Bytes that this process and its children hold now."""
    total = 0
    for pid in [os.getpid(), *children()]:
        try:
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:
            continue
        total += sum(
            1024 * int(line.split()[1]) for line in text.splitlines() if line[:4] == "Pss:"
        )
    return total


def children() -> Iterator[int]:
    """The processes that this one has started."""
    for task in Path("/proc/self/task").iterdir():
        try:
            yield from map(int, (task / "children").read_text().split())
        except OSError:
            continue


def lengthen(files: tuple[Path, Path], pairs: int, scratch: Path) -> tuple[Path, Path]:
    """The corpus repeated up to ``pairs`` pairs, never the same line twice."""
    longer = []
    for path in files:
        made = scratch / Path(without_compression(path.name)).name
        with made.open("w", encoding="utf-8") as file:
            for number, line in enumerate(itertools.islice(repeated(path), pairs)):
                changed = DIGITS.sub(lambda found: str(int(found[0]) + number), line)  # noqa: B023
                file.write(f"{changed} W{number:x}\n")
        longer.append(made)
    return longer[0], longer[1]


def repeated(path: Path) -> Iterator[str]:
    """The lines of a file, over and over."""
    while True:
        for lot in read_pairs((Source(path), Source(path)), (plain, plain)):
            yield from lot.source


def show(result: dict[str, dict[str, float]]) -> None:
    """Print the results as tables."""
    from rich.console import Console
    from rich.table import Table

    table = Table("stage", "lines a processor second", box=None)
    for name, speed in result["stages"].items():
        table.add_row(name, f"{speed:,.0f}")
    console = Console()
    console.print(table)
    for name, value in result["whole"].items():
        console.print(f"{name.replace('_', ' ')}: {value:,.1f}")


if __name__ == "__main__":
    main()
