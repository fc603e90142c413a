"""Clients that are many, slow or gone: others are answered, and nothing of them stays."""

import asyncio
import contextlib
import json
import socket
import struct
import threading
from concurrent.futures import ThreadPoolExecutor

from multibranch.serve import running, streaming


def request(path: str, **body: object) -> bytes:
    content = json.dumps(body).encode()
    return (
        f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(content)}\r\n\r\n"
    ).encode() + content


def connect(port: int, sent: bytes) -> socket.socket:
    wire = socket.create_connection(("127.0.0.1", port), timeout=30)
    wire.sendall(sent)
    return wire


def test_however_many_documents_there_are_others_find_room(start, until):
    one = start(limits={"queue": 8, "sentences": 4}, batch_milliseconds=50)

    def document(_: int) -> str:
        with one.client() as client:
            answer = client.post("/translate/stream", json={"text": "Der Mann. " * 60})
        return answer.text.splitlines()[-1]

    with ThreadPoolExecutor(3) as pool:
        ends = pool.map(document, range(3))
        for _ in range(5):
            until(lambda: one.service.batcher.admitted == 4)
            assert one.translate(["Der Mann läuft."] * 4).status_code == 200
        assert [json.loads(end)["lines"] for end in ends] == [60] * 3


def test_a_connection_on_which_no_whole_request_comes_is_closed(start):
    one = start(limits={"body_seconds": 0.5}, batch_milliseconds=1500)
    head = b"GET /health HTTP/1.1\r\nHost: x\r\n"
    unfinished = [b"", b"POST /transl", head, head + b"\r\nGET /health HT"]
    with contextlib.ExitStack() as stack:
        wires = [stack.enter_context(connect(one.port, sent)) for sent in unfinished]
        # One that waits for its answer has asked.
        asked = stack.enter_context(connect(one.port, request("/translate", text="rot")))
        answers = []
        for wire in wires:
            answers.append(b"")
            while part := wire.recv(65536):
                answers[-1] += part
        assert [answer[:12] for answer in answers] == [b"", b"", b"", b"HTTP/1.1 200"]
        assert asked.recv(65536).startswith(b"HTTP/1.1 200 ")


def test_connections_beyond_those_that_the_system_has_room_for_are_closed(start, monkeypatch):
    monkeypatch.setattr(running, "most_connections", lambda: 3)
    one = start()
    with contextlib.ExitStack() as stack:
        kept = [stack.enter_context(connect(one.port, b"")) for _ in range(3)]
        beyond = [stack.enter_context(connect(one.port, b"")) for _ in range(2)]
        assert [wire.recv(100) for wire in beyond] == [b"", b""]
        for wire in kept:
            wire.sendall(request("/translate", text="rot"))
            assert wire.recv(100).startswith(b"HTTP/1.1 200 ")
        kept.pop().close()
        assert one.translate("rot").status_code == 200


def test_a_reader_who_goes_away_in_a_document_is_counted_as_gone(start, until):
    one = start()
    document = "Der Mann sieht die Frau, und das Haus. " * 2000
    with connect(one.port, request("/translate/stream", text=document)) as wire:
        assert wire.recv(1000).startswith(b"HTTP/1.1 200 ")
    requests = one.service.metrics.requests
    until(lambda: requests.value() == 1)
    assert requests.value(endpoint="/translate/stream", status="499") == 1
    with one.client() as client:
        client.post("/translate/stream", json={"text": "Der Mann."})
    until(lambda: requests.value() == 2)
    assert requests.value(endpoint="/translate/stream", status="200") == 1


def test_a_document_of_one_endless_sentence_is_cut_beside_the_others_requests(start, monkeypatch):
    one, cutting, threads = start(), streaming.halves, []

    def halves(sentence: str) -> tuple[str, str] | None:
        threads.append(threading.current_thread().name)
        return cutting(sentence)

    monkeypatch.setattr(streaming, "halves", halves)
    with connect(one.port, request("/translate/stream", text="a, " * 300_000)) as wire:
        assert wire.recv(1000).startswith(b"HTTP/1.1 200 ")
    assert {name.partition("_")[0] for name in threads} == {"encoding"}


def test_nothing_more_is_written_to_a_reader_who_has_gone(start, until, monkeypatch, caplog):
    """asyncio warns of it, line by line."""
    one, calls = start(), []
    ready, gone = threading.Event(), threading.Event()

    async def translate(texts, key):
        calls.append(texts)
        if len(calls) == 1:  # what all lines wait for
            while len(calls) < streaming.AHEAD:
                await asyncio.sleep(0.01)
            ready.set()
            assert gone.wait(30)  # and the event loop meanwhile
        return [[]]

    monkeypatch.setattr(one.service, "translate", translate)
    with connect(one.port, request("/translate/stream", text="Der Mann. " * 1000)) as wire:
        assert ready.wait(30)
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # at once
    gone.set()
    until(lambda: one.service.metrics.requests.value(status="499") == 1)
    assert [record.message for record in caplog.records] == []
