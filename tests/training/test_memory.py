"""Running out of memory is reported with the budget to set."""

from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from multibranch.data import PreparedData
from multibranch.errors import UserError
from multibranch.training import TrainConfig, Trainer
from multibranch.training.memory import out_of_memory
from multibranch.training.stacked import Stacked
from multibranch.training.together import Table, run_together


def test_the_budget_to_set_is_named() -> None:
    message = str(out_of_memory(TrainConfig(tokens=4096, accumulate=3), model_fits=True))
    assert "batches of 4096 tokens" in message
    assert "train.tokens to 2048 and train.accumulate to 6" in message


def test_where_batches_are_not_to_blame_the_model_is() -> None:
    assert "train.sharding: full" in str(out_of_memory(TrainConfig(), model_fits=False))
    small = str(out_of_memory(TrainConfig(tokens=300), model_fits=True))
    assert "only 300 tokens" in small and "model smaller" in small


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory."),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
    ],
    ids=["GPU", "CPU"],
)
@pytest.mark.parametrize("moment", ["_update", "_set_up"])
def test_a_run_says_so(
    toy: Path, tmp_path: Path, tiny: SimpleNamespace, moment: str, error: Exception
) -> None:
    config = tiny.config(toy, tmp_path / "run", tokens=1000)
    trainer = Trainer(config, PreparedData.open(toy), quiet=True)

    def exhausted() -> None:
        raise error

    setattr(trainer, moment, exhausted)
    words = "train.tokens to 500" if moment == "_update" else "Adam's moments"
    with pytest.raises(UserError, match=words):
        trainer.run()
    # What it advises works in the same folder, for nothing has been saved there.
    assert tiny.run(toy, tmp_path / "run", tokens=500, accumulate=2, max_updates=1)


@pytest.mark.parametrize("moment", ["__init__", "run"])  # stacking the weights, and an update
def test_runs_that_are_trained_together_are_to_be_fewer(
    toy: Path, tmp_path: Path, tiny: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    def exhausted(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    def run(name: str, table: Table) -> None:
        config = tiny.config(toy, tmp_path / name)
        Trainer(config, PreparedData.open(toy), table=table, quiet=True).run()

    monkeypatch.setattr(Stacked, moment, exhausted)
    with pytest.raises(UserError, match="for 2 runs that are trained together: train fewer"):
        run_together([partial(run, name) for name in ("one", "two")])
