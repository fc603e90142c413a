"""The learning rate against the formula of inverse_sqrt."""

import math

import pytest

from multibranch.training.schedule import inverse_sqrt


@pytest.mark.parametrize("update", [1, 2, 1999, 3999])
def test_warm_up_is_a_straight_line(update: int) -> None:
    rate = inverse_sqrt(update, learning_rate=5e-4, warmup=4000, warmup_from=1e-7)
    assert rate == pytest.approx(1e-7 + update * (5e-4 - 1e-7) / 4000, rel=1e-12)


@pytest.mark.parametrize("update", [4000, 4001, 16000, 123457])
def test_after_it_the_rate_falls_with_the_root(update: int) -> None:
    rate = inverse_sqrt(update, learning_rate=5e-4, warmup=4000, warmup_from=1e-7)
    assert rate == pytest.approx(5e-4 * math.sqrt(4000) / math.sqrt(update), rel=1e-12)


def test_known_values() -> None:
    assert inverse_sqrt(4000, learning_rate=5e-4, warmup=4000) == 5e-4
    assert inverse_sqrt(16000, learning_rate=5e-4, warmup=4000) == pytest.approx(2.5e-4)
    assert inverse_sqrt(1, learning_rate=1.0, warmup=1) == 1.0
