"""Patience with a database that is away for a moment, as while its server is started again."""

import math
import time
from collections.abc import Callable
from functools import wraps
from typing import Any

from multibranch.errors import counted
from multibranch.study.leases import POLL

# What Optuna's cache over a storage calls of it, beside what every storage has.
_OF_THE_CACHE = ("_create_new_trial", "_get_best_trial_id", "_get_trials", "_set_trial_param")


def make_patient(storage: Any, seconds: float, tell: Callable[[str], None]) -> None:
    """Have each method of Optuna's storage try again while its database is away.

    Not for SQLite, which waits for locks by itself: what else a file has, no time puts right.

    What a lost answer has done twice does no harm: a trial that ended has ended, a lease that was
    renewed is renewed, and of two trials that were added one stands.

    Args:
        seconds: how long a call may try.
        tell: told that the storage is away, once within that time.
    """
    from optuna.storages import BaseStorage

    told = -math.inf

    def patient(method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def call(*args: Any, **named: Any) -> Any:
            nonlocal told
            until = time.monotonic() + seconds
            while True:
                try:
                    return method(*args, **named)
                except Exception as error:
                    now = time.monotonic()
                    # A method calls others that have been patient: counted from its beginning, the
                    # time of both is up at once.
                    if not is_away(error) or now >= until:
                        raise
                    if now - told >= seconds:
                        told = now
                        tell(
                            f"the storage does not answer ({reason(error)}): trying again for "
                            f"{counted(seconds, 'second')}"
                        )
                    time.sleep(POLL)

        return call

    public = [name for name in dir(BaseStorage) if not name.startswith("_")]
    for name in (*public, *_OF_THE_CACHE):
        setattr(storage, name, patient(getattr(storage, name)))


def is_away(error: Exception) -> bool:
    """Whether the connection to a server was lost, or could not be made."""
    cause: Any = error.__cause__ or error
    kinds = {kind.__name__ for kind in type(cause).__mro__}  # whose package may be missing
    if "PendingRollbackError" in kinds:  # Optuna itself went on where the connection was lost
        return True
    return "DBAPIError" in kinds and (cause.connection_invalidated or cause.statement is None)


def reason(error: Exception) -> str:
    """What a database said, in one line."""
    return str(error.__cause__ or error).partition("\n")[0]
