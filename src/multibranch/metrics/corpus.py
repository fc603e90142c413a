"""Scores of a whole test set of translations.

`bleu`, `chrf` and `ter` are sacreBLEU's, on detokenised text. `multi_bleu` is what multi-bleu.perl
prints, on tokenised text; it needs no package. `paired_bootstrap` says whether a difference is more
than chance.
"""

import math
import re
from collections.abc import Sequence
from typing import Any

from multibranch import __version__
from multibranch.errors import UserError, needed
from multibranch.metrics.ngrams import ORDER, matches, ngrams, split_words, totals
from multibranch.metrics.score import Score, check_pairs


def bleu(hypotheses: Sequence[str], references: Sequence[str], *, lowercase: bool = False) -> Score:
    """BLEU as sacreBLEU computes it (13a tokenisation) on detokenised text."""
    score, signature = _sacrebleu(_metric("bleu", lowercase=lowercase), hypotheses, references)
    details = {"brevity_penalty": score.bp, "ratio": score.ratio}
    details |= {f"precision_{n}": value for n, value in enumerate(score.precisions, 1)}
    return Score(score.score, signature, details)


def chrf(hypotheses: Sequence[str], references: Sequence[str], *, lowercase: bool = False) -> Score:
    """chrF2 as sacreBLEU computes it."""
    score, signature = _sacrebleu(_metric("chrf", lowercase=lowercase), hypotheses, references)
    return Score(score.score, signature)


def ter(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """The translation edit rate as sacreBLEU computes it; the lower, the better."""
    score, signature = _sacrebleu(_metric("ter"), hypotheses, references)
    return Score(score.score, signature)


def multi_bleu(
    hypotheses: Sequence[str], references: Sequence[str], *, lowercase: bool = False
) -> Score:
    """BLEU as multi-bleu.perl computes it: corpus counts, no smoothing, tokens as they come.

    Like the script, tokens end at ASCII white space only, and an order without a match makes the
    score 0. `lowercase` says, for the signature, that the texts were lower-cased.
    """
    check_pairs(hypotheses, references)
    found, runs = [0] * ORDER, [0] * ORDER
    output_length = reference_length = 0
    for hypothesis, reference in zip(hypotheses, references):
        output, target = split_words(hypothesis), split_words(reference)
        output_length += len(output)
        reference_length += len(target)
        found = [sum(both) for both in zip(found, matches(output, ngrams(target)))]
        runs = [sum(both) for both in zip(runs, totals(output))]
    precisions = [match / total if total else 0.0 for match, total in zip(found, runs)]
    penalty = 1.0
    if output_length < reference_length:
        penalty = math.exp(1 - reference_length / output_length) if output_length else 0.0
    value = 0.0
    if all(precisions):
        value = 100 * penalty * math.exp(sum(map(math.log, precisions)) / ORDER)
    details = {"brevity_penalty": penalty, "ratio": output_length / max(1, reference_length)}
    details |= {f"precision_{n}": 100 * value for n, value in enumerate(precisions, 1)}
    case = "lc" if lowercase else "mixed"
    signature = f"multi-bleu|nrefs:1|case:{case}|eff:no|tok:none|smooth:none|version:{__version__}"
    return Score(value, signature, details)


def paired_bootstrap(
    baseline: Sequence[str],
    system: Sequence[str],
    references: Sequence[str],
    *,
    metric: str = "bleu",
    samples: int = 1000,
    lowercase: bool = False,
) -> dict[str, Any]:
    """sacreBLEU's paired bootstrap: is the system's difference to the baseline more than chance?

    `metric` is "bleu" or "chrf" for detokenised text, "multi-bleu" for tokenised text; `lowercase`
    is that of the scores that are compared, so that the signature says the same. Gives both
    scores, each with the mean and the half-width of its 95% interval over the samples, the
    difference, its p-value and the signature. Without any difference the p-value is 1, where
    sacreBLEU, which counts only samples beyond the difference, would call it significant.
    """
    check_pairs(baseline, references)
    check_pairs(system, references)
    significance = needed(
        "sacrebleu.significance", install="sacrebleu", purpose="Testing for significance"
    )
    texts = [list(lines) for lines in (baseline, system, references)]
    if metric == "multi-bleu":
        texts = [_only_blanks(lines) for lines in texts]
    test = significance.PairedTest(
        [("baseline", texts[0]), ("system", texts[1])],
        {metric: _metric(metric, lowercase=lowercase)},
        references=texts[2:],
        test_type="bs",
        n_samples=samples,
    )
    signatures, scores = test()
    ((name, (first, second)),) = ((name, got) for name, got in scores.items() if name != "System")
    difference = second.score - first.score
    p_value = second.p_value if difference else 1.0
    return {
        "metric": metric,
        "baseline": {"score": first.score, "mean": float(first.mean), "interval": float(first.ci)},
        "system": {"score": second.score, "mean": float(second.mean), "interval": float(second.ci)},
        "difference": difference,
        "p_value": p_value,
        "significant": p_value < 0.05,
        "signature": str(signatures[name]),
    }


def _only_blanks(lines: Sequence[str]) -> list[str]:
    """Lines from which sacreBLEU takes the tokens that multi-bleu takes.

    It ends tokens at any white space, so that what is within one becomes a private character.
    """

    def hidden(found: re.Match[str]) -> str:
        return chr(0xF0000 + ord(found[0]))

    return [" ".join(re.sub(r"\s", hidden, word) for word in split_words(line)) for line in lines]


def _metric(name: str, *, lowercase: bool = False) -> Any:
    metrics = needed("sacrebleu.metrics", install="sacrebleu", purpose=f"The score {name}")
    if name == "bleu":
        return metrics.BLEU(lowercase=lowercase)
    if name == "multi-bleu":
        return metrics.BLEU(lowercase=lowercase, tokenize="none", smooth_method="none", force=True)
    if name == "chrf":
        return metrics.CHRF(lowercase=lowercase)
    if name == "ter":
        return metrics.TER()
    raise UserError(f"The score {name!r} is not known; choose bleu, multi-bleu, chrf or ter.")


def _sacrebleu(
    metric: Any, hypotheses: Sequence[str], references: Sequence[str]
) -> tuple[Any, str]:
    check_pairs(hypotheses, references)
    score = metric.corpus_score(list(hypotheses), [list(references)])
    return score, str(metric.get_signature())
