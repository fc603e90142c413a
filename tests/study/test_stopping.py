"""What ends workers before their work is done."""

import signal
import sys
import time
import weakref

import pytest

from multibranch.errors import Interrupted
from multibranch.study.stopping import end_of, terminable


class Thing:
    """What a weak reference can be to."""


def wait(seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        time.sleep(0.01)


def work() -> None:
    """Have the time be up in a callback, in which Python drops what is raised; then go on."""
    ended = []

    def callback(reference: object) -> None:
        wait(1)
        ended.append(reference)

    thing = Thing()
    reference = weakref.ref(thing, callback)
    del thing
    assert reference() is None and not ended
    wait(20)


def test_a_time_that_is_up_ends_work_though_python_drops_its_signal_once() -> None:
    hook = sys.unraisablehook
    with pytest.raises(Interrupted) as caught, terminable(end_of(0.3 / 60)):
        work()
    assert caught.value.signal == signal.SIGTERM
    assert sys.unraisablehook is hook
