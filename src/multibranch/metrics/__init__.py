"""Scores that say how they were computed: translation, code and classification.

Everything is a percentage from 0 to 100 with the signature that makes it comparable. Only what a
score needs is imported, and only when it is computed.

score is what all of them give; corpus (translations), code with validity, classification are the
scores, ngrams and bootstrap what they count and draw.
"""

from multibranch.metrics.classification import accuracy, f1, matthews
from multibranch.metrics.code import exact_match, mean_sentence_bleu, sentence_bleu
from multibranch.metrics.corpus import bleu, chrf, multi_bleu, paired_bootstrap, ter
from multibranch.metrics.score import Score, Summary, summarise
from multibranch.metrics.validity import parses, pov

__all__ = [
    "Score",
    "Summary",
    "accuracy",
    "bleu",
    "chrf",
    "exact_match",
    "f1",
    "matthews",
    "mean_sentence_bleu",
    "multi_bleu",
    "paired_bootstrap",
    "parses",
    "pov",
    "sentence_bleu",
    "summarise",
    "ter",
]
