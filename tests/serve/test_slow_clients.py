"""Clients that are many, slow or gone: others are answered, and nothing of them stays."""

import contextlib
import json
import socket


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
