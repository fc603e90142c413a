"""Batches side by side on several cores: the same results, and an orderly end."""

import threading
import time

import pytest
import torch

import reference_decoding as reference
from multibranch.decoding import Ensemble, SearchOptions, generate
from multibranch.decoding.parallel import spread
from multibranch.nn.stepper import Stepper


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_two_threads_find_what_one_finds(two_threads):
    models = Ensemble([Stepper(reference.random_model(3, vocabulary=16))])
    sources = reference.random_sources(3, 40, longest=9, vocabulary=16)
    options = SearchOptions(beam=4, n_best=2)
    side_by_side = generate(models, sources, options, batch_tokens=40)
    assert torch.get_num_threads() == 2
    torch.set_num_threads(1)
    assert generate(models, sources, options, batch_tokens=40) == side_by_side


@pytest.mark.parametrize("int8", [False, True])
def test_int8_has_a_batch_for_every_core(two_threads, int8):
    model = reference.random_model(3, vocabulary=16).float()
    models = Ensemble([Stepper(model, int8=int8)])
    options, finished = SearchOptions(beam=2, max_length=3), []
    for count, batches in ((20, 1), (60, 2 if int8 else 1)):
        sources = [[5] * 9 + [2]] * count
        finished.clear()
        generate(models, sources, options, progress=finished.append)
        assert (len(finished), sum(finished)) == (batches, count)
    finished.clear()
    generate(models, sources, options, batch_tokens=600, progress=finished.append)
    assert finished == [60]  # as was asked for
    finished.clear()
    torch.set_num_threads(4)
    wide = SearchOptions(beam=100, max_length=3)  # whose batches are small, and do not grow
    generate(models, sources[:15], wide, progress=finished.append)
    assert sorted(finished) == [3, 6, 6]


def test_work_runs_at_once_on_threads_of_its_own(two_threads):
    meet = threading.Barrier(2, timeout=10)

    def work(item: int, stop: threading.Event) -> int:
        meet.wait()  # nobody passes before two are here
        return torch.get_num_threads() * 100 + item

    assert sorted(spread(work, range(4), workers=2)) == [(n, 100 + n) for n in range(4)]
    assert torch.get_num_threads() == 2


def test_those_that_overlap_leave_the_number_of_threads_as_it_was(two_threads):
    begun = threading.Barrier(2, timeout=10)
    second_begun, first_is_done = threading.Event(), threading.Event()

    def first(item: int, stop: threading.Event) -> None:
        if item == 0:
            begun.wait()  # its threads have their number set when the second begins
            second_begun.wait(10)

    def second(item: int, stop: threading.Event) -> None:
        second_begun.set()
        first_is_done.wait(10)

    def run_first() -> None:
        list(spread(first, range(2), workers=2))
        first_is_done.set()

    def run_second() -> None:
        begun.wait()
        list(spread(second, range(2), workers=2))

    in_threads(run_first, run_second)
    found: list[int] = []
    in_threads(lambda: found.append(torch.get_num_threads()))
    assert found == [2]
    assert torch.get_num_threads() == 2


def in_threads(*works) -> None:
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_one_failure_ends_the_others(two_threads):
    ended = threading.Event()

    def work(item: int, stop: threading.Event) -> int:
        if item == 0:
            time.sleep(0.1)
            raise KeyError("broken")
        if stop.wait(timeout=10):
            ended.set()
        return item

    with pytest.raises(KeyError, match="broken"):
        list(spread(work, range(8), workers=2))
    assert ended.is_set()


def test_who_may_stop_the_work_can_use_the_same_event_again(two_threads):
    stop = threading.Event()

    def work(item: int, event: threading.Event) -> int:
        return item * 10 + event.is_set()

    for _ in range(2):
        assert sorted(spread(work, range(3), workers=2, stop=stop)) == [(0, 0), (1, 10), (2, 20)]
    assert not stop.is_set()


def test_breaking_off_breaks_the_searches_off(two_threads):
    models = Ensemble([Stepper(reference.random_model(3, vocabulary=16))])
    sources = [[5, 6, 7, 2]] * 64
    started = time.perf_counter()

    def interrupt(count: int) -> None:
        raise KeyboardInterrupt

    options = SearchOptions(beam=2, min_length=400, max_length=400)
    first = generate(models, sources[:2], options, batch_tokens=8)
    once = time.perf_counter() - started
    assert len(first[0][0].ids) == 400
    started = time.perf_counter()
    with pytest.raises(KeyboardInterrupt):
        generate(models, sources, options, batch_tokens=8, progress=interrupt)
    assert time.perf_counter() - started < 10 * once + 1  # not the time that 32 batches take
