"""Classification scores by hand and by their definitions."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from multibranch.errors import UserError
from multibranch.metrics import accuracy, f1, matthews

PREDICTIONS = [1, 1, 1, 0, 0, 1, 0, 0]
LABELS = [1, 1, 0, 0, 0, 1, 1, 1]  # three right positives, one wrong, two missed, two negatives


def test_by_hand() -> None:
    assert accuracy(PREDICTIONS, LABELS).value == pytest.approx(100 * 5 / 8)
    assert f1(PREDICTIONS, LABELS).value == pytest.approx(100 * 2 * 3 / (2 * 3 + 1 + 2))
    expected = (3 * 2 - 1 * 2) / (4 * 5 * 3 * 4) ** 0.5
    assert matthews(PREDICTIONS, LABELS).value == pytest.approx(100 * expected)
    assert accuracy(PREDICTIONS, LABELS).signature.startswith("accuracy|examples:8|")


def test_where_nothing_is_defined_the_score_is_0() -> None:
    assert f1([0, 0], [0, 0]).value == 0
    assert matthews([1, 1], [0, 1]).value == 0
    assert matthews([0, 1], [1, 1]).value == 0


def test_the_best_and_the_worst() -> None:
    assert matthews([0, 1, 0], [0, 1, 0]).value == pytest.approx(100)
    assert matthews([1, 0, 1], [0, 1, 0]).value == pytest.approx(-100)
    assert f1([1, 0], [1, 0]).value == 100


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=2, max_size=40))
def test_matthews_is_the_correlation_of_the_indicators(pairs: list[tuple[int, int]]) -> None:
    """Gorodkin's definition for several classes, from the covariances of one-hot vectors."""
    said, true = (np.eye(4)[list(side)] for side in zip(*pairs))
    said, true = said - said.mean(0), true - true.mean(0)
    spread = np.sqrt((said**2).sum() * (true**2).sum())
    expected = 100 * (said * true).sum() / spread if spread > 1e-9 else 0.0
    value = matthews([a for a, _ in pairs], [b for _, b in pairs]).value
    assert value == pytest.approx(expected, abs=1e-9)


def test_lengths_must_agree() -> None:
    with pytest.raises(UserError, match="1 output came for 2 references"):
        accuracy([1], [1, 0])
