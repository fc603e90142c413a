"""Count the lines of raw corpora that come back exactly from their ids.

    python benchmarks/detokenising.py multi30k-de-en europarl-de-en newstest-en-de \\
        --json detokenising.json

Each folder is a raw parallel corpus with files such as train.de.xz and train.en.xz; its name ends
in its languages. Its lines are tokenised as Moses does, encoded with a joint BPE, decoded,
detokenised, and compared with the original, with white space normalised. BPE and the way of writing
percent signs are learned from train, or from all files if there is no train. The output holds
counts only, no line.
"""

import argparse
import dataclasses
import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from multibranch.data.files import Source
from multibranch.data.formats import plain
from multibranch.data.readers import Lot, read_pairs
from multibranch.data.tokenising import Tokenise, percent_signs
from multibranch.text import TextPipeline, TextSettings, WordCounter, learn_bpe
from multibranch.text.normalise import collapse

SIDES = ("source", "target")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("corpora", nargs="+", metavar="FOLDER", type=Path)
    parser.add_argument("--merges", type=int, default=10_000)
    parser.add_argument("--json", metavar="FILE", help="where to write the counts")
    args = parser.parse_args()
    names = [folder.name for folder in args.corpora]
    options = [] if args.merges == 10_000 else ["--merges", str(args.merges)]
    if args.json:
        options += ["--json", Path(args.json).name]
    result = {
        # Without where the corpora lie on this machine.
        "command": " ".join(["python", "benchmarks/detokenising.py", *names, *options]),
        "merges": args.merges,
        "corpora": {folder.name: counts(folder, args.merges) for folder in args.corpora},
    }
    text = json.dumps(result, indent=1) + "\n"
    if args.json:
        Path(args.json).write_text(text, encoding="utf-8")
    print(text, end="")


def counts(folder: Path, merges: int) -> dict[str, Any]:
    """By language, how many lines came back, and how many there are."""
    languages = folder.name.split("-")[-2:]
    files = sorted(folder.glob(f"*.{languages[0]}*"))
    if not files:
        sys.exit(f"{folder} has no files *.{languages[0]}*")
    train = [path for path in files if path.name.startswith("train.")]
    text = learn(train or files, languages, merges)
    back, lines = Counter[str](), Counter[str]()
    for lot in lots(files, languages):
        for side, language, raw in zip(SIDES, languages, (lot.source, lot.target)):
            found = text.decode(text.encode(raw, side=side), side=side)
            back[language] += sum(a == collapse(b) for a, b in zip(found, raw, strict=True))
            lines[language] += len(raw)
    return {
        "files": [path.name.split(".")[0] for path in files],
        "percent_signs": {
            language: getattr(text.settings, f"{side}_percent")
            for side, language in zip(SIDES, languages)
        },
        "lines": dict(lines),
        "came_back": dict(back),
        "share": {
            language: round(100 * back[language] / lines[language], 3) for language in languages
        },
    }


def learn(files: list[Path], languages: list[str], merges: int) -> TextPipeline:
    """The text pipeline of these files, as `multibranch prepare` makes one."""
    settings = TextSettings(kind="moses-bpe", source=languages[0], target=languages[1])
    split, counter = Tokenise(settings, cleaning=None), WordCounter()
    signs = {side: Counter[str]() for side in SIDES}
    for lot in lots(files, languages):
        made = split(lot)
        for side, texts, words in zip(SIDES, made.texts, made.words):
            counter.update(Counter(" ".join(words).split(" ")))
            signs[side].update(percent_signs(texts))
    source, target = (
        found.most_common(1)[0][0] if any(found.values()) else "" for found in signs.values()
    )
    settings = dataclasses.replace(settings, source_percent=source, target_percent=target)
    return TextPipeline(settings, learn_bpe(counter, merges=merges))


def lots(files: list[Path], languages: list[str]) -> Iterator[Lot]:
    """The lines of all files, each with its counterpart in the other language."""
    for path in files:
        other = path.with_name(path.name.replace(f".{languages[0]}", f".{languages[1]}"))
        yield from read_pairs((Source(path), Source(other)), (plain, plain))


if __name__ == "__main__":
    main()
