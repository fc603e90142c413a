"""Beam search against exhaustive search, plain loops, and itself in other batches."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import reference_decoding as reference
from multibranch.decoding import Ensemble, SearchOptions, generate
from multibranch.decoding.beam import BeamSearch
from multibranch.decoding.generate import pad
from multibranch.decoding.search import best_of_rows
from multibranch.nn.stepper import Stepper

EOS = reference.EOS


def ensemble(*models) -> Ensemble:
    return Ensemble([Stepper(model) for model in models])


def assert_same(found, expected) -> None:
    """Hypotheses against (score, ids) pairs."""
    assert [hypothesis.ids for hypothesis in found] == [ids for _, ids in expected]
    for hypothesis, (score, _) in zip(found, expected):
        assert hypothesis.score == pytest.approx(score, abs=1e-9)


@settings(deadline=None, max_examples=25)
@given(
    seed=st.integers(0, 10_000),
    longest=st.integers(0, 3),
    length_penalty=st.sampled_from([-1.0, 0.0, 0.6, 1.0, 1.2, 2.5]) | st.floats(-2, 3),
    n_best=st.integers(1, 3),
    early_stopping=st.booleans(),
)
def test_a_beam_wide_enough_finds_what_exhaustive_search_finds(
    seed, longest, length_penalty, n_best, early_stopping
):
    model = reference.random_model(seed, vocabulary=7)  # three tokens beside the special ones
    sources = reference.random_sources(seed, 2, vocabulary=7)
    sequences = sum(3**length for length in range(longest + 1))
    options = SearchOptions(
        beam=max(sequences, n_best),
        n_best=n_best,
        length_penalty=length_penalty,
        max_length=longest,
        early_stopping=early_stopping,
    )
    found = generate(ensemble(model), sources, options)
    for source, hypotheses in zip(sources, found):
        best = reference.exhaustive(model, source, longest, length_penalty)
        assert_same(hypotheses, best[:n_best])


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_equals_beam_search_in_plain_loops(data):
    """Every option, and early stopping: the n best of the full search, score for score."""
    draw = data.draw
    seed = draw(st.integers(0, 10_000))
    beam = draw(st.integers(1, 6))
    options = SearchOptions(
        beam=beam,
        n_best=draw(st.integers(1, beam)),
        length_penalty=draw(st.sampled_from([-0.5, 0.0, 0.6, 1.0, 1.2, 3.0])),
        min_length=draw(st.integers(0, 4)),
        max_ratio=draw(st.sampled_from([0.0, 1.0, 2.0])),
        max_extra=draw(st.integers(0, 6)),
        repetition_penalty=draw(st.sampled_from([1.0, 1.5, 4.0])),
        no_repeat_ngram=draw(st.integers(0, 3)),
        never=tuple(draw(st.sets(st.integers(4, 9), max_size=2))),
    )
    model = reference.random_model(seed, vocabulary=draw(st.sampled_from([10, 16])))
    sources = reference.random_sources(seed, draw(st.integers(1, 4)), vocabulary=10)
    prefixes = [tuple(draw(st.lists(st.integers(4, 9), max_size=3))) for _ in sources]
    found = generate(ensemble(model), sources, options, prefixes=prefixes)
    for source, prefix, hypotheses in zip(sources, prefixes, found):
        assert_same(hypotheses, reference.beam_search(model, source, options, prefix))


def test_early_stopping_takes_fewer_steps():
    model = reference.random_model(3)
    sources = reference.random_sources(3, 8)
    steps = {}
    for early in (True, False):
        options = SearchOptions(beam=4, max_length=40, length_penalty=0.5, early_stopping=early)
        search = BeamSearch(
            ensemble(model),
            pad(sources),
            source_tokens=[len(source) - 1 for source in sources],
            prefixes=[()] * len(sources),
            options=options,
        )
        with torch.inference_mode():
            found = search.run()
        steps[early] = (search.taken, [h.ids for one in found for h in one])
    assert steps[True][1] == steps[False][1]
    assert steps[True][0] < steps[False][0]


@pytest.mark.parametrize("length_penalty", [0.0, 1.0, 2.0])
def test_beam_one_is_greedy(length_penalty):
    models = ensemble(reference.random_model(5, vocabulary=16))
    sources = reference.random_sources(5, 40, vocabulary=16)
    options = SearchOptions(beam=1, length_penalty=length_penalty)
    greedy = generate(models, sources, options)
    for early in (True, False):
        search = BeamSearch(
            models,
            pad(sources),
            source_tokens=[len(source) - 1 for source in sources],
            prefixes=[()] * len(sources),
            options=SearchOptions(beam=1, length_penalty=length_penalty, early_stopping=early),
        )
        with torch.inference_mode():
            found = search.run()
        assert [[h.ids for h in one] for one in found] == [[h.ids for h in one] for one in greedy]
        for ours, theirs in zip(itertools.chain(*found), itertools.chain(*greedy)):
            assert ours.score == pytest.approx(theirs.score)
            assert ours.unknowns == theirs.unknowns


@settings(deadline=None, max_examples=8)
@given(st.integers(0, 1000), st.integers(1, 120), st.integers(1, 5), st.randoms())
def test_no_batch_changes_a_result(seed, batch_tokens, beam, random):
    """Alone, sorted, shuffled, in batches of any size: the same hypotheses for a sentence."""
    models = ensemble(reference.random_model(seed, vocabulary=16))
    sources = reference.random_sources(seed, 12, longest=9, vocabulary=16)
    options = SearchOptions(beam=beam, n_best=beam, length_penalty=1.2)
    alone = [generate(models, [source], options)[0] for source in sources]
    order = list(range(len(sources)))
    random.shuffle(order)
    together = generate(
        models, [sources[place] for place in order], options, batch_tokens=batch_tokens
    )
    for place, hypotheses in zip(order, together):
        assert [h.ids for h in hypotheses] == [h.ids for h in alone[place]]
        for ours, theirs in zip(hypotheses, alone[place]):
            assert ours.score == pytest.approx(theirs.score, abs=1e-12)


def test_a_host_that_looks_seldom_finds_the_same():
    """As on a GPU: sentences that are done stay in the batch until enough of them are."""
    model = reference.random_model(12)
    models = Ensemble([Stepper(model, products=False)])
    sources = reference.random_sources(12, 24)
    options = SearchOptions(beam=4, n_best=2, length_penalty=1.2)
    search = BeamSearch(
        models,
        pad(sources),
        source_tokens=[len(source) - 1 for source in sources],
        prefixes=[()] * len(sources),
        options=options,
    )
    search.on_host = False
    with torch.inference_mode():
        found = search.run()
    for source, hypotheses in zip(sources, found):
        assert_same(hypotheses, reference.beam_search(model, source, options))


def test_float32_batches_agree_too():
    """Rounding differs with the shape of a batch: it may only ever decide between equals."""
    models = ensemble(reference.random_model(1, vocabulary=64).float())
    sources = reference.random_sources(1, 60, longest=12, vocabulary=64)
    options = SearchOptions(beam=5, length_penalty=1.0)
    alone = [generate(models, [source], options)[0][0] for source in sources]
    for batch_tokens in (50, 400, 10_000):
        together = generate(models, sources, options, batch_tokens=batch_tokens)
        for [ours], theirs in zip(together, alone):
            assert ours.score == pytest.approx(theirs.score, abs=2e-6)
            assert ours.ids == theirs.ids


def test_n_best_is_sorted_and_without_duplicates():
    models = ensemble(reference.random_model(2, vocabulary=16))
    sources = reference.random_sources(2, 30, vocabulary=16)
    found = generate(models, sources, SearchOptions(beam=8, n_best=8, length_penalty=0.7))
    for hypotheses in found:
        scores = [hypothesis.score for hypothesis in hypotheses]
        assert len(hypotheses) == 8
        assert scores == sorted(scores, reverse=True)
        assert len({hypothesis.ids for hypothesis in hypotheses}) == 8


def test_scores_are_the_models_own():
    model = reference.random_model(4, vocabulary=16)
    sources = reference.random_sources(4, 10, vocabulary=16)
    found = generate(ensemble(model), sources, SearchOptions(beam=4, n_best=4, length_penalty=1.2))
    for source, hypotheses in zip(sources, found):
        for hypothesis in hypotheses:
            log_p = reference.log_probabilities([model], source, [list(hypothesis.ids)])[0]
            tokens = [*hypothesis.ids, EOS]
            total = sum(float(log_p[t, token]) for t, token in enumerate(tokens))
            assert hypothesis.log_probability == pytest.approx(total)
            assert hypothesis.score == pytest.approx(total / len(tokens) ** 1.2)


def test_an_ensemble_of_one_model_twice_is_the_model():
    model = reference.random_model(6, vocabulary=16)
    sources = reference.random_sources(6, 20, vocabulary=16)
    options = SearchOptions(beam=4, n_best=3)
    once = generate(ensemble(model), sources, options)
    twice = generate(ensemble(model, model), sources, options)
    for ours, theirs in zip(itertools.chain(*twice), itertools.chain(*once)):
        assert ours.ids == theirs.ids
        assert ours.score == pytest.approx(theirs.score)


def test_an_ensemble_averages_probabilities():
    models = [reference.random_model(seed, vocabulary=16, branches=seed) for seed in (1, 2, 3)]
    sources = reference.random_sources(7, 5, vocabulary=16)
    found = generate(ensemble(*models), sources, SearchOptions(beam=3, length_penalty=0.0))
    for source, [hypothesis] in zip(sources, found):
        log_p = reference.log_probabilities(models, source, [list(hypothesis.ids)])[0]
        total = sum(float(log_p[t, token]) for t, token in enumerate([*hypothesis.ids, EOS]))
        assert hypothesis.score == pytest.approx(total)


def test_models_of_different_vocabularies_make_no_ensemble():
    with pytest.raises(ValueError, match="one vocabulary"):
        ensemble(reference.random_model(1), reference.random_model(1, vocabulary=16))


def test_unknown_is_suppressed_and_counted_unless_allowed():
    model = reference.random_model(8, vocabulary=16)
    model.output_weight[reference.UNK] *= 3
    sources = reference.random_sources(8, 20, vocabulary=16)
    suppressed = generate(ensemble(model), sources, SearchOptions(beam=1, max_length=6))
    for source, [hypothesis] in zip(sources, suppressed):
        assert reference.UNK not in hypothesis.ids
        log_p = reference.log_probabilities([model], source, [list(hypothesis.ids)])[0]
        free = log_p[: min(len(hypothesis.ids) + 1, 6)]  # the end at the maximum length is forced
        assert hypothesis.unknowns == int((free.argmax(-1) == reference.UNK).sum())
    assert sum(hypothesis.unknowns for [hypothesis] in suppressed) > 10
    allowed = generate(ensemble(model), sources, SearchOptions(beam=1, allow_unknown=True))
    assert any(reference.UNK in hypothesis.ids for [hypothesis] in allowed)


def test_nothing_to_say_gives_no_hypothesis_and_no_crash():
    """Every token forbidden, and the end too early: there is no hypothesis to find."""
    models = ensemble(reference.random_model(1))
    options = SearchOptions(beam=3, min_length=3, max_length=3, never=(4, 5, 6, 7))
    assert generate(models, [[4, 5, EOS]], options) == [[]]
    greedy = SearchOptions(beam=1, min_length=3, max_length=3, never=(4, 5, 6, 7))
    assert generate(models, [[4, 5, EOS]], greedy) == [[]]


@given(st.integers(0, 1000), st.integers(1, 9), st.integers(0, 1))
@settings(deadline=None)
def test_best_of_rows_is_topk(seed, count, rest):
    torch.manual_seed(seed)
    log_p = torch.randn(2, 3, 80 + rest)
    log_p[log_p < -0.5] = float("-inf")
    values, ids = best_of_rows(log_p, count)
    expected = log_p.topk(count, dim=-1)
    assert torch.equal(values, expected.values)
    assert torch.equal(log_p.gather(2, ids), expected.values)
    finite = values > float("-inf")
    assert torch.equal(ids[finite], expected.indices[finite])
