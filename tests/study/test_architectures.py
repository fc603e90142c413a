"""The paper's sizes by formula: met to the printed digit, and said where they cannot be."""

import math

import pytest

from multibranch.study import Architecture, architectures, parameters
from multibranch.study.architectures import met

ALL = architectures()


def of_table(table: int) -> list[Architecture]:
    return [one for one in ALL if one.table == table]


@pytest.mark.parametrize(
    ("table", "sizes"),
    [
        (1, [36.7, 13.7, 20.0, 26.3, 18.4, 24.7, 23.1, 29.4, 27.9, 34.2]),
        (11, [20.0] * 4 + [24.7] * 4),
        (4, [209.9, 161.7, 186.9, 205.8, 199.5]),  # 209.8 in print
        (6, [223.6, 193.7, 212.6]),
        (7, [325.7, 288.9, 314.1]),
        (8, [55.2, 50.6, 32.4, 30.0]),  # 55 and 37 in print
    ],
)
def test_sizes_to_one_digit(table: int, sizes: list[float]) -> None:
    assert [round(parameters(one) / 1e6, 1) for one in of_table(table)] == sizes


def test_every_figure_in_print_is_met_but_for_the_four_that_cannot_be() -> None:
    wrong = [one for one in ALL if met(one) is False]
    assert [(one.table, one.branches, one.tasks, one.paper_millions) for one in wrong] == [
        (4, 1, ("wmt14-en-de",), 209.8),
        (8, 1, ("code-python",), 55),
        (8, 4, ("code-java",), 37),
        (8, 4, ("code-python",), 37),
    ]
    assert ["does not follow" in str(one.note) for one in wrong] == [True, False, True, True]
    assert "Java" in str(wrong[1].note)
    assert sum(met(one) is True for one in ALL) == 148
    # The encoder that starts from a pretrained model is the only one without a figure.
    assert {one.table for one in ALL if met(one) is None} == {9, 10}


def test_the_published_size_of_roberta_large_comes_out() -> None:
    assert [parameters(one) for one in of_table(9)] == [354_310_144, 354_310_144 + 24 * 4_198_400]


def test_a_count_by_hand() -> None:
    """1/256/1024: embeddings, 18 attentions, 12 FFNs, 30 normalisations."""
    one = next(one for one in of_table(1) if (one.width, one.hidden) == (256, 1024))
    attention, feed_forward = 4 * 256 * 256 + 4 * 256, 256 * 1024 + 1024 + 1024 * 256 + 256
    expected = 10_152 * 256 + 18 * attention + 12 * feed_forward + 30 * 512
    assert parameters(one) == expected == 13_658_112


def allowed(one: Architecture) -> tuple[int, int]:
    """The vocabularies with which this architecture has the printed size."""
    assert one.paper_millions is not None
    rest = parameters(one) - one.vocabulary * one.width
    low = (one.paper_millions - 0.05) * 1e6 - rest
    high = (one.paper_millions + 0.05) * 1e6 - rest
    return math.ceil(low / one.width), math.floor(high / one.width)


@pytest.mark.parametrize("table", [3, 6, 7])
def test_inferred_vocabularies_are_the_smallest_multiple_of_8_that_meets_all_rows(
    table: int,
) -> None:
    tasks = {one.tasks for one in of_table(table)}
    for each in tasks:
        rows = [one for one in of_table(table) if one.tasks == each]
        lowest = max(allowed(one)[0] for one in rows)
        highest = min(allowed(one)[1] for one in rows)
        expected = -(-lowest // 8) * 8
        assert expected <= highest
        assert {one.vocabulary for one in rows} == {expected}
        assert {one.vocabulary_source for one in rows} == {"inferred"}


def test_no_vocabulary_meets_all_rows_of_table_4() -> None:
    big, *others = (allowed(one) for one in of_table(4))
    assert big == (32_610, 32_707)
    assert max(low for low, _ in others) == 32_734
    assert min(high for _, high in others) == 32_866


def test_records_are_complete_and_distinct() -> None:
    assert len(ALL) == len(set(ALL)) == 155
    assert {one.table for one in ALL} == set(range(1, 28))
    record = of_table(1)[0].record()
    assert record["parameters"] == 36_741_120
    assert (record["branches"], record["width"], record["hidden"]) == (1, 512, 1024)
    assert (record["vocabulary"], record["vocabulary_source"]) == (10_152, "notes")
    assert record["paper_millions"] == 36.7 and record["note"] is None
    heads = [(one.heads, one.paper_millions, one.paper_millions_table) for one in of_table(13)]
    assert heads == [(1, 18.4, 1), (2, 18.4, 1), (4, 18.4, 1)]
