"""Sampling: the distribution, what restricts it, and seeds that no batch disturbs."""

from collections import Counter

import pytest
import torch

import reference_decoding as reference
from multibranch.decoding import Ensemble, SearchOptions, generate
from multibranch.nn.stepper import Stepper

EOS = reference.EOS
SOURCE = [5, 6, 7, EOS]


@pytest.fixture(scope="module")
def model():
    return reference.random_model(11, vocabulary=12)


def models(model) -> Ensemble:
    return Ensemble([Stepper(model)])


def test_where_every_token_is_forbidden_it_ends_as_greedy_search_does(model):
    sources = [SOURCE, [5, EOS]]
    options = {"no_repeat_ngram": 1, "min_length": 30, "max_length": 40}
    drawn = generate(models(model), sources, SearchOptions(sample=True, **options))
    greedy = generate(models(model), sources, SearchOptions(beam=1, **options))
    assert [len(found) for found in drawn] == [len(found) for found in greedy]


def expected_distribution(model, *, temperature: float, top_k: int, top_p: float) -> torch.Tensor:
    """The distribution of the first token, restricted one rule after the other."""
    log_p = reference.log_probabilities([model], SOURCE, [[]])[0, 0]
    log_p[list(reference.NEVER)] = float("-inf")
    p = (log_p / temperature).softmax(-1)
    order = p.argsort(descending=True)
    allowed = order[: top_k or len(order)]
    p_allowed = p[allowed] / p[allowed].sum()
    before = p_allowed.cumsum(0) - p_allowed
    kept = torch.zeros_like(p)
    kept[allowed[before < top_p]] = p[allowed[before < top_p]]
    return kept / kept.sum()


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"),
    [(1.0, 0, 1.0), (0.5, 0, 1.0), (2.0, 4, 1.0), (1.0, 0, 0.6), (1.5, 5, 0.8)],
)
def test_sampling_follows_its_distribution(model, temperature, top_k, top_p):
    draws = 4000
    options = SearchOptions(
        sample=True,
        n_best=draws,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        max_length=1,
        seed=3,
    )
    [samples] = generate(models(model), [SOURCE], options, batch_tokens=20_000)
    counts = Counter(sample.ids[0] if sample.ids else EOS for sample in samples)
    expected = expected_distribution(model, temperature=temperature, top_k=top_k, top_p=top_p)
    assert len(samples) == draws
    assert all(expected[token] > 0 for token in counts)
    # χ² with at most 8 degrees of freedom: 26 is exceeded once in a thousand seeds, this is one.
    drawn = expected > 0
    observed = torch.tensor([counts[token] for token in range(12)], dtype=torch.float64)
    statistic = ((observed - draws * expected)[drawn] ** 2 / (draws * expected[drawn])).sum()
    assert statistic < 26


def test_second_tokens_follow_the_first(model):
    """The second token's distribution given the first, over those samples that began with it."""
    options = SearchOptions(sample=True, n_best=4000, max_length=2, seed=5)
    [samples] = generate(models(model), [SOURCE], options, batch_tokens=20_000)
    first, count = Counter(sample.ids[0] for sample in samples if sample.ids).most_common(1)[0]
    seconds = Counter(
        sample.ids[1] if len(sample.ids) > 1 else EOS
        for sample in samples
        if sample.ids and sample.ids[0] == first
    )
    log_p = reference.log_probabilities([model], SOURCE, [[first]])[0, 1]
    log_p[list(reference.NEVER)] = float("-inf")
    expected = log_p.softmax(-1)
    for token in range(12):
        deviation = (float(expected[token]) * (1 - float(expected[token])) / count) ** 0.5
        assert seconds[token] / count == pytest.approx(
            float(expected[token]), abs=4 * deviation + 1e-9
        )


def test_a_seed_fixes_the_draws_and_a_batch_does_not_change_them(model):
    sources = reference.random_sources(1, 10, vocabulary=12)
    options = SearchOptions(sample=True, n_best=3, seed=7)
    together = generate(models(model), sources, options)
    assert together == generate(models(model), sources, options)
    alone = [generate(models(model), [source], options)[0] for source in sources]
    assert [[h.ids for h in one] for one in together] == [[h.ids for h in one] for one in alone]
    other = generate(models(model), sources, SearchOptions(sample=True, n_best=3, seed=8))
    assert [[h.ids for h in one] for one in other] != [[h.ids for h in one] for one in together]


def test_samples_of_one_sentence_differ(model):
    [samples] = generate(
        models(model), [SOURCE], SearchOptions(sample=True, n_best=20, max_length=8)
    )
    assert len({sample.ids for sample in samples}) > 5


def test_log_probabilities_are_the_models_own(model):
    options = SearchOptions(sample=True, n_best=20, temperature=0.7, top_k=5, length_penalty=0.0)
    [samples] = generate(models(model), [SOURCE], options)
    for sample in samples:
        log_p = reference.log_probabilities([model], SOURCE, [list(sample.ids)])[0]
        total = sum(float(log_p[t, token]) for t, token in enumerate([*sample.ids, EOS]))
        assert sample.log_probability == pytest.approx(total)
        assert sample.score == pytest.approx(total)


@pytest.mark.parametrize("temperature", [0.0, 1e-310])
def test_at_temperature_zero_or_hardly_more_it_is_greedy(model, temperature):
    sources = reference.random_sources(2, 10, vocabulary=12)
    cold = generate(models(model), sources, SearchOptions(sample=True, temperature=temperature))
    greedy = generate(models(model), sources, SearchOptions(beam=1))
    assert [[h.ids for h in one] for one in cold] == [[h.ids for h in one] for one in greedy]


def test_prefixes_are_kept_in_samples(model):
    options = SearchOptions(sample=True, n_best=5, max_length=6)
    [samples] = generate(models(model), [SOURCE], options, prefixes=[(9, 9, 4)])
    assert all(sample.ids[:3] == (9, 9, 4) for sample in samples)
