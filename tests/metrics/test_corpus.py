"""Corpus scores against sacreBLEU, against multi-bleu.perl's numbers and against hand counts."""

import math
import random

import pytest
import sacrebleu

from multibranch.errors import UserError
from multibranch.metrics import bleu, chrf, multi_bleu, paired_bootstrap, ter

OUTPUTS = [
    "the cat sat on the mat in the kitchen .",
    "a small dog runs &amp; barks at the moon",
    "the the the the the the the",
    "Er kommt nicht mit , sagte sie leise .",
]
REFERENCES = [
    "the cat is sitting on the mat in the kitchen .",
    "a small dog runs &amp; barks loudly at the full moon tonight",
    "the cat is on the mat",
    "er kommt nicht mit , sagte sie leise .",
]


def corpus(lines: int, errors: float, seed: int = 1) -> tuple[list[str], list[str]]:
    """References of random words, and outputs that differ from them in a share of the words."""
    rng = random.Random(seed)
    words = [f"w{index}" for index in range(50)]
    references = [rng.choices(words, k=rng.randint(1, 20)) for _ in range(lines)]
    outputs = [
        [rng.choice(words) if rng.random() < errors else word for word in line]
        for line in references
    ]
    return [" ".join(line) for line in outputs], [" ".join(line) for line in references]


# The expected numbers of multi-bleu.perl's algorithm were computed in Perl, to ten digits.


@pytest.mark.parametrize(
    ("outputs", "references", "expected"),
    [
        (OUTPUTS, REFERENCES, 57.0833637860),
        # A no-break space ends no token in Perl; an empty output counts by its missing length.
        (["a b\u00a0c d e", "one two three four", ""],
         ["a b\u00a0c d f", "one two three four", "five six"], 56.3171797639),
        (["a b c x d e f"], ["a b c y d e f"], 0.0),  # no run of four words in common
        ([""], ["a b"], 0.0),
        (["a b c"], ["a b c"], 0.0),  # too short for four words
        (["a b c d"], ["a b c d"], 100.0),
    ],
)  # fmt: skip
def test_multi_bleu_is_the_scripts_number(
    outputs: list[str], references: list[str], expected: float
) -> None:
    assert multi_bleu(outputs, references).value == pytest.approx(expected, abs=1e-9)


def test_multi_bleu_by_hand() -> None:
    """6 of 7 words, 5 of 6 pairs, 4 of 5 triples, 3 of 4 fours; one word too short."""
    score = multi_bleu(["a b c d e f x"], ["a b c d e f g h"])
    expected = 100 * math.exp(1 - 8 / 7) * (6 / 7 * 5 / 6 * 4 / 5 * 3 / 4) ** 0.25
    assert score.value == pytest.approx(expected, rel=1e-12)
    assert score.details["brevity_penalty"] == pytest.approx(math.exp(-1 / 7))
    assert score.details["precision_2"] == pytest.approx(500 / 6)
    assert score.signature.startswith("multi-bleu|nrefs:1|case:mixed|eff:no|tok:none|smooth:none|")


@pytest.mark.parametrize("errors", [0.0, 0.1, 0.3, 0.9])
def test_multi_bleu_is_sacrebleu_without_tokenising_and_smoothing(errors: float) -> None:
    outputs, references = corpus(200, errors)
    reference = sacrebleu.BLEU(tokenize="none", smooth_method="none", force=True)
    expected = reference.corpus_score(outputs, [references])
    score = multi_bleu(outputs, references)
    assert score.value == pytest.approx(expected.score, abs=1e-9)
    assert score.details["brevity_penalty"] == pytest.approx(expected.bp)


def test_the_others_are_sacrebleus_with_its_signature() -> None:
    refs = [REFERENCES]
    assert bleu(OUTPUTS, REFERENCES).value == sacrebleu.corpus_bleu(OUTPUTS, refs).score
    lowered = bleu(OUTPUTS, REFERENCES, lowercase=True)
    assert lowered.value == sacrebleu.corpus_bleu(OUTPUTS, refs, lowercase=True).score
    assert chrf(OUTPUTS, REFERENCES).value == sacrebleu.corpus_chrf(OUTPUTS, refs).score
    small = chrf(OUTPUTS, [line.upper() for line in REFERENCES], lowercase=True)
    assert small.value == chrf([line.lower() for line in OUTPUTS], REFERENCES, lowercase=True).value
    assert "case:lc" in small.signature
    assert ter(OUTPUTS, REFERENCES).value == sacrebleu.corpus_ter(OUTPUTS, refs).score
    version = sacrebleu.__version__
    assert (
        bleu(OUTPUTS, REFERENCES).signature
        == f"nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:{version}"
    )
    assert "case:lc" in lowered.signature
    assert "nc:6|nw:0" in chrf(OUTPUTS, REFERENCES).signature
    assert "tok:tercom" in ter(OUTPUTS, REFERENCES).signature


def test_hand_counted_edit_rate() -> None:
    """One word to change in the four of the reference."""
    assert ter(["a b c x"], ["a b c d"]).value == pytest.approx(25.0)


def test_bootstrap_finds_a_difference_and_no_difference() -> None:
    better, references = corpus(100, 0.1)
    worse, _ = corpus(100, 0.4)
    found = paired_bootstrap(worse, better, references, samples=200)
    assert found["baseline"]["score"] == bleu(worse, references).value
    assert found["system"]["score"] == bleu(better, references).value
    assert found["difference"] == found["system"]["score"] - found["baseline"]["score"] > 10
    assert found["p_value"] == pytest.approx(1 / 201) and found["significant"]
    assert "bs:200|seed:12345" in found["signature"]
    same = paired_bootstrap(better, better, references, samples=200, metric="multi-bleu")
    assert same["difference"] == 0 and same["p_value"] == 1 and not same["significant"]
    rearranged = paired_bootstrap(better, better[:50] + worse[50:51] + better[51:], references)
    assert rearranged["p_value"] > 0.05 and not rearranged["significant"]
    assert same["baseline"]["score"] == pytest.approx(multi_bleu(better, references).value)
    assert "case:mixed|eff:no|tok:none|smooth:none" in same["signature"]


def test_bootstrap_on_tokens_takes_white_space_as_the_score_does() -> None:
    """10\u00a0000 and 10\u2009000 are tokens that the script leaves whole."""
    better, references = corpus(60, 0.1)
    worse, _ = corpus(60, 0.4)
    spaced = [
        [f"{line} 10\u00a0000 10\u2009000" for line in lines] for lines in (better, references)
    ]
    found = paired_bootstrap(worse, spaced[0], spaced[1], samples=20, metric="multi-bleu")
    for name, lines in (("baseline", worse), ("system", spaced[0])):
        expected = multi_bleu(lines, spaced[1]).value
        assert found[name]["score"] == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("metric", ["bleu", "chrf", "multi-bleu"])
def test_a_comparison_s_signature_says_the_case_of_its_scores(metric: str) -> None:
    better, references = corpus(40, 0.1)
    worse, _ = corpus(40, 0.4)
    found = paired_bootstrap(
        worse, [line.upper() for line in better], references, metric=metric, lowercase=True
    )
    assert "|case:lc|" in found["signature"]
    assert found["system"]["score"] == pytest.approx(
        paired_bootstrap(worse, better, references, metric=metric)["system"]["score"]
    )


@pytest.mark.parametrize("score", [bleu, chrf, ter, multi_bleu])
def test_what_cannot_be_compared_is_refused(score: object) -> None:
    assert callable(score)
    with pytest.raises(UserError, match="2 outputs came for 1 reference;"):
        score(["a", "b"], ["a"])
    with pytest.raises(UserError, match="nothing to score"):
        score([], [])
    with pytest.raises(UserError, match="'meteor' is not known"):
        paired_bootstrap(["a"], ["a"], ["a"], metric="meteor")
