"""Folders: complete or absent, whatever happens while one takes another's place."""

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.models import BPE

from multibranch import disk
from multibranch.disk import alive, check_place, clean_up, replaced_folder, sha256
from multibranch.errors import UserError


def test_a_folder_is_replaced_as_a_whole(tmp_path: Path) -> None:
    place = tmp_path / "place"
    for content in ("one", "two"):
        with replaced_folder(place) as new:
            (new / f"{content}.txt").write_text(content)
    assert [path.name for path in place.iterdir()] == ["two.txt"]
    assert [path.name for path in tmp_path.iterdir()] == ["place"]


def fail_halfway(place: Path) -> None:
    with replaced_folder(place) as new:
        (new / "b").write_text("b")
        raise ZeroDivisionError


def test_a_link_or_a_file_in_its_place_leaves_nothing_behind(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "kept").touch()
    places = tmp_path / "places"
    places.mkdir()
    (places / "link").symlink_to(elsewhere)
    (places / "file").touch()
    for name in ("link", "file"):
        with replaced_folder(places / name) as new:
            (new / "a").touch()
        assert not (places / name).is_symlink()
        assert [path.name for path in (places / name).iterdir()] == ["a"]
    assert sorted(path.name for path in places.iterdir()) == ["file", "link"]
    assert (elsewhere / "kept").exists()


def test_a_failure_leaves_the_folder_as_it_was(tmp_path: Path) -> None:
    place = tmp_path / "place"
    with replaced_folder(place) as new:
        (new / "a").write_text("a")
    with pytest.raises(ZeroDivisionError):
        fail_halfway(place)
    assert [path.name for path in place.iterdir()] == ["a"]
    assert [path.name for path in tmp_path.iterdir()] == ["place"]


@pytest.mark.parametrize("place", ["new/deep/place", "new/deep/../place"])
def test_a_failure_leaves_no_folders_that_were_made_for_it(tmp_path: Path, place: str) -> None:
    (tmp_path / "kept").mkdir()
    for above in (tmp_path, tmp_path / "kept"):
        with pytest.raises(ZeroDivisionError):
            fail_halfway(above / place)
    assert [path.name for path in tmp_path.rglob("*")] == ["kept"]


def test_a_failure_leaves_folders_in_which_there_is_something_else(tmp_path: Path) -> None:
    def fail() -> None:
        with replaced_folder(tmp_path / "new" / "deep" / "place"):
            (tmp_path / "new" / "other").touch()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert [path.name for path in tmp_path.rglob("*")] == ["new", "other"]


def test_there_is_always_one_of_them(tmp_path: Path) -> None:
    place = tmp_path / "place"
    with replaced_folder(place) as new:
        (new / "a").write_text("0")
    stop, missing = threading.Event(), []

    def watch() -> None:
        while not stop.is_set():
            try:
                assert (place / "a").read_text().isdigit()
            except OSError:
                missing.append(1)

    thread = threading.Thread(target=watch)
    thread.start()
    for number in range(100):
        with replaced_folder(place) as new:
            (new / "a").write_text(str(number))
    stop.set()
    thread.join()
    assert missing == []


def test_systems_that_cannot_swap_still_replace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "_swap", lambda one, other: False)
    test_a_folder_is_replaced_as_a_whole(tmp_path)


def test_what_a_kill_left_is_put_right(tmp_path: Path) -> None:
    (tmp_path / ".new.best.x1").mkdir()
    (tmp_path / ".old.best").mkdir()
    (tmp_path / ".old.best" / "config.json").write_text("{}")
    (tmp_path / ".old.last").mkdir()
    (tmp_path / "last").mkdir()
    clean_up(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best", "last"]
    assert (tmp_path / "best" / "config.json").is_file()


def test_a_checksum_is_that_of_sha256sum(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    known = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert sha256(tmp_path / "a") == known


def test_a_process_is_alive_until_it_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    assert alive(os.getpid())
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert not alive(process.pid)

    def refuse(*_: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "kill", refuse)  # someone else's process
    assert alive(1)


def test_a_place_where_nothing_could_be_made_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_place(tmp_path / "new" / "model", "--output")
    assert not (tmp_path / "new").exists(), "it only looks"
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    place = tmp_path / "file" / "new" / "model"
    with pytest.raises(UserError) as caught:
        check_place(place, "--output")
    assert str(caught.value) == (
        f"{place} cannot be written: {tmp_path / 'file'} is a file; choose another --output"
    )

    def refuse(**_: object) -> str:
        raise PermissionError(errno.EACCES, "Permission denied", str(tmp_path / ".new.abc"))

    monkeypatch.setattr("tempfile.mkdtemp", refuse)
    place = tmp_path / "new" / "model"
    with pytest.raises(UserError) as caught:
        check_place(place, "train.output")
    assert str(caught.value) == (
        f"{place} cannot be written: nothing can be made in {tmp_path} (Permission denied); choose "
        "another train.output"
    )


def test_a_folder_that_is_filled_is_looked_at_itself(tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.touch()
    check_place(place, "--output")  # a file that could be replaced
    with pytest.raises(UserError, match="place cannot be written: it is a file; choose another"):
        check_place(place, "--output", filled=True)


def test_an_error_that_names_no_file_gets_a_name() -> None:
    with pytest.raises(OSError) as caught, disk.naming("out.txt"):
        Path("/dev/full").write_text("a")
    assert caught.value.filename == "out.txt"


def write_tokenizer() -> None:
    Tokenizer(BPE()).save("/dev/full")


def write_weights() -> None:
    save_file({"weight": torch.zeros(9)}, "/no/such/folder/model.safetensors")


@pytest.mark.parametrize(
    ("write", "number"), [(write_tokenizer, errno.ENOSPC), (write_weights, errno.ENOENT)]
)
def test_an_error_of_the_system_stays_one_whatever_library_meets_it(
    write: Callable[[], None], number: int
) -> None:
    with pytest.raises(Exception, match=f"os error {number}") as before:
        write()
    assert not isinstance(before.value, OSError)

    with pytest.raises(OSError, match=os.strerror(number)) as caught, disk.system_errors("model"):
        write()
    assert (caught.value.errno, caught.value.filename) == (number, "model")

    with pytest.raises(ZeroDivisionError), disk.system_errors("model"):
        raise ZeroDivisionError
