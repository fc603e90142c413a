"""The clock of a run: time over its continuations, and the speed of training alone."""

from types import SimpleNamespace

import pytest

from multibranch.training import clock as module
from multibranch.training.clock import Clock


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch):
    """Lets time go by."""
    now = [1000.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return lambda seconds: now.__setitem__(0, now[0] + seconds)


def test_time_counts_over_continuations(later) -> None:
    clock = Clock(seconds=50, tokens=0)
    later(10)
    assert clock.seconds() == 60


def test_the_time_left_is_at_the_pace_since_the_run_went_on(later) -> None:
    begun, gone_on = Clock(seconds=0, tokens=0), Clock(seconds=9000, tokens=70, share=0.3)
    assert gone_on.left(0.3) is None  # nothing is known yet
    later(70)
    assert begun.left(0.35) == pytest.approx(130)
    assert gone_on.left(0.65) == pytest.approx(70)  # not the 9,000 seconds' pace
    assert gone_on.left(1.0) == 0


def test_the_speed_is_that_since_the_last_report_without_pauses(later) -> None:
    clock = Clock(seconds=50, tokens=700)
    later(2)
    assert clock.speed(900) == 100
    with clock.paused():
        later(30)
    assert clock.speed(900) == 100
    assert clock.seconds() == 82
    clock.report(900)
    later(4)
    assert clock.speed(940) == 10


def test_the_minutes_since_all_was_saved(later) -> None:
    clock = Clock(seconds=500, tokens=0)
    later(90)
    assert clock.minutes_unsaved() == 1.5
    clock.save()
    assert clock.minutes_unsaved() == 0
