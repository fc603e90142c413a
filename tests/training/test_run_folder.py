"""The folder of a run: one configuration's, one process's, and what the disk may refuse."""

import errno
import os
import resource
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from multibranch.data import PreparedData
from multibranch.errors import UserError
from multibranch.training import Trainer
from multibranch.training.disk import refusals_explained
from multibranch.training.run_folder import RunFolder


def test_another_configuration_is_refused_with_the_difference(
    toy: Path, tmp_path: Path, tiny: SimpleNamespace
) -> None:
    tiny.run(toy, tmp_path / "run", max_updates=2)
    with pytest.raises(UserError) as caught:
        tiny.run(toy, tmp_path / "run", branches=3, seed=9, max_updates=2)
    message = str(caught.value)
    assert "model.branches: 2 → 3" in message
    assert "train.seed: 1 → 9" in message
    assert str(tmp_path / "run") in message and "train.output" in message
    assert "dropout" not in message


def test_a_model_is_not_replaced_by_another_configuration_s_though_nothing_else_is_left(
    toy: Path, tmp_path: Path, tiny: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny.run(toy, tmp_path / "run", max_updates=2)
    for name in ("resume", "best", "last"):
        shutil.rmtree(tmp_path / "run" / name)
    with pytest.raises(UserError, match=r"another configuration \(model.branches: 2 → 3\)"):
        tiny.run(toy, tmp_path / "run", branches=3, max_updates=2)
    again = tiny.config(toy, tmp_path / "run", max_updates=2)
    assert Trainer(again, PreparedData.open(toy)).run().progress.update == 2
    assert "no checkpoint to go on from: training starts anew" in capsys.readouterr().err


def test_limits_and_the_machine_may_change(
    toy: Path, tmp_path: Path, tiny: SimpleNamespace
) -> None:
    tiny.run(toy, tmp_path / "run", max_updates=2)
    outcome = tiny.run(toy, tmp_path / "run", max_updates=3, log_every=1, keep_checkpoints=1)
    assert outcome.progress.update == 3


def test_a_run_of_which_nothing_was_saved_may_be_changed(
    toy: Path, tmp_path: Path, tiny: SimpleNamespace
) -> None:
    RunFolder(tmp_path / "run").claim(tiny.config(toy, tmp_path / "run", tokens=400))
    outcome = tiny.run(toy, tmp_path / "run", max_updates=2)
    assert outcome.progress.update == 2


def test_a_folder_with_other_things_is_refused(
    toy: Path, tmp_path: Path, tiny: SimpleNamespace
) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.png").write_bytes(b"x")
    with pytest.raises(UserError, match="not empty and holds no run"):
        tiny.run(toy, tmp_path / "photos")
    assert [p.name for p in (tmp_path / "photos").iterdir()] == ["cat.png"]
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="is a file"):
        tiny.run(toy, tmp_path / "file")


def test_a_kill_before_the_configuration_was_written_does_no_harm(
    toy: Path, tmp_path: Path, tiny: SimpleNamespace
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / ".lock").touch()
    (folder / ".config.yaml").write_text("task: tr")
    assert tiny.run(toy, folder, max_updates=1).progress.update == 1


def test_two_processes_do_not_train_in_one_folder(
    toy: Path, tmp_path: Path, tiny: SimpleNamespace
) -> None:
    config = tiny.config(toy, tmp_path / "run")
    one, other = RunFolder(tmp_path / "run"), RunFolder(tmp_path / "run")
    one.claim(config)
    with pytest.raises(UserError, match="another process is training in"):
        other.claim(config)
    one.release()
    other.claim(config)
    other.release()


def test_the_folder_is_free_after_a_run_that_failed(
    toy: Path, tmp_path: Path, tiny: SimpleNamespace
) -> None:
    trainer = Trainer(tiny.config(toy, tmp_path / "run"), PreparedData.open(toy), quiet=True)

    def fail() -> None:
        raise ZeroDivisionError

    trainer._update = fail  # type: ignore[method-assign]
    with pytest.raises(ZeroDivisionError):
        trainer.run()
    assert tiny.run(toy, tmp_path / "run", max_updates=1).progress.update == 1


def everything(folder: Path) -> dict[str, bytes | None]:
    """All that is under a folder, with what the files hold."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


def test_a_run_that_is_refused_leaves_nothing(
    toy: Path, tmp_path: Path, tiny: SimpleNamespace
) -> None:
    (tmp_path / "empty").mkdir()
    before = everything(tmp_path)
    for name in ("new", "a/new/one", "empty"):
        with pytest.raises(UserError, match="3 heads do not divide"):
            tiny.run(toy, tmp_path / name, heads=3)
        assert everything(tmp_path) == before


@pytest.mark.parametrize("error", [UserError("no"), torch.OutOfMemoryError(), KeyboardInterrupt()])
def test_so_does_one_whose_first_update_fails(
    toy: Path, tmp_path: Path, tiny: SimpleNamespace, error: BaseException
) -> None:
    trained = tmp_path / "trained"
    tiny.run(toy, trained, branches=1, max_updates=1)
    before = everything(tmp_path)
    # It has validated its first weights by then, and recorded that.
    config = tiny.config(toy, tmp_path / "run", init_from=str(trained), tensorboard=True)
    trainer = Trainer(config, PreparedData.open(toy), quiet=True)

    def fail() -> None:
        assert (tmp_path / "run" / "metrics.jsonl").is_file()
        raise error

    trainer._update = fail  # type: ignore[method-assign]
    with pytest.raises((UserError, KeyboardInterrupt)):
        trainer.run()
    assert everything(tmp_path) == before


def test_a_run_that_is_stopped_before_its_first_update_leaves_nothing(
    toy: Path, tmp_path: Path, tiny: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = Trainer(tiny.config(toy, tmp_path / "run"), PreparedData.open(toy))
    trainer.interruption.signal = signal.SIGTERM
    assert trainer.run().signal == signal.SIGTERM
    assert "stopped by SIGTERM before the first update\n" in capsys.readouterr().err
    assert everything(tmp_path) == {}


def test_a_run_that_is_not_gone_on_with_is_as_it_was(
    toy: Path, other_toy: Path, tmp_path: Path, tiny: SimpleNamespace
) -> None:
    tiny.run(toy, tmp_path / "run", max_updates=2)
    before = everything(tmp_path)
    with pytest.raises(UserError, match="not those of the run so far"):
        tiny.run(other_toy, tmp_path / "run", max_updates=4)
    assert everything(tmp_path) == before
    shutil.rmtree(tmp_path / "run" / "resume")
    before = everything(tmp_path)
    trainer = Trainer(tiny.config(toy, tmp_path / "run", max_updates=4), PreparedData.open(toy))
    trainer.keeping.prepare = lambda *_: 1 / 0  # type: ignore[assignment,method-assign]
    with pytest.raises(ZeroDivisionError):
        trainer.run()
    assert everything(tmp_path) == before  # what was recorded among it


# -- The disk ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "words"), [(errno.ENOSPC, "the disk is full"), (errno.EROFS, "could not be read")]
)
def test_refusals_become_sentences(tmp_path: Path, number: int, words: str) -> None:
    with pytest.raises(UserError, match=words), refusals_explained(tmp_path):
        raise OSError(number, os.strerror(number), "x.safetensors")
    with pytest.raises(ConnectionResetError), refusals_explained(tmp_path):
        raise ConnectionResetError(errno.ECONNRESET, "reset")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte, where we may mount one."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip("file systems cannot be mounted here")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def complete_checkpoints(folder: Path) -> list[str]:
    return sorted(
        place.name
        for place in (folder / "resume").glob("update-*")
        if {p.name for p in place.iterdir()}
        == {"state.safetensors", "progress.json", "checksums.json"}
    )


def test_a_full_disk_stops_the_run_and_harms_nothing(
    toy: Path, small_disk: Path, tiny: SimpleNamespace
) -> None:
    folder = small_disk / "run"
    # A checkpoint of this model takes 130 kB; the fourth or so does not fit.
    settings = {"checkpoint_minutes": 0, "keep_checkpoints": 100, "hidden": 64}
    with pytest.raises(UserError, match=r"the disk is full \(No space left on device\)") as caught:
        tiny.run(toy, folder, **settings)
    assert "\n" not in str(caught.value)
    saved = complete_checkpoints(folder)
    assert len(saved) >= 3
    assert sorted(p.name for p in (folder / "resume").iterdir()) == saved
    outcome = tiny.run(toy, folder, **{**settings, "keep_checkpoints": 1})
    assert outcome.progress.update == 20


def test_a_limit_on_files_stops_the_run_too(
    toy: Path, tmp_path: Path, tiny: SimpleNamespace
) -> None:
    folder = tmp_path / "run"
    tiny.run(toy, folder, max_updates=4)

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
        try:
            tiny.run(toy, folder, max_updates=8)
        except UserError as error:
            os.write(2, str(error).encode())
            os._exit(2 if "the disk is full (File too large)" in str(error) else 3)
        os._exit(0)

    process = tiny.start(limited)
    process.join()
    assert process.exitcode == 2
    assert complete_checkpoints(folder) == ["update-00000004"]
    assert tiny.run(toy, folder, max_updates=8).progress.update == 8
