"""What the service allows, and how it is run."""

from dataclasses import dataclass, field, fields

from multibranch.errors import UserError


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
    body_seconds: what sending the body may take before it is answered 408.
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
            if not getattr(self, limit.name) > 0:
                raise UserError(
                    f"the limit {limit.name} must be above 0, not {getattr(self, limit.name)}"
                )
        if self.sentences > self.queue:
            raise UserError(
                f"a queue of {self.queue} texts has no room for one request of {self.sentences}: "
                "lengthen the queue or allow fewer texts a request"
            )


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """How the service is run.

    token: what clients must show as a bearer token; None asks for none.
    origins: web origins that may call the service from their pages; none unless named.
    batch_milliseconds: how long a text waits for others to be translated with.
    batch_tokens: source tokens translated together for every processor core, padding counted.
    branch_choices: choices of branches whose models are kept ready.
    grace_seconds: how long SIGTERM lets requests in flight take.
    log: write a line for every request: what was asked, sizes and times, never its content.
    """

    limits: Limits = field(default_factory=Limits)
    token: str | None = None
    origins: tuple[str, ...] = ()
    batch_milliseconds: float = 5.0
    batch_tokens: int = 1024
    branch_choices: int = 8
    grace_seconds: float = 30.0
    log: bool = True

    def __post_init__(self) -> None:
        if self.token is not None and (not self.token or not self.token.isascii()):
            raise UserError("the bearer token must be ASCII characters, and not empty")
        if self.batch_milliseconds < 0 or self.batch_tokens < 1 or self.branch_choices < 1:
            raise UserError("batches need a wait of at least 0 ms, a token and one choice at least")
        for origin in self.origins:
            if origin != "*" and not origin.startswith(("http://", "https://")):
                raise UserError(f"an origin is written as https://host[:port], not {origin!r}")
