"""What stands before every request: who may ask, how much, what is told of it, and what is hidden.

One plain ASGI middleware, so that it sees bytes as they come: the bearer token is checked before a
body is read, and a body is counted while it is read, whatever its Content-Length claims.
"""

import asyncio
import contextlib
import hmac
import json
import sys
import time
import traceback
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from multibranch.errors import counted
from multibranch.serve.metrics import Metrics
from multibranch.serve.options import ServeOptions

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

STOPPING = "the service is stopping"
PUBLIC = {"/", "/health", "/docs", "/openapi.json", "/style.css", "/page.js", "/icon.svg"}
PROTECTED = {"/translate", "/translate/stream", "/inspect", "/model", "/metrics"}
CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = (
    (b"content-security-policy", CONTENT_POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)


class _Refused(Exception):
    """A request is answered before it reaches the service.

    unread: the client may still be sending its body; the connection ends with the answer.
    """

    def __init__(
        self, status: int, error: str, *headers: tuple[bytes, bytes], unread: bool = False
    ) -> None:
        super().__init__(error)
        self.status, self.error, self.unread = status, error, unread
        self.headers = (*headers, (b"connection", b"close")) if unread else headers


class Guard:
    """Wraps the service."""

    def __init__(self, app: App, *, options: ServeOptions, metrics: Metrics) -> None:
        self._app, self._options, self._metrics = app, options, metrics
        token = options.token
        self._token = None if token is None else f"Bearer {token}".encode("ascii")

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = _Record(scope)
        unread = False

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                message["headers"] = _with_headers(message.get("headers", ()))
            else:
                record.ended = not message.get("more_body", False)
                if scope["method"] != "HEAD":
                    record.sent += len(message.get("body", b""))
            await send(message)

        try:
            self._check_token(scope)
            body = await self._read(scope, receive, record)
            await self._app(scope, _replayed(body, receive), answer)
            if not record.ended:
                record.status = 499  # the client has gone while it was being answered
        except _Refused as refused:
            unread = refused.unread
            await _refuse(answer, refused)
        except asyncio.CancelledError:
            # The server ends, and the time for what is in flight is up; what was begun breaks off.
            if not record.status:
                await _refuse(answer, _Refused(503, STOPPING, (b"retry-after", b"5")))
        except Exception as error:
            # Neither to the client nor into the log: a message may quote the request.
            print(f"multibranch serve: failed with {_place(error)}", file=sys.stderr, flush=True)
            if record.status:
                raise RuntimeError("the answer broke off") from None
            sorry = "the service failed on this request; it is at fault, not the request"
            await _refuse(answer, _Refused(500, sorry))
        finally:
            self._note(record)
        if unread:
            await self._read_on(receive)
            await send({"type": "http.response.body"})

    def _check_token(self, scope: MutableMapping[str, Any]) -> None:
        if self._token is None or scope["path"] in PUBLIC or scope["method"] == "OPTIONS":
            return
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        if len(given) != 1 or not hmac.compare_digest(_bearer(given[0]), self._token):
            raise _Refused(
                401,
                "this service needs its bearer token: send the header Authorization: Bearer …",
                (b"www-authenticate", b"Bearer"),
            )

    async def _read(
        self, scope: MutableMapping[str, Any], receive: Receive, record: "_Record"
    ) -> bytes:
        """The whole body, as long as it keeps to its size and time."""
        most, seconds = self._options.limits.body_bytes, self._options.limits.body_seconds
        said = f"the body may have {counted(most, 'byte')} at most"
        too_large = _Refused(413, said, unread=True)
        claimed = next((v for name, v in scope["headers"] if name == b"content-length"), b"")
        if claimed.isdigit() and int(claimed[:20]) > most:
            raise too_large
        parts: list[bytes] = []
        try:
            async with asyncio.timeout(seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise _Refused(499, "the client has gone")  # nobody reads it
                    parts.append(message.get("body", b""))
                    record.received += len(parts[-1])
                    if record.received > most:
                        raise too_large
                    if not message.get("more_body", False):
                        return b"".join(parts)
        except TimeoutError:
            said = f"the body did not arrive within {counted(seconds, 'second')}"
            raise _Refused(408, said, unread=True) from None

    async def _read_on(self, receive: Receive) -> None:
        """Pass over what is left of a refused body, as long as a body may take.

        Closing the connection on a client that is still sending would take the answer from it.
        """
        with contextlib.suppress(TimeoutError, asyncio.CancelledError):
            async with asyncio.timeout(self._options.limits.body_seconds):
                while (await receive()).get("more_body", False):
                    pass

    def _note(self, record: "_Record") -> None:
        seconds = time.monotonic() - record.began
        self._metrics.requests.add(endpoint=record.endpoint, status=str(record.status))
        self._metrics.request_seconds.observe(seconds, endpoint=record.endpoint)
        self._metrics.body_bytes.add(record.received)
        if self._options.log:
            print(
                f"{time.strftime('%Y-%m-%dT%H:%M:%S')} {record.endpoint} {record.status} "
                f"in={record.received} out={record.sent} ms={1000 * seconds:.1f}",
                file=sys.stderr,
                flush=True,
            )


class _Record:
    """What is kept of a request: sizes and times."""

    def __init__(self, scope: MutableMapping[str, Any]) -> None:
        path = scope["path"]
        self.endpoint = path if path in PUBLIC | PROTECTED else "other"  # a path may hold anything
        self.began = time.monotonic()
        self.status = 0
        self.received = 0
        self.sent = 0
        self.ended = False  # the whole answer was sent


def _bearer(value: bytes) -> bytes:
    """An Authorization header with its scheme as we write it; schemes know no case."""
    scheme, _, rest = value.partition(b" ")
    return b"Bearer " + rest.strip() if scheme.lower() == b"bearer" else value


def _with_headers(given: Any) -> list[tuple[bytes, bytes]]:
    names = {name.lower() for name, _ in given}
    return [*given, *((name, value) for name, value in _HEADERS if name not in names)]


def _replayed(body: bytes, receive: Receive) -> Receive:
    """A receive that gives the body once, and then what comes after it: the disconnect."""
    given = False

    async def replay() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


async def _refuse(send: Send, refused: _Refused) -> None:
    content = json.dumps({"error": refused.error}, ensure_ascii=False).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(content)).encode()),
        *refused.headers,
    ]
    await send({"type": "http.response.start", "status": refused.status, "headers": headers})
    body = {"type": "http.response.body", "body": content, "more_body": refused.unread}
    await send(body)


def _place(error: BaseException) -> str:
    """The kind of an error and where it arose."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    return type(error).__name__ + where
