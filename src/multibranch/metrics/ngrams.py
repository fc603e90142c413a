"""Runs of one to four words, which every BLEU on tokens counts."""

import itertools
import re
from collections import Counter
from collections.abc import Mapping, Sequence

ORDER = 4


def split_words(line: str) -> list[str]:
    """Tokens as multi-bleu.perl takes them: they end at ASCII white space only."""
    return [word for word in re.split(r"[ \t\n\r\f\v]+", line) if word]


def ngrams(words: Sequence[str]) -> Counter[tuple[str, ...]]:
    """How often each run of one to four words occurs."""
    runs = (zip(*(words[start:] for start in range(n))) for n in range(1, ORDER + 1))
    return Counter(itertools.chain.from_iterable(runs))


def matches(output: Sequence[str], known: Mapping[tuple[str, ...], int]) -> list[int]:
    """Of each order, how many runs of the output a reference has, whose n-grams are `known`."""
    found = [0] * ORDER
    for gram, count in ngrams(output).items():
        if gram in known:
            found[len(gram) - 1] += min(count, known[gram])
    return found


def totals(output: Sequence[str]) -> list[int]:
    """Of each order, how many runs the output has."""
    return [max(0, len(output) - order) for order in range(ORDER)]
