"""The command `multibranch serve` as a process: signals, kills under load, wrong starts."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
import torch

from multibranch.cli import main
from multibranch.serve import running
from multibranch.serve.engine import Engine
from multibranch.serve.options import ServeOptions
from multibranch.serve.running import read_token

# What is logged of a request.
LOGGED = re.compile(r"\S+T\S+ /\S* \d{3} in=\d+ out=\d+ ms=[\d.]+\n")


class Process:
    """A service in a process of its own."""

    def __init__(self, *words: object) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "multibranch", "serve", *map(str, words)],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        self.said: list[str] = []
        try:
            self.port = self._started()
        except BaseException:
            self.process.kill()
            raise
        self.client = httpx.Client(
            base_url=f"http://127.0.0.1:{self.port}", timeout=30, trust_env=False
        )
        self._reading = threading.Thread(target=lambda: self.said.extend(self.process.stderr))
        self._reading.start()

    def _started(self) -> int:
        for line in self.process.stderr:
            self.said.append(line)
            found = re.search(r"http://127\.0\.0\.1:(\d+)", line)
            if found:
                return int(found[1])
        raise AssertionError(f"the service did not start: {self.said}")

    def post(self, path: str = "/translate", **body: object) -> httpx.Response:
        return self.client.post(path, json=body)

    def end(self, *, seconds: float = 20) -> int:
        status = self.process.wait(seconds)
        self._reading.join()
        return status


@pytest.fixture
def start(folder):
    begun: list[Process] = []

    def start(*words: object, folder: Path = folder) -> Process:
        begun.append(Process(folder, "--device", "cpu", *words))
        return begun[-1]

    yield start
    for one in begun:
        if one.process.poll() is None:
            one.process.kill()
        one.end()
        one.client.close()


def test_sigterm_finishes_what_is_in_flight_and_stops(start):
    one = start("--port", 0, "--batch-milliseconds", 1500)
    answers: list[httpx.Response] = []
    documents: list[httpx.Response] = []
    threads = [
        threading.Thread(target=lambda: answers.append(one.post(text="Der Mann läuft."))),
        threading.Thread(
            target=lambda: documents.append(
                one.post("/translate/stream", text="Der Mann. " * 20)  # two batches of 1.5 s
            )
        ),
    ]
    for thread in threads:
        thread.start()
    time.sleep(0.5)
    one.process.send_signal(signal.SIGTERM)
    time.sleep(0.4)
    with pytest.raises(httpx.ConnectError):
        one.post(text="rot")
    for thread in threads:
        thread.join()
    assert one.end() == 0
    assert answers[0].status_code == 200
    assert answers[0].json()["translations"][0]["text"]
    end = json.loads(documents[0].text.splitlines()[-1])
    assert (end["done"], end["lines"]) == (True, 20)


def test_what_is_still_in_flight_when_the_grace_is_over_is_told_in_a_sentence(start):
    one = start("--port", 0, "--batch-milliseconds", 60_000, "--grace-seconds", 1)
    answers: list[httpx.Response] = []
    waiting = threading.Thread(target=lambda: answers.append(one.post(text="Der Mann läuft.")))
    waiting.start()
    with socket.create_connection(("127.0.0.1", one.port), timeout=20) as refused:
        refused.sendall(
            b"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Content-Length: 50000000\r\n\r\n{"  # too much, and it does not come to its end
        )
        time.sleep(0.5)
        one.process.send_signal(signal.SIGTERM)
        waiting.join()
        assert one.end() == 0
        assert refused.recv(65536).startswith(b"HTTP/1.1 413 ")
    [answer] = answers
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    assert answer.json() == {"error": "the service is stopping"}
    assert "/translate 503 " in "".join(one.said)
    assert [line for line in one.said if not LOGGED.match(line)] == one.said[:1]


def test_nothing_but_requests_is_logged_of_clients_that_go_or_speak_no_http(start):
    one = start("--port", 0)
    document = json.dumps({"text": "Der Mann. " * 2000}).encode()
    head = b"POST /translate/stream HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    head += b"Content-Length: %d\r\n\r\n" % len(document)
    for wire in (head + document, b"?\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", one.port), timeout=20) as client:
            client.sendall(wire)
            assert client.recv(1000).startswith(b"HTTP/1.1 ")
    assert one.post(text="rot").status_code == 200
    one.process.send_signal(signal.SIGTERM)
    assert one.end() == 0
    assert [line for line in one.said if not LOGGED.match(line)] == one.said[:1]


def test_ctrl_c_once_more_waits_no_longer(start):
    one = start("--port", 0, "--batch-milliseconds", 60_000)
    answers: list[httpx.Response] = []
    waiting = threading.Thread(target=lambda: answers.append(one.post(text="Der Mann läuft.")))
    waiting.start()
    time.sleep(0.5)
    for _ in range(2):
        one.process.send_signal(signal.SIGINT)
        time.sleep(0.3)
    assert one.end() == 130
    waiting.join()
    assert answers[0].status_code == 503
    said = "".join(one.said)
    assert "Traceback" not in said
    assert said.endswith("multibranch serve: interrupted\n")


def test_killed_under_load_it_starts_again_at_once_and_ctrl_c_ends_it(start, folder, tmp_path):
    (tmp_path / "token").write_text("from-file\n")
    (tmp_path / "token").chmod(0o600)
    before = sorted(path.name for path in folder.iterdir())
    one = start("--port", 0)
    stop, answered, statuses = threading.Event(), threading.Event(), set()

    def load() -> None:
        while not stop.is_set():
            try:
                statuses.add(one.post(text="Der Mann sieht die Frau. " * 4).status_code)
                answered.set()
            except httpx.HTTPError:
                statuses.add(0)
                time.sleep(0.2)

    threads = [threading.Thread(target=load) for _ in range(8)]
    for thread in threads:
        thread.start()
    assert answered.wait(60)
    one.process.kill()
    assert one.end() == -signal.SIGKILL
    # The same port, with clients still knocking.
    again = start("--port", one.port, "--quiet", "--token-file", tmp_path / "token")
    for token, status in (("from-file", 200), ("other", 401)):
        headers = {"Authorization": f"Bearer {token}"}
        answer = again.client.post("/translate", json={"text": "rot"}, headers=headers)
        assert answer.status_code == status
    stop.set()
    for thread in threads:
        thread.join()
    assert statuses <= {200, 0, 401}
    assert {200, 0} <= statuses
    assert sorted(path.name for path in folder.iterdir()) == before

    again.process.send_signal(signal.SIGINT)
    assert again.end() == 130
    # Where it is, and that it was interrupted: nothing of the requests.
    assert again.said == [
        f"multibranch serve: http://127.0.0.1:{one.port} with torch, float32 on cpu "
        "(Ctrl-C ends it)\n",
        "multibranch serve: interrupted\n",
    ]


def test_it_says_the_precision_of_an_exported_model_and_of_int8(start, folder, tmp_path):
    ctranslate2 = pytest.importorskip("ctranslate2")
    from multibranch.export import export

    export(folder, tmp_path / "exported", format="ctranslate2", quantization="int8")
    assert "int8_float32" in ctranslate2.get_supported_compute_types("cpu")
    exported = start("--engine", "ctranslate2", "--port", 0, folder=tmp_path / "exported")
    assert " with ctranslate2, int8_float32 on cpu (" in exported.said[0]
    assert exported.client.get("/model").json()["precision"] == "int8_float32"
    assert " with torch, int8 on cpu (" in start("--precision", "int8", "--port", 0).said[0]


def test_sigterm_just_before_it_listens_ends_it(folder, monkeypatch, capsys):
    class Server(running._Server):
        def run(self, sockets=None):
            os.kill(os.getpid(), signal.SIGTERM)
            super().run(sockets)

    monkeypatch.setattr(running, "_Server", Server)
    monkeypatch.setattr(sys, "setswitchinterval", lambda seconds: None)
    before = signal.getsignal(signal.SIGTERM)
    at_last = threading.Timer(20, os.kill, (os.getpid(), signal.SIGINT))
    at_last.start()
    try:
        assert main(["serve", str(folder), "--device", "cpu", "--port", "0"]) == 143
    finally:
        at_last.cancel()
        signal.signal(signal.SIGTERM, before)
    assert capsys.readouterr().err == "multibranch serve: interrupted\n"


@pytest.mark.parametrize("words", [[], ["--quiet"]])
def test_int8_without_its_kernels_says_so_but_not_quietly(folder, monkeypatch, capsys, words):
    class Server(running._Server):
        def run(self, sockets=None):
            self._tell("http://here")

    monkeypatch.setattr(running, "_Server", Server)
    monkeypatch.setattr("multibranch.nn.int8_kernels.lacking", lambda: "int8 is slower: a reason")
    monkeypatch.setattr(sys, "setswitchinterval", lambda seconds: None)
    words = [str(folder), "--device", "cpu", "--port", "0", *words]
    before = signal.getsignal(signal.SIGTERM)
    try:
        told = []
        for precision in ("int8", "float32"):
            assert main(["serve", *words, "--precision", precision]) == 0
            told.append(capsys.readouterr().err.splitlines()[1:])
    finally:
        signal.signal(signal.SIGTERM, before)
    reason = ["multibranch serve: int8 is slower: a reason"]
    assert told == [[] if "--quiet" in words else reason, []]


def test_the_token_comes_from_a_file_else_from_the_environment(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("MULTIBRANCH_TOKEN", raising=False)
    assert read_token(None) is None
    monkeypatch.setenv("MULTIBRANCH_TOKEN", "from-environment")
    assert read_token(None) == "from-environment"
    monkeypatch.setenv("MULTIBRANCH_TOKEN", "from-environment\n")
    assert read_token(None) == "from-environment"
    (tmp_path / "token").write_text("from-file\n")
    (tmp_path / "token").chmod(0o600)
    assert read_token(str(tmp_path / "token")) == "from-file"
    assert capsys.readouterr().err == ""
    (tmp_path / "token").chmod(0o644)
    read_token(str(tmp_path / "token"))
    assert "anyone on this machine can read" in capsys.readouterr().err


# -- Wrong starts -----------------------------------------------------------------------------


def refused(capsys, *words: object) -> str:
    """The one line of a start that is refused."""
    assert main(["serve", *map(str, words)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return captured.err


def test_what_cannot_be_served_is_said_in_one_line(capsys, folder, tmp_path):
    assert "there is no such folder" in refused(capsys, tmp_path / "absent", "--port", 0)
    assert "has no config.json" in refused(capsys, tmp_path, "--port", 0)
    said = refused(capsys, folder, "--engine", "ctranslate2", "--port", 0)
    assert "is no exported model" in said
    assert "must be a number above 0" in refused(capsys, folder, "--max-tokens", 0, "--port", 0)
    assert "--port must be 0 to 65535" in refused(capsys, folder, "--port", 99999)
    said = refused(capsys, folder, "--max-queue", 3, "--port", 0)
    assert "has no room for one request of 64" in said
    for origin in ("example.org", "https://example.org/", "https://example.org/page", "https://"):
        assert "https://host" in refused(capsys, folder, "--cors", origin, "--port", 0)
    assert "cannot be read" in refused(capsys, folder, "--token-file", tmp_path / "t")
    (tmp_path / "t").write_text(" \n")
    assert "is empty" in refused(capsys, folder, "--token-file", tmp_path / "t")
    assert "no address" in refused(capsys, folder, "--host", "host.invalid")


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--max-beam", 0, "--max-beam must be a number above 0, not 0"),
        ("--max-body-seconds", "inf", "--max-body-seconds must be a number above 0, not inf"),
        ("--grace-seconds", "nan", "--grace-seconds must be a number of at least 0, not nan"),
        ("--grace-seconds", "inf", "--grace-seconds must be a number of at least 0, not inf"),
        ("--batch-milliseconds", "nan", "--batch-milliseconds must be a number of at least 0"),
        ("--batch-tokens", 0, "--batch-tokens must be a number of at least 1, not 0"),
        ("--host", "192.0.2.1", "Cannot assign requested address; choose another --host"),
    ],
)
def test_numbers_and_addresses_that_cannot_be_are_one_line(capsys, folder, option, value, said):
    assert said in refused(capsys, folder, "--port", 0, option, value)


@pytest.mark.parametrize("token", ["two\nlines", "schlüssel"], ids=ascii)
def test_a_token_that_no_client_could_send_is_refused(capsys, folder, monkeypatch, token):
    monkeypatch.setenv("MULTIBRANCH_TOKEN", token)
    said = refused(capsys, folder, "--port", 0)
    assert "must be one line of ASCII characters, and not empty" in said


@pytest.mark.parametrize("token", ["", " \n"], ids=ascii)
def test_an_empty_token_does_not_serve_everyone(capsys, folder, monkeypatch, token):
    monkeypatch.setenv("MULTIBRANCH_TOKEN", token)
    # Were it served, that would be refused too, but with another line.
    said = refused(capsys, folder, "--port", 99999)
    assert "MULTIBRANCH_TOKEN in the environment is empty: put the token there" in said


@pytest.mark.parametrize(
    ("device", "words", "tokens"),
    [
        ("cpu", [], 1024),
        ("cuda", [], 8192),
        ("cpu", ["--batch-tokens", "300"], 300),
        ("cuda", ["--batch-tokens", "300"], 300),
    ],
)
def test_a_batch_is_larger_on_a_gpu_unless_it_is_given(
    monkeypatch, folder, engine, device, words, tokens
):
    given: list[ServeOptions] = []
    monkeypatch.setattr(running, "serve", lambda *_, options, **__: given.append(options))
    assert main(["serve", str(folder), *words]) == 0
    there = SimpleNamespace(device=torch.device(device), precision="float32", text=engine.text)
    made = Engine("torch", there, batch_tokens=given[0].batch_tokens)
    assert made.batch_cost == tokens * (torch.get_num_threads() if device == "cpu" else 1)


def test_a_port_that_is_taken(capsys, folder):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        said = refused(capsys, folder, "--port", taken.getsockname()[1])
    assert "Address already in use; choose another --port" in said


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("model.safetensors", b"\x80\x04cos\nsystem\n(S'touch EXECUTED'\ntR.", "no safetensors"),
        ("model.safetensors", None, "model.safetensors is damaged"),
        ("config.json", b"\x80\x04cos\nsystem\n(S'touch EXECUTED'\ntR.", "is no JSON file"),
        ("tokenizer.json", b'{"version": "1.0"}', "tokenizer.json is damaged"),
        ("text.json", b'{"format": 1, "shared": true, "kind": "../../etc"}', "text.json"),
        ("model.safetensors", "link", "is a link that leads out of the model directory"),
        ("tokenizer.json", "climb", "is a link that leads out of the model directory"),
    ],
)
def test_a_hostile_model_directory_is_refused(
    capsys, folder, tmp_path, monkeypatch, name, content, words
):
    monkeypatch.chdir(tmp_path)
    place = tmp_path / "model"
    shutil.copytree(folder, place)
    file = place / name
    if content is None:
        file.write_bytes(file.read_bytes()[:-100])
    elif content == "link":
        file.rename(tmp_path / "elsewhere")
        file.symlink_to(tmp_path / "elsewhere")
    elif content == "climb":
        file.rename(tmp_path / name)
        file.symlink_to(Path("..") / name)
    else:
        file.write_bytes(content)
    assert words in refused(capsys, place, "--port", 0)
    assert not (tmp_path / "EXECUTED").exists()


def test_a_hostile_exported_folder_is_refused(capsys, folder, tmp_path):
    pytest.importorskip("ctranslate2")
    from multibranch.export import export

    place = tmp_path / "exported"
    export(folder, place, format="ctranslate2")
    engine = ("--engine", "ctranslate2", "--port", 0)
    whole = (place / "model.bin").read_bytes()
    (place / "model.bin").write_bytes(whole[:-200])
    assert "CTranslate2 cannot load" in refused(capsys, place, *engine)
    (place / "model.bin").unlink()
    (tmp_path / "model.bin").write_bytes(whole)
    (place / "model.bin").symlink_to(tmp_path / "model.bin")
    assert "is a link that leads out" in refused(capsys, place, *engine)
