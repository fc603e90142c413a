"""Scores of classification as GLUE defines them, as percentages.

Accuracy for most tasks, F1 of the positive class for MRPC and QQP, Matthews' correlation for CoLA.
"""

import math
from collections import Counter
from collections.abc import Sequence

from multibranch import __version__
from multibranch.metrics.score import Score, check_pairs


def accuracy(predictions: Sequence[int], labels: Sequence[int]) -> Score:
    """The percentage of examples whose label is predicted."""
    check_pairs(predictions, labels)
    right = sum(a == b for a, b in zip(predictions, labels))
    return Score(100 * right / len(labels), _signature("accuracy", labels))


def f1(predictions: Sequence[int], labels: Sequence[int], *, positive: int = 1) -> Score:
    """The harmonic mean of precision and recall of the positive class; 0 where it never occurs."""
    check_pairs(predictions, labels)
    both = sum(a == b == positive for a, b in zip(predictions, labels))
    said = sum(a == positive for a in predictions)
    true = sum(b == positive for b in labels)
    value = 100 * 2 * both / (said + true) if said + true else 0.0
    return Score(value, _signature(f"f1|positive:{positive}", labels))


def matthews(predictions: Sequence[int], labels: Sequence[int]) -> Score:
    """Matthews' correlation (-100 to 100), for any number of classes; 0 where it is undefined."""
    check_pairs(predictions, labels)
    said, true = Counter(predictions), Counter(labels)
    n = len(labels)
    right = sum(a == b for a, b in zip(predictions, labels))
    covariance = right * n - sum(said[label] * true[label] for label in said)
    spread_said = n * n - sum(count * count for count in said.values())
    spread_true = n * n - sum(count * count for count in true.values())
    undefined = not (spread_said and spread_true)
    value = 0.0 if undefined else 100 * covariance / math.sqrt(spread_said * spread_true)
    return Score(value, _signature("matthews", labels))


def _signature(name: str, labels: Sequence[int]) -> str:
    return f"{name}|examples:{len(labels)}|version:{__version__}"
