"""Runs that are trained together end together: whichever fails, and whenever a signal comes."""

import os
import signal
import threading
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from multibranch.errors import UserError
from multibranch.training import Config, Outcome, signals, stacked
from multibranch.training.stacked import Stacked
from multibranch.training.together import Table, run_together

SHORT: dict[str, Any] = {"max_updates": 12, "validate_every": 4}
PLACES = ("one", "three", "two")  # folders, in the order of their turns


def assert_ends(tiny: SimpleNamespace, work: Any) -> None:
    """In a process of its own: threads that wait for ever would keep this one from ending."""
    process = tiny.start(work)
    process.join(timeout=60)
    if process.is_alive():
        process.kill()
    assert process.exitcode == 0


def gone(*_: Any) -> None:
    raise KeyError("gone")


@pytest.mark.parametrize(
    ("when", "place"),
    [
        ("at the start", "one"),
        *(("validating", place) for place in PLACES),
        ("updating", "one"),
        ("about to leave", "one"),
        ("about to leave", "two"),
        ("left", "one"),
        ("validating", "the only one"),
    ],
)
def test_where_one_run_fails_none_waits_for_it(
    toy: Path,
    tmp_path: Path,
    tiny: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
    when: str,
    place: str,
) -> None:
    """Whether it is the first to have its turn, one in their midst, or the last."""

    def failing(config: Config, table: Table) -> None:
        if when == "at the start":
            gone()
        tiny.at_table(config, table, watch=gone if when == "validating" else None)
        if when == "left":
            table.leave()
        gone()

    def work() -> None:
        if when == "updating":  # which the last one does for all
            monkeypatch.setattr(Stacked, "run", gone)
        names = PLACES if place in PLACES else (place,)
        configs = {name: tiny.config(toy, tmp_path / name, **SHORT) for name in names}
        runs = {name: partial(tiny.at_table, config) for name, config in configs.items()}
        runs[place] = partial(failing, configs[place])
        with pytest.raises(KeyError, match="gone"):
            run_together(list(runs.values()))
        assert threading.active_count() == 1

    assert_ends(tiny, work)


def test_whoever_comes_to_a_table_that_was_broken_up_waits_for_nobody(
    toy: Path, tmp_path: Path, tiny: SimpleNamespace
) -> None:
    def insisting(config: Config, table: Table) -> None:
        try:
            tiny.at_table(config, table)
        finally:
            table.leave()

    def work() -> None:
        one, two = (tiny.config(toy, tmp_path / name, **SHORT) for name in ("one", "two"))
        with pytest.raises(KeyError, match="gone"):
            run_together([partial(insisting, one), partial(tiny.at_table, two, watch=gone)])

    assert_ends(tiny, work)


def test_a_table_that_is_broken_up_during_an_update_ends_after_it(
    toy: Path, tmp_path: Path, tiny: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by the second Ctrl-C: those that wait end at once, and the last with its update."""
    tables: list[Table] = []
    updates: list[int] = []
    update = Stacked.run

    def run(config: Config, table: Table) -> Outcome:
        tables.append(table)
        return tiny.at_table(config, table)

    def broken_up(self: Any) -> None:
        if self.update == 3:
            tables[0].break_up()
        update(self)
        updates.append(self.update)

    def work() -> None:
        monkeypatch.setattr(Stacked, "run", broken_up)
        configs = (tiny.config(toy, tmp_path / name, **SHORT) for name in PLACES)
        run_together([partial(run, config) for config in configs])
        assert updates == [1, 2, 3, 4]
        assert threading.active_count() == 1

    assert_ends(tiny, work)


@pytest.mark.parametrize("seated", [False, True])
def test_where_one_run_ends_early_none_waits_for_it(
    toy: Path, tmp_path: Path, tiny: SimpleNamespace, seated: bool
) -> None:
    """As a trial does that another process has done meanwhile."""

    def end(table: Table) -> None:
        if seated:
            other = tiny.config(toy, tmp_path / "two", **SHORT)

            def at_update_4(record: dict[str, Any]) -> None:
                other.train.max_updates = 4

            tiny.at_table(other, table, watch=at_update_4)

    config = tiny.config(toy, tmp_path / "one", **SHORT)
    with pytest.raises(UserError, match="one ended before the others"):
        run_together([partial(tiny.at_table, config), end])


def test_a_second_training_at_one_table_is_refused(
    toy: Path, tmp_path: Path, tiny: SimpleNamespace
) -> None:
    def twice(name: str, table: Table) -> None:
        for stage in ("first", "second"):
            tiny.at_table(tiny.config(toy, tmp_path / stage / name, **SHORT), table)

    with pytest.raises(ValueError, match="one training of each run: call run_together again"):
        run_together([partial(twice, name) for name in ("one", "two")])


def interrupt(table: Table, number: int) -> None:
    """Send this process a signal, and wait until it has been noted."""
    os.kill(os.getpid(), number)
    while table.interruption.signal is None:
        time.sleep(0.01)


@pytest.mark.parametrize("update", [8, 12])  # before they meet for the last time, and after
def test_a_signal_that_no_update_follows_is_for_whoever_heard_signals_before(
    toy: Path,
    tmp_path: Path,
    tiny: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
    update: int,
) -> None:
    """There is nothing left to stop here; a study must not go on with its next trials."""
    heard: list[int] = []

    def terminated(config: Config, table: Table) -> Outcome:
        def at_the_end(record: dict[str, Any]) -> None:
            if record["update"] == update:
                interrupt(table, signal.SIGTERM)
                assert not heard

        return tiny.at_table(config, table, watch=at_the_end)

    monkeypatch.setattr(stacked, "_met_after", lambda *_, **__: {4})
    configs = [tiny.config(toy, tmp_path / str(seed), seed=seed, **SHORT) for seed in (1, 2)]
    before = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    try:
        ended = run_together([partial(terminated, configs[0]), partial(tiny.at_table, configs[1])])
    finally:
        signal.signal(signal.SIGTERM, before)
    assert [(outcome.signal, outcome.progress.update) for outcome in ended] == [(None, 12)] * 2
    assert heard == [signal.SIGTERM]


def test_ctrl_c_after_training_ends_what_waits_to_be_alone(
    toy: Path, tmp_path: Path, tiny: SimpleNamespace
) -> None:
    """As the decoding of many trials, one after the other."""
    begun: list[str] = []
    ended: list[str] = []

    def decoding(name: str, table: Table) -> None:
        tiny.at_table(tiny.config(toy, tmp_path / name, **SHORT), table)
        table.leave()
        with table.alone():
            begun.append(name)
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.5)
            ended.append(name)

    with pytest.raises(KeyboardInterrupt):
        run_together([partial(decoding, name) for name in PLACES])
    assert len(begun) == 1 and ended == begun


def test_after_the_second_signal_nothing_is_at_work(
    toy: Path, tmp_path: Path, tiny: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever stops them goes on to give their folders back."""
    monkeypatch.setattr(signals, "GRACE", 0.0)
    ended = []

    def insisted(table: Table) -> None:
        def at_update_4(record: dict[str, Any]) -> None:
            interrupt(table, signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.5)
            ended.append(record["update"])

        config = tiny.config(toy, tmp_path / "one", **SHORT)
        tiny.at_table(config, table, watch=at_update_4)

    other = partial(tiny.at_table, tiny.config(toy, tmp_path / "two", **SHORT))
    before = threading.active_count(), signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        run_together([insisted, other])
    assert ended == [4]
    assert (threading.active_count(), signal.getsignal(signal.SIGINT)) == before
