"""The batcher: who is run with whom, who waits, who is dropped."""

import threading
import time
from concurrent.futures import CancelledError
from typing import Any

import pytest

from multibranch.serve.batching import Batcher, Closed, QueueFull, Work


class Runner:
    """Notes its batches; the first waits until it is let go."""

    def __init__(self) -> None:
        self.batches: list[tuple[Any, list[Any]]] = []
        self.begun, self.go = threading.Event(), threading.Event()

    def __call__(self, key: Any, items: list[Any], stop: threading.Event) -> list[Any]:
        self.batches.append((key, items))
        self.begun.set()
        while not self.go.wait(0.01):
            if stop.is_set():
                raise InterruptedError
        if "bad" in items:
            raise ValueError("bad")
        return [f"{item}!" for item in items]


@pytest.fixture
def runner():
    return Runner()


@pytest.fixture
def make(runner):
    made = []

    def make(**changes: Any) -> Batcher:
        said = {"capacity": 100, "batch_cost": 100, "wait": 0.0, **changes}
        made.append(Batcher(runner, **said))
        return made[-1]

    yield make
    runner.go.set()
    for batcher in made:
        batcher.close(timeout=5)
        assert not batcher._thread.is_alive()


def work(*items: Any, key: str = "k", cost: int = 1) -> Work:
    return Work(key, items, [cost] * len(items))


def begin(batcher: Batcher, runner: Runner) -> Work:
    """Something that runs, so that what comes next has to wait."""
    first = work("first", key="other")
    batcher.submit(first)
    assert runner.begun.wait(5)
    return first


def test_what_waits_is_run_together_and_everyone_gets_their_own(make, runner):
    batcher = make()
    begin(batcher, runner)
    works = [work(f"{number}a", f"{number}b") for number in range(10)]
    futures = [batcher.submit(one) for one in works]
    runner.go.set()
    assert [f.result(5) for f in futures] == [[f"{n}a!", f"{n}b!"] for n in range(10)]
    assert [len(items) for _, items in runner.batches] == [1, 20]
    assert batcher.metrics.batch_sentences.sum() == 21


def test_a_work_waits_a_little_for_others(make, runner):
    batcher = make(wait=0.3)
    runner.go.set()
    futures = []
    for number in range(5):
        futures.append(batcher.submit(work(number)))
        time.sleep(0.01)
    for future in futures:
        future.result(5)
    assert len(runner.batches) == 1


def test_a_full_batch_does_not_wait(make, runner):
    batcher = make(wait=30, batch_cost=4)
    runner.go.set()
    assert batcher.submit(work(1, 2, 3, 4)).result(5) == ["1!", "2!", "3!", "4!"]


def test_other_options_are_another_batch(make, runner):
    batcher = make()
    begin(batcher, runner)
    futures = [batcher.submit(work(n, key=key)) for n, key in enumerate("abab")]
    runner.go.set()
    for future in futures:
        future.result(5)
    assert runner.batches[1:] == [("a", [0, 2]), ("b", [1, 3])]


def test_a_batch_keeps_to_its_budget_with_padding_counted(make, runner):
    batcher = make(batch_cost=30)
    begin(batcher, runner)
    futures = [batcher.submit(work("long", cost=15)), batcher.submit(work(*range(5), cost=1))]
    runner.go.set()
    for future in futures:
        future.result(5)
    # Beside one of 15 there is room for one more of any size.
    assert [items for _, items in runner.batches[1:]] == [["long", 0], [1, 2, 3, 4]]


def test_one_too_large_for_any_batch_is_run_alone(make, runner):
    batcher = make(batch_cost=10)
    runner.go.set()
    assert batcher.submit(work("huge", cost=99)).result(5) == ["huge!"]


def test_a_long_request_does_not_keep_short_ones_waiting(make, runner):
    batcher = make(batch_cost=4)
    begin(batcher, runner)
    long = batcher.submit(work(*range(20)))
    short = [batcher.submit(work(name)) for name in "abc"]
    runner.go.set()
    for future in [*short, long]:
        future.result(5)
    assert runner.batches[1][1] == [0, "a", "b", "c"]
    assert long.result() == [f"{n}!" for n in range(20)]


def test_a_full_queue_says_when_to_come_back(make):
    batcher = make(capacity=5)
    batcher.admit(3)
    with pytest.raises(QueueFull) as caught:
        batcher.admit(3)
    assert 1 <= caught.value.retry_after <= 60
    batcher.admit(2)
    assert batcher.admitted == 5
    batcher.release(5)
    batcher.admit(5)


def test_what_is_cancelled_while_it_waits_is_never_run(make, runner):
    batcher = make()
    begin(batcher, runner)
    dropped, kept = batcher.submit(work("dropped")), batcher.submit(work("kept"))
    assert dropped.cancel()
    runner.go.set()
    assert kept.result(5) == ["kept!"]
    assert [items for _, items in runner.batches] == [["first"], ["kept"]]
    assert batcher.metrics.cancelled.value() == 1


def test_what_nobody_waits_for_any_more_is_broken_off(make, runner):
    batcher = make()
    first = begin(batcher, runner)
    following = batcher.submit(work("following"))
    assert first.future.cancel()  # the runner is never let go: it ends only when it is broken off
    runner_began = time.monotonic()
    while len(runner.batches) < 2:
        assert time.monotonic() - runner_began < 5
        time.sleep(0.01)
    runner.go.set()
    assert following.result(5) == ["following!"]
    with pytest.raises(CancelledError):
        first.future.result(0)


def test_one_who_has_gone_does_not_break_off_the_others(make, runner):
    batcher = make(wait=0.2)
    one, other = batcher.submit(work("one")), batcher.submit(work("other"))
    assert runner.begun.wait(5)
    one.cancel()
    time.sleep(0.1)
    runner.go.set()
    assert other.result(5) == ["other!"]


def test_only_the_request_at_fault_fails(make, runner):
    batcher = make()
    begin(batcher, runner)
    good, bad, better = [batcher.submit(work(name)) for name in ("good", "bad", "better")]
    runner.go.set()
    assert (good.result(5), better.result(5)) == (["good!"], ["better!"])
    with pytest.raises(ValueError, match="bad"):
        bad.result(5)
    assert batcher.submit(work("next")).result(5) == ["next!"]


def test_what_is_left_of_a_request_that_failed_is_not_run(make, runner):
    batcher = make(batch_cost=2)
    runner.go.set()
    with pytest.raises(ValueError, match="bad"):
        batcher.submit(work("bad", *range(9))).result(5)
    assert batcher.submit(work("next")).result(5) == ["next!"]
    assert [items for _, items in runner.batches] == [["bad", 0], ["next"]]


def test_closing_finishes_what_was_submitted_and_takes_no_more(make, runner):
    batcher = make(wait=60)
    futures = [batcher.submit(work(n)) for n in range(3)]
    runner.go.set()
    batcher.close(timeout=5)
    assert [future.result(0) for future in futures] == [["0!"], ["1!"], ["2!"]]
    with pytest.raises(Closed):
        batcher.admit(1)
    with pytest.raises(Closed):
        batcher.submit(work("late"))
