"""Fetching from a real server on this machine: resumed, checked, and kept."""

import hashlib
import io
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from multibranch.cli import main
from multibranch.data import recipes
from multibranch.data.fetch import Download, cache_folder, fetch
from multibranch.data.recipe import Part, Recipe, Vocabulary
from multibranch.errors import UserError
from multibranch.text import TextSettings

HOME = "https://home.example"


class Server(ThreadingHTTPServer):
    """Serves ``files``; closes the connection after ``cut_after`` bytes of an answer, and has
    nothing past the first ``end`` bytes of a file."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.cut_after: int | None = None
        self.end: int | None = None
        self.ranges = True
        self.asked: list[tuple[str, str | None]] = []

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.server_port}/{name}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        self.server.asked.append((self.path, wanted))
        content = self.server.files.get(self.path.removeprefix("/"))
        if content is None:
            self.send_error(404)
            return
        start = 0
        if wanted and self.server.ranges:
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
            if start >= len(content):
                self.send_error(416)
                return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        body = content[start : self.server.end]
        self.close_connection = self.server.end is not None
        if self.server.cut_after is not None and len(body) > self.server.cut_after:
            body = body[: self.server.cut_after]
            self.close_connection = True
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    thread = threading.Thread(target=made.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield made
    made.shutdown()
    made.server_close()
    thread.join()


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


CONTENT = bytes(range(256)) * 4000


def test_a_file_is_fetched_with_progress_and_only_once(server: Server, tmp_path: Path) -> None:
    server.files["a.bin"] = CONTENT
    told: list[tuple[str, int, int | None]] = []
    download = Download(server.url("a.bin"), sha256(CONTENT))
    for _ in range(2):
        (path,) = fetch([download], tmp_path, home=HOME, progress=lambda *facts: told.append(facts))
    assert path == tmp_path / "a.bin"
    assert path.read_bytes() == CONTENT
    assert len(server.asked) == 1
    assert told[-1] == ("a.bin", len(CONTENT), len(CONTENT))
    assert [have for _, have, _ in told] == sorted(have for _, have, _ in told)


def test_a_connection_that_breaks_off_is_taken_up_where_it_ended(
    server: Server, tmp_path: Path
) -> None:
    server.files["a.bin"] = CONTENT
    server.cut_after = 300_000
    (path,) = fetch([Download(server.url("a.bin"), sha256(CONTENT))], tmp_path, home=HOME)
    assert path.read_bytes() == CONTENT
    assert [wanted for _, wanted in server.asked] == [
        None,
        "bytes=300000-",
        "bytes=600000-",
        "bytes=900000-",
    ]


def test_what_an_earlier_run_fetched_is_kept(server: Server, tmp_path: Path) -> None:
    server.files["a.bin"] = CONTENT
    server.end = 500_000
    with pytest.raises(UserError, match="run again to go on where it ended"):
        fetch([Download(server.url("a.bin"))], tmp_path, home=HOME)
    assert not (tmp_path / "a.bin").exists()
    have = (tmp_path / "a.bin.part").stat().st_size
    assert have == 500_000
    server.end = None
    fetch([Download(server.url("a.bin"))], tmp_path, home=HOME)
    assert server.asked[-1][1] == f"bytes={have}-"
    assert (tmp_path / "a.bin").read_bytes() == CONTENT


def test_a_server_that_cannot_resume_sends_it_all_again(server: Server, tmp_path: Path) -> None:
    server.files["a.bin"] = CONTENT
    server.ranges = False
    (tmp_path / "a.bin.part").write_bytes(b"something older")
    (path,) = fetch([Download(server.url("a.bin"), sha256(CONTENT))], tmp_path, home=HOME)
    assert path.read_bytes() == CONTENT


def test_a_part_that_is_whole_already_is_taken(server: Server, tmp_path: Path) -> None:
    server.files["a.bin"] = CONTENT
    (tmp_path / "a.bin.part").write_bytes(CONTENT)
    (path,) = fetch([Download(server.url("a.bin"), sha256(CONTENT))], tmp_path, home=HOME)
    assert path.read_bytes() == CONTENT


def test_a_wrong_checksum_is_an_error_and_the_file_goes(server: Server, tmp_path: Path) -> None:
    server.files["a.bin"] = CONTENT
    with pytest.raises(UserError, match=f"has the checksum {sha256(CONTENT)}, not 00.*run again"):
        fetch([Download(server.url("a.bin"), "0" * 64)], tmp_path, home=HOME)
    assert list(tmp_path.iterdir()) == []


def packed(content: bytes) -> bytes:
    """An archive that holds one file."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as archive:
        info = tarfile.TarInfo("x")
        info.size = len(content)
        archive.addfile(info, io.BytesIO(content))
    return made.getvalue()


def test_an_archive_cut_short_on_the_server_is_an_error(server: Server, tmp_path: Path) -> None:
    server.files["a.tgz"] = packed(CONTENT)[:-500]
    with pytest.raises(UserError, match=r"a.tgz is cut short or damaged .* again"):
        fetch([Download(server.url("a.tgz"))], tmp_path, home=HOME)
    assert not (tmp_path / "a.tgz").exists()


def test_a_file_that_was_not_checked_when_it_was_fetched_is_checked_later(
    server: Server, tmp_path: Path
) -> None:
    whole = packed(CONTENT)
    server.files["a.tgz"] = whole
    # A run that is killed before it has checked the file leaves it without its checksum.
    (tmp_path / "a.tgz").write_bytes(whole[:-500])
    (path,) = fetch([Download(server.url("a.tgz"))], tmp_path, home=HOME)
    assert path.read_bytes() == whole
    (tmp_path / "a.tgz.sha256").unlink()
    fetch([Download(server.url("a.tgz"))], tmp_path, home=HOME)
    assert (tmp_path / "a.tgz.sha256").read_text() == f"{sha256(whole)}  a.tgz\n"
    assert len(server.asked) == 1


def test_a_file_that_was_changed_since_is_fetched_again(server: Server, tmp_path: Path) -> None:
    server.files["a.bin"] = CONTENT
    fetch([Download(server.url("a.bin"))], tmp_path, home=HOME)
    assert (tmp_path / "a.bin.sha256").read_text() == f"{sha256(CONTENT)}  a.bin\n"
    (tmp_path / "a.bin").write_bytes(b"damaged")
    fetch([Download(server.url("a.bin"))], tmp_path, home=HOME)
    assert (tmp_path / "a.bin").read_bytes() == CONTENT


def test_a_checksum_whose_writing_was_cut_off_is_none(server: Server, tmp_path: Path) -> None:
    server.files["a.bin"] = CONTENT
    fetch([Download(server.url("a.bin"))], tmp_path, home=HOME)
    (tmp_path / "a.bin.sha256").write_text("")
    (path,) = fetch([Download(server.url("a.bin"))], tmp_path, home=HOME)
    assert path.read_bytes() == CONTENT


def test_what_is_not_there_says_where_to_get_it_by_hand(server: Server, tmp_path: Path) -> None:
    message = f"cannot be fetched .the server says 404.*by hand .see {HOME}.*--from"
    with pytest.raises(UserError, match=message):
        fetch([Download(server.url("gone.tgz"))], tmp_path, home=HOME)
    port = server.server_port
    server.shutdown()
    server.server_close()
    with pytest.raises(UserError, match=r"cannot be fetched .*refused"):
        fetch([Download(f"http://127.0.0.1:{port}/x")], tmp_path, home=HOME)


def test_files_of_the_same_name_are_kept_apart(server: Server, tmp_path: Path) -> None:
    server.files = {"2013/a.bin": b"old", "2014/a.bin": b"new"}
    downloads = [Download(server.url("2013/a.bin")), Download(server.url("2014/a.bin"))]
    assert [path.read_bytes() for path in fetch(downloads, tmp_path, home=HOME)] == [b"old", b"new"]


def test_the_cache_is_the_users(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder("glue") == tmp_path / "multibranch" / "glue"


def test_a_recipe_without_from_fetches_and_prepares(
    server: Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as archive:
        for name in ("train.de", "train.en", "valid.de", "valid.en"):
            content = b"Ein Satz.\n" * 20
            info = tarfile.TarInfo(f"corpus/{name}")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    server.files["corpus.tgz"] = made.getvalue()
    recipe = Recipe(
        name="little",
        title="a corpus on this machine",
        pairs="20 / 20",
        licence="none",
        home=HOME,
        downloads=(Download(server.url("corpus.tgz")),),
        text=TextSettings(kind="moses-bpe", source="de", target="en"),
        vocabulary=Vocabulary(merges=5),
        train=(Part(("train.{language}",)),),
        valid=(Part(("valid.{language}",)),),
    )
    monkeypatch.setitem(recipes.RECIPES, "little", recipe)
    words = ["prepare", "little", "--output", str(tmp_path / "out"), "--cache", str(tmp_path / "c")]
    assert main(words) == 0
    assert "fetching corpus.tgz" in capsys.readouterr().err
    assert (tmp_path / "c/corpus.tgz").is_file()
    assert main(words) == 0
    (tmp_path / "c/corpus.tgz").unlink()
    assert main(words) == 0
    assert "was prepared already" in capsys.readouterr().out
    assert len(server.asked) == 1
