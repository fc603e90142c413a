"""Fetching what a recipe needs from the public place where it lives."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Download:
    """One public file of a corpus, and its checksum where it is known."""

    url: str
    sha256: str | None = None
