"""Measure what limits scores on prepared code corpora: references that do not parse, unknown words.

    python benchmarks/code_corpora.py prepared/code-java=code-java \\
        prepared/code-python=code-python --json code-corpora.json

Each corpus is a prepared folder and, after =, the folder that it was prepared from, for its
train.code.xz. The output holds counts only, no sentence and no program.
"""

import argparse
import json
import lzma
from pathlib import Path
from typing import Any

from multibranch.data import PreparedData
from multibranch.metrics import mean_sentence_bleu, multi_bleu, pov
from multibranch.tasks.code import language_of
from multibranch.text import UNK
from multibranch.text.code import code_to_text, text_to_code
from multibranch.text.programs import normalise_python
from origin import command

SPLITS = ("train", "valid", "test")
LONGEST = 256  # tokens of a target with its end: data.max_length of the configurations


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("corpora", nargs="+", metavar="PREPARED=RAW", help="code corpora")
    parser.add_argument("--json", metavar="FILE", help="where to write the counts")
    args = parser.parse_args()
    corpora = {}
    for one in args.corpora:
        prepared, _, raw = one.partition("=")
        corpora[Path(prepared).name] = counts(PreparedData.open(prepared), Path(raw))
    result = {"command": command(), "corpora": corpora}
    text = json.dumps(result, indent=1) + "\n"
    if args.json:
        Path(args.json).write_text(text, encoding="utf-8")
    print(text, end="")


def counts(data: PreparedData, raw: Path) -> dict[str, Any]:
    """The figures of one corpus."""
    language = language_of(data.text, data.folder)
    with lzma.open(raw / "train.code.xz", "rt", encoding="utf-8", newline="\n") as file:
        train = [line.removesuffix("\n") for line in file]
    if language == "python":  # the layout in one form, as `prepare` has it
        train = [normalise_python(line) or line for line in train]
    lines = {"train": train, **{split: data.lines(split, "target") for split in SPLITS[1:]}}
    words = {
        split: [data.text.tokenise(line, "target") for line in lines[split]] for split in SPLITS
    }
    test = words["test"]
    known = [with_unknown(data, line) for line in test]
    tokens = [token for line in known for token in [*line.split(" "), "</s>"]]
    parsed = {split: pov(words[split], language) for split in ("train", "test")}
    every = [line for split in SPLITS for line in words[split]]
    back = sum(text_to_code(code_to_text(line, language), language) == line for line in every)
    sentence, corpus = mean_sentence_bleu(known, test), multi_bleu(known, test)
    lengths = {split: data.split(split).target_lengths for split in SPLITS}  # with the end
    return {
        "language": language,
        "pairs": {split: len(words[split]) for split in SPLITS},
        "references_that_parse": {split: round(score.value, 3) for split, score in parsed.items()},
        "references_that_come_back": [back, len(every)],
        "vocabulary": [data.text.source_size, data.text.target_size],
        "unknown_target_tokens": round(100 * tokens.count("<unk>") / len(tokens), 3),
        "sentence_bleu_with_unknown": round(sentence.value, 3),
        "bleu_with_unknown": round(corpus.value, 3),
        "references_without_unknown": round(
            100 * sum(a == b for a, b in zip(known, test)) / len(test), 3
        ),
        "longest_target": max(int(each.max()) for each in lengths.values()),
        "train_pairs_too_long": int((lengths["train"] > LONGEST).sum()),
        "distinct_test_sources": len(set(data.lines("test", "source"))),
        "signatures": [parsed["test"].signature, sentence.signature, corpus.signature],
    }


def with_unknown(data: PreparedData, line: str) -> str:
    """The line with <unk> for the tokens that the target's vocabulary has not."""
    find = data.text.tokenizer("target").token_to_id
    return " ".join(word if find(word) not in (None, UNK) else "<unk>" for word in line.split(" "))


if __name__ == "__main__":
    main()
