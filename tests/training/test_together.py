"""Runs that are trained together are the runs that they would be alone."""

import gc
import itertools
import os
import signal
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
from multibranch.nn.plainly import use_reference
from multibranch.training import Config, Outcome, Trainer, stacked
from multibranch.training.checkpoint import Checkpoints
from multibranch.training.optimiser import Optimiser
from multibranch.training.stacked import Stacked
from multibranch.training.together import Table, run_together

# Adam with a small epsilon blows up the rounding of gradients that are zero, as a key's bias has.
ALIKE: dict[str, Any] = {
    "dropout": 0.0,
    "max_updates": 12,
    "validate_every": 4,
    "average": 2,
    "epsilon": 1e-4,
}


def together(tiny: SimpleNamespace, *configs: Config) -> list[Outcome]:
    return run_together([partial(tiny.at_table, config) for config in configs])


@pytest.fixture(params=[1, 5])
def meetings(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The updates after which runs met, where they stage up to 1, and 5, before they meet."""
    found: list[int] = []
    run = Stacked.run

    def watched(self: Stacked) -> None:
        run(self)
        found.append(self.update)

    met_after = partial(stacked._met_after, ahead=request.param)
    monkeypatch.setattr(stacked, "_met_after", lambda seats, ahead: met_after(seats))
    monkeypatch.setattr(Stacked, "run", watched)
    return found


def assert_same_weights(one: Path, other: Path) -> None:
    for name in ("last", "best", "averaged"):
        a, b = (load_file(place / name / "model.safetensors") for place in (one, other))
        for key, tensor in a.items():
            torch.testing.assert_close(tensor, b[key], rtol=1e-4, atol=1e-5, msg=f"{name} {key}")


def test_each_run_is_what_it_is_alone(
    toy: Path, other_toy: Path, tmp_path: Path, tiny: SimpleNamespace, meetings: list[int]
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
    outcomes = together(tiny, *configs)
    # After the first one, for its report, and every fourth, for the validation.
    assert meetings in ([*range(1, 13)], [1, 4, 5, 8, 10, 12])
    for outcome, (name, (data, own)) in zip(outcomes, runs.items(), strict=True):
        alone = tiny.run(data, tmp_path / f"{name}-alone", **ALIKE, **own)
        assert (outcome.progress.update, outcome.progress.tokens) == (12, alone.progress.tokens)
        assert_same_weights(tmp_path / name, tmp_path / f"{name}-alone")
        for kind in ("train", "validation"):
            ours, theirs = (tiny.records(tmp_path / each, kind) for each in (name, f"{name}-alone"))
            assert [r["plain"] for r in ours] == pytest.approx([r["plain"] for r in theirs], 1e-4)


def test_a_table_for_one_is_the_run_alone(toy: Path, tmp_path: Path, tiny: SimpleNamespace) -> None:
    (outcome,) = together(tiny, tiny.config(toy, tmp_path / "one", **ALIKE))
    assert outcome.progress.update == 12
    tiny.run(toy, tmp_path / "alone", **ALIKE)
    assert_same_weights(tmp_path / "one", tmp_path / "alone")


def test_of_no_runs_there_are_no_results() -> None:
    assert run_together([]) == []


def test_weights_of_half_precision_have_masters_of_their_own(
    toy: Path, tmp_path: Path, tiny: SimpleNamespace
) -> None:
    settings = {**ALIKE, "precision": "bfloat16"}
    together(tiny, *(tiny.config(toy, tmp_path / str(s), seed=s, **settings) for s in (1, 2)))
    for seed in (1, 2):
        with use_reference():  # whose loss rounds to bfloat16 in the same places
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
            tiny,
            *(tiny.config(toy, tmp_path / str(seed), seed=seed, **settings) for seed in (1, 2)),
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
        together(tiny, *(tiny.config(toy, place, **settings) for place in places))
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

        config = tiny.config(toy, tmp_path / "two", **ALIKE)
        return tiny.at_table(config, table, watch=at_update_4)

    one = partial(tiny.at_table, tiny.config(toy, tmp_path / "one", **ALIKE))
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
        together(tiny, *(tiny.config(toy, tmp_path / name, **ALIKE) for name in ("one", "two")))


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
    outcomes = together(tiny, *(tiny.config(toy, tmp_path / n, **settings) for n in ("one", "two")))
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
        together(tiny, *(tiny.config(toy, tmp_path / name, **ALIKE) for name in ("one", "two")))


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
        together(tiny, *configs)


@pytest.mark.parametrize("moment", ["setting up", "validating"])
def test_a_signal_stops_all_at_one_update_from_which_they_go_on(
    toy: Path, tmp_path: Path, tiny: SimpleNamespace, moment: str, meetings: list[int]
) -> None:
    def interrupt(table: Table) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        while table.interruption.signal is None:
            time.sleep(0.01)

    def terminated(config: Config, table: Table) -> Outcome:
        def at_update_4(record: dict[str, Any]) -> None:
            if record["update"] == 4 and moment == "validating":
                interrupt(table)

        if moment == "setting up":
            interrupt(table)
        return tiny.at_table(config, table, watch=at_update_4)

    configs = [tiny.config(toy, tmp_path / str(seed), seed=seed, **ALIKE) for seed in (1, 2)]
    before = signal.getsignal(signal.SIGTERM)
    stopped = run_together([partial(terminated, configs[0]), partial(tiny.at_table, configs[1])])
    assert signal.getsignal(signal.SIGTERM) == before
    assert [outcome.signal for outcome in stopped] == [signal.SIGTERM] * 2
    last = 1 if moment == "setting up" else 5  # the next at which they meet, after 1 or after 5
    assert [outcome.progress.update for outcome in stopped] == [last, last]
    assert [outcome.progress.update for outcome in together(tiny, *configs)] == [12, 12]
    for seed in (1, 2):
        tiny.run(toy, tmp_path / f"{seed}-alone", seed=seed, **ALIKE)
        assert_same_weights(tmp_path / str(seed), tmp_path / f"{seed}-alone")


def test_checkpoints_are_of_the_same_updates(
    toy: Path,
    tmp_path: Path,
    tiny: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
    meetings: list[int],
) -> None:
    """Whatever each one's clock says: those that are killed must be able to go on together.

    One at each meeting, and none of an update that is only staged.
    """
    kept: dict[str, list[int]] = {"1": [], "2": []}
    written = Checkpoints.write

    def write(self: Checkpoints, state: Any, record: Any) -> None:
        kept[self.folder.parent.name].append(record["update"])
        written(self, state, record)

    monkeypatch.setattr(Checkpoints, "write", write)
    minutes = {"1": 0.0, "2": 60.0}
    together(
        tiny,
        *(
            tiny.config(toy, tmp_path / n, checkpoint_minutes=m, **ALIKE)
            for n, m in minutes.items()
        ),
    )
    assert kept["1"] == kept["2"] == meetings


def test_runs_that_are_killed_go_on_from_the_last_checkpoint(
    toy: Path, tmp_path: Path, tiny: SimpleNamespace, meetings: list[int]
) -> None:
    class Killed(Exception):
        pass

    def killed(config: Config, table: Table) -> Outcome:
        def at_update_8(record: dict[str, Any]) -> None:
            if record["update"] == 8:
                raise Killed

        return tiny.at_table(config, table, watch=at_update_8)

    def config(seed: int) -> Config:
        place = tmp_path / str(seed)
        return tiny.config(toy, place, seed=seed, checkpoint_minutes=1e-6, **ALIKE)

    with pytest.raises(Killed):
        run_together([partial(killed, config(1)), partial(tiny.at_table, config(2))])
    for seed in (1, 2):
        newest = max(path.name for path in (tmp_path / str(seed)).glob("resume/update-*"))
        assert int(newest.removeprefix("update-")) in meetings
    together(tiny, config(1), config(2))
    for seed in (1, 2):
        tiny.run(toy, tmp_path / f"{seed}-alone", seed=seed, **ALIKE)
        assert_same_weights(tmp_path / str(seed), tmp_path / f"{seed}-alone")


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
