"""Counts of runs of words, by hand."""

from multibranch.metrics.ngrams import matches, ngrams, split_words, totals


def test_all_runs_of_one_to_four_words_are_counted() -> None:
    assert ngrams(split_words("a b a b a")) == {
        ("a",): 3,
        ("b",): 2,
        ("a", "b"): 2,
        ("b", "a"): 2,
        ("a", "b", "a"): 2,
        ("b", "a", "b"): 1,
        ("a", "b", "a", "b"): 1,
        ("b", "a", "b", "a"): 1,
    }
    assert ngrams([]) == {}


def test_a_run_matches_as_often_as_the_reference_has_it() -> None:
    known = ngrams(split_words("the cat is on the mat"))
    assert matches(split_words("the the the cat"), known) == [3, 1, 0, 0]
    assert matches(split_words("is on the mat ."), known) == [4, 3, 2, 1]
    assert matches([], known) == [0, 0, 0, 0]


def test_a_short_output_has_no_long_runs() -> None:
    assert totals(split_words("a b c")) == [3, 2, 1, 0]
    assert totals(split_words("a b c d e f")) == [6, 5, 4, 3]
    assert totals([]) == [0, 0, 0, 0]


def test_only_ascii_white_space_ends_a_word() -> None:
    assert split_words(" a\tb\u00a0c  d\n") == ["a", "b\u00a0c", "d"]
