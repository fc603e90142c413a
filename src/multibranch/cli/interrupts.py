"""Ctrl-C and SIGTERM, also while PyTorch is imported, and when all is done but for the telling."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from multibranch.errors import Interrupted, handlers, interrupts_sent_again

STATUS = 128 + signal.SIGINT  # as of a program that SIGINT killed


@contextmanager
def interruptible(answer: str) -> Iterator[None]:
    """Inside this context SIGTERM raises as Ctrl-C does, so that what was begun is cleaned up.

    In the midst of PyTorch's import both print `answer` and end it all. The exception would be lost
    there: what PyTorch runs when it is imported swallows it, or makes other errors of it. Nothing
    of ours that writes files has begun by then, so that there is nothing to clean up.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        if _importing_torch(frame):
            os.write(2, f"{answer}\n".encode())
            os._exit(128 + number)
        raise Interrupted(number)

    # Whoever starts us may have chosen to ignore them; only the main thread may say what they do.
    usual: dict[int, Any] = {
        signal.SIGINT: signal.default_int_handler,
        signal.SIGTERM: signal.SIG_DFL,
    }
    if threading.current_thread() is threading.main_thread():
        before = {n: usual[n] for n in usual if signal.getsignal(n) is usual[n]}
    else:
        before = {}
    for number in before:
        signal.signal(number, stop)
    try:
        with interrupts_sent_again():
            yield
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) is stop:  # and is not to be ignored from now on
                signal.signal(number, handler)


@contextmanager
def uninterruptible_once(done: Callable[[], bool]) -> Iterator[None]:
    """Inside this context an interrupt does nothing once `done` says that the work is done.

    Else a verb would say that it was interrupted while its result is there, whole.
    """
    before = handlers()

    def stop(number: int, frame: FrameType | None) -> None:
        if not done():
            before[number](number, frame)

    for number in before:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def ignore_interrupts() -> None:
    """Let Ctrl-C do nothing any more: all is done, and only Python's own end is left.

    There it would end by the signal what has succeeded.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _importing_torch(frame: FrameType | None) -> bool:
    """Whether PyTorch's own first module is being run."""
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_globals.get("__name__") == "torch":
            return True
        frame = frame.f_back
    return False
