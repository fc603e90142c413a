"""The average of snapshots is the mean of the weights."""

import math
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch
from safetensors.torch import load_file

from multibranch.data import PreparedData
from multibranch.directory import load_model
from multibranch.errors import UserError
from multibranch.training import Trainer
from multibranch.training.averaging import Snapshots
from multibranch.training.checkpoint import Checkpoints

ROUNDING = {"rtol": 2**-23, "atol": 0.0}  # the last bit of a float32


def weights(value: float) -> dict[str, torch.Tensor]:
    return {"a": torch.full((2, 3), value), "b": torch.tensor([value, -value])}


def test_the_average_is_the_mean(tmp_path: Path) -> None:
    snapshots = Snapshots(tmp_path)
    torch.manual_seed(0)
    drawn = [torch.randn(5, 7) for _ in range(3)]
    for update, tensor in enumerate(drawn):
        snapshots.write({"w": tensor}, update)
    found = snapshots.average([0, 1, 2])["w"]
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, torch.stack(drawn).double().mean(0).float(), **ROUNDING)
    assert torch.equal(snapshots.average([1])["w"], drawn[1])


@pytest.mark.parametrize(("goal", "number", "mean"), [(7, 1, 7), (5, 2, 5.5), (1, 4, 2.25)])
def test_of_the_last_snapshots_so_many_are_averaged_as_are_best(
    tmp_path: Path, goal: float, number: int, mean: float
) -> None:
    snapshots = Snapshots(tmp_path)
    for update, value in enumerate([-3.0, 1.0, 4.0, 7.0]):
        snapshots.write(weights(value), update)

    # The means of the last 1, 2, 3 and 4 are 7, 5.5, 4 and 2.25.
    def measure(found: Mapping[str, torch.Tensor]) -> dict[str, float]:
        return {"loss": abs(found["a"][0, 0].item() - goal)}

    found = snapshots.best_average([0, 1, 2, 3], measure)
    assert found.snapshots == number
    assert torch.equal(found.weights["a"], torch.full((2, 3), mean))
    assert found.measured == {"loss": abs(mean - goal)}


def test_a_loss_that_is_not_a_number_is_the_lowest_of_none(tmp_path: Path) -> None:
    snapshots = Snapshots(tmp_path)
    for update in (1, 2, 3):
        snapshots.write(weights(update), update)
    losses = iter([math.nan, 2.0, math.nan])  # of the last 1, 2 and 3
    assert snapshots.best_average([1, 2, 3], lambda _: {"loss": next(losses)}).snapshots == 2


def test_only_what_is_mentioned_stays(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    for update in (10, 20, 30):
        taken = [u for u in (10, 20, 30) if u <= update][-2:]
        checkpoints.write_snapshot(weights(update), taken)
        if update == 20:
            checkpoints.write({"w": torch.zeros(1)}, {"update": 20, "snapshots": taken})
    # 10 is no longer among the last two, but the checkpoint of update 20 would need it.
    names = sorted(path.name for path in (tmp_path / "snapshots").iterdir())
    assert names == ["00000010.safetensors", "00000020.safetensors", "00000030.safetensors"]
    checkpoints.keep = 1
    checkpoints.write({"w": torch.zeros(1)}, {"update": 30, "snapshots": [20, 30]})
    checkpoints.write_snapshot(weights(40), [30, 40])
    names = sorted(path.name for path in (tmp_path / "snapshots").iterdir())
    assert names == ["00000020.safetensors", "00000030.safetensors", "00000040.safetensors"]


def test_damage_is_noticed(tmp_path: Path) -> None:
    snapshots = Snapshots(tmp_path)
    snapshots.write(weights(1.0), 5)
    known = dict(snapshots.checksums)
    Snapshots(tmp_path).check(known)
    path = tmp_path / "00000005.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(UserError, match="does not fit its checksum"):
        Snapshots(tmp_path).check(known)


def test_a_run_averages_its_last_validations(
    toy: Path, tmp_path: Path, tiny: SimpleNamespace
) -> None:
    folder = tmp_path / "run"
    outcome = tiny.run(toy, folder, max_updates=24, validate_every=5, average=3)
    # Validations after 5, 10, 15, 20 and, at the end, 24.
    assert outcome.progress.snapshots == [15, 20, 24]
    kept = [
        load_file(folder / "resume" / "snapshots" / f"{update:08d}.safetensors")
        for update in (15, 20, 24)
    ]
    averaged = load_file(folder / "averaged" / "model.safetensors")
    for name, tensor in averaged.items():
        mean = torch.stack([one[name] for one in kept]).double().mean(0).float()
        torch.testing.assert_close(tensor, mean, **ROUNDING)
    last = load_file(folder / "last" / "model.safetensors")
    assert all(torch.equal(last[name], kept[-1][name]) for name in last)
    # The average stands for the run, and its own loss is recorded.
    assert load_file(folder / "model.safetensors").keys() == averaged.keys()
    assert torch.equal(
        load_model(folder).state_dict()["encoder.0.attention.out_weight"],
        averaged["encoder.0.attention.out_weight"],
    )
    (record,) = tiny.records(folder, "averaged")
    assert record["update"] == 24
    assert 0 < record["loss"] < 4
    assert record["snapshots"] == 3


def test_a_run_takes_the_average_with_the_lowest_loss(
    toy: Path, tmp_path: Path, tiny: SimpleNamespace
) -> None:
    # Its loss falls steeply all the time: whatever reaches back is worse than the last weights.
    folder = tmp_path / "run"
    tiny.run(toy, folder, max_updates=24, validate_every=5, average=3, average_best=True)
    (record,) = tiny.records(folder, "averaged")
    assert record["snapshots"] == 1
    last = load_file(folder / "last" / "model.safetensors")
    averaged = load_file(folder / "averaged" / "model.safetensors")
    assert all(torch.equal(last[name], averaged[name]) for name in last)


def test_an_average_whose_loss_is_no_number_is_not_the_model(
    toy: Path, tmp_path: Path, tiny: SimpleNamespace, capfd: pytest.CaptureFixture[str]
) -> None:
    """Weights that overflowed towards the end do not hide the best ones."""
    folder = tmp_path / "run"
    config = tiny.config(toy, folder, max_updates=6, validate_every=2, average=2)
    trainer = Trainer(config, PreparedData.open(toy))
    update = trainer._update

    def overflow() -> None:
        update()
        if trainer.progress.update > 4:
            for weights in trainer.optimiser.parameters:
                weights.data.fill_(float("nan"))

    with patch.object(trainer, "_update", overflow):
        outcome = trainer.run()
    assert "the average is worse than the best weights" in capfd.readouterr().err
    assert outcome.averaged is None and outcome.progress.best_update == 4
    published, best = (
        load_file(place / "model.safetensors") for place in (folder, folder / "best")
    )
    assert all(torch.equal(published[name], best[name]) for name in best)


def test_a_run_that_came_to_nothing_says_so(
    toy: Path, tmp_path: Path, tiny: SimpleNamespace, capfd: pytest.CaptureFixture[str]
) -> None:
    changes = {"max_updates": 3, "validate_every": 2, "warmup": 1, "learning_rate": 1e30}
    config = tiny.config(toy, tmp_path / "run", average=2, **changes)
    Trainer(config, PreparedData.open(toy)).run()
    assert "this model is of no use; lower train.learning_rate" in capfd.readouterr().err
