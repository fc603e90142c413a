"""What the service allows, and how it is run."""

import math
import re
from dataclasses import dataclass, field, fields

from multibranch.errors import UserError, counted


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a request may ask for, and how long it may take. Every one has a clear answer.

    body_bytes: bytes of a request's body; more is answered 413.
    sentences: texts in one request to /translate; more is answered 422.
    tokens: tokens of one text; more is answered 422.
    inspect_tokens: tokens of a text whose attention is asked for.
    characters: characters of one text, whatever tokens they make.
    beam: the widest beam.
    queue: texts that wait or are being translated; beyond, requests are answered 503.
    seconds: what a request may take before it is answered 504.
    body_seconds: what sending the body may take before it is answered 408, and the head of a
        request before the connection is closed.
    """

    body_bytes: int = 1_000_000
    sentences: int = 64
    tokens: int = 256
    inspect_tokens: int = 80
    characters: int = 10_000
    beam: int = 16
    queue: int = 512
    seconds: float = 30.0
    body_seconds: float = 15.0

    def __post_init__(self) -> None:
        for limit in fields(self):
            value, option = getattr(self, limit.name), limit.name.replace("_", "-")
            if not 0 < value < math.inf:
                raise UserError(f"--max-{option} must be a number above 0, not {value}")
        if self.sentences > self.queue:
            raise UserError(
                f"a queue of {counted(self.queue, 'text')} has no room for one request of "
                f"{self.sentences}: lengthen the queue or allow fewer texts a request"
            )


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """How the service is run.

    token: what clients must show as a bearer token; None asks for none.
    origins: web origins that may call the service from their pages; none unless named.
    batch_milliseconds: how long a text waits for others to be translated with.
    batch_tokens: source tokens translated together, padding counted, for every processor core or on
        the GPU; None is 1024 a core and 8192 on a GPU.
    branch_choices: choices of branches whose models are kept ready.
    grace_seconds: how long SIGTERM lets requests in flight take.
    log: write a line for every request: what was asked, sizes and times, never its content.
    """

    limits: Limits = field(default_factory=Limits)
    token: str | None = None
    origins: tuple[str, ...] = ()
    batch_milliseconds: float = 5.0
    batch_tokens: int | None = None
    branch_choices: int = 8
    grace_seconds: float = 30.0
    log: bool = True

    def __post_init__(self) -> None:
        token = self.token
        if token is not None and not (token and token.isascii() and token.isprintable()):
            raise UserError("the bearer token must be one line of ASCII characters, and not empty")
        least = {
            "batch_milliseconds": 0,
            "grace_seconds": 0,
            "batch_tokens": 1,
            "branch_choices": 1,
        }
        for name, fewest in least.items():
            value, option = getattr(self, name), name.replace("_", "-")
            if value is not None and not fewest <= value < math.inf:
                raise UserError(f"--{option} must be a number of at least {fewest}, not {value}")
        for origin in self.origins:
            if origin != "*" and not re.fullmatch(r"https?://[^\s/?#]+", origin):
                raise UserError(f"an origin is written as https://host[:port], not {origin!r}")
