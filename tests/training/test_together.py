"""Runs that are trained together are the runs that they would be alone."""

import gc
import itertools
import os
import signal
import threading
import time
import warnings
import weakref
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from multibranch.data import PreparedData
from multibranch.errors import UserError
from multibranch.training import Config, Outcome, Trainer, signals
from multibranch.training import together as together_module
from multibranch.training.checkpoint import Checkpoints
from multibranch.training.optimiser import Optimiser
from multibranch.training.together import Table, run_together

# Adam with a small epsilon blows up the rounding of gradients that are zero, as a key's bias has.
ALIKE: dict[str, Any] = {
    "dropout": 0.0,
    "max_updates": 12,
    "validate_every": 4,
    "average": 2,
    "epsilon": 1e-4,
}
PLACES = ("one", "three", "two")  # folders, in the order of their turns


def trained(config: Config, table: Table) -> Outcome:
    data = PreparedData.open(str(config.data.folder))
    return Trainer(config, data, table=table, quiet=True).run()


def together(*configs: Config) -> list[Outcome]:
    return run_together([partial(trained, config) for config in configs])


def assert_same_weights(one: Path, other: Path) -> None:
    for name in ("last", "best", "averaged"):
        a, b = (load_file(place / name / "model.safetensors") for place in (one, other))
        for key, tensor in a.items():
            torch.testing.assert_close(tensor, b[key], rtol=1e-4, atol=1e-5, msg=f"{name} {key}")


def test_each_run_is_what_it_is_alone(
    toy: Path, other_toy: Path, tmp_path: Path, tiny: SimpleNamespace
) -> None:
    """They differ in seed, corpus and rate; one of them drops nothing."""
    runs = {
        "one": (toy, {"seed": 1}),
        "two": (other_toy, {"seed": 2, "drop_branch": 0.5}),
        "three": (toy, {"seed": 1, "drop_branch": 0.0}),
    }
    configs = [
        tiny.config(data, tmp_path / name, **ALIKE, **own) for name, (data, own) in runs.items()
    ]
    for outcome, (name, (data, own)) in zip(together(*configs), runs.items(), strict=True):
        alone = tiny.run(data, tmp_path / f"{name}-alone", **ALIKE, **own)
        assert (outcome.progress.update, outcome.progress.tokens) == (12, alone.progress.tokens)
        assert_same_weights(tmp_path / name, tmp_path / f"{name}-alone")
        for kind in ("train", "validation"):
            ours, theirs = (tiny.records(tmp_path / each, kind) for each in (name, f"{name}-alone"))
            assert [r["plain"] for r in ours] == pytest.approx([r["plain"] for r in theirs], 1e-4)


def test_weights_of_half_precision_have_masters_of_their_own(
    toy: Path, tmp_path: Path, tiny: SimpleNamespace
) -> None:
    settings = {**ALIKE, "precision": "bfloat16"}
    together(*(tiny.config(toy, tmp_path / str(s), seed=s, **settings) for s in (1, 2)))
    for seed in (1, 2):
        tiny.run(toy, tmp_path / f"{seed}-alone", seed=seed, **settings)
        ours, theirs = (
            load_file(tmp_path / name / "last" / "model.safetensors")
            for name in (str(seed), f"{seed}-alone")
        )
        for name, tensor in ours.items():
            assert tensor.dtype == torch.float32
            # The masters are not what bfloat16 can hold; 12 updates move a weight by up to 0.03.
            assert not torch.equal(tensor, tensor.bfloat16().float()) or not tensor.any()
            torch.testing.assert_close(tensor, theirs[name], rtol=0.0, atol=5e-3, msg=name)


def test_runs_stopped_together_go_on_together(
    toy: Path, tmp_path: Path, tiny: SimpleNamespace
) -> None:
    for updates in (6, 12):
        settings = {**ALIKE, "max_updates": updates}
        together(
            *(tiny.config(toy, tmp_path / str(seed), seed=seed, **settings) for seed in (1, 2))
        )
    for seed in (1, 2):
        tiny.run(toy, tmp_path / f"{seed}-alone", seed=seed, **ALIKE)
        assert_same_weights(tmp_path / str(seed), tmp_path / f"{seed}-alone")


def test_dropout_is_drawn_for_each_run_by_itself_and_the_same_again(
    toy: Path, tmp_path: Path, tiny: SimpleNamespace
) -> None:
    settings = {**ALIKE, "dropout": 0.3, "drop_branch": 0.0, "seed": 1}
    found = {}
    for when in ("now", "again"):
        places = [tmp_path / when / name for name in ("one", "two")]
        together(*(tiny.config(toy, place, **settings) for place in places))
        for place in places:
            found[place.name, when] = (place / "last" / "model.safetensors").read_bytes()
    assert found["one", "now"] == found["one", "again"]
    assert found["two", "now"] == found["two", "again"]
    assert found["one", "now"] != found["two", "now"]


def test_what_pytorch_thinks_of_its_own_vmap_on_a_cpu_is_not_told(
    toy: Path, tmp_path: Path, tiny: SimpleNamespace, recwarn: pytest.WarningsRecorder
) -> None:
    def warn(table: Table) -> Outcome:
        def at_update_4(record: dict[str, Any]) -> None:
            if record["update"] == 4:
                warnings.warn("the batching rule of something else", stacklevel=1)

        config, data = tiny.config(toy, tmp_path / "two", **ALIKE), PreparedData.open(str(toy))
        return Trainer(config, data, table=table, watch=at_update_4, quiet=True).run()

    one = partial(trained, tiny.config(toy, tmp_path / "one", **ALIKE))
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        run_together([one, warn])
    finally:
        torch.set_warn_always(before)
    assert [str(each.message) for each in recwarn] == ["the batching rule of something else"]


def test_runs_that_stand_at_different_updates_do_not_go_on_together(
    toy: Path, tmp_path: Path, tiny: SimpleNamespace
) -> None:
    tiny.run(toy, tmp_path / "one", **{**ALIKE, "max_updates": 4})
    with pytest.raises(UserError, match="must stand at the same update"):
        together(*(tiny.config(toy, tmp_path / name, **ALIKE) for name in ("one", "two")))


def test_an_update_that_is_not_finite_for_one_is_skipped_by_all(
    toy: Path, tmp_path: Path, tiny: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    update, numbers, moved = Optimiser.update, itertools.count(1), []

    def once_not_finite(self: Optimiser) -> torch.Tensor:
        if next(numbers) == 2:
            self.masters[0].grad[1].fill_(torch.nan)
        before = self.masters[0].detach().clone()
        norm = update(self)
        moved.append([not torch.equal(a, b) for a, b in zip(before, self.masters[0])])
        return norm

    monkeypatch.setattr(Optimiser, "update", once_not_finite)
    settings = {**ALIKE, "max_updates": 4, "log_every": 2}
    outcomes = together(*(tiny.config(toy, tmp_path / n, **settings) for n in ("one", "two")))
    assert moved == [[True, True], [False, False], [True, True], [True, True]]
    assert [outcome.progress.skipped for outcome in outcomes] == [1, 1]


def test_runs_of_which_one_skipped_an_update_do_not_go_on_together(
    toy: Path, tmp_path: Path, tiny: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Adam counts its steps, by which it corrects its moments: there is one count for all."""
    update, numbers = Optimiser.update, itertools.count(1)

    def once_not_finite(self: Optimiser) -> torch.Tensor:
        if next(numbers) == 2:
            self.masters[0].grad.fill_(torch.nan)
        return update(self)

    tiny.run(toy, tmp_path / "one", **{**ALIKE, "max_updates": 4})
    monkeypatch.setattr(Optimiser, "update", once_not_finite)
    skipped = tiny.run(toy, tmp_path / "two", **{**ALIKE, "max_updates": 4, "log_every": 4})
    assert skipped.progress.skipped == 1
    with pytest.raises(UserError, match="must have skipped as many updates"):
        together(*(tiny.config(toy, tmp_path / name, **ALIKE) for name in ("one", "two")))


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ({}, {"width": 32}, "must have one model.width, not 16 and 32"),
        ({}, {"heads": 1}, "must have one model.heads"),  # the weights have the same shapes
        ({}, {"dropout": 0.1}, "must have one model.dropout, not 0.0 and 0.1"),
        ({}, {"learning_rate": 1e-3}, "must have one train.learning_rate"),
        ({}, {"label_smoothing": 0.2}, "must have one train.label_smoothing, not 0.1 and 0.2"),
        ({}, {"epsilon": 1e-8}, "must have one train.epsilon"),
        ({}, {"max_updates": 8}, "must have one train.max_updates, not 12 and 8"),
        ({}, {"patience": 1}, "without train.max_epochs, train.max_minutes and train.patience"),
        ({"max_updates": None, "max_epochs": 1}, {}, "with train.max_updates"),
        ({"accumulate": 2}, {"accumulate": 2}, "without train.accumulate"),
        ({"layout": "padded"}, {"layout": "padded"}, "data.layout: packed alone"),
    ],
)
def test_what_cannot_be_one_update_is_refused(
    toy: Path,
    tmp_path: Path,
    tiny: SimpleNamespace,
    first: dict[str, Any],
    second: dict[str, Any],
    message: str,
) -> None:
    configs = [
        tiny.config(toy, tmp_path / name, **{**ALIKE, **own})
        for name, own in (("one", first), ("two", second))
    ]
    with pytest.raises(UserError, match=message):
        together(*configs)


def watching(config: Config, watch: Any, table: Table) -> Outcome:
    """The same run with somebody who is told of its validations."""
    data = PreparedData.open(str(config.data.folder))
    return Trainer(config, data, watch=watch, table=table, quiet=True).run()


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
        watching(config, gone if when == "validating" else None, table)
        if when == "left":
            table.leave()
        gone()

    def work() -> None:
        if when == "updating":  # which the last one does for all
            monkeypatch.setattr(together_module._Together, "run", gone)
        configs = {name: tiny.config(toy, tmp_path / name, **ALIKE) for name in PLACES}
        runs = {name: partial(trained, config) for name, config in configs.items()}
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
            trained(config, table)
        finally:
            table.leave()

    def work() -> None:
        one, two = (tiny.config(toy, tmp_path / name, **ALIKE) for name in ("one", "two"))
        with pytest.raises(KeyError, match="gone"):
            run_together([partial(insisting, one), partial(watching, two, gone)])

    assert_ends(tiny, work)


def test_a_table_that_is_broken_up_during_an_update_ends_after_it(
    toy: Path, tmp_path: Path, tiny: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by the second Ctrl-C: those that wait end at once, and the last with its update."""
    updates: list[int] = []
    update = together_module._Together.run

    def broken_up(self: Any) -> None:
        if self.update == 3:
            self.seats[0].table.break_up()
        update(self)
        updates.append(self.update)

    def work() -> None:
        monkeypatch.setattr(together_module._Together, "run", broken_up)
        configs = (tiny.config(toy, tmp_path / name, **ALIKE) for name in PLACES)
        assert together(*configs) == [None, None, None]
        assert updates == [1, 2, 3, 4]
        assert threading.active_count() == 1

    assert_ends(tiny, work)


def test_a_table_for_one(toy: Path, tmp_path: Path, tiny: SimpleNamespace) -> None:
    def work() -> None:
        (outcome,) = together(tiny.config(toy, tmp_path / "one", **ALIKE))
        assert outcome.progress.update == 12
        config = tiny.config(toy, tmp_path / "two", **ALIKE)
        with pytest.raises(KeyError, match="gone"):
            run_together([partial(watching, config, gone)])

    assert_ends(tiny, work)
    tiny.run(toy, tmp_path / "alone", **ALIKE)
    assert_same_weights(tmp_path / "one", tmp_path / "alone")


@pytest.mark.parametrize("seated", [False, True])
def test_where_one_run_ends_early_none_waits_for_it(
    toy: Path, tmp_path: Path, tiny: SimpleNamespace, seated: bool
) -> None:
    """As a trial does that another process has done meanwhile."""

    def end(table: Table) -> None:
        if seated:
            other, data = tiny.config(toy, tmp_path / "two", **ALIKE), PreparedData.open(str(toy))

            def at_update_4(record: dict[str, Any]) -> None:
                other.train.max_updates = 4

            Trainer(other, data, table=table, watch=at_update_4, quiet=True).run()

    config = tiny.config(toy, tmp_path / "one", **ALIKE)
    with pytest.raises(UserError, match="one ended before the others"):
        run_together([partial(trained, config), end])


def interrupt(table: Table, number: int) -> None:
    """Send this process a signal, and wait until it has been noted."""
    os.kill(os.getpid(), number)
    while table.interruption.signal is None:
        time.sleep(0.01)


@pytest.mark.parametrize("moment", ["setting up", "validating"])
def test_a_signal_stops_all_at_one_update_from_which_they_go_on(
    toy: Path, tmp_path: Path, tiny: SimpleNamespace, moment: str
) -> None:
    def terminated(config: Config, table: Table) -> Outcome:
        def at_update_4(record: dict[str, Any]) -> None:
            if record["update"] == 4 and moment == "validating":
                interrupt(table, signal.SIGTERM)

        if moment == "setting up":
            interrupt(table, signal.SIGTERM)
        return watching(config, at_update_4, table)

    configs = [tiny.config(toy, tmp_path / str(seed), seed=seed, **ALIKE) for seed in (1, 2)]
    before = signal.getsignal(signal.SIGTERM)
    stopped = run_together([partial(terminated, configs[0]), partial(trained, configs[1])])
    assert signal.getsignal(signal.SIGTERM) == before
    assert [outcome.signal for outcome in stopped] == [signal.SIGTERM] * 2
    last = 1 if moment == "setting up" else 5
    assert [outcome.progress.update for outcome in stopped] == [last, last]
    assert [outcome.progress.update for outcome in together(*configs)] == [12, 12]
    for seed in (1, 2):
        tiny.run(toy, tmp_path / f"{seed}-alone", seed=seed, **ALIKE)
        assert_same_weights(tmp_path / str(seed), tmp_path / f"{seed}-alone")


def test_a_signal_after_the_last_update_is_for_whoever_heard_signals_before(
    toy: Path, tmp_path: Path, tiny: SimpleNamespace
) -> None:
    """There is nothing left to stop here; a study must not go on with its next trials."""
    heard: list[int] = []

    def terminated(config: Config, table: Table) -> Outcome:
        def at_the_end(record: dict[str, Any]) -> None:
            if record["update"] == 12:
                interrupt(table, signal.SIGTERM)
                assert not heard

        return watching(config, at_the_end, table)

    configs = [tiny.config(toy, tmp_path / str(seed), seed=seed, **ALIKE) for seed in (1, 2)]
    before = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    try:
        ended = run_together([partial(terminated, configs[0]), partial(trained, configs[1])])
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
        trained(tiny.config(toy, tmp_path / name, **ALIKE), table)
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

        data = PreparedData.open(str(toy))
        config = tiny.config(toy, tmp_path / "one", **ALIKE)
        Trainer(config, data, table=table, watch=at_update_4, quiet=True).run()

    other = partial(trained, tiny.config(toy, tmp_path / "two", **ALIKE))
    before = threading.active_count(), signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        run_together([insisted, other])
    assert ended == [4]
    assert (threading.active_count(), signal.getsignal(signal.SIGINT)) == before


def test_checkpoints_are_of_the_same_updates(
    toy: Path, tmp_path: Path, tiny: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever each one's clock says: those that are killed must be able to go on together."""
    kept: dict[str, list[int]] = {"1": [], "2": []}
    written = Checkpoints.write

    def write(self: Checkpoints, state: Any, record: Any) -> None:
        kept[self.folder.parent.name].append(record["update"])
        written(self, state, record)

    monkeypatch.setattr(Checkpoints, "write", write)
    minutes = {"1": 1e-4, "2": 60.0}
    together(
        *(tiny.config(toy, tmp_path / n, checkpoint_minutes=m, **ALIKE) for n, m in minutes.items())
    )
    assert kept["1"] == kept["2"]
    assert len(kept["1"]) > 1


def test_what_is_left_holds_no_weights(toy: Path, tmp_path: Path, tiny: SimpleNamespace) -> None:
    """Models are decoded while the table is still there."""
    seats, tables = [], []

    def watched(name: str, table: Table) -> None:
        config = tiny.config(toy, tmp_path / name, **ALIKE)
        trainer = Trainer(config, PreparedData.open(str(toy)), table=table, quiet=True)
        trainer.run()
        seats.append(weakref.ref(trainer.step))
        del trainer
        table.leave()
        tables.append(table)

    run_together([partial(watched, name) for name in ("one", "two")])
    gc.collect()
    assert [seat() for seat in seats] == [None, None]
    assert tables[0].size == 2
