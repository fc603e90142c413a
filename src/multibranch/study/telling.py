"""How a trial goes, told now and then while it is run."""

import time
from collections.abc import Callable
from typing import Any

from multibranch.study.trial import Watch

Tell = Callable[[str], None]
TELL_EVERY = 10.0  # seconds, at least, between two lines on how a trial goes


def telling(name: str, tell: Tell, *, updates: int | None, every: float = TELL_EVERY) -> Watch:
    """Tells of the validations of the trial `name`, and when it begins to translate.

    updates: how many the trial will have at most, where that is known.
    """
    told = time.monotonic()

    def watch(record: dict[str, Any]) -> None:
        nonlocal told
        if "translating" in record:  # which takes a while, in silence
            tell(f"{name}: translating")
            return
        if time.monotonic() - told < every:
            return
        told = time.monotonic()
        if "update" in record:
            where = f"update {record['update']:,}" + (f" of {updates:,}" if updates else "")
            found = f"validation loss {record['loss']:.4f}"
        else:  # an encoder's
            where = f"epoch {record['epoch']}"
            found = ", ".join(f"{metric} {value:.2f}" for metric, value in record["scores"].items())
        tell(f"{name}: {where}, {found}")

    return watch
