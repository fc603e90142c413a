"""A small model directory, and the real service with it on a real port."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

import reference_decoding as reference
from multibranch.serve.api import make_app
from multibranch.serve.engine import Engine
from multibranch.serve.options import Limits, ServeOptions
from multibranch.serve.running import bind, make_server, warm_up
from multibranch.serve.service import Service


@pytest.fixture(scope="session")
def folder(tmp_path_factory) -> Path:
    """A model directory: random weights, three branches, beam 3."""
    place = tmp_path_factory.mktemp("served") / "model"
    reference.save_model_directory(place, branches=3)
    return place


@pytest.fixture(scope="session")
def save_model_directory() -> Callable[..., Any]:
    return reference.save_model_directory


@dataclass
class Running:
    """A service that answers."""

    service: Service
    address: str
    port: int

    def client(self, **settings: Any) -> httpx.Client:
        return httpx.Client(base_url=self.address, timeout=30, trust_env=False, **settings)

    def translate(self, text: Any, **asked: Any) -> httpx.Response:
        with self.client() as client:
            return client.post("/translate", json={"text": text, **asked})


@contextmanager
def running(engine: Engine, options: ServeOptions) -> Iterator[Running]:
    service = Service(engine, options)
    warm_up(service)
    listening = bind("127.0.0.1", 0)
    server = make_server(make_app(service), options)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    until = time.monotonic() + 20
    while not server.started:
        assert time.monotonic() < until, "the service did not start"
        time.sleep(0.01)
    port = listening.getsockname()[1]
    try:
        yield Running(service, f"http://127.0.0.1:{port}", port)
    finally:
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive()


@pytest.fixture(scope="session")
def engine(folder) -> Engine:
    return Engine.load(folder, device="cpu")


@pytest.fixture
def start(folder) -> Iterator[Callable[..., Running]]:
    """Start a service with limits and options of its own."""
    with _stack() as enter:

        def begin(*, limits: dict[str, Any] | None = None, engine=None, **options: Any) -> Running:
            said = ServeOptions(limits=Limits(**(limits or {})), **{"log": False, **options})
            loaded = engine or Engine.load(folder, device="cpu", choices=said.branch_choices)
            return enter(running(loaded, said))

        yield begin


@contextmanager
def _stack() -> Iterator[Callable]:
    from contextlib import ExitStack

    with ExitStack() as stack:
        yield stack.enter_context


@pytest.fixture(scope="module")
def served(engine) -> Iterator[Running]:
    """One service with the usual options for the tests of a module."""
    with running(engine, ServeOptions(log=False)) as one:
        yield one


@pytest.fixture(scope="module")
def small(engine) -> Iterator[Running]:
    """A service that allows little."""
    limits = Limits(
        body_bytes=20_000,
        sentences=4,
        tokens=40,
        inspect_tokens=20,
        characters=1000,
        beam=8,
        body_seconds=0.5,
    )
    with running(engine, ServeOptions(log=False, limits=limits)) as one:
        yield one


def wait_for(holds: Callable[[], bool], *, seconds: float = 10) -> None:
    """Wait until something holds."""
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until, "it did not come to hold in time"
        time.sleep(0.01)


@pytest.fixture(scope="session")
def until() -> Callable[..., None]:
    return wait_for
