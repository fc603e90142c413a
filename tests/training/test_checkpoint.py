"""Checkpoints: complete or absent, checked, and written while training goes on."""

import itertools
import json
import shutil
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml
from safetensors.torch import load_file

from multibranch.data import PreparedData
from multibranch.errors import UserError
from multibranch.training import Progress, Trainer
from multibranch.training.background import Background
from multibranch.training.checkpoint import Checkpoints, record_of


def write(checkpoints: Checkpoints, update: int) -> Path:
    state = {"weight/w": torch.full((4,), float(update)), "statistics": torch.zeros(8)}
    checkpoints.write(state, record_of(Progress(update=update, epoch=1, best=2.5)))
    return checkpoints.folder / f"update-{update:08d}"


def test_what_was_written_comes_back(tmp_path: Path) -> None:
    write(Checkpoints(tmp_path), 7)
    loaded = Checkpoints(tmp_path).load()
    assert loaded is not None
    state, progress = loaded
    assert progress == Progress(update=7, epoch=1, best=2.5)
    assert torch.equal(state["weight/w"], torch.full((4,), 7.0))


def test_the_newest_are_kept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    for update in (9, 10, 100):
        write(checkpoints, update)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["update-00000010", "update-00000100"]


def truncate(place: Path, name: str) -> None:
    data = (place / name).read_bytes()
    (place / name).write_bytes(data[: len(data) // 2])


def flip(place: Path, name: str) -> None:
    data = bytearray((place / name).read_bytes())
    data[len(data) // 2] ^= 1
    (place / name).write_bytes(bytes(data))


def remove(place: Path, name: str) -> None:
    (place / name).unlink()


@pytest.mark.parametrize("damage", [truncate, flip, remove])
@pytest.mark.parametrize("name", ["state.safetensors", "progress.json", "checksums.json"])
def test_a_damaged_one_is_passed_over_with_a_message(
    tmp_path: Path, damage: object, name: str
) -> None:
    write(Checkpoints(tmp_path), 10)
    newest = write(Checkpoints(tmp_path), 20)
    damage(newest, name)  # type: ignore[operator]
    told: list[str] = []
    loaded = Checkpoints(tmp_path, tell=told.append).load()
    assert loaded is not None
    assert loaded[1].update == 10
    assert len(told) == 1
    assert str(newest) in told[0] and "is damaged" in told[0]
    assert not newest.exists()


def test_where_none_is_sound_training_starts_anew_and_says_so(tmp_path: Path) -> None:
    flip(write(Checkpoints(tmp_path), 10), "state.safetensors")
    told: list[str] = []
    assert Checkpoints(tmp_path, tell=told.append).load() is None
    assert "training starts anew" in told[-1]


def test_a_checkpoint_goes_with_its_snapshots(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=3)
    for update in (10, 20):
        checkpoints.write_snapshot({"w": torch.zeros(3)}, [update])
        progress = Progress(update=update, snapshots=[update])
        checkpoints.write({"w": torch.zeros(1)}, record_of(progress))
    flip(tmp_path / "snapshots", "00000020.safetensors")
    loaded = Checkpoints(tmp_path).load()
    assert loaded is not None
    assert loaded[1].update == 10


def test_another_release_s_checkpoint_is_refused_not_removed(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    record = {**record_of(Progress(update=3)), "format": 99}
    checkpoints.write({"w": torch.zeros(1)}, record)
    with pytest.raises(UserError, match="another release"):
        Checkpoints(tmp_path).load()
    assert (tmp_path / "update-00000003" / "state.safetensors").is_file()


def test_nothing_is_pickled(toy: Path, tmp_path: Path, tiny: SimpleNamespace) -> None:
    tiny.run(toy, tmp_path / "run", max_updates=4, average=2, validate_every=2)
    readers = {
        ".safetensors": load_file,
        ".json": lambda path: json.loads(path.read_text()),
        ".jsonl": lambda path: [json.loads(line) for line in path.read_text().splitlines()],
        ".yaml": lambda path: yaml.safe_load(path.read_text()),
    }
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert {path.suffix for path in files if path.name != ".lock"} == readers.keys()
    for path in files:
        if path.name == ".lock":
            assert path.read_bytes() == b""
        else:
            assert readers[path.suffix](path)


def test_a_failed_write_leaves_what_was_there(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    write(checkpoints, 10)
    with pytest.raises(KeyError):  # the snapshot that the record mentions was never written
        checkpoints.write({"w": torch.zeros(1)}, record_of(Progress(update=20, snapshots=[20])))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["update-00000010"]


def test_leftovers_of_a_killed_run_are_removed(tmp_path: Path) -> None:
    write(Checkpoints(tmp_path), 10)
    shutil.copytree(tmp_path / "update-00000010", tmp_path / ".new.update-00000020.abc")
    assert Checkpoints(tmp_path).load() is not None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["update-00000010"]


# -- In the background -------------------------------------------------------------------------


def test_jobs_run_in_order_beside_the_caller() -> None:
    background, gate, done = Background(), threading.Event(), []

    def first() -> None:
        gate.wait()
        done.append(1)

    background.submit(first)
    background.submit(lambda: done.append(2))
    assert done == []  # the caller was not kept waiting
    background.check()
    gate.set()
    background.wait()
    assert done == [1, 2]
    background.close()


def test_a_failure_is_raised_and_nothing_is_written_after_it() -> None:
    background, gate, done = Background(), threading.Event(), []

    def fail() -> None:
        gate.wait()
        raise OSError(28, "No space left on device")

    background.submit(fail)
    background.submit(lambda: done.append(1))
    gate.set()
    with pytest.raises(OSError, match="No space left"):
        background.wait()
    background.close()
    assert done == []


def test_training_goes_on_while_a_checkpoint_is_written(
    toy: Path, tmp_path: Path, tiny: SimpleNamespace
) -> None:
    config = tiny.config(toy, tmp_path / "run", checkpoint_minutes=0, max_updates=8)
    trainer = Trainer(config, PreparedData.open(toy), quiet=True)
    slow, seen = trainer.keeping.checkpoints.write, []

    def write_slowly(state: object, record: dict) -> None:
        if record["update"] == 1:
            before = trainer.progress.update
            limit = time.monotonic() + 30
            while trainer.progress.update == before and time.monotonic() < limit:
                time.sleep(0.001)
            seen.append((before, trainer.progress.update))
        slow(state, record)  # type: ignore[arg-type]

    trainer.keeping.checkpoints.write = write_slowly  # type: ignore[method-assign]
    trainer.run()
    assert seen[0][1] > seen[0][0]


def test_the_minutes_between_checkpoints_are_kept(
    toy: Path, tmp_path: Path, tiny: SimpleNamespace
) -> None:
    tiny.run(toy, tmp_path / "rare", max_updates=12, keep_checkpoints=20)
    tiny.run(toy, tmp_path / "often", max_updates=12, keep_checkpoints=20, checkpoint_minutes=0)
    # Five minutes do not pass: only the end is kept. Without any between them, every update is.
    assert [p.name for p in (tmp_path / "rare/resume").iterdir()] == ["update-00000012"]
    assert len(list((tmp_path / "often/resume").glob("update-*"))) == 12
    config = tiny.config(toy, tmp_path / "some", max_updates=12, keep_checkpoints=20)
    config.train.checkpoint_minutes = 0.15 / 60
    trainer = Trainer(config, PreparedData.open(toy), quiet=True)
    update, times = trainer._update, []

    def slow_update() -> None:
        time.sleep(0.06)
        times.append(time.monotonic())
        update()

    trainer._update = slow_update  # type: ignore[method-assign]
    trainer.run()
    saved = sorted(int(p.name[7:]) for p in (tmp_path / "some/resume").glob("update-*"))
    assert len(saved) >= 3
    # Update n + 1 begins after checkpoint n: no two are nearer than the time asked for.
    gaps = [times[b] - times[a - 1] for a, b in itertools.pairwise(saved[:-1])]
    assert all(gap >= 0.15 for gap in gaps)


def test_the_state_says_where_training_stood(
    toy: Path, tmp_path: Path, tiny: SimpleNamespace
) -> None:
    tiny.run(toy, tmp_path / "run", max_updates=11, validate_every=4, average=2)
    place = tmp_path / "run/resume/update-00000011"
    progress = json.loads((place / "progress.json").read_text())
    assert (progress["update"], progress["epoch"], progress["batch"]) == (11, 1, 3)
    assert (progress["validated"], progress["snapshots"]) == (11, [8, 11])
    assert progress["world"] == 1
    assert progress["tokens"] > 1500
