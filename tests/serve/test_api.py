"""The service over HTTP: answers are the Translator's, limits and keys hold, nothing is told."""

import http.client
import json
import re
import shutil
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from multibranch import directory
from multibranch.decoding import Translator
from multibranch.decoding.attention import inspect
from multibranch.directory import load_model, load_text, load_weights
from multibranch.errors import UserError
from multibranch.serve.batching import QueueFull
from multibranch.serve.engine import Engine, Examination
from multibranch.serve.guard import CONTENT_POLICY
from multibranch.serve.metrics import Counter
from multibranch.serve.service import TooLong

BRANCHES = "a list of 1 to 64 whole numbers from 1 to 64"
LINES = ["Der Mann läuft.", "Ein Hund sieht die Frau, und das Haus?", "rot", "über grün ."]


@pytest.fixture(scope="module")
def translator(folder) -> Translator:
    return Translator.load(folder, device="cpu")


# -- Translating ------------------------------------------------------------------------------


def test_one_text(served, translator):
    answer = served.translate(LINES[0])
    assert answer.status_code == 200
    [translation] = answer.json()["translations"]
    [expected] = translator.generate([LINES[0]])
    assert translation["text"] == expected[0].text
    assert translation["hypotheses"][0]["score"] == pytest.approx(expected[0].score, abs=1e-5)
    assert answer.json()["seconds"] >= 0


def test_many_texts_in_order_and_blank_ones_stay_blank(served, translator):
    lines = [*LINES, "", " \t ", *LINES[::-1]]
    found = served.translate(lines).json()["translations"]
    assert [one["text"] for one in found] == translator.translate(lines)


def test_n_best_and_beam(served, translator):
    found = served.translate(LINES, n_best=4, beam=6, length_penalty=0.3).json()["translations"]
    expected = translator.translate(LINES, n_best=4, beam=6, length_penalty=0.3)
    for one, hypotheses in zip(found, expected, strict=True):
        assert [h["text"] for h in one["hypotheses"]] == [h.text for h in hypotheses]


def test_a_model_searches_no_wider_than_the_service_allows(start, translator):
    one = start(limits={"beam": 2})
    assert translator.options().beam > 2
    with one.client() as client:
        told = client.get("/model").json()
        assert told["beam"] == told["limits"]["beam"] == 2
        seen = client.post("/inspect", json={"text": LINES[1], "beam": told["beam"]})
        assert seen.status_code == 200
    expected = translator.translate(LINES, beam=2)
    found = one.translate(LINES).json()["translations"]
    assert [each["text"] for each in found] == expected
    assert found == one.translate(LINES, beam=told["beam"]).json()["translations"]


@pytest.mark.parametrize("branches", [[1], [3], [1, 3], [3, 2], [1, 2, 3]])
def test_some_branches_only(served, folder, branches):
    chosen = Translator.load(folder, device="cpu", branches=[b - 1 for b in sorted(branches)])
    found = served.translate(LINES, branches=branches).json()["translations"]
    assert [one["text"] for one in found] == chosen.translate(LINES)


def test_branches_of_requests_that_come_together_do_not_mix(served, folder):
    choices = [None, [1], [2], [1, 2], None, [3]] * 4
    alone = {
        str(c): Translator.load(
            folder, device="cpu", branches=None if c is None else [b - 1 for b in c]
        ).translate(LINES)
        for c in choices
    }
    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda c: served.translate(LINES, branches=c).json(), choices))
    for choice, answer in zip(choices, answers, strict=True):
        assert [one["text"] for one in answer["translations"]] == alone[str(choice)]


def test_choices_of_branches_beyond_those_kept_ready(start):
    one = start(branch_choices=1)
    for branches in ([1], [2], [1], [3]):
        assert one.translate("rot", branches=branches).status_code == 200
    assert len(one.service.engine._ready) == 1


def test_texts_of_many_clients_are_translated_together(start):
    one = start(batch_milliseconds=200)
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(one.translate, LINES * 4))
    assert all(answer.status_code == 200 for answer in answers)
    batches = one.service.metrics.batch_sentences
    assert batches.sum() == 16
    assert batches.count() <= 4


# -- Attention --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["cross", "encoder", "decoder"])
def test_attention_is_that_of_inspect(served, folder, kind):
    with served.client() as client:
        found = client.post("/inspect", json={"text": LINES[1], "kind": kind, "beam": 3}).json()
    expected = inspect(load_model(folder), load_text(folder), LINES[1], beam=3, length_penalty=0.6)
    assert found["text"] == expected.target_text
    assert (found["rows"], found["columns"]) == (expected.rows(kind), expected.columns(kind))
    assert found["branches"] == [1, 2, 3]
    for layer, wanted in zip(found["layers"], expected.of_kind(kind), strict=True):
        assert layer["layer"] == wanted.layer
        flat = [value for branch in layer["branches"] for row in branch for value in row]
        assert flat == pytest.approx(wanted.branches.flatten().tolist(), abs=6e-5)
        for row in (row for branch in layer["branches"] for row in branch):
            assert sum(row) == pytest.approx(1, abs=5e-3)


def test_attention_of_some_branches_and_of_a_given_target(served):
    asked = {"text": LINES[0], "branches": [3, 1], "target": "der Hund"}
    with served.client() as client:
        found = client.post("/inspect", json=asked).json()
    assert (found["branches"], found["text"]) == ([1, 3], "der Hund")
    assert all(len(layer["branches"]) == 2 for layer in found["layers"])


# -- Documents --------------------------------------------------------------------------------


def test_a_look_at_attention_never_writes_what_the_model_never_does(folder, tmp_path, start):
    other = tmp_path / "other"
    shutil.copytree(folder, other)
    [[hypothesis]] = Translator.load(other, device="cpu").generate(["rot"])
    config = json.loads((other / "config.json").read_text())
    config["decoding"]["never"] = sorted(set(hypothesis.ids))
    (other / "config.json").write_text(json.dumps(config))
    one = start(engine=Engine.load(other, device="cpu"))
    [said] = one.translate("rot").json()["translations"]
    with one.client() as client:
        seen = client.post("/inspect", json={"text": "rot"}).json()
    assert seen["text"] == said["text"] != hypothesis.text


def test_a_look_at_attention_that_nobody_waits_for_is_broken_off(engine, monkeypatch):
    stop, broken_off = threading.Event(), []
    search = engine.translator.search

    def searching(*given, **settings):
        stop.set()
        try:
            return search(*given, **settings)
        except InterruptedError:
            broken_off.append("search")
            raise

    monkeypatch.setattr(engine.translator, "search", searching)
    with pytest.raises(InterruptedError):
        engine.run(Examination(engine.options()), ["Der Mann läuft."], stop)
    assert broken_off == ["search"]
    # Where there is nothing to search for, the attention is not recorded.
    with pytest.raises(InterruptedError):
        engine.run(Examination(engine.options(), target="rot"), ["Der Mann läuft."], stop)


def lines_of(answer: httpx.Response) -> list[dict]:
    return [json.loads(line) for line in answer.text.splitlines()]


def test_a_document_comes_back_sentence_by_sentence(served, translator):
    document = "Der Mann läuft. Ein Hund sieht die Frau!\n\nDas Haus? Rot, am 3. Mai.\n"
    with served.client() as client:
        answer = client.post("/translate/stream", json={"text": document, "n_best": 2})
    assert answer.headers["content-type"] == "application/x-ndjson"
    *found, end = lines_of(answer)
    sources = ["Der Mann läuft.", "Ein Hund sieht die Frau!", "Das Haus?", "Rot, am 3. Mai."]
    assert [one["source"] for one in found] == sources
    assert [one["paragraph"] for one in found] == [1, 1, 2, 2]
    assert [one["sentence"] for one in found] == [1, 2, 3, 4]
    assert [one["text"] for one in found] == translator.translate(sources)
    assert all(len(one["hypotheses"]) <= 2 for one in found)
    assert (end["done"], end["lines"], end["failed"]) == (True, 4, 0)


def test_a_document_is_sent_while_it_is_translated(served):
    document = "Der Mann sieht die Frau. " * 120
    before = served.service.metrics.sentences.value()
    with (
        served.client() as client,
        client.stream("POST", "/translate/stream", json={"text": document}) as answer,
    ):
        lines = answer.iter_lines()
        next(lines)
        # The rest cannot be done: no more than a few sentences are ahead of the reader.
        assert served.service.metrics.sentences.value() - before < 100
        rest = list(lines)
    assert json.loads(rest[-1])["lines"] == 120


def test_a_sentence_too_long_is_cut_and_a_word_too_long_is_told(start):
    one = start(limits={"tokens": 12, "characters": 400})
    document = "der Mann und die Frau, " * 12 + "das Haus.\n" + "x" * 3000 + "\nrot"
    with one.client() as client:
        *found, end = lines_of(client.post("/translate/stream", json={"text": document}))
    parts = [line for line in found if line["sentence"] == 1]
    assert " ".join(line["source"] for line in parts) == document.split("\n")[0]
    assert [line["part"] for line in parts] == list(range(1, len(parts) + 1))
    assert len(parts) > 1
    assert all(line["source"].endswith((",", ".")) and line["text"] for line in parts)
    word, rot = found[len(parts) :]
    assert "3,000 characters" in word["error"]
    assert "text" not in word
    assert (rot["sentence"], rot["source"]) == (3, "rot")
    assert rot["text"]
    assert "part" not in rot
    assert (end["done"], end["lines"], end["failed"]) == (True, len(found), 1)


def test_a_document_that_breaks_off_counts_the_lines_it_sent(start, monkeypatch):
    one = start()
    real = one.service.translate

    async def translate(texts, key):
        if texts == ["Das Haus."]:
            raise TooLong("this took too long")
        return await real(texts, key)

    monkeypatch.setattr(one.service, "translate", translate)
    with one.client() as client:
        document = "Der Mann. Die Frau. Das Haus. Der Hund."
        *found, end = lines_of(client.post("/translate/stream", json={"text": document}))
    assert [line["source"] for line in found] == ["Der Mann.", "Die Frau."]
    assert (end["done"], end["lines"], end["failed"]) == (False, 2, 0)
    assert end["error"] == "this took too long"


@pytest.mark.parametrize("full", [False, True])
def test_a_document_that_takes_too_long_is_counted_once(start, monkeypatch, full):
    one = start(limits={"seconds": 0.1}, batch_milliseconds=400)
    real = one.service.translate

    async def translate(texts, key):
        if texts == ["Der Mann."]:
            return [[]]
        if full:
            raise QueueFull(1)
        return await real(texts, key)

    monkeypatch.setattr(one.service, "translate", translate)
    with one.client() as client:
        document = "Der Mann. Die Frau. Das Haus. Der Hund."
        [_, end] = lines_of(client.post("/translate/stream", json={"text": document}))
    assert (end["done"], one.service.metrics.timed_out.value()) == (False, 1)


def test_no_document_is_no_sentence(served):
    with served.client() as client:
        [end] = lines_of(client.post("/translate/stream", json={"text": " \n\n "}))
    assert (end["done"], end["lines"]) == (True, 0)


def test_a_reader_who_goes_away_stops_the_document(start, until):
    one = start()
    document = "Der Mann sieht die Frau, und das Haus. " * 2000
    with (
        one.client() as client,
        client.stream("POST", "/translate/stream", json={"text": document}) as answer,
    ):
        next(answer.iter_lines())
    until(lambda: one.service.batcher.admitted == 0)
    assert one.service.metrics.sentences.value() < 1000


# -- Limits -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"text": ["rot"] * 5}, "5 texts are more than the 4"),
        ({"text": "rot " * 41}, "the text has 41 tokens; 40 are the most"),
        ({"text": ["rot", "rot " * 41]}, "text 2 has 41 tokens"),
        ({"text": "x" * 1001}, "has 1,001 characters; 1,000 are the most"),
        ({"text": "rot", "beam": 9}, "the beam may be 8 wide at most"),
        ({"text": "rot", "beam": 65}, "the beam may be 8 wide at most"),
        ({"text": "rot", "n_best": 4}, "a beam of 3 cannot give the 4 best"),
        ({"text": "rot", "branches": [4]}, "branches are numbered 1 to 3"),
        ({"text": "rot", "branches": [1, 1]}, "every branch may be named once"),
        ({"text": "rot", "branches": []}, f"^branches must be {BRANCHES}$"),
        ({"text": "rot", "branches": 1}, f"^branches must be {BRANCHES}$"),
        ({"text": "rot", "branches": [1, 0]}, "^entry 2 of branches must be a whole number from 1"),
        ({"text": "rot", "beam": 0}, "^beam must be a whole number from 1 to 8$"),
        ({"text": "rot", "beam": 2.5}, "^beam must be a whole number from 1 to 8$"),
        ({"text": "rot", "n_best": "2"}, "^n_best must be a whole number from 1 to 8$"),
        ({"text": "rot", "length_penalty": 11}, "^length_penalty must be a number from -10 to 10$"),
        ({"text": "rot", "length_penalty": "a"}, "^length_penalty must be a number from -10 to 10"),
        ({"text": "rot", "colour": 1}, "a field that is not known here; known are n_best, beam, "),
        ({"text": []}, "^text must be a list of 1 to 4 strings$"),
        ({"text": None}, "^text must be a string or a list of 1 to 4 strings$"),
        ({"text": ["rot", 7]}, "^entry 2 of text must be a string$"),
        ({}, "^text is missing: it must be a string or a list of 1 to 4 strings$"),
        ([], "^the body must be a JSON object$"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_sentence(small, body, words):
    with small.client() as client:
        answer = client.post("/translate", json=body)
    assert answer.status_code == 422
    assert re.search(words, answer.json()["error"]), answer.json()


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("/translate/stream", {"text": ["rot"]}, "text must be a string"),
        ("/translate/stream", {}, "text is missing: it must be a string"),
        ("/inspect", {"text": "rot", "kind": "self"}, "kind must be cross, encoder or decoder"),
        ("/inspect", {"text": "rot", "target": 1}, "target must be a string"),
        (
            "/inspect",
            {"text": "rot", "n_best": 1},
            "the body has a field that is not known here; known are text, target, beam, "
            "length_penalty, branches, kind",
        ),
    ],
    ids=str,
)
def test_a_wrong_field_is_named_with_what_would_be_right_there(small, path, body, said):
    with small.client() as client:
        answer = client.post(path, json=body)
    assert (answer.status_code, answer.json()) == (422, {"error": said})


def test_a_number_that_is_none_and_a_text_beyond_all_bounds_are_refused_too(start):
    one = start(limits={"body_bytes": 20_000_000})
    headers = {"Content-Type": "application/json"}
    with one.client() as client:
        for content, said in (
            (b'{"text": "rot", "length_penalty": NaN}', "length_penalty must be a number from -10"),
            (
                json.dumps({"text": "x" * 10_000_001}).encode(),
                "text must be a string of at most 10,000 characters",
            ),
        ):
            answer = client.post("/translate", content=content, headers=headers)
            assert answer.status_code == 422
            assert answer.json()["error"].startswith(said)


def test_inspecting_has_limits_of_its_own(small):
    with small.client() as client:
        answer = client.post("/inspect", json={"text": "rot " * 21})
        assert (answer.status_code, "20 are the most" in answer.text) == (422, True)
        answer = client.post("/inspect", json={"text": "rot", "target": "rot " * 41})
        assert (answer.status_code, "40 are the most" in answer.text) == (422, True)
        for blank in (" ", "\x01"):
            answer = client.post("/inspect", json={"text": blank})
            assert (answer.status_code, "blank" in answer.text) == (422, True)


def test_a_body_that_says_it_is_too_large_is_not_waited_for(small):
    with socket.create_connection(("127.0.0.1", small.port)) as wire:
        wire.sendall(
            b"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Content-Length: 99999999999\r\n\r\n"
        )
        answer = _all(wire)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"the body may have 20,000 bytes at most" in answer


def test_a_body_of_unknown_size_is_counted_while_it_comes(small):
    with socket.create_connection(("127.0.0.1", small.port)) as wire:
        wire.sendall(
            b"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        for _ in range(3):
            wire.sendall(b"2000\r\n" + b" " * 0x2000 + b"\r\n")
        answer = _all(wire)
    assert answer.startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize("size", ["said", "unsaid"])
def test_a_client_who_sends_far_too_much_can_read_why_it_is_refused(start, size):
    one = start(limits={"body_bytes": 20_000})
    parts = [b" " * 1_000_000] * 40
    for _ in range(3):
        wire = http.client.HTTPConnection("127.0.0.1", one.port, timeout=30)
        kind = {"Content-Type": "application/json"}
        if size == "said":
            wire.request("POST", "/translate", body=b"".join(parts), headers=kind)
        else:
            wire.request("POST", "/translate", body=iter(parts), headers=kind, encode_chunked=True)
        answer = wire.getresponse()
        assert (answer.status, answer.headers["Connection"]) == (413, "close")
        assert json.load(answer) == {"error": "the body may have 20,000 bytes at most"}
        wire.close()
    assert one.translate("rot").status_code == 200


def test_a_body_that_does_not_come_is_not_waited_for(small):
    with socket.create_connection(("127.0.0.1", small.port)) as wire:
        wire.sendall(
            b"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b'Content-Length: 50\r\n\r\n{"text":'
        )
        answer = _all(wire)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"did not arrive within 0.5 seconds" in answer


def test_a_client_who_goes_in_the_middle_of_its_body_is_counted_as_gone(start, until):
    one = start()
    with socket.create_connection(("127.0.0.1", one.port)) as wire:
        wire.sendall(
            b"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b'Content-Length: 50\r\n\r\n{"text":'
        )
    until(lambda: one.service.metrics.requests.value() == 1)
    assert one.service.metrics.requests.value(status="499") == 1


def _all(wire: socket.socket) -> bytes:
    wire.settimeout(10)
    parts = []
    while part := wire.recv(65536):
        parts.append(part)
    return b"".join(parts)


def test_a_full_queue_is_answered_503_with_retry_after(start):
    one = start(limits={"queue": 2, "sentences": 2}, batch_milliseconds=100)
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(one.translate, ["Der Mann läuft."] * 32))
    statuses = {answer.status_code for answer in answers}
    assert statuses == {200, 503}
    refused = [answer for answer in answers if answer.status_code == 503]
    assert all(1 <= int(answer.headers["retry-after"]) <= 60 for answer in refused)
    assert all("the queue is full" in answer.json()["error"] for answer in refused)
    assert one.service.metrics.refused.value() == len(refused)
    assert one.translate("rot").status_code == 200
    assert one.service.batcher.admitted == 0


def test_what_takes_too_long_is_answered_504_and_dropped(start, until):
    one = start(limits={"seconds": 0.1}, batch_milliseconds=400)
    answer = one.translate("Der Mann läuft.")
    assert answer.status_code == 504
    assert "longer than 0.1 seconds" in answer.json()["error"]
    assert one.service.metrics.timed_out.value() == 1
    until(lambda: one.service.metrics.cancelled.value() == 1)
    time.sleep(0.5)
    assert one.service.metrics.batch_sentences.count() == 0  # it was never translated
    assert one.service.batcher.admitted == 0


def test_a_client_who_has_gone_is_not_translated_for(start, until):
    one = start(batch_milliseconds=500)
    body = b'{"text": "Der Mann"}'
    wire = socket.create_connection(("127.0.0.1", one.port))
    wire.sendall(
        b"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
    )
    until(lambda: one.service.batcher.admitted == 1)
    wire.close()
    until(lambda: one.service.batcher.admitted == 0, seconds=0.4)
    time.sleep(0.6)
    assert one.service.metrics.batch_sentences.count() == 0
    assert one.service.metrics.requests.value(status="499") == 1
    assert one.translate("rot").status_code == 200


# -- Who may ask, and what is told ------------------------------------------------------------


def test_a_bearer_token_is_asked_for_where_there_is_one(start):
    one = start(token="s3cret-token")
    secret = {"Authorization": "Bearer s3cret-token"}
    with one.client() as client:
        for method, path in [
            ("POST", "/translate"),
            ("POST", "/translate/stream"),
            ("POST", "/inspect"),
            ("GET", "/model"),
            ("GET", "/metrics"),
            ("GET", "/elsewhere"),
        ]:
            for headers in (
                {},
                {"Authorization": "Bearer wrong"},
                {"Authorization": "Bearer s3cret-tokenX"},
                {"Authorization": "Basic s3cret-token"},
                {"Authorization": "s3cret-token"},
                {"Authorization": "Bearer"},
            ):
                answer = client.request(method, path, headers=headers, json={"text": "rot"})
                assert answer.status_code == 401, (path, headers)
                assert answer.headers["www-authenticate"] == "Bearer"
                assert "s3cret" not in answer.text
                assert answer.text.endswith('the header Authorization: Bearer …"}')
        for path in ("/", "/health", "/docs", "/openapi.json", "/page.js", "/style.css"):
            assert client.get(path).status_code == 200
        assert client.post("/translate", json={"text": "rot"}, headers=secret).status_code == 200
        lower = {"Authorization": "bearer s3cret-token"}  # the scheme knows no case
        assert client.get("/model", headers=lower).status_code == 200
        description = client.get("/openapi.json").json()
    assert description["components"]["securitySchemes"]["bearer"]["scheme"] == "bearer"
    assert description["paths"]["/translate"]["post"]["security"] == [{"bearer": []}]
    assert "s3cret" not in json.dumps(description)


def test_a_token_is_asked_for_before_a_body_is_read(start):
    one = start(token="t")
    with socket.create_connection(("127.0.0.1", one.port)) as wire:
        wire.sendall(b"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Length: 500\r\n\r\n")
        wire.settimeout(5)
        assert wire.recv(4096).startswith(b"HTTP/1.1 401 ")


def test_other_origins_may_not_read_answers_unless_named(served, start):
    asked = {"Origin": "https://example.org"}
    preflight = {**asked, "Access-Control-Request-Method": "POST"}
    with served.client() as client:
        for answer in (
            client.get("/health", headers=asked),
            client.options("/translate", headers=preflight),
        ):
            assert not [name for name in answer.headers if name.startswith("access-control")]
    named = start(origins=("https://example.org",), token="t")
    with named.client() as client:
        answer = client.options("/translate", headers=preflight)
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == "https://example.org"
        other = client.get("/health", headers={"Origin": "https://example.com"})
        assert "access-control-allow-origin" not in other.headers


def test_pages_of_a_named_origin_can_read_every_answer(start):
    origin = "https://example.org"
    limits = {"body_bytes": 100, "body_seconds": 0.2}
    one = start(origins=(origin,), token="t", limits=limits)
    asked = {"Origin": origin, "Authorization": "Bearer t"}

    def failing(key, items, stop):
        raise RuntimeError

    def late():
        time.sleep(0.5)
        yield b"{}"

    rot = {"text": "rot"}
    with one.client(headers=asked) as client:
        answers = [
            client.post("/translate", json=rot),
            client.post("/translate/stream", json=rot),
            client.head("/model"),
            client.post("/translate", json=rot, headers={"Authorization": ""}),
            client.post("/translate", content=late()),
            client.post("/translate", json={"text": "rot " * 50}),
            client.post("/translate", json={}),
        ]
        one.service.batcher._run = failing
        answers.append(client.post("/translate", json=rot))
        for method in ("GET", "HEAD", "POST"):
            wanted = {"Access-Control-Request-Method": method}
            wanted["Access-Control-Request-Headers"] = "authorization, content-type"
            answers.append(client.options("/model", headers=wanted))
    statuses = [answer.status_code for answer in answers]
    assert statuses == [200, 200, 200, 401, 408, 413, 422, 500, 200, 200, 200]
    for answer in answers:
        assert answer.headers["access-control-allow-origin"] == origin, answer.status_code
    assert all(answer.headers["x-content-type-options"] == "nosniff" for answer in answers[:8])


def test_pages_of_a_named_origin_can_read_when_to_come_back(start):
    one = start(origins=("https://a.example",))
    one.service.batcher.admit(one.service.limits.queue)  # it is full
    with one.client(headers={"Origin": "https://a.example"}) as client:
        answer = client.post("/translate", json={"text": "rot"})
    one.service.batcher.release(one.service.limits.queue)
    assert (answer.status_code, "retry-after" in answer.headers) == (503, True)
    assert answer.headers["access-control-expose-headers"] == "Retry-After"


def test_a_form_of_another_site_is_not_taken_for_json(served):
    with served.client() as client:
        answer = client.post(
            "/translate", content=b'{"text": "rot"}', headers={"Content-Type": "text/plain"}
        )
    assert answer.status_code == 415
    assert "Content-Type: application/json" in answer.json()["error"]


@pytest.mark.parametrize(
    ("content", "status", "said"),
    [
        (b"", 422, "the body is empty"),
        (b"{", 400, "the body is no JSON"),
        (b'{"text": "\xff"}', 400, "the body is no JSON"),
        (b"[1]", 422, "the body must be a JSON object"),
        (b"{}", 422, "text is missing: it must be a string or a list of 1 to 64 strings"),
        (b'{"text": []}', 422, "text must be a list of 1 to 64 strings"),
        (b'{"text": "rot", "beam": 65}', 422, "the beam may be 16 wide at most"),
        (b'{"text": "rot", "n_best": 65}', 422, "a beam of 3 cannot give the 65 best"),
    ],
    ids=str,
)
def test_a_wrong_body_is_answered_with_what_is_wrong(served, content, status, said):
    headers = {"Content-Type": "application/json"}
    with served.client() as client:
        answer = client.post("/translate", content=content, headers=headers)
    assert answer.status_code == status
    assert answer.json()["error"].startswith(said)


def test_a_wider_limit_allows_wider_beams(start):
    one = start(limits={"beam": 70})
    assert one.translate("rot", beam=70).status_code == 200
    with one.client() as client:
        assert '"beam":70,' in client.get("/model").text


def test_every_answer_has_its_protective_headers(served):
    with served.client() as client:
        for path in ("/", "/page.js", "/docs", "/model", "/absent", "/health"):
            headers = client.get(path).headers
            assert headers["content-security-policy"] == CONTENT_POLICY
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["referrer-policy"] == "no-referrer"
            assert "server" not in headers
    assert "unsafe" not in CONTENT_POLICY
    assert "default-src 'none'" in CONTENT_POLICY


def test_the_pages_name_no_other_host(served):
    with served.client() as client:
        for path in ("/", "/page.js", "/style.css", "/docs", "/icon.svg"):
            content = client.get(path).text
            hosts = set(re.findall(r"(?:https?:)?//[\w.-]+\.\w+", content))
            assert hosts <= {"http://www.w3.org"}, path  # the name of SVG, which nothing fetches


def test_the_reference_describes_every_endpoint(served):
    with served.client() as client:
        description = client.get("/openapi.json").json()
        page = client.get("/docs").text
    assert set(description["paths"]) == {
        "/translate",
        "/translate/stream",
        "/inspect",
        "/model",
        "/health",
        "/metrics",
    }
    for path, operations in description["paths"].items():
        assert f"<code>{path}</code>" in page
        for operation in operations.values():
            assert operation["description"]
            if "requestBody" in operation:
                statuses = {"200", "400", "401", "408", "413", "415", "422", "503", "504"}
                assert statuses <= set(operation["responses"])
                retry = operation["responses"]["503"]["headers"]
                assert "Retry-After" in retry
    assert "<script" not in page
    for name, schema in description["components"]["schemas"].items():
        if name.endswith("Body"):
            assert all("description" in field for field in schema["properties"].values()), name
    assert "<small>from 1 to 16</small>" in page and "at most 10,000,000" in page
    assert not re.search(r"(from|to) -?\d+\.0\b", page)


def test_health_model_and_metrics(served):
    served.translate(LINES)
    with served.client() as client:
        assert client.get("/health").json()["status"] == "ok"
        model = client.get("/model").json()
        text = client.get("/metrics").text
    assert (model["engine"], model["branches"], model["beam"]) == ("torch", 3, 3)
    assert (model["precision"], model["device"]) == ("float32", "cpu")
    assert (model["source_language"], model["target_language"]) == ("de", "en")
    assert model["limits"]["queue"] == 512
    values = dict(re.findall(r"^(multibranch_\S+) (\S+)$", text, re.MULTILINE))
    assert float(values['multibranch_requests_total{endpoint="/translate",status="200"}']) >= 1
    assert float(values["multibranch_sentences_total"]) >= 4
    assert float(values["multibranch_resident_memory_bytes"]) > 1e6
    assert float(values["multibranch_queue_sentences"]) == 0
    for line in text.splitlines():
        assert re.fullmatch(r"# (HELP|TYPE) \w+ .+|\w+(\{.*\})? [0-9.e+-]+", line), line
    buckets = [
        int(value)
        for name, value in re.findall(r"^(multibranch_batch_seconds_bucket\S+) (\d+)$", text, re.M)
    ]
    assert buckets == sorted(buckets)


def test_counters_are_told_to_the_last_one():
    counter = Counter("tokens_total", "Tokens.")
    counter.add(12_345_678)
    assert list(counter.lines())[-1] == "tokens_total 12345678"
    counter.add()
    assert list(counter.lines())[-1] == "tokens_total 12345679"


def test_nothing_of_a_request_is_logged_beyond_sizes_and_times(start, until, capfd):
    one = start(log=True, token="sesame")
    secret = "Geheimnis"
    with one.client(headers={"Authorization": "Bearer sesame"}) as client:
        client.post("/translate", json={"text": secret})
        client.post("/translate", json={"text": [secret, 5]})
        client.post(f"/{secret}?q={secret}", content=secret.encode() * 3)
        client.post("/translate", content=b"\xff\xfe" + secret.encode())
        client.post("/inspect", json={"text": secret})
        client.post("/translate/stream", json={"text": secret})
        client.get("/", headers={"User-Agent": secret, "X": secret})
    until(lambda: one.service.metrics.requests.value() == 7)
    time.sleep(0.05)  # a line is written when its request has been answered and counted
    captured = capfd.readouterr()
    said = captured.out + captured.err
    assert secret not in said
    assert "sesame" not in said
    lines = [line for line in said.splitlines() if " in=" in line]
    assert len(lines) == 7
    for line in lines:
        assert re.fullmatch(r"\S+ (/[\w/]*|other) \d+ in=\d+ out=\d+ ms=[\d.]+", line), line


def test_a_fault_of_ours_is_a_500_without_details_and_the_next_request_works(start, capfd):
    one = start()
    real = one.service.engine.run

    def failing(key, items, stop):
        raise RuntimeError(f"the items were {items}")

    one.service.batcher._run = failing
    answer = one.translate("Geheimnis")
    assert answer.status_code == 500
    assert answer.json() == {
        "error": "the service failed on this request; it is at fault, not the request"
    }
    one.service.batcher._run = real
    assert one.translate("rot").status_code == 200
    said = capfd.readouterr().err
    assert "RuntimeError at " in said
    assert "the items were" not in said


def test_head_is_get_without_the_body(start, capfd, until):
    one = start(token="secret", log=True)
    with one.client() as client:
        assert client.head("/metrics").status_code == 401
        client.headers["Authorization"] = "Bearer secret"
        sizes: dict[str, int] = {}
        for path in ("/", "/health", "/metrics", "/model", "/docs", "/openapi.json", "/page.js"):
            head = client.head(path)
            assert (head.status_code, head.content) == (200, b""), path
            got = client.get(path)
            sizes[path] = len(got.content)
            assert head.headers["content-type"] == got.headers["content-type"]
            if path not in ("/health", "/metrics"):  # what they tell changes
                assert head.headers["content-length"] == got.headers["content-length"]
        paths = client.get("/openapi.json").json()["paths"]
        assert all("head" not in methods for methods in paths.values())
        assert client.head("/translate").status_code == 405
    said: list[str] = []
    until(lambda: said.append(capfd.readouterr().err) or "/translate 405" in "".join(said))
    assert re.findall(r"/health 200 in=0 out=(\d+)", "".join(said)) == ["0", str(sizes["/health"])]


def test_unknown_addresses_and_methods(served):
    with served.client() as client:
        assert client.get("/nothing").json() == {
            "error": "there is nothing at this path; there are GET /health, GET /metrics, "
            "GET /model, POST /inspect, POST /translate, POST /translate/stream: see /docs"
        }
        wrong = client.get("/translate")
        assert wrong.status_code == 405
        assert wrong.json() == {"error": "/translate answers to POST only: see /docs"}
        wrong = client.post("/model")
        assert wrong.json() == {"error": "/model answers to GET, HEAD only: see /docs"}
        assert wrong.headers["allow"] == "GET, HEAD"
        for answer in (client.get("/model/"), client.post("/translate/", json={"text": "rot"})):
            assert answer.status_code == 404
            assert answer.json()["error"].startswith("there is nothing at this path; there are")
        assert client.get("/../../etc/passwd").status_code == 404
        assert client.get("/%2e%2e/%2e%2e/etc/passwd").status_code == 404


def test_the_weights_are_read_once(folder, translator, monkeypatch):
    read = []

    def reading(path):
        read.append(path)
        return load_weights(path)

    monkeypatch.setattr(directory, "load_weights", reading)
    engine = Engine.load(folder, device="cpu")
    assert read == [folder / "model.safetensors"]
    assert engine.translator.translate(LINES) == translator.translate(LINES)


# -- The other engine -------------------------------------------------------------------------


def test_an_exported_model_is_served_as_well(folder, tmp_path, start):
    pytest.importorskip("ctranslate2")
    from multibranch.export import export

    export(folder, tmp_path / "exported", format="ctranslate2")
    engine = Engine.load(tmp_path / "exported", engine="ctranslate2", device="cpu")
    one = start(engine=engine)
    lines = [*LINES, ""]
    found = one.translate(lines).json()["translations"]
    assert [f["text"] for f in found] == engine.translator.translate(lines)
    assert found[-1]["text"] == ""
    answer = one.translate("rot", branches=[1])
    assert (answer.status_code, "--engine torch" in answer.json()["error"]) == (422, True)
    with one.client() as client:
        answer = client.post("/inspect", json={"text": "rot"})
        assert (answer.status_code, "--engine torch" in answer.json()["error"]) == (501, True)
        model = client.get("/model").json()
    assert (model["engine"], model["branches"], model["can_inspect"]) == ("ctranslate2", 0, False)
    assert (model["precision"], model["device"]) == ("float32", "cpu")


def test_a_model_is_served_in_int8_with_all_its_branches_or_some(folder, start):
    engine = Engine.load(folder, device="cpu", precision="int8")
    one = start(engine=engine)
    found = one.translate(LINES[0], n_best=3, branches=[1]).json()["translations"][0]
    rounded = Translator.load(folder, device="cpu", branches=[0], precision="int8")
    wanted = rounded.generate([LINES[0]], n_best=3)[0]
    scores = [hypothesis["score"] for hypothesis in found["hypotheses"]]
    assert scores == pytest.approx([hypothesis.score for hypothesis in wanted], abs=1e-6)
    exact = Translator.load(folder, device="cpu", branches=[0]).generate([LINES[0]], n_best=3)[0]
    assert scores != pytest.approx([hypothesis.score for hypothesis in exact], abs=1e-6)
    assert one.translate(LINES).status_code == 200
    with one.client() as client:
        assert client.get("/model").json()["precision"] == "int8"


def test_an_exported_model_has_its_precision_already(folder, tmp_path):
    pytest.importorskip("ctranslate2")
    from multibranch.export import export

    export(folder, tmp_path / "exported", format="ctranslate2")
    with pytest.raises(UserError, match="chosen when it was exported"):
        Engine.load(tmp_path / "exported", engine="ctranslate2", device="cpu", precision="int8")
