"""Paired bootstraps between many systems on one test set."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from multibranch import __version__
from multibranch.metrics.ngrams import ORDER, matches, ngrams, split_words, totals
from multibranch.metrics.score import check_pairs

SEED = 12345  # sacreBLEU's


@dataclass(frozen=True)
class Resampled:
    """A system's score on the test set, and on every sample drawn from it."""

    score: float
    samples: np.ndarray


class Bootstrap:
    """The test of `paired_bootstrap` by BLEU on tokens, for many pairs of systems.

    The samples are the same that sacreBLEU draws. What a system scores on each of them is computed
    once, whatever it is compared with, and from counts of its sentences.

    Args:
        references: of the test set, tokenised.
        samples: how many to draw.
        lowercase: says, for the signature, that the texts were lower-cased.
    """

    def __init__(
        self, references: Sequence[str], *, samples: int = 1000, lowercase: bool = False
    ) -> None:
        self.references = list(references)
        self.samples = samples
        self.lowercase = lowercase
        words = [split_words(line) for line in self.references]
        self._lengths = [len(line) for line in words]
        self._ngrams = [ngrams(line) for line in words]
        count = len(self.references)
        drawn = np.random.default_rng(SEED).choice(count, size=(samples, count), replace=True)
        # How often each sentence is in each sample.
        self._weights = np.stack([np.bincount(one, minlength=count) for one in drawn]).astype(float)

    @property
    def signature(self) -> str:
        return signature(samples=self.samples, lowercase=self.lowercase)

    def resample(self, hypotheses: Sequence[str]) -> Resampled:
        """Score a system's tokenised outputs."""
        check_pairs(hypotheses, self.references)
        counts = np.array([self._counts(*one) for one in enumerate(hypotheses)], dtype=float)
        return Resampled(float(_scores(counts.sum(0)[None])[0]), _scores(self._weights @ counts))

    def _counts(self, number: int, hypothesis: str) -> list[int]:
        """Lengths of output and reference, and of each order the matches and all n-grams."""
        words = split_words(hypothesis)
        found = matches(words, self._ngrams[number])
        return [len(words), self._lengths[number], *found, *totals(words)]

    @staticmethod
    def compare(baseline: Resampled, system: Resampled) -> dict[str, Any]:
        """The difference of a system to a baseline, and whether it is more than chance."""
        difference = system.score - baseline.score
        apart = np.abs(system.samples - baseline.samples)
        beyond = int(np.sum(apart - apart.mean() > abs(difference)))
        p_value = (beyond + 1) / (len(apart) + 1) if difference else 1.0
        return {"difference": difference, "p_value": p_value, "significant": p_value < 0.05}


def signature(*, samples: int, lowercase: bool) -> str:
    """What a Bootstrap of these samples signs."""
    kind = f"case:{'lc' if lowercase else 'mixed'}|eff:no|tok:none|smooth:none"
    return f"nrefs:1|bs:{samples}|seed:{SEED}|{kind}|version:{__version__}"


def _scores(counts: np.ndarray) -> np.ndarray:
    """BLEU of each row of counts; 0 where an order has no match."""
    output, reference = counts[:, 0], counts[:, 1]
    found, runs = counts[:, 2 : 2 + ORDER], counts[:, 2 + ORDER :]
    values = np.zeros(len(counts))
    some = found.all(axis=1)
    logs = np.log(found[some] / runs[some]).mean(axis=1)
    shorter = np.minimum(0.0, 1 - reference[some] / output[some])
    values[some] = 100 * np.exp(logs + shorter)
    return values
