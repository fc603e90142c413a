"""One update: many small batches equal a large one, and what is not finite is skipped."""

import copy
import itertools
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from multibranch.data import PackedBatches, PaddedBatches, PairStore, PreparedData
from multibranch.errors import UserError
from multibranch.nn import MultiBranchTransformer, training_kernels
from multibranch.nn.stepper import Stepper
from multibranch.training import TrainConfig, Trainer, steps
from multibranch.training.optimiser import Optimiser
from multibranch.training.processes import Processes
from multibranch.training.seeds import draw_branches, seed_update
from multibranch.training.setup import count_tokens
from multibranch.training.skipping import compile_sublayers
from multibranch.training.step import Objective, Step
from multibranch.training.steps import choose_step
from multibranch.training.telling import beginning


def model(**changes: float) -> MultiBranchTransformer:
    torch.manual_seed(0)
    settings = {"width": 16, "hidden": 32, "heads": 2, "branches": 2, "dropout": 0.0, **changes}
    return MultiBranchTransformer(
        source_vocabulary=30,
        target_vocabulary=30,
        encoder_layers=1,
        decoder_layers=1,
        **settings,  # type: ignore[arg-type]
    )


def pairs(count: int = 12) -> PairStore:
    random = torch.Generator().manual_seed(1)
    rows = [
        [*torch.randint(4, 30, (length,), generator=random).tolist(), 2]
        for length in torch.randint(2, 9, (count,), generator=random).tolist()
    ]
    return PairStore.from_lists(rows, [row[::-1][1:] + [2] for row in rows])


def one_update(network: MultiBranchTransformer, batches: object, numbers: range) -> Optimiser:
    optimiser = Optimiser(network)
    step = Step(Objective(network, smoothing=0.1), optimiser, device=torch.device("cpu"))
    tokens = count_tokens(batches, numbers)  # type: ignore[arg-type]
    step.run(batches, numbers, keeps=[None], rate=1e-3, tokens=tokens)  # type: ignore[arg-type]
    return optimiser


@pytest.mark.parametrize("kind", [PackedBatches, PaddedBatches])
def test_accumulating_small_batches_equals_one_large_one(kind: type) -> None:
    small = kind(pairs(), tokens=24, max_length=12, seed=3)
    large = kind(pairs(), tokens=2000, max_length=12, seed=3)
    assert len(small) > 3
    assert len(large) == 1
    one, other = model(), model()
    accumulated = one_update(one, small, range(len(small)))
    at_once = one_update(other, large, range(1))
    for name, a, b in zip(accumulated.names, accumulated.parameters, at_once.parameters):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-7, msg=name)
    for name, a, b in zip(accumulated.names, accumulated.parameters, at_once.parameters):
        # Adam divides by the gradient's own size, which makes much of rounding where that is 0.
        certain = b.grad.abs() > 1e-6  # type: ignore[union-attr]
        torch.testing.assert_close(a[certain], b[certain], rtol=1e-4, atol=1e-6, msg=name)


def test_packed_and_padded_batches_give_the_same_gradient() -> None:
    found = [
        one_update(model(), kind(pairs(), tokens=2000, max_length=12), range(1))
        for kind in (PackedBatches, PaddedBatches)
    ]
    for a, b in zip(found[0].parameters, found[1].parameters):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-7)


def poisoned(network: MultiBranchTransformer, value: float) -> None:
    """Make the gradient of the next updates infinite or not a number."""
    with torch.no_grad():
        network.decoder[0].feed_forward_norm.weight[0] = value


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("clip", [0.0, 1.0])
def test_an_update_that_is_not_finite_is_skipped_and_counted(value: float, clip: float) -> None:
    network = model()
    optimiser = Optimiser(network, clip_norm=clip)
    step = Step(Objective(network, smoothing=0.1), optimiser, device=torch.device("cpu"))
    batches = PackedBatches(pairs(), tokens=60, max_length=12)

    def update(number: int) -> None:
        step.run(batches, range(number, number + 1), keeps=[None], rate=1e-3, tokens=60)

    update(0)
    healthy = network.decoder[0].feed_forward_norm.weight[0].item()
    poisoned(network, value)
    before = copy.deepcopy(optimiser.state())
    update(0)
    update(1)
    for name, tensor in optimiser.state().items():
        assert torch.equal(tensor.nan_to_num(7.0, 7.0), before[name].nan_to_num(7.0, 7.0)), (
            f"{name} changed"
        )
    assert step.streak() == 2
    poisoned(network, healthy)
    update(1)
    statistics = step.statistics()
    assert (statistics.skipped, step.streak()) == (2, 0)
    # The losses of skipped updates do not count.
    assert 0 < statistics.smoothed / statistics.tokens < 10
    assert not torch.equal(
        optimiser.state()["weight/encoder.0.attention.out_weight"],
        before["weight/encoder.0.attention.out_weight"],
    )
    assert optimiser.state()["steps/encoder.0.attention.out_weight"].item() == 2


def test_clipping_scales_the_whole_gradient() -> None:
    batches = PackedBatches(pairs(), tokens=2000, max_length=12)
    found = {}
    for clip in (0.0, 0.01, 1e6):
        network = model()
        optimiser = Optimiser(network, clip_norm=clip)
        step = Step(Objective(network, smoothing=0.1), optimiser, device=torch.device("cpu"))
        step.run(batches, range(1), keeps=[None], rate=1e-3, tokens=60)
        gradients = [parameter.grad.flatten() for parameter in optimiser.parameters]  # type: ignore[union-attr]
        found[clip] = torch.cat(gradients), step.statistics().norm
    whole, norm = found[0.0]
    assert norm == pytest.approx(whole.norm().item())
    torch.testing.assert_close(found[0.01][0], whole * (0.01 / norm), rtol=1e-4, atol=1e-9)
    assert found[0.01][1] == pytest.approx(norm)  # what is logged is the norm before clipping
    assert torch.equal(found[1e6][0], whole)


def test_dropout_differs_between_processes_and_updates() -> None:
    drawn = {}
    for seed, update, rank in itertools.product((1, 2), (1, 2), (0, 1)):
        seed_update(seed, update, rank)
        drawn[seed, update, rank] = torch.rand(4).tolist()
    assert len({tuple(numbers) for numbers in drawn.values()}) == 8
    seed_update(1, 1, 0)
    assert torch.rand(4).tolist() == drawn[1, 1, 0]


def test_running_statistics_can_be_taken_up_again() -> None:
    network = model()
    batches = PackedBatches(pairs(), tokens=60, max_length=12)
    steps = [
        Step(Objective(network, smoothing=0.1), Optimiser(network), device=torch.device("cpu"))
        for _ in range(2)
    ]
    steps[0].run(batches, range(1), keeps=[None], rate=0.0, tokens=60)
    steps[1].resume(steps[0].running())
    assert steps[1].statistics() == steps[0].statistics()


def test_many_bad_updates_in_a_row_end_the_run_with_their_pairs(
    toy: Path, tmp_path: Path, tiny: SimpleNamespace
) -> None:
    config = tiny.config(toy, tmp_path / "run", max_skipped=3, log_every=50, accumulate=2)
    trainer = Trainer(config, PreparedData.open(toy), quiet=True)
    update = trainer._update

    def poison() -> None:
        if trainer.progress.update == 3:
            poisoned(trainer.model, float("nan"))
        update()

    trainer._update = poison  # type: ignore[method-assign]
    with pytest.raises(UserError, match=r"not finite for 3 updates in a row, up to update 6"):
        trainer.run()
    bad = json.loads((tmp_path / "run" / "bad_batch.json").read_text())
    epoch = PackedBatches(PreparedData.open(toy).split("train"), tokens=200, max_length=200)
    assert len(epoch) == 8  # two an update: the fifth update begins the second epoch
    wanted = []
    for update, batches, numbers in (
        (4, epoch, (6, 7)),
        (5, epoch.at_epoch(1), (0, 1)),
        (6, epoch.at_epoch(1), (2, 3)),
    ):
        pairs = [pair for number in numbers for pair in batches.indices(number).tolist()]
        wanted.append({"update": update, "epoch": batches.epoch, "pairs": pairs})
    assert bad["updates"] == wanted


@pytest.mark.parametrize(
    ("compile", "skip", "world", "skips"),
    [
        (None, False, 1, True),
        (True, False, 1, False),
        (None, True, 1, True),
        (None, False, 2, False),
    ],
)
def test_the_way_updates_run_follows_from_device_and_configuration(
    compile: bool | None, skip: bool, world: int, skips: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CPU nothing is compiled unless asked for, and what is dropped is skipped."""
    monkeypatch.setattr(steps, "wrap", lambda objective, *_, **__: (objective, None))
    train = TrainConfig(compile=compile, skip_dropped=skip)
    network = model()
    objective = Objective(network, smoothing=0.1)
    step = choose_step(
        objective,
        Optimiser(network),
        PackedBatches(pairs(), tokens=60, max_length=12),
        processes=Processes(0, world, torch.device("cpu")),
        train=train,
        sharded=False,
    )
    assert type(step) is Step
    assert step.keeps_on == (None if skips else torch.device("cpu"))
    assert (objective._compiled_call_impl is not None) == bool(compile)


def test_a_copy_of_a_model_with_compiled_sublayers_computes_with_its_own_weights() -> None:
    network = model(drop_branch=0.0).eval()
    ids = torch.tensor([[5, 6, 2]])
    plain = network(ids, ids)
    compile_sublayers(network, backend="eager")
    torch.testing.assert_close(network(ids, ids), plain)
    other = copy.deepcopy(network)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(0.5)
    bare = model(drop_branch=0.0).eval()
    bare.load_state_dict(other.state_dict())
    torch.testing.assert_close(other(ids, ids), bare(ids, ids))
    torch.testing.assert_close(network(ids, ids), plain)
    assert Stepper(network, dtype=torch.bfloat16).encode(ids).states.dtype == torch.bfloat16


def test_bad_updates_that_are_over_do_not_end_a_run() -> None:
    network = model()
    step = Step(Objective(network, smoothing=0.1), Optimiser(network), device=torch.device("cpu"))
    batches = PackedBatches(pairs(), tokens=60, max_length=12)
    healthy = network.decoder[0].feed_forward_norm.weight[0].item()
    streaks = []
    for value in (healthy, float("nan"), float("nan"), healthy, float("nan")):
        poisoned(network, value)
        step.run(batches, range(1), keeps=[None], rate=1e-3, tokens=60)
        streaks.append(step.streak())
    assert streaks == [0, 1, 2, 0, 1]


def test_a_few_bad_updates_are_only_counted(
    toy: Path, tmp_path: Path, tiny: SimpleNamespace
) -> None:
    config = tiny.config(toy, tmp_path / "run", max_skipped=5, max_updates=10, log_every=2)
    trainer = Trainer(config, PreparedData.open(toy), quiet=True)
    update = trainer._update

    def poison() -> None:
        if trainer.progress.update == 5:
            trainer.healthy = trainer.model.decoder[0].feed_forward_norm.weight[0].item()  # type: ignore[attr-defined]
            poisoned(trainer.model, float("nan"))
        if trainer.progress.update == 8:
            poisoned(trainer.model, trainer.healthy)  # type: ignore[attr-defined]
        update()

    trainer._update = poison  # type: ignore[method-assign]
    assert trainer.run().progress.skipped == 3
    records = tiny.records(tmp_path / "run", "train")
    assert [record["skipped"] for record in records] == [0, 0, 0, 1, 3, 3]
    for name in ("loss", "plain", "norm"):  # of updates 7 and 8 there is none
        assert [bool(record[name]) for record in records] == [True, True, True, True, False, True]
        assert records[4][name] is None


def test_branches_to_drop_are_a_function_of_seed_and_update(
    toy: Path, tiny: SimpleNamespace
) -> None:
    network = model(drop_branch=0.5)
    train = tiny.config(toy, toy, r_drop=1.0, seed=4).train
    device = torch.device("cpu")

    def draw(update: int) -> list[torch.Tensor]:
        return draw_branches(network.drop_rates(), train, update, device)  # type: ignore[return-value]

    torch.manual_seed(1)
    first = draw(7)
    torch.manual_seed(2)
    assert all(torch.equal(a, b) for a, b in zip(first, draw(7)))
    # The two passes of R-Drop draw different branches, and so do neighbouring updates.
    passes = [draw(update) for update in range(50)]
    assert sum(torch.equal(one, other) for one, other in passes) < 5
    assert sum(torch.equal(a[0], b[0]) for a, b in itertools.pairwise(passes)) < 5
    dropped = torch.stack([keep for both in passes for keep in both]) == 0
    assert 0.4 < dropped.float().mean().item() < 0.6


def test_a_run_in_float32_on_a_cpu_says_what_its_kernels_lack(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batches = PackedBatches(pairs(), tokens=60, max_length=12)
    processes = Processes(0, 1, torch.device("cpu"))

    def told(precision: torch.dtype) -> list[str]:
        return beginning(batches, processes, precision, parameters=1, resumed=None)[2:]

    monkeypatch.setattr(training_kernels, "library", lambda: object())
    assert told(torch.float32) == []
    monkeypatch.setattr(training_kernels, "library", lambda: None)
    assert told(torch.float32) == [training_kernels.lacking()]
    assert told(torch.bfloat16) == []
