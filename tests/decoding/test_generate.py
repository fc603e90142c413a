"""Sorting and batching: every sentence once, similar lengths together, within the budget."""

from hypothesis import given
from hypothesis import strategies as st

from multibranch.decoding.generate import batches, pad


@given(
    st.lists(st.integers(1, 60), max_size=80),
    st.integers(1, 200),
    st.none() | st.integers(1, 9),
)
def test_batches_hold_every_sentence_once_within_the_budget(lengths, tokens, most):
    found = list(batches(lengths, tokens, most=most))
    assert sorted(index for batch in found for index in batch) == list(range(len(lengths)))
    for batch in found:
        padded = max(lengths[index] for index in batch) * len(batch)
        assert padded <= tokens or len(batch) == 1
        assert most is None or len(batch) <= most
    ordered = [lengths[index] for batch in found for index in batch]
    assert ordered == sorted(lengths, reverse=True)


def test_padding_stands_behind():
    assert pad([[4, 2], [5, 6, 2], [2]]).tolist() == [[4, 2, 1], [5, 6, 2], [2, 1, 1]]
