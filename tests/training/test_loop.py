"""A run from end to end: what it leaves, what it records, and when it stops."""

import json
import math
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from multibranch.data import PreparedData
from multibranch.directory import load_model, load_text, read_config
from multibranch.errors import UserError
from multibranch.nn import MultiBranchTransformer
from multibranch.training import Progress, TrainConfig, Trainer, steps
from multibranch.training.processes import Processes
from multibranch.training.progress import reason_to_stop, share_done
from multibranch.training.step import Objective, Step
from multibranch.training.validation import validation_loss


def loss_of(folder: Path, toy: Path, smoothing: float = 0.1) -> float:
    objective = Objective(load_model(folder), smoothing=smoothing)
    alone = Processes(0, 1, torch.device("cpu"))
    valid = PreparedData.open(toy).split("valid")
    return validation_loss(objective, valid, processes=alone, tokens=500)[0]


@pytest.fixture(scope="module")
def run(toy: Path, tmp_path_factory: pytest.TempPathFactory, tiny: SimpleNamespace) -> Path:
    """A finished run of 30 updates with everything recorded."""
    folder = tmp_path_factory.mktemp("loop") / "run"
    tiny.run(toy, folder, max_updates=30, tensorboard=True, average=2)
    return folder


@pytest.mark.parametrize("name", ["best", "last", "averaged", ""])
def test_its_model_directories_load_with_the_loss_they_claim(
    run: Path, toy: Path, name: str
) -> None:
    folder = run / name
    claimed = read_config(folder)["training"]["validation_loss"]
    assert loss_of(folder, toy) == pytest.approx(claimed, abs=1e-6)
    assert load_text(folder).encode(["w3 w1"], side="source") == [
        PreparedData.open(toy).text.encode(["w3 w1"], side="source")[0]
    ]


def test_a_loss_that_is_not_a_number_is_written_as_json_has_it(
    toy: Path, tmp_path: Path, tiny: SimpleNamespace
) -> None:
    tiny.run(toy, tmp_path / "run", max_updates=2, warmup=1, learning_rate=1e30)
    (record,) = tiny.records(tmp_path / "run", "validation")
    assert record["loss"] is None

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    for name in ("last", ""):
        text = (tmp_path / "run" / name / "config.json").read_text()
        assert json.loads(text, parse_constant=refuse)["training"]["validation_loss"] is None


def test_the_best_is_the_best_of_the_validations(
    run: Path, toy: Path, tiny: SimpleNamespace
) -> None:
    losses = {record["update"]: record["loss"] for record in tiny.records(run, "validation")}
    best = min(losses, key=losses.__getitem__)
    assert read_config(run / "best")["training"]["updates"] == best
    assert loss_of(run / "best", toy) == pytest.approx(losses[best], abs=1e-6)


def test_it_learns(run: Path, tiny: SimpleNamespace) -> None:
    losses = [record["plain"] for record in tiny.records(run, "validation")]
    assert losses[-1] < losses[0] < math.log(24) + 0.5


def test_metrics_tell_of_training_and_validation(run: Path, tiny: SimpleNamespace) -> None:
    trained = tiny.records(run, "train")
    assert [(record["update"], record["epoch"]) for record in trained] == [
        (1, 1),
        (5, 1),
        (10, 2),  # of 8 updates each
        (15, 2),
        (20, 3),
        (25, 4),
        (30, 4),
    ]
    for record in trained:
        assert record["loss"] > 0 and record["plain"] > 0 and record["norm"] > 0
        assert record["tokens_per_second"] > 0 and record["skipped"] == 0
    assert trained[2]["learning_rate"] == pytest.approx(3e-3)
    assert trained[-1]["learning_rate"] == pytest.approx(3e-3 * math.sqrt(10 / 30))
    validated = tiny.records(run, "validation")
    assert [(record["update"], record["epoch"]) for record in validated] == [
        (8, 1),
        (16, 2),
        (24, 3),
        (30, 4),  # in the middle of it
    ]


def test_how_far_the_branches_have_parted_is_recorded_by_layer(
    run: Path, tiny: SimpleNamespace
) -> None:
    layers = {"encoder.0.attention", "decoder.0.attention", "decoder.0.cross_attention"}
    for record in tiny.records(run, "validation"):
        assert record["similarity"].keys() == layers
        assert all(-1 <= value <= 1 for value in record["similarity"].values())


def test_tensorboard_has_the_same_numbers(run: Path, tiny: SimpleNamespace) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    wanted = {
        "train/loss": [(r["update"], r["loss"]) for r in tiny.records(run, "train")],
        "validation/loss": [(r["update"], r["loss"]) for r in tiny.records(run, "validation")],
        "validation/similarity/encoder.0.attention": [
            (r["update"], r["similarity"]["encoder.0.attention"])
            for r in tiny.records(run, "validation")
        ],
    }
    for name, values in wanted.items():
        found = [(event.step, event.value) for event in events.Scalars(name)]
        assert [step for step, _ in found] == [update for update, _ in values]
        assert [value for _, value in found] == pytest.approx([v for _, v in values], rel=1e-5)


def test_reported_losses_are_those_of_the_batches(
    toy: Path, tmp_path: Path, tiny: SimpleNamespace
) -> None:
    tiny.run(toy, tmp_path / "run", max_updates=1, dropout=0.0, drop_branch=0.0, validate_every=1)
    data = PreparedData.open(toy)
    config = tiny.config(toy, tmp_path / "other", dropout=0.0, drop_branch=0.0)
    trainer = Trainer(config, data, quiet=True)
    trainer._set_up()
    batch = trainer.batches.batch(0)
    with torch.no_grad():
        logits = trainer.model(
            batch.source,
            batch.target_input,
            source_boundaries=batch.source_boundaries,
            target_boundaries=batch.target_boundaries,
        )
    plain = torch.nn.functional.cross_entropy(logits, batch.target_output, ignore_index=1)
    trainer.folder.release()
    assert tiny.records(tmp_path / "run", "train")[0]["plain"] == pytest.approx(plain.item())


def test_between_reports_the_live_line_moves_and_the_device_is_not_asked(
    toy: Path, tmp_path: Path, tiny: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny.config(toy, tmp_path / "run", max_updates=6, log_every=4)
    trainer = Trainer(config, PreparedData.open(toy), quiet=True)
    moved, asked = [], []
    read = Step.statistics
    monkeypatch.setattr(trainer.display, "stands_still", lambda: True)
    monkeypatch.setattr(trainer.display, "move", lambda pace, **how_far: moved.append(pace))
    monkeypatch.setattr(
        Step, "statistics", lambda step: asked.append(trainer.progress.update) or read(step)
    )
    trainer.run()
    assert [pace["update"] for pace in moved] == [2, 3, 5, 6]
    assert all(pace["tokens_per_second"] > 0 for pace in moved)
    assert asked == [1, 4] == [each["update"] for each in tiny.records(tmp_path / "run", "train")]


def test_the_seed_decides_everything(toy: Path, tmp_path: Path, tiny: SimpleNamespace) -> None:
    for name, seed in (("one", 3), ("same", 3), ("other", 4)):
        tiny.run(toy, tmp_path / name, seed=seed, max_updates=4)
    files = {
        name: (tmp_path / name / "model.safetensors").read_bytes()
        for name in ("one", "same", "other")
    }
    assert files["one"] == files["same"] != files["other"]


def test_padded_batches_train_too(toy: Path, tmp_path: Path, tiny: SimpleNamespace) -> None:
    outcome = tiny.run(toy, tmp_path / "run", layout="padded", max_updates=30)
    first, last = (tiny.records(tmp_path / "run", "validation")[i]["loss"] for i in (0, -1))
    assert outcome.progress.update == 30
    assert last < first


def test_skipping_dropped_work_changes_nothing(
    toy: Path, tmp_path: Path, tiny: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    for skip in (False, True):
        monkeypatch.setattr(steps, "skips_dropped", lambda *_, skip=skip, **__: skip)
        tiny.run(
            toy,
            tmp_path / str(skip),
            dropout=0.0,
            drop_branch=0.4,
            max_updates=6,
            epsilon=1e-4,
        )
    masked, skipped = (
        load_file(tmp_path / name / "last" / "model.safetensors") for name in ("False", "True")
    )
    for name, tensor in masked.items():
        torch.testing.assert_close(tensor, skipped[name], rtol=1e-4, atol=1e-5)


# -- Validation and stopping -------------------------------------------------------------------


def test_the_score_is_measured_in_evaluation_mode_and_can_decide(
    toy: Path, tmp_path: Path, tiny: SimpleNamespace
) -> None:
    scores = iter([10.0, 30.0, 20.0, 25.0])

    def score(model: MultiBranchTransformer) -> tuple[float, str]:
        assert not model.training
        return next(scores), "BLEU"

    outcome = tiny.run(
        toy,
        tmp_path / "run",
        score=score,
        validate_score=True,
        stop_on="score",
        patience=2,
        warmup=2,
        max_updates=100,
        validate_every=2,
    )
    assert outcome.stopped == "the last 2 validations were no better; the best was at update 4"
    assert (outcome.progress.best, outcome.progress.best_score) == (30.0, 30.0)
    assert outcome.progress.update == 8
    assert read_config(tmp_path / "run" / "best")["training"]["updates"] == 4
    records = tiny.records(tmp_path / "run", "validation")
    assert [(r["score"], r["score_name"]) for r in records] == [
        (value, "BLEU") for value in (10.0, 30.0, 20.0, 25.0)
    ]
    assert outcome.progress.best_loss == records[1]["loss"]


def test_the_loss_may_decide_though_a_score_is_shown(
    toy: Path, tmp_path: Path, tiny: SimpleNamespace
) -> None:
    falling = iter(range(100, 0, -1))
    outcome = tiny.run(
        toy,
        tmp_path / "run",
        score=lambda model: (next(falling), "BLEU"),
        validate_score=True,
        validate_every=5,
    )
    losses = [record["loss"] for record in tiny.records(tmp_path / "run", "validation")]
    assert outcome.progress.best == min(losses)


def progress_after(*losses: float, train: TrainConfig | None = None) -> Progress:
    """Where a run stands that was validated after updates 10, 20, …, past its warm-up."""
    progress = Progress()
    for loss in losses:
        progress.update += 10
        train = train or TrainConfig(warmup=1)
        score = -loss if train.stop_on == "score" else None
        progress.note_validation(train, loss=loss, plain=loss, score=score)
    return progress


def test_patience_counts_validations_that_are_no_better() -> None:
    progress = progress_after(3.0, 2.0, 2.0, 2.5)
    assert (progress.best, progress.best_update, progress.stale) == (2.0, 20, 2)
    train = TrainConfig(patience=2)
    assert reason_to_stop(train, progress, out_of_time=False) is not None
    assert reason_to_stop(TrainConfig(patience=3), progress, out_of_time=False) is None


def test_a_run_cools_down_to_its_set_end_and_has_no_other(
    toy: Path, tmp_path: Path, tiny: SimpleNamespace
) -> None:
    settings = {"max_updates": 20, "cool_down": 0.5, "warmup": 4, "log_every": 1}
    tiny.run(toy, tmp_path / "run", **settings)
    rates = {r["update"]: r["learning_rate"] for r in tiny.records(tmp_path / "run", "train")}
    whole = {update: rates[4] * (4 / update) ** 0.5 for update in range(4, 21)}
    assert [rates[u] / whole[u] for u in (5, 10, 11, 12, 20)] == pytest.approx(
        [1, 1, 1, 0.9, 0.1], rel=1e-6
    )
    with pytest.raises(
        UserError, match=r"max_updates: 20 → 30; which train\.cool_down counts back"
    ):
        tiny.run(toy, tmp_path / "run", **{**settings, "max_updates": 30})


def test_scores_of_the_warm_up_decide_nothing() -> None:
    train = TrainConfig(warmup=40, stop_on="score")
    progress = progress_after(3.0, 2.0, 2.5, 9.0, 8.0, 8.5, train=train)
    assert (progress.best_loss, progress.best_update, progress.stale) == (8.0, 50, 1)
    warming_up = progress_after(3.0, 2.0, 2.5, train=train)  # a run that ends there has this
    assert (warming_up.best_update, warming_up.stale) == (20, 0)


@pytest.mark.parametrize("stop_on", ["loss", "score"])
def test_validations_before_judge_from_decide_nothing(stop_on: str) -> None:
    train = TrainConfig(warmup=1, stop_on=stop_on, judge_from=30)
    progress = progress_after(1.0, 2.0, 9.0, 8.0, 8.5, 8.6, train=train)
    assert (progress.best_loss, progress.best_update, progress.stale) == (8.0, 40, 2)
    from_the_first = TrainConfig(warmup=30, stop_on=stop_on, judge_from=0)
    assert progress_after(1.0, 2.0, 9.0, train=from_the_first).stale == 2


def test_losses_and_what_starts_from_a_model_count_from_the_beginning() -> None:
    for settings in ({"stop_on": "loss"}, {"stop_on": "score", "init_from": "runs/transformer"}):
        train = TrainConfig(warmup=30, **settings)
        progress = progress_after(3.0, 2.0, 9.0, 8.0, train=train)
        assert (progress.best_update, progress.stale) == (20, 2)


def test_a_loss_that_is_not_a_number_is_never_the_best() -> None:
    progress = progress_after(math.nan, 3.0, math.nan, math.inf)
    assert (progress.best, progress.best_update, progress.stale) == (3.0, 20, 2)


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({"max_updates": 5}, "5 updates are done"),
        ({"max_updates": 6}, None),
        ({"max_epochs": 2}, "2 epochs are done"),
        ({"max_epochs": 3, "max_updates": 9}, None),
    ],
)
def test_limits(limits: dict[str, int], reason: str | None) -> None:
    progress = Progress(update=5, epoch=2)
    assert reason_to_stop(TrainConfig(**limits), progress, out_of_time=False) == reason


def test_one_of_a_kind_is_told_in_the_singular() -> None:
    progress = Progress(update=1, epoch=1, stale=1, best_update=2)
    for limits, reason in (
        ({"max_updates": 1}, "1 update is done"),
        ({"max_epochs": 1}, "1 epoch is done"),
        ({"patience": 1}, "the last validation was no better; the best was at update 2"),
        ({"max_minutes": 1.0}, "1 minute has passed"),
    ):
        assert reason_to_stop(TrainConfig(**limits), progress, out_of_time=True) == reason


def test_epochs_end_a_run(toy: Path, tmp_path: Path, tiny: SimpleNamespace) -> None:
    outcome = tiny.run(toy, tmp_path / "run", max_updates=None, max_epochs=2)
    assert (outcome.stopped, outcome.progress.update) == ("2 epochs are done", 16)


def test_minutes_end_a_run_over_its_continuations(
    toy: Path, tmp_path: Path, tiny: SimpleNamespace
) -> None:
    outcome = tiny.run(toy, tmp_path / "run", max_updates=None, max_minutes=1.5 / 60)
    assert outcome.stopped == "0.025 minutes have passed"
    assert 1.5 <= outcome.progress.seconds < 15
    done = outcome.progress.update
    assert tiny.run(toy, tmp_path / "run", max_minutes=1.5 / 60).progress.update == done


def test_how_much_is_done() -> None:
    train = TrainConfig(max_updates=100, max_epochs=10)
    progress = Progress(update=20, epoch=3, batch=5)
    assert share_done(train, progress, batches=10, seconds=70) == 0.35
    assert share_done(TrainConfig(patience=3), progress, batches=10, seconds=7) is None


def test_no_training_pair_within_the_limits_is_an_error(
    toy: Path, tmp_path: Path, tiny: SimpleNamespace
) -> None:
    with pytest.raises(UserError, match=r"no training pair .* data.max_length \(1\)"):
        tiny.run(toy, tmp_path / "run", max_length=1)


def test_no_validation_pairs_are_an_error_before_training(
    toy: Path, tmp_path: Path, tiny: SimpleNamespace
) -> None:
    import shutil

    copied = tmp_path / "data"
    shutil.copytree(toy, copied)
    for path in copied.glob("valid.*"):
        path.unlink()
    with pytest.raises(UserError, match="no split 'valid'"):
        tiny.run(copied, tmp_path / "run")
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


@pytest.mark.parametrize("name", ["train.source", "valid.target"])
def test_ids_beyond_the_vocabulary_are_an_error_before_training(
    toy: Path, tmp_path: Path, tiny: SimpleNamespace, name: str
) -> None:
    folder = shutil.copytree(toy, tmp_path / "data")
    content = bytearray((folder / f"{name}.bin").read_bytes())
    content[-4:-2] = (24).to_bytes(2, "little")  # the vocabulary has 24 entries, from 0
    (folder / f"{name}.bin").write_bytes(content)
    with pytest.raises(UserError, match=rf"{name}\.bin is damaged: it has the id 24, and the voc"):
        tiny.run(folder, tmp_path / "run")


def test_who_watches_sees_every_validation_and_may_end_the_run(
    toy: Path, tmp_path: Path, tiny: SimpleNamespace
) -> None:
    class Enough(Exception):
        pass

    seen: list[dict] = []

    def watch(record: dict) -> None:
        seen.append(record)
        if len(seen) == 3:
            raise Enough

    config = tiny.config(toy, tmp_path / "run", validate_every=4, max_updates=40)
    with pytest.raises(Enough):
        Trainer(config, PreparedData.open(toy), watch=watch, quiet=True).run()
    assert [record["update"] for record in seen] == [4, 8, 12]
    assert seen[0]["plain"] == pytest.approx(
        tiny.records(tmp_path / "run", "validation")[0]["plain"]
    )
    # The folder is free again, and the run can go on.
    assert tiny.run(toy, tmp_path / "run", validate_every=4, max_updates=40).progress.update == 40
