"""Batches: every pair once, in an order that can be resumed, in shapes that never change."""

import lzma
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from multibranch.data import PackedBatch, PackedBatches, PaddedBatches, PairStore
from multibranch.data.batches import UNFILLED
from multibranch.data.layout import shuffled
from multibranch.text import WordCounter, learn_bpe
from multibranch.text.special import BOS, EOS, PAD

KINDS = [PackedBatches, PaddedBatches]


def corpus(pairs: int, *, seed: int = 0, longest: int = 30) -> PairStore:
    """Random pairs whose targets are about as long as their sources."""
    random = np.random.default_rng(seed)
    lengths = random.integers(1, longest, pairs)
    others = np.maximum(1, lengths + random.integers(-2, 3, pairs))
    return of_lengths(lengths, others)


def of_lengths(sources: np.ndarray, targets: np.ndarray) -> PairStore:
    random = np.random.default_rng(1)
    sides = []
    for lengths in (sources, targets):
        ids = random.integers(4, 9000, int(lengths.sum())).astype(np.uint16)
        ids[np.cumsum(lengths) - 1] = EOS
        sides.append(ids)
    return PairStore((sides[0], sides[1]), (sources.astype(np.int32), targets.astype(np.int32)))


def same(a: Any, b: Any) -> bool:
    """Whether two batches are equal in every tensor, array and number."""
    return all(
        np.array_equal(np.asarray(value), np.asarray(vars(b)[name]))
        for name, value in vars(a).items()
    )


def everything(batches: Any) -> list[int]:
    return [int(i) for k in range(len(batches)) for i in batches.indices(k)]


def check_packed(batches: PackedBatches, batch: PackedBatch) -> None:
    """The batch holds the store's own ids at the places its boundaries name, and nothing else."""
    store, count = batches.store, batch.pairs
    assert batch.source.shape == (batches.source_tokens,)
    assert batch.target_input.shape == batch.target_output.shape == (batches.tokens,)
    assert batch.source_boundaries.shape == (batches.sequences + 1,)
    assert (
        batch.source.dtype == batch.target_input.dtype == batch.target_output.dtype == torch.int64
    )
    assert batch.source_boundaries.dtype == batch.target_boundaries.dtype == torch.int32
    starts, target_starts = batch.source_boundaries.tolist(), batch.target_boundaries.tolist()
    for place, index in enumerate(batch.indices):
        source = batch.source[starts[place] : starts[place + 1]].tolist()
        span = slice(target_starts[place], target_starts[place + 1])
        target = store.target(index).tolist()
        assert source == store.source(index).tolist()
        assert batch.target_output[span].tolist() == target
        assert batch.target_input[span].tolist() == [BOS, *target[:-1]]
    assert set(starts[count:]) == {batch.source_count}
    assert set(target_starts[count:]) == {batch.target_count}
    assert (batch.source[batch.source_count :] == PAD).all()
    assert (batch.target_input[batch.target_count :] == PAD).all()
    assert (batch.target_output[batch.target_count :] == PAD).all()
    longest = [int(store.source_lengths[i]) for i in batch.indices] + [0]
    assert batch.source_longest == max(longest) <= batches.source_longest
    assert batch.target_longest == int(batch.target_boundaries.diff().max())


def test_packed_batches_hold_the_pairs_of_the_store() -> None:
    batches = PackedBatches(corpus(500), tokens=256)
    assert len(batches) > 20
    for batch in batches:
        check_packed(batches, batch)


@pytest.mark.parametrize("source_tokens", [None, 1 << 30])
def test_a_budget_that_the_corpus_cannot_fill_is_not_allocated(source_tokens: int | None) -> None:
    store = corpus(4000)
    batches = PackedBatches(store, tokens=1 << 30, source_tokens=source_tokens)
    assert len(batches) == 1
    assert batches.tokens == store.target_lengths.sum() > UNFILLED
    assert batches.source_tokens == store.source_lengths.sum()
    assert 4000 <= batches.sequences < 8000
    check_packed(batches, batches.batch(0))
    assert sorted(everything(batches)) == list(range(4000))


def test_the_shape_of_a_budget_of_usual_size_is_what_was_asked_for() -> None:
    assert PackedBatches(corpus(50), tokens=UNFILLED).tokens == UNFILLED


def test_padded_batches_hold_the_pairs_of_the_store() -> None:
    store = corpus(500)
    batches = PaddedBatches(store, tokens=256)
    for batch in batches:
        assert batch.target_output.numel() <= 256
        assert batch.source.numel() <= 256
        for row, index in enumerate(batch.indices):
            source, target = store.source(index).tolist(), store.target(index).tolist()
            blank = batch.target_output.shape[1] - len(target)
            assert batch.source[row].tolist() == source + [PAD] * (
                batch.source.shape[1] - len(source)
            )
            assert batch.target_output[row].tolist() == target + [PAD] * blank
            assert batch.target_input[row].tolist() == [BOS, *target[:-1]] + [PAD] * blank
        assert batch.target_count == int((batch.target_output != PAD).sum())


def test_a_packed_batch_can_be_padded() -> None:
    batch = PackedBatches(corpus(100), tokens=200).batch(0)
    padded = batch.padded()
    assert padded.source.shape == (batch.pairs, batch.source_longest)
    for row in range(batch.pairs):
        start, stop = batch.target_boundaries[row : row + 2].tolist()
        for side in ("target_input", "target_output"):
            ids = getattr(padded, side)[row]
            assert torch.equal(ids[: stop - start], getattr(batch, side)[start:stop])
            assert (ids[stop - start :] == PAD).all()
    assert (padded.pairs, padded.target_count) == (batch.pairs, batch.target_count)


def test_writing_into_given_tensors_allocates_none_and_leaves_no_trace() -> None:
    batches = PackedBatches(corpus(300), tokens=256)
    out = batches.allocate()
    addresses = [value.data_ptr() for value in vars(out).values() if torch.is_tensor(value)]
    for k in (0, 5, len(batches) - 1, 2):
        written = batches.batch(k, out=out)
        assert same(written, batches.batch(k))
    assert addresses == [v.data_ptr() for v in vars(written).values() if torch.is_tensor(v)]
    padded = PaddedBatches(corpus(300))
    with pytest.raises(ValueError, match="padded batches differ in shape"):
        padded.batch(0, out=padded.batch(1))


@pytest.mark.parametrize("kind", KINDS)
def test_moving_a_batch_moves_every_tensor(kind: Any) -> None:
    batch = kind(corpus(50)).batch(0)
    moved = batch.to("meta")
    tensors = [value for value in vars(moved).values() if torch.is_tensor(value)]
    assert len(tensors) >= 3
    assert all(tensor.device.type == "meta" for tensor in tensors)
    assert moved.pairs == batch.pairs


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40, deadline=None)
@given(
    pairs=st.integers(0, 120),
    tokens=st.integers(32, 300),
    world=st.sampled_from([1, 2, 3, 7]),
    seed=st.integers(-3, 2**70),
    epoch=st.integers(0, 5),
)
def test_the_processes_together_see_every_pair_once(
    kind: Any, pairs: int, tokens: int, world: int, seed: int, epoch: int
) -> None:
    store = corpus(pairs)
    shares = [
        kind(store, tokens=tokens, seed=seed, epoch=epoch, rank=rank, world=world)
        for rank in range(world)
    ]
    assert len({len(share) for share in shares}) == 1
    assert sorted(i for share in shares for i in everything(share)) == list(range(pairs))
    for share in shares:
        for batch in share:
            assert batch.pairs == len(batch.indices)
            if kind is PackedBatches:
                check_packed(share, batch)


@pytest.mark.parametrize("kind", KINDS)
def test_processes_that_run_out_get_empty_batches(kind: Any) -> None:
    alone = kind(corpus(40), tokens=100)
    total = len(alone.plan)
    share = kind(corpus(40), tokens=100, rank=total, world=total + 1)
    assert len(share) == 1
    batch = share.batch(0)
    assert (batch.pairs, batch.target_count, len(batch.indices)) == (0, 0, 0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("world", [2, 3])
def test_one_process_with_accumulation_sees_what_several_see_in_a_step(
    kind: Any, world: int
) -> None:
    store = corpus(400)
    alone = kind(store, tokens=128)
    shares = [kind(store, tokens=128, rank=rank, world=world) for rank in range(world)]
    for k in range(len(alone) // world):
        for rank, share in enumerate(shares):
            assert same(share.batch(k), alone.batch(world * k + rank))


@pytest.mark.parametrize("kind", KINDS)
def test_stopping_anywhere_and_resuming_yields_the_remaining_batches(kind: Any) -> None:
    settings: dict[str, Any] = {"tokens": 128, "seed": 5, "epoch": 3, "rank": 1, "world": 2}
    whole = list(kind(corpus(300), **settings))
    assert len(whole) > 10
    for stop in range(len(whole) + 1):
        resumed = list(kind(corpus(300), **settings).from_batch(stop))
        assert len(resumed) == len(whole) - stop
        assert all(same(a, b) for a, b in zip(whole[stop:], resumed))


@pytest.mark.parametrize("kind", KINDS)
def test_the_order_is_a_function_of_seed_and_epoch(kind: Any) -> None:
    store = corpus(300)

    def order(seed: int, epoch: int) -> list[int]:
        return everything(kind(store, tokens=128, seed=seed, epoch=epoch))

    assert order(1, 0) == order(1, 0)
    assert len({tuple(order(seed, epoch)) for seed in (1, 2) for epoch in (0, 1, 2)}) == 6
    assert everything(kind(store, tokens=128, seed=1, epoch=0).at_epoch(2)) == order(1, 2)


def test_the_shuffle_is_the_same_on_every_machine() -> None:
    assert shuffled(10, 1, 0).tolist() == [9, 2, 4, 7, 5, 0, 8, 6, 3, 1]
    assert shuffled(10, 1, 1).tolist() == [5, 6, 3, 0, 7, 2, 1, 4, 9, 8]


def test_pairs_over_the_limit_are_dropped_and_counted() -> None:
    store = of_lengths(np.array([5, 40, 5, 5, 50, 0]), np.array([5, 5, 60, 5, 50, 4]))
    batches = PackedBatches(store, tokens=64, max_length=30)
    assert sorted(everything(batches)) == [0, 3]
    report = batches.report
    assert (report.pairs, report.used, report.dropped, report.truncated, report.empty) == (
        (6, 2, 3, 0, 1)
    )
    assert str(report) == (
        "2 of 6 pairs used, 3 dropped (over 30 source or 30 target tokens), "
        "1 dropped (an empty side)"
    )


def test_pairs_over_the_limit_are_truncated_and_counted() -> None:
    store = of_lengths(np.array([5, 40, 5]), np.array([5, 5, 60]))
    batches = PackedBatches(store, tokens=64, max_length=30, too_long="truncate")
    assert str(batches.report) == (
        "3 of 3 pairs used, 2 truncated (over 30 source or 30 target tokens)"
    )
    one = PackedBatches(of_lengths(np.array([5]), np.array([5])), tokens=64).report
    assert str(one) == "1 of 1 pair used"
    found = {}
    for batch in batches:
        padded = batch.padded()
        for row, index in enumerate(batch.indices):
            found[int(index)] = padded.source[row].tolist(), padded.target_output[row].tolist()
    assert sorted(found) == [0, 1, 2]
    assert found[1][0][:30] == [*store.source(1)[:29].tolist(), EOS]
    assert found[2][1][:30] == [*store.target(2)[:29].tolist(), EOS]


def test_a_pair_longer_than_the_budget_is_never_silent() -> None:
    store = of_lengths(np.array([5, 5]), np.array([5, 600]))
    assert PackedBatches(store, tokens=64).report.dropped == 1
    assert PaddedBatches(store, tokens=64).report.dropped == 1


@pytest.mark.parametrize("kind", KINDS)
def test_without_shuffling_nothing_is_dropped(kind: Any) -> None:
    store = of_lengths(np.array([5, 3000, 7, 2]), np.array([5, 6, 900, 2]))
    batches = kind(store, tokens=64, shuffle=False, max_length=50)
    assert sorted(everything(batches)) == [0, 1, 2, 3]
    assert (batches.report.used, batches.report.dropped) == (4, 0)
    if kind is PackedBatches:
        assert everything(batches) == [0, 1, 2, 3]
        for batch in batches:
            check_packed(batches, batch)


def test_small_budgets_drop_no_source_that_a_target_could_be_as_long_as() -> None:
    store = of_lengths(np.array([1] * 20_000 + [100]), np.array([4] * 20_001))
    assert PackedBatches(store, tokens=100).report.dropped == 0
    assert PackedBatches(store, tokens=99).report.dropped == 1


def test_given_budgets_are_kept_so_that_validation_has_the_shapes_of_training() -> None:
    train = PackedBatches(corpus(2000), tokens=512)
    budgets = {"tokens": 512, "source_tokens": train.source_tokens, "sequences": train.sequences}
    valid = PackedBatches(corpus(77, seed=9), shuffle=False, **budgets)  # type: ignore[arg-type]
    shapes = [
        {name: value.shape for name, value in vars(b.batch(0)).items() if torch.is_tensor(value)}
        for b in (train, valid)
    ]
    assert shapes[0] == shapes[1]
    assert everything(valid) == list(range(77))


def test_a_source_budget_of_one_s_own_closes_batches_too() -> None:
    store = of_lengths(np.full(100, 20), np.full(100, 2))
    batches = PackedBatches(store, tokens=512, source_tokens=200)
    assert batches.sequences < 40
    assert sorted(everything(batches)) == list(range(100))
    assert max(batch.source_count for batch in batches) == 200


def test_wrong_arguments_are_refused() -> None:
    store = corpus(5)
    for wrong in ({"rank": 2, "world": 2}, {"rank": -1}, {"tokens": 0}, {"max_length": 0}):
        with pytest.raises(ValueError):
            PackedBatches(store, **wrong)  # type: ignore[arg-type]
    for k in (-1, 1):
        with pytest.raises(IndexError):
            PackedBatches(store).batch(k)


def test_padded_batches_hold_little_padding() -> None:
    assert PaddedBatches(corpus(20_000), tokens=2048).fill > 0.97


@pytest.fixture(scope="module")
def ted(shared_data: Path) -> PairStore:
    """Pairs as long as those of ted-de-en under a joint BPE of 10,000 merges.

    The merges are learned from the frequent words alone, which is faster and much the same.
    """
    words: Counter[str] = Counter()
    lines = []
    for side in ("de", "en"):
        with lzma.open(shared_data / "ted-de-en" / f"train.{side}.xz", "rt", encoding="utf-8") as f:
            lines.append([line.split() for line in f])
        words.update(word for line in lines[-1] for word in line)
    counter = WordCounter()
    counter.update(dict(words.most_common(15_000)))
    bpe = learn_bpe(counter, merges=10_000)
    pieces = bpe.encode_batch_fast(list(words), add_special_tokens=False)
    length = {word: len(piece.ids) for word, piece in zip(words, pieces)}
    lengths = [np.array([sum(length[w] for w in line) + 1 for line in side]) for side in lines]
    return of_lengths(lengths[0], lengths[1])


def test_batches_of_4096_are_98_percent_full_on_ted(ted: PairStore) -> None:
    batches = PackedBatches(ted, tokens=4096)
    counted = sum(batches.batch(k).target_count for k in range(0, len(batches), 40))
    assert batches.report.used == len(ted) == 116_738
    assert batches.fill >= 0.98
    assert counted / 4096 / len(range(0, len(batches), 40)) >= 0.98
    # The source side is reserved tightly too: few of its positions are padding.
    assert ted.source_lengths.sum() / (len(batches) * batches.source_tokens) > 0.9


def test_a_million_pairs_are_laid_out_in_two_seconds() -> None:
    store = corpus(1_000_000, longest=45)
    for kind in KINDS:
        start = time.process_time()
        kind(store, tokens=4096)
        assert time.process_time() - start < 2.0


def test_a_batch_of_4096_tokens_is_made_in_two_milliseconds() -> None:
    batches = PackedBatches(corpus(50_000, longest=45), tokens=4096)
    out = batches.allocate()
    start = time.process_time()
    for k in range(200):
        batches.batch(k, out=out)
    assert (time.process_time() - start) / 200 < 0.002
