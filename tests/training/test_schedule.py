"""The learning rate against the formulas of its parts."""

import math

import pytest

from multibranch.training.schedule import cool_down, learning_rate


@pytest.mark.parametrize("update", [1, 2, 1999, 3999])
def test_warm_up_is_a_straight_line(update: int) -> None:
    rate = learning_rate(update, peak=5e-4, warmup=4000, warmup_from=1e-7)
    assert rate == pytest.approx(1e-7 + update * (5e-4 - 1e-7) / 4000, rel=1e-12)


@pytest.mark.parametrize("update", [4000, 4001, 16000, 123457])
def test_after_it_the_rate_falls_with_the_root(update: int) -> None:
    rate = learning_rate(update, peak=5e-4, warmup=4000, warmup_from=1e-7)
    assert rate == pytest.approx(5e-4 * math.sqrt(4000) / math.sqrt(update), rel=1e-12)


def test_known_values() -> None:
    assert learning_rate(4000, peak=5e-4, warmup=4000) == 5e-4
    assert learning_rate(16000, peak=5e-4, warmup=4000) == pytest.approx(2.5e-4)
    assert learning_rate(1, peak=1.0, warmup=1) == 1.0


def test_a_constant_rate_stays_where_the_warm_up_ends() -> None:
    settings = {"peak": 1e-3, "warmup": 10, "schedule": "constant"}
    rates = [learning_rate(update, **settings) for update in (5, 10, 11, 10**6)]
    assert rates == pytest.approx([1e-7 + 0.5 * (1e-3 - 1e-7), 1e-3, 1e-3, 1e-3], rel=1e-12)


def test_the_cool_down_falls_to_the_last_update_in_equal_steps() -> None:
    factors = [cool_down(update, updates=10, share=0.4) for update in range(1, 11)]
    assert factors == pytest.approx([1, 1, 1, 1, 1, 1, 1, 0.75, 0.5, 0.25])
    assert cool_down(10, updates=10, share=0.0) == 1.0
    assert cool_down(10, updates=0, share=0.0) == 1.0  # a run without a set length
