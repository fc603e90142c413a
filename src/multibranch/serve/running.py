"""Runs the service: a socket, signals, and a line that says where it is."""

import asyncio
import errno
import os
import resource
import signal
import socket
import stat
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from multibranch.errors import Interrupted, UserError
from multibranch.nn import int8_kernels
from multibranch.serve.api import make_app
from multibranch.serve.engine import Engine
from multibranch.serve.options import ServeOptions
from multibranch.serve.service import Service

TOKEN_VARIABLE = "MULTIBRANCH_TOKEN"
_KEEP_ALIVE = 5  # seconds that an idle connection stays open
_HEADER_BYTES = 16_384
_BACKLOG = 128  # connections that wait until they are accepted
_SWITCH_SECONDS = 0.0005


def serve(
    folder: str | Path,
    *,
    engine: str = "torch",
    host: str = "127.0.0.1",
    port: int = 8000,
    device: str = "auto",
    precision: str = "float32",
    options: ServeOptions | None = None,
    tell: Callable[[str], None] = lambda line: print(line, file=sys.stderr, flush=True),
) -> None:
    """Serve a model until SIGTERM or Ctrl-C, which finish what is in flight.

    Args:
        folder: a model directory, or with engine="ctranslate2" an exported folder.
        port: 0 takes any that is free.
        tell: is given the line that says where the service is and what it computes with, as soon
            as it answers; where requests are logged, another if int8 lacks kernels here.
    """
    options = options or ServeOptions()
    listening = bind(host, port)  # first: a port that is taken should not cost a model's loading
    try:
        loaded = Engine.load(
            folder,
            engine=engine,
            device=device,
            precision=precision,
            choices=options.branch_choices,
            batch_tokens=options.batch_tokens,
        )
        service = Service(loaded, options)
        warm_up(service)
        how = f"{loaded.name}, {loaded.precision} on {loaded.translator.device.type}"

        rounded = loaded.name == "torch" and loaded.precision == "int8"
        lacking = int8_kernels.lacking() if rounded and options.log else None

        def started(address: str) -> None:
            tell(f"multibranch serve: {address} with {how} (Ctrl-C ends it)")
            if lacking is not None:
                tell(f"multibranch serve: {lacking}")

        server = make_server(make_app(service), options, tell=started)

        def terminate(number: int, frame: FrameType | None) -> None:
            # uvicorn raises the signal again when all is finished; that shall not kill us then.
            if not server.started:
                raise Interrupted(number)

        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, terminate)
        # The decoding threads would let the one that answers wait five milliseconds, many times.
        sys.setswitchinterval(_SWITCH_SECONDS)
        server.run(sockets=[listening])
    finally:
        listening.close()


def make_server(
    app: FastAPI, options: ServeOptions, *, tell: Callable[[str], None] = lambda line: None
) -> uvicorn.Server:
    """The HTTP server for an application; give `run` the sockets. `tell` is given its address."""
    config = uvicorn.Config(
        app,
        http=type("Protocol", (_Protocol,), {"seconds": options.limits.body_seconds}),
        backlog=_BACKLOG,
        ws="none",
        loop="asyncio",
        lifespan="on",
        log_config=None,
        log_level="critical",  # the guard tells of what fails; what else uvicorn says has no place
        access_log=False,  # it would write whole addresses
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE,
        timeout_graceful_shutdown=max(1, round(options.grace_seconds)),
        h11_max_incomplete_event_size=_HEADER_BYTES,
    )
    return _Server(config, tell)


class _Protocol(H11Protocol):
    """Closes a connection on which no head of a request, or only a part of one, has come in time.

    Of a client that has vanished without a word nothing else is ever heard. One beyond those that
    the system has room for is closed at once: where accepting fails, asyncio says so many thousand
    times a second.
    """

    seconds: float
    _due: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > most_connections():
            transport.close()
        else:
            self._expect_head()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._expect_head()

    def _expect_head(self) -> None:
        if self._due is not None:
            self._due.cancel()
        self._due = self.loop.call_later(self.seconds, self._close_unless_asked)

    def _close_unless_asked(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.timeout_keep_alive_handler()


def most_connections() -> int:
    """Those for which there are files, beside ours and as many as are accepted at once."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(_BACKLOG, files - 2 * _BACKLOG)


class _Server(uvicorn.Server):
    """Says where it is once it listens."""

    def __init__(self, config: uvicorn.Config, tell: Callable[[str], None]) -> None:
        super().__init__(config)
        self._tell = tell

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listening in sockets or []:
            host, port = listening.getsockname()[:2]
            shown = f"[{host}]" if ":" in host else host
            self._tell(f"http://{shown}:{port}")

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets)
        if self.force_exit:  # Ctrl-C once more: what is in flight breaks off, and all ends in order
            for task in self.server_state.tasks:
                task.cancel()
            await self.lifespan.shutdown()


def bind(host: str, port: int) -> socket.socket:
    """A socket for that address. It refuses connections until the server listens on it."""
    if not 0 <= port <= 65535:  # the system would take it modulo 65536
        raise UserError(f"--port must be 0 to 65535, not {port}")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.socket(family, kind, protocol)
    except (OSError, OverflowError, UnicodeError) as error:
        raise UserError(f"there is no address {host!r} to listen on: {error}") from None
    try:
        # Without this a service that was killed could not come back for a minute.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
    except (OSError, OverflowError) as error:
        listening.close()
        what = getattr(error, "strerror", None) or error
        option = "--host" if getattr(error, "errno", None) == errno.EADDRNOTAVAIL else "--port"
        raise UserError(
            f"cannot listen on {host}:{port}: {what}; choose another {option}"
        ) from None
    return listening


def warm_up(service: Service) -> None:
    """Translate once, so that the first client does not wait for what is set up on first use."""
    engine = service.engine
    engine.text.decode(engine.text.encode(["1"], side="target"), side="target")
    engine.translator.generate(["1"])


def read_token(path: str | None) -> str | None:
    """The bearer token of a file, else of the environment; None where neither has one."""
    if path is None:
        given = os.environ.get(TOKEN_VARIABLE)
        if given is not None and not given.strip():
            raise UserError(
                f"{TOKEN_VARIABLE} in the environment is empty: put the token there, or unset it "
                "to serve without one"
            )
        return None if given is None else given.strip()
    try:
        content = Path(path).read_text(encoding="utf-8").strip()
        mode = Path(path).stat().st_mode
    except UnicodeDecodeError:
        raise UserError(f"the token file {path} is not UTF-8") from None
    except OSError as error:
        raise UserError(f"the token file {path} cannot be read: {error.strerror}") from None
    if not content:
        raise UserError(f"the token file {path} is empty")
    if mode & stat.S_IROTH:
        print(
            f"multibranch serve: anyone on this machine can read {path}; chmod 600 it",
            file=sys.stderr,
        )
    return content
