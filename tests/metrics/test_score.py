"""Several seeds as mean and deviation, and what is said when a package is missing."""

import math
import sys

import pytest

import multibranch.metrics.validity as validity
from multibranch.errors import UserError
from multibranch.metrics import Score, bleu, multi_bleu, parses, summarise
from multibranch.metrics.score import perplexity


def test_mean_and_sample_deviation() -> None:
    summary = summarise([Score(34.0, "s"), Score(35.0, "s"), Score(37.5, "s")])
    assert summary.mean == pytest.approx(35.5)
    assert summary.deviation == pytest.approx((3.25) ** 0.5)
    assert summary.values == (34.0, 35.0, 37.5)
    assert str(summary) == "35.50 ± 1.80 over 3 (s)"


def test_one_seed_has_no_deviation() -> None:
    assert summarise([Score(34.0, "s")]).deviation is None
    assert str(summarise([Score(34.0, "s")])) == "34.00 over 1 (s)"


def test_scores_of_different_signatures_are_not_averaged() -> None:
    with pytest.raises(UserError, match="different signatures cannot be averaged: a and b"):
        summarise([Score(1, "a"), Score(2, "b")])
    with pytest.raises(UserError, match="no score"):
        summarise([])


def test_a_perplexity_that_no_float_holds_is_none() -> None:
    assert perplexity(0.0) == 1
    assert perplexity(2.0) == pytest.approx(7.389056)
    assert perplexity(709.0) == pytest.approx(8.218407e307)
    assert [perplexity(loss) for loss in (710.0, math.inf, math.nan)] == [None, None, None]


def test_a_missing_package_is_named_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "sacrebleu.metrics", None)
    with pytest.raises(UserError, match=r"needs the package sacrebleu.* pip install sacrebleu"):
        bleu(["a"], ["a"])
    assert multi_bleu(["a b c d"], ["a b c d"]).value == 100  # needs nothing
    monkeypatch.setitem(sys.modules, "tree_sitter", None)
    validity._parser.cache_clear()
    with pytest.raises(UserError, match=r"tree_sitter.*pip install 'multibranch\[code\]'"):
        parses("void f ( ) { }", "java")
    assert parses("def f ( ) : pass NEWLINE", "python")  # Python parses itself
    validity._parser.cache_clear()
