"""Leases: how a worker holds a trial of a storage, and how the others notice that it is gone.

Who takes a trial renews its lease while the worker lives. No worker compares its clock with
another's: it watches, by its own clock, whether the number in the lease changes.
"""

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from multibranch.disk import alive

LEASE = 60.0  # seconds without renewal after which a worker counts as gone
POLL = 0.5  # seconds between two looks at a storage that has nothing to take
FINISHED = RuntimeError  # what Optuna raises where a trial has ended and is to be changed


class Lost(Exception):
    """The lease of a trial was ended, by a worker that took this one for gone."""


class Leases:
    """The leases of one worker's trials, and what it has seen of the others'.

    Args:
        storage: what `open_storage` gives.
        seconds: after which a worker that gives no sign counts as gone.
    """

    def __init__(self, storage: Any, *, seconds: float = LEASE) -> None:
        self.storage = storage
        self.seconds = seconds
        self.worker = worker_name()
        self._beats = 0
        self._seen: dict[int, tuple[Any, float]] = {}

    def renew(self, trial_id: int) -> bool:
        """Give a sign of life; False when the trial is not ours any more."""
        self._beats += 1
        lease = {"worker": self.worker, "beat": self._beats, "at": round(time.time(), 1)}
        try:
            self.storage.set_trial_user_attr(trial_id, "lease", lease)
        except FINISHED:
            return False
        return True

    @contextmanager
    def renewed(self, *trial_ids: int) -> Iterator[None]:
        """Renew the leases of trials in the background."""
        ended = threading.Event()

        def renew() -> None:
            held = set(trial_ids)
            while held and not ended.wait(self.seconds / 4):
                for trial_id in trial_ids:
                    # A storage that does not answer now may answer next time.
                    with suppress(Exception):
                        if trial_id in held and not self.renew(trial_id):
                            held.remove(trial_id)

        thread = threading.Thread(target=renew, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def is_gone(self, trial: Any) -> bool:
        """Whether the worker of a running trial is gone, as far as can be seen by now."""
        lease = trial.user_attrs.get("lease")
        if lease and is_known_dead(lease["worker"]):
            return True
        now = time.monotonic()
        beat = None if lease is None else (lease["worker"], lease["beat"])
        seen, since = self._seen.setdefault(trial._trial_id, (beat, now))
        if seen != beat:
            self._seen[trial._trial_id] = (beat, now)
            return False
        return now - since > self.seconds

    def end(self, trial_id: int) -> bool:
        """Let a trial have failed; False when it had ended already, by whomever."""
        from optuna.trial import TrialState

        try:
            return bool(self.storage.set_trial_state_values(trial_id, TrialState.FAIL))
        except FINISHED:
            return False


def worker_name() -> str:
    """A name that tells this process from all others, here and elsewhere."""
    return f"{_machine()}:{os.getpid()}:{time.time_ns()}"


def is_known_dead(worker: str) -> bool:
    """Whether a worker ran on this machine and runs no more; of other machines nothing is known."""
    machine, process, _ = worker.rsplit(":", 2)
    return machine == _machine() and not alive(int(process))


def _machine() -> str:
    """This machine and its process numbers: in containers, both may differ."""
    try:
        space = Path("/proc/self/ns/pid").readlink().name.strip("pid:[]")
    except OSError:
        space = ""
    return f"{socket.gethostname()}/{space}"
