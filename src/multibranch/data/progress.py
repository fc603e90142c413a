"""How long work tells of itself while it goes on."""

from collections.abc import Callable

# Called with what is being done, how much of it is done, and of how much (None: not known).
Progress = Callable[[str, int, int | None], None]


def silent(what: str, done: int, total: int | None) -> None:
    """Tells nothing."""
