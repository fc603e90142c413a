"""A score with its signature, several seeds' scores as mean and deviation, and perplexity."""

import math
import sys
from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass, field

from multibranch.errors import UserError, counted


@dataclass(frozen=True)
class Score:
    """A number from 0 to 100 and how it was computed.

    `details` has what a reader may ask for next, such as BLEU's brevity penalty and precisions.
    """

    value: float
    signature: str
    details: Mapping[str, float] = field(default_factory=dict, compare=False)

    def __str__(self) -> str:
        return f"{self.value:.2f} ({self.signature})"


@dataclass(frozen=True)
class Summary:
    """The scores of several seeds: their mean and the sample standard deviation."""

    mean: float
    deviation: float | None  # None for a single seed, which has none
    values: tuple[float, ...]
    signature: str

    def __str__(self) -> str:
        spread = "" if self.deviation is None else f" ± {self.deviation:.2f}"
        return f"{self.mean:.2f}{spread} over {len(self.values)} ({self.signature})"


def summarise(scores: Sequence[Score]) -> Summary:
    """Mean and deviation over seeds, of scores that were computed in the same way."""
    if not scores:
        raise UserError("There is no score to average; give at least one.")
    signatures = sorted({score.signature for score in scores})
    if len(signatures) > 1:
        raise UserError(
            f"Scores with different signatures cannot be averaged: {' and '.join(signatures)}."
        )
    values = tuple(score.value for score in scores)
    return Summary(*mean_and_deviation(values), values, signatures[0])


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float | None]:
    """The mean and the sample deviation, None for one value alone."""
    mean = math.fsum(values) / len(values)
    if len(values) == 1:
        return mean, None
    return mean, math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1))


def perplexity(loss: float) -> float | None:
    """e to the power of the cross-entropy a token; None where that is more than a float holds."""
    # A loss that is no number has none either.
    return math.exp(loss) if loss < math.log(sys.float_info.max) else None


def check_pairs(hypotheses: Sized, references: Sized) -> None:
    """Refuse what cannot be compared line by line."""
    if len(hypotheses) != len(references):
        raise UserError(
            f"{counted(len(hypotheses), 'output')} came for "
            f"{counted(len(references), 'reference')}; give one reference a line for every output."
        )
    if not len(references):
        raise UserError("There is nothing to score: outputs and references are empty.")
