"""Finding files in folders and archives, and reading them as streams."""

import gzip
import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from multibranch.data.files import Library, Source, check_archive, without_compression
from multibranch.errors import UserError


def tar(files: dict[str, bytes], mode: str = "w:gz") -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode=mode) as archive:  # type: ignore[call-overload]
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return made.getvalue()


def content(source: Source | None) -> bytes:
    assert source is not None
    with source.open() as stream:
        return stream.read()


def test_files_are_found_by_the_end_of_their_path(tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/b/train.de").write_bytes(b"deep")
    (tmp_path / "a/other-train.de").write_bytes(b"another")
    library = Library([tmp_path])
    assert content(library.find("train.de")) == b"deep"
    assert content(library.find("b/train.de")) == b"deep"
    assert content(library.find("nothing", "other-*.de")) == b"another"
    assert library.find("c/train.de") is None


def test_plain_files_come_before_archives_and_hidden_ones_not_at_all(tmp_path: Path) -> None:
    (tmp_path / "all.tgz").write_bytes(tar({"x/train.de": b"packed", "x/._valid.de": b"junk"}))
    assert content(Library([tmp_path]).find("train.de")) == b"packed"
    assert Library([tmp_path]).find("*valid.de") is None
    (tmp_path / "train.de").write_bytes(b"plain")
    assert content(Library([tmp_path]).find("train.de")) == b"plain"


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz"])
def test_archives_of_all_kinds_and_archives_in_them(tmp_path: Path, mode: str) -> None:
    suffix = {"w": "tar", "w:gz": "tgz", "w:bz2": "tar.bz2", "w:xz": "txz"}[mode]
    inner = tar({"de-en/train.de.gz": gzip.compress(b"text"), "de-en/train.en": b"other"}, mode)
    outer = tar({f"texts/de-en.{suffix}": inner, "README": b"read me"}, mode)
    (tmp_path / f"2014.{suffix}").write_bytes(outer)
    source = Library([tmp_path]).find("train.de")
    assert source is not None
    assert source.members == (f"texts/de-en.{suffix}", "de-en/train.de.gz")
    assert content(source) == b"text"
    assert str(source) == (f"{tmp_path}/2014.{suffix}: texts/de-en.{suffix}: de-en/train.de.gz")


def test_zip_archives(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "glue.zip", "w") as archive:
        archive.writestr("MRPC/train.tsv", b"x")
    assert content(Library([tmp_path / "glue.zip"]).find("MRPC/train.tsv")) == b"x"


def test_what_is_there_is_told_in_short(tmp_path: Path) -> None:
    for number in range(10):
        (tmp_path / f"f{number}").write_bytes(b"")
    assert Library([tmp_path]).names() == "f0, f1, f2, f3, f4, f5, f6, f7 and 2 more"
    (tmp_path / "empty").mkdir()
    assert Library([tmp_path / "empty"]).names() == "nothing"


def test_a_place_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nowhere does not exist; give a file, an archive"):
        Library([tmp_path / "nowhere"])


@pytest.mark.parametrize(
    ("name", "junk"), [("a.tgz", b"no archive"), ("a.zip", b"no zip"), ("a.tar", b"x" * 600)]
)
def test_what_is_no_archive_is_an_error(tmp_path: Path, name: str, junk: bytes) -> None:
    (tmp_path / name).write_bytes(junk)
    with pytest.raises(UserError, match=f"{name} is cut short or damaged"):
        Library([tmp_path]).find("train.de")


def zipped(files: dict[str, bytes]) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:  # stored as they are: only the checksum can tell
        for name, content in files.items():
            archive.writestr(name, content)
    return made.getvalue()


@pytest.mark.parametrize("name", ["a.tar", "a.tgz", "a.zip", "a.zip.gz"])
def test_a_zip_archive_is_read_wherever_it_lies(tmp_path: Path, name: str) -> None:
    inner = zipped({"de-en/train.de": b"text", "de-en/train.en": b"other"})
    made = {
        "a.tar": tar({"README": b"read me", "x/inner.zip": inner}, "w"),
        "a.tgz": tar({"x/inner.zip": inner, "README": b"read me"}),
        "a.zip": zipped({"x/inner.zip": inner}),
        "a.zip.gz": gzip.compress(inner),
    }
    path = tmp_path / name
    path.write_bytes(made[name])
    check_archive(path)
    library = Library([path])
    assert content(library.find("train.en")) == b"other"
    assert content(library.find("train.de")) == b"text"
    if name != "a.zip.gz":
        source = library.find("train.de")
        assert source is not None
        assert source.members == ("x/inner.zip", "de-en/train.de")


@pytest.mark.parametrize(("place", "mark"), [(0, b"\1\0"), (2, b"\x63\0")])
def test_a_zip_archive_that_cannot_be_unpacked_is_named(
    tmp_path: Path, place: int, mark: bytes
) -> None:
    """Its first mark says that there is a password, its second how it was compressed."""
    archive = bytearray(zipped({"train.de": b"text"}))
    for header in (archive.index(b"PK\3\4") + 6, archive.index(b"PK\1\2") + 8):
        archive[header + place : header + place + 2] = mark
    (tmp_path / "a.zip").write_bytes(archive)
    with pytest.raises(UserError, match=r"train.de in a.zip cannot be unpacked here \(.*another"):
        Library([tmp_path]).find("train.de")


@pytest.mark.parametrize(
    "archive",
    [
        zipped({"x": b"sentence"}),
        zipped({"inner.zip": zipped({"x": b"sentence"})}),
        zipped({"inner.tar": tar({"x": b"sentence"}, "w:")}),
    ],
)
def test_a_changed_byte_in_a_zip_archive_is_seen(tmp_path: Path, archive: bytes) -> None:
    path = tmp_path / "a.zip"
    path.write_bytes(archive)
    check_archive(path)
    path.write_bytes(archive.replace(b"sentence", b"sentense"))
    with pytest.raises(UserError, match=r"is cut short or damaged .*CRC"):
        check_archive(path)


@pytest.mark.parametrize("mode", ["w:gz", "w:bz2", "w:xz"])
def test_the_checksum_behind_a_tar_archive_is_compared(tmp_path: Path, mode: str) -> None:
    path = tmp_path / f"a.tar.{mode.removeprefix('w:')}"
    archive = tar({"x": b"sentence"}, mode)
    path.write_bytes(archive)
    check_archive(path)
    Library([path]).find("x")
    changed = bytearray(archive)
    changed[-8 if mode == "w:gz" else -5] ^= 1
    for damaged in (bytes(changed), archive[:-6]):
        path.write_bytes(damaged)
        with pytest.raises(UserError, match="is cut short or damaged"):
            check_archive(path)
        with pytest.raises(UserError, match="is cut short or damaged"):
            Library([path]).find("x")


def test_compression_is_no_part_of_a_name() -> None:
    assert without_compression("a/b.de.xz") == "a/b.de"
    assert without_compression("a/b.de") == "a/b.de"
