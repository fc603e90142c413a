"""Whatever comes in: never a 500, never a crash, and the next request works."""

import json
import socket

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

ANSWERS = {200, 400, 413, 422}
QUICK = settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate],
)


@pytest.fixture(scope="module")
def client(served):
    with served.client() as one:
        yield one


def post(client: httpx.Client, path: str, body: object) -> httpx.Response:
    """Send JSON in ASCII, in which lone surrogates can be written."""
    content = json.dumps(body).encode("ascii")
    return client.post(path, content=content, headers={"Content-Type": "application/json"})


def still_works(client: httpx.Client) -> None:
    answer = client.post("/translate", json={"text": "Der Mann läuft."})
    assert answer.status_code == 200
    assert answer.json()["translations"][0]["hypotheses"]


# -- The description --------------------------------------------------------------------------


CHECKS = [
    # That schema-valid data is accepted cannot be asked: how many tokens a text has, or whether a
    # beam gives so many, no schema says.
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]


@pytest.mark.parametrize(
    ("method", "path", "mode"),
    [
        *(
            ("POST", path, mode)
            for path in ("/translate", "/translate/stream", "/inspect")
            for mode in GenerationMode
        ),
        *(("GET", path, GenerationMode.POSITIVE) for path in ("/model", "/health", "/metrics")),
    ],
)
def test_the_service_is_as_it_describes_itself(small, method, path, mode):
    operation = schemathesis.openapi.from_url(f"{small.address}/openapi.json")[path][method]

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(QUICK, max_examples=20 if method == "POST" else 2)
    def holds(case):
        case.call_and_validate(checks=CHECKS)

    holds()
    assert small.translate("rot").status_code == 200


# -- Texts ------------------------------------------------------------------------------------

ALPHABETS = st.one_of(
    st.characters(categories=["Cc", "Cf", "Zl", "Zp", "Zs"]),  # control, format, separators
    st.characters(categories=["Cs"]),  # lone surrogates
    st.characters(categories=["Co", "Cn"]),  # private, unassigned
    st.characters(min_codepoint=0x590, max_codepoint=0x8FF),  # Hebrew, Arabic
    st.characters(min_codepoint=0x1F300, max_codepoint=0x1FAFF),  # emoji
    st.sampled_from("\u200d\ufe0f\u202e\u2066\u0301\u0000\ufeff<>&\"'▁@"),
    st.sampled_from("der Mann und die Frau . , ?"),
    st.characters(),
)
TEXTS = st.one_of(
    st.text(ALPHABETS, max_size=80),
    st.lists(
        st.sampled_from(["<s>", "</s>", "<pad>", "<unk>", "<0x0A>", "&lt;", "@-@", "▁▁", "der"]),
        max_size=8,
    ).map(" ".join),
)


@given(text=TEXTS)
@QUICK
def test_any_text_is_translated_or_refused_with_a_sentence(client, text):
    answer = post(client, "/translate", {"text": text})
    assert answer.status_code in ANSWERS
    if answer.status_code == 200:
        assert isinstance(answer.json()["translations"][0]["text"], str)
    else:
        assert answer.json()["error"]
    lone = any(0xD800 <= ord(character) <= 0xDFFF for character in text)
    assert (answer.status_code == 422) == lone


@given(texts=st.lists(TEXTS, min_size=1, max_size=5))
@settings(QUICK, max_examples=15)
def test_any_document_is_answered_to_its_end(client, texts):
    answer = post(client, "/translate/stream", {"text": "\n".join(texts)})
    assert answer.status_code in ANSWERS
    if answer.status_code == 200:
        *lines, end = [json.loads(line) for line in answer.text.split("\n")[:-1]]
        assert end["done"] is True
        assert end["lines"] == len(lines)
        assert end["failed"] == 0


@given(text=TEXTS, target=st.none() | TEXTS)
@settings(QUICK, max_examples=15)
def test_any_text_can_be_inspected_or_is_refused(client, text, target):
    answer = post(client, "/inspect", {"text": text, "target": target})
    assert answer.status_code in ANSWERS


@pytest.mark.parametrize("path", ["/translate", "/translate/stream", "/inspect"])
@pytest.mark.parametrize(
    "text",
    [
        "a" * 100_000,
        "der " * 500,
        "." * 100_000,
        "👩‍👩‍👧‍👦" * 9_000,
        "‮" + "שלום " * 120,
        "e" + "\u0301" * 9_000,
        "<script>alert(1)</script>" * 300,
        "\x00\x01\x1b[31m\x7f\x85" * 80,
        "a.b." * 20_000,
        "' " * 120,
        "\ud83d",
        "\udc00\ud800",
        "\r\n" * 3_000,
        "\u2028" * 3_000,
        "1" * 9_999,
    ],
    ids=lambda text: ascii(text[:12]),
)
def test_large_and_odd_texts(client, path, text):
    answer = post(client, path, {"text": text})
    assert answer.status_code in ANSWERS
    if answer.status_code == 200 and path == "/translate/stream":
        assert json.loads(answer.text.split("\n")[-2])["done"] is True
    still_works(client)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"null",
        b'"rot"',
        b'{"text": "\xff\xfe"}',
        b'{"text": "\xed\xa0\x80"}',
        b'{"text": "rot", "length_penalty": NaN}',
        b'{"text": "rot", "length_penalty": 1e999}',
        b'{"text": "rot", "beam": ' + b"9" * 5_000 + b"}",
        b'{"text": "rot", "beam": 2.5}',
        b'{"text": "rot", "beam": true}',
        b'{"text": ' + b"[" * 50_000,
        b'{"text": ' + b"[" * 50_000 + b"]" * 50_000 + b"}",
        b"[" * 400_000,
        b'{"text": "rot", "text": 5}',
        b"\x00" * 1_000,
    ],
    ids=lambda content: ascii(content[:24]),
)
def test_bodies_that_are_none(client, content):
    for path in ("/translate", "/translate/stream", "/inspect"):
        answer = client.post(path, content=content, headers={"Content-Type": "application/json"})
        assert answer.status_code in {400, 422}
        assert answer.json()["error"]
    still_works(client)


@pytest.mark.parametrize(
    "wire",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
        b"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 100_000 + b"\r\n\r\n",
        b"POST /translate HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n",
        b"GET /\xff\xfe HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
    ids=lambda wire: ascii(wire[:30]),
)
def test_what_is_no_http(served, client, wire):
    with socket.create_connection(("127.0.0.1", served.port)) as connection:
        connection.settimeout(10)
        connection.sendall(wire)
        connection.shutdown(socket.SHUT_WR)
        try:
            answer = connection.recv(4096)
        except ConnectionResetError:
            answer = b""
    assert not answer.startswith(b"HTTP/1.1 5")
    still_works(client)
