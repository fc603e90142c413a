"""Many processes: the same weights as one over the same batches; a dead worker comes back."""

import json
import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from multibranch.data import PreparedData
from multibranch.errors import UserError
from multibranch.tasks.translation import open_data, two_stage
from multibranch.training import Config, Progress, Trainer
from multibranch.training.processes import Processes, even_dimension
from multibranch.training.start import first_model

# Without dropout, which every process draws for itself; ε keeps rounding from growing in Adam.
SAME: dict[str, Any] = {"dropout": 0.0, "max_updates": 11, "epsilon": 1e-4, "log_every": 1}


@pytest.fixture(scope="module")
def alone(toy: Path, tmp_path_factory: pytest.TempPathFactory, tiny: SimpleNamespace) -> Path:
    """One process whose updates see two batches each: what two processes see."""
    folder = tmp_path_factory.mktemp("alone") / "run"
    tiny.run(toy, folder, accumulate=2, average=2, **SAME)
    return folder


def compare(one: Path, other: Path, tiny: SimpleNamespace) -> None:
    """Weights, moments, losses and gradient norms to float tolerance; position exactly."""
    last = "resume/update-00000011"
    a, b = (load_file(folder / last / "state.safetensors") for folder in (one, other))
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=1e-4, atol=1e-6, msg=name)
    for kind in ("train", "validation"):
        for mine, theirs in zip(tiny.records(one, kind), tiny.records(other, kind)):
            assert mine["update"] == theirs["update"]
            for key in ("loss", "plain", *(["norm"] if kind == "train" else ["similarity"])):
                assert mine[key] == pytest.approx(theirs[key], rel=1e-4), (kind, key)
    p, q = (json.loads((folder / last / "progress.json").read_text()) for folder in (one, other))
    for key in ("update", "epoch", "tokens", "validated", "snapshots", "best_update"):
        assert p[key] == q[key], key
    models = [load_file(folder / "averaged" / "model.safetensors") for folder in (one, other)]
    for name in models[0]:
        torch.testing.assert_close(models[0][name], models[1][name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("sharding", ["none", "full"])
def test_two_processes_equal_one(
    toy: Path, tmp_path: Path, tiny: SimpleNamespace, alone: Path, sharding: str
) -> None:
    folder = tmp_path / "run"
    codes = tiny.processes(lambda: tiny.run(toy, folder, sharding=sharding, average=2, **SAME))
    assert codes == [0, 0]
    compare(alone, folder, tiny)


def test_in_bfloat16_two_processes_differ_by_one_rounding_of_the_gradient(
    toy: Path, tmp_path: Path, tiny: SimpleNamespace
) -> None:
    """One process adds up the gradients of its batches in float32, as the exchange does not."""
    settings = {**SAME, "max_updates": 1, "precision": "bfloat16"}
    tiny.run(toy, tmp_path / "one", accumulate=2, **settings)
    assert tiny.processes(lambda: tiny.run(toy, tmp_path / "two", **settings)) == [0, 0]
    one, two = (
        load_file(tmp_path / name / "resume/update-00000001/state.safetensors")
        for name in ("one", "two")
    )
    means = [name for name in one if name.startswith("mean/")]  # a tenth of the first gradient
    assert any(not torch.equal(one[name], two[name]) for name in means)
    for name in means:
        torch.testing.assert_close(two[name], one[name], rtol=1.01 * 2**-8, atol=0, msg=name)


def test_averages_of_shared_out_weights_are_measured_too(
    toy: Path, tmp_path: Path, tiny: SimpleNamespace
) -> None:
    # The loss falls steeply all the time: whatever reaches back is worse than the last weights.
    settings = {"max_updates": 24, "validate_every": 5, "average": 3, "average_best": True}
    folder = tmp_path / "run"
    codes = tiny.processes(lambda: tiny.run(toy, folder, sharding="full", **settings))
    assert codes == [0, 0]
    (record,) = tiny.records(folder, "averaged")
    assert record["snapshots"] == 1
    # Those weights were validated before, by both processes.
    last = tiny.records(folder, "validation")[-1]
    assert record["loss"] == pytest.approx(last["loss"], rel=1e-5)
    weights = [load_file(folder / name / "model.safetensors") for name in ("last", "averaged")]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_shared_out_weights_are_never_moved_whole_are_halved_and_start_as_the_seed_says(
    toy: Path, tmp_path: Path, tiny: SimpleNamespace
) -> None:
    config = tiny.config(toy, tmp_path / "run", sharding="full")
    data = PreparedData.open(toy)
    drawn = first_model(config, data.text).state_dict()

    def refuse(*_: Any) -> None:
        raise AssertionError("the whole model was moved to the device")

    def work() -> None:
        trainer = Trainer(config, data, quiet=True)
        torch.nn.Module._apply = refuse  # type: ignore[assignment,method-assign]
        trainer._set_up()
        here = sum(p.to_local().numel() for p in trainer.model.parameters())  # type: ignore[attr-defined]
        assert here == sum(tensor.numel() for tensor in drawn.values()) / 2
        found = trainer.optimiser.weights()  # whole, in the first process
        assert found.keys() == (drawn.keys() if trainer.processes.first else set())
        assert all(torch.equal(tensor, drawn[name]) for name, tensor in found.items())

    assert tiny.processes(work) == [0, 0]


@pytest.mark.parametrize(
    ("shape", "dimension"),
    [((3, 4, 512, 512), 1), ((1, 2048, 512), 1), ((33000, 512), 0), ((2, 3), None), ((), None)],
)
def test_weights_are_cut_where_the_parts_are_equal(shape: tuple, dimension: int | None) -> None:
    assert even_dimension(shape, 4) == dimension


def test_an_epoch_whose_batches_do_not_come_out_even(
    other_toy: Path, tmp_path: Path, tiny: SimpleNamespace
) -> None:
    # 200 pairs are an odd number of batches: at the end of an epoch one process has an empty one.
    settings = {**SAME, "tokens": 220, "average": 2, "max_updates": 11}
    data = PreparedData.open(other_toy)
    trainer = Trainer(tiny.config(other_toy, tmp_path / "x", **settings), data, quiet=True)
    trainer._set_up()
    trainer.folder.release()
    assert len(trainer.batches) % 2 == 1
    for layout in ("packed", "padded"):
        folder = tmp_path / layout
        tiny.run(other_toy, folder / "one", accumulate=2, layout=layout, **settings)
        codes = tiny.processes(
            lambda layout=layout, folder=folder: tiny.run(
                other_toy, folder / "two", layout=layout, **settings
            )
        )
        assert codes == [0, 0]
        compare(folder / "one", folder / "two", tiny)


def stop_at(last: int, config: Config) -> None:
    """Train until one of the processes is told to stop, after which all do."""
    trainer = Trainer(config, PreparedData.open(config.data.folder or ""), quiet=True)
    update = trainer._update

    def told() -> None:
        update()
        if trainer.progress.update == last and trainer.processes.rank == 1:
            os.kill(os.getpid(), signal.SIGTERM)

    trainer._update = told  # type: ignore[method-assign]
    outcome = trainer.run()
    os._exit(128 + (outcome.signal or 0))


@pytest.mark.parametrize("sharding", ["none", "full"])
def test_a_stopped_run_goes_on_in_both_processes(
    toy: Path, tmp_path: Path, tiny: SimpleNamespace, alone: Path, sharding: str
) -> None:
    folder = tmp_path / "run"

    config = tiny.config(toy, folder, sharding=sharding, average=2, **SAME)
    assert tiny.processes(lambda: stop_at(4, config)) == [143, 143]
    assert [p.name for p in (folder / "resume").glob("update-*")] == ["update-00000004"]
    codes = tiny.processes(lambda: tiny.run(toy, folder, sharding=sharding, average=2, **SAME))
    assert codes == [0, 0]
    compare(alone, folder, tiny)


def test_what_is_reported_spans_the_stop(toy: Path, tmp_path: Path, tiny: SimpleNamespace) -> None:
    settings = {**SAME, "max_updates": 14, "log_every": 14}
    config = tiny.config(toy, tmp_path / "stopped", **settings)
    assert tiny.processes(lambda: stop_at(10, config)) == [143, 143]
    for name in ("stopped", "straight"):
        codes = tiny.processes(lambda name=name: tiny.run(toy, tmp_path / name, **settings))
        assert codes == [0, 0]
    stopped, straight = (tiny.records(tmp_path / name, "train") for name in ("stopped", "straight"))
    assert [one["update"] for one in straight] == [one["update"] for one in stopped] == [1, 14]
    for key in ("loss", "plain", "norm"):
        assert stopped[1][key] == pytest.approx(straight[1][key], rel=1e-4), key


def test_a_run_goes_on_with_another_number_of_processes(
    toy: Path, tmp_path: Path, tiny: SimpleNamespace
) -> None:
    folder = tmp_path / "run"
    codes = tiny.processes(lambda: tiny.run(toy, folder, max_updates=3))
    assert codes == [0, 0]
    outcome = tiny.run(toy, folder, max_updates=4)
    # Three updates of two processes are six batches; the next is the seventh.
    assert (outcome.progress.batch, outcome.progress.world) == (7, 1)


def test_positions_are_shared_out_without_leaving_a_batch_out() -> None:
    progress = Progress(batch=5, world=3)
    assert progress.share_out(4)
    assert (progress.batch, progress.world) == (3, 4)  # 15 batches were done: 12 of them count
    assert not progress.share_out(4)


def test_both_processes_stop_where_the_first_refuses(
    toy: Path, tmp_path: Path, tiny: SimpleNamespace
) -> None:
    tiny.run(toy, tmp_path / "run", max_updates=1)

    def refused() -> None:
        try:
            tiny.run(toy, tmp_path / "run", max_updates=1, seed=5)
        except UserError:
            os._exit(2)

    assert tiny.processes(refused) == [2, 2]


def test_two_stages_in_two_processes(toy: Path, tmp_path: Path, tiny: SimpleNamespace) -> None:
    config = tiny.config(toy, tmp_path / "both", max_updates=4)
    assert tiny.processes(lambda: two_stage(config, quiet=True)) == [0, 0]
    assert len(tiny.records(tmp_path / "both" / "mat", "start")) == 1


def test_the_built_in_corpus_is_made_once_for_both(
    toy: Path, tmp_path: Path, tiny: SimpleNamespace
) -> None:
    config = tiny.config(toy, tmp_path / "run", folder=None, builtin_pairs=150, max_updates=1)

    def work() -> None:
        assert len(open_data(config).split("train")) == 150

    assert tiny.processes(work) == [0, 0]


def test_the_score_is_that_of_the_whole_model(
    toy: Path, tmp_path: Path, tiny: SimpleNamespace
) -> None:
    def score(model: Any) -> tuple[float, str]:
        weight = model.encoder[0].attention.out_weight
        assert type(weight.data) is torch.Tensor  # no shard of one
        return float(weight.detach().float().square().sum()), "size"

    settings = {**SAME, "validate_score": True, "max_updates": 3}
    for sharding in ("none", "full"):
        codes = tiny.processes(
            lambda sharding=sharding: tiny.run(
                toy, tmp_path / sharding, score=score, sharding=sharding, **settings
            )
        )
        assert codes == [0, 0]
    found = [tiny.records(tmp_path / name, "validation")[0]["score"] for name in ("none", "full")]
    assert found[0] == pytest.approx(found[1], rel=1e-5)
    assert found[0] > 1


# -- torchrun ----------------------------------------------------------------------------------


def test_a_killed_worker_comes_back_by_itself(
    toy: Path, tmp_path: Path, tiny: SimpleNamespace
) -> None:
    """torchrun's own engine with --max-restarts 2, forking its workers to save their imports."""
    folder = tmp_path / "run"
    settings = {"max_updates": 14, "log_every": 1, "checkpoint_minutes": 0.0}

    def worker() -> None:
        name = f"{os.environ['TORCHELASTIC_RESTART_COUNT']}-{os.environ['RANK']}"
        (tmp_path / name).write_text(str(os.getpid()))
        tiny.run(toy, folder, **settings)

    def agent() -> None:
        launch = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=2,
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",
            run_id="test",
            max_restarts=2,
            monitor_interval=0.05,
            start_method="fork",
        )
        elastic_launch(launch, worker)()

    process = tiny.start(agent)
    while process.is_alive() and not list(folder.glob("resume/update-*")):
        time.sleep(0.005)
    os.kill(int((tmp_path / "0-1").read_text()), signal.SIGKILL)
    process.join()
    assert process.exitcode == 0
    assert sorted(path.name for path in tmp_path.glob("?-?")) == ["0-0", "0-1", "1-0", "1-1"]
    updates = [record["update"] for record in tiny.records(folder, "train")]
    assert updates == list(range(1, 15))
    # It is the run that was never hurt.
    codes = tiny.processes(lambda: tiny.run(toy, tmp_path / "unhurt", **settings))
    assert codes == [0, 0]
    hurt, unhurt = (
        load_file(place / "last" / "model.safetensors") for place in (folder, tmp_path / "unhurt")
    )
    for name in hurt:
        torch.testing.assert_close(hurt[name], unhurt[name], rtol=1e-4, atol=1e-6)


def test_one_process_is_its_own_first() -> None:
    processes = Processes(0, 1, torch.device("cpu"))
    assert processes.first
    assert processes.total(1.5, 2) == [1.5, 2]
    with pytest.raises(UserError, match="no"):
        processes.first_does(lambda: (_ for _ in ()).throw(UserError("no")))
