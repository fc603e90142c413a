"""How close generated code comes to its reference: sentence BLEU and exact match.

Lines are tokens separated by blanks, as a model writes them.
"""

import math
from collections.abc import Sequence

from multibranch import __version__
from multibranch.metrics.ngrams import ORDER, matches, ngrams, totals
from multibranch.metrics.score import Score, check_pairs

# Chen and Cherry's constant for this smoothing, with NLTK's value.
SMOOTHING = 5


def sentence_bleu(hypothesis: str, reference: str) -> float:
    """BLEU of one output, from 0 to 100, as the paper's code scores it.

    This is NLTK's smoothing method 4: an order without a match counts as if it had ln(length) / (5
    · 2^k) matches, the k-th such order a half of the one before. An output of one token scores 0
    even where it equals its reference, because the paper's code passes it over in the sum and
    counts it in the mean; one without any token in common with its reference scores 0 as well.
    """
    output, target = hypothesis.split(), reference.split()
    if len(output) < 2:
        return 0.0
    found = matches(output, ngrams(target))
    if not found[0]:
        return 0.0
    logarithms = []
    smoothed = 0
    for match, total in zip(found, totals(output)):
        matched = float(match)
        if not match:
            smoothed += 1
            matched = 1 / (2**smoothed * SMOOTHING / math.log(len(output)))
        logarithms.append(math.log(matched / max(1, total)) / ORDER)
    penalty = min(1.0, math.exp(1 - len(target) / len(output)))
    return 100 * penalty * math.exp(math.fsum(logarithms))


def mean_sentence_bleu(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """The mean of `sentence_bleu` over all outputs."""
    check_pairs(hypotheses, references)
    values = [
        sentence_bleu(hypothesis, reference)
        for hypothesis, reference in zip(hypotheses, references)
    ]
    signature = f"sentence-bleu|nrefs:1|case:mixed|tok:none|smooth:method4|version:{__version__}"
    return Score(math.fsum(values) / len(values), signature)


def exact_match(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """The percentage of outputs that have their reference's tokens."""
    check_pairs(hypotheses, references)
    equal = sum(a.split() == b.split() for a, b in zip(hypotheses, references))
    return Score(100 * equal / len(references), f"exact-match|tok:none|version:{__version__}")
