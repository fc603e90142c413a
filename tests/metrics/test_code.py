"""Sentence BLEU against NLTK and by hand; exact match."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nltk.translate.bleu_score import SmoothingFunction
from nltk.translate.bleu_score import sentence_bleu as nltk_sentence_bleu

from multibranch.errors import UserError
from multibranch.metrics import exact_match, mean_sentence_bleu, sentence_bleu

lines = st.lists(st.sampled_from("abcde"), min_size=2, max_size=15).map(" ".join)


@given(lines, lines)
@settings(max_examples=500, deadline=None)
def test_random_pairs_score_as_nltks_smoothing_method_4(output: str, reference: str) -> None:
    smoothing = SmoothingFunction().method4
    expected = nltk_sentence_bleu([reference.split()], output.split(), smoothing_function=smoothing)
    assert sentence_bleu(output, reference) == pytest.approx(100 * expected, rel=1e-13)


@pytest.mark.parametrize(
    ("output", "reference", "expected"),
    [
        ("a b c d", "a b c d", 100.0),
        # All orders match in part: 4/5, 3/4, 2/3, 1/2.
        ("a b c d x", "a b c d y", 100 * (4 / 5 * 3 / 4 * 2 / 3 * 1 / 2) ** 0.25),
        # Triples and fours are smoothed: ln 4 / 10 of 2, ln 4 / 20 of 1.
        (
            "a b x c",
            "a b c d",
            100 * (3 / 4 * 1 / 3 * (math.log(4) / 10 / 2) * (math.log(4) / 20)) ** 0.25,
        ),
        # Two words of four: orders that the output is too short for count one run.
        (
            "a b",
            "a b c d",
            100 * math.exp(1 - 4 / 2) * (math.log(2) / 10 * math.log(2) / 20) ** 0.25,
        ),
        ("x y", "a b", 0.0),
        ("", "a b", 0.0),
        ("a b", "", 0.0),
        # The paper's rule: one token scores nothing, even the right one.
        ("a", "a", 0.0),
        ("a", "a b", 0.0),
    ],
)
def test_hand_computed_cases(output: str, reference: str, expected: float) -> None:
    assert sentence_bleu(output, reference) == pytest.approx(expected, rel=1e-12)


def test_the_mean_counts_outputs_that_score_nothing() -> None:
    score = mean_sentence_bleu(["a b c d", "a", "x y"], ["a b c d", "a", "a b"])
    assert score.value == pytest.approx(100 / 3)
    assert "smooth:method4" in score.signature


def test_exact_match_is_of_tokens() -> None:
    assert exact_match(["a  b", "a c", "a"], ["a b ", "a b", "a"]).value == pytest.approx(200 / 3)
    with pytest.raises(UserError, match="1 output came for 2 references"):
        exact_match(["a"], ["a", "b"])
