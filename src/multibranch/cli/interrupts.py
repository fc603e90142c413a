"""Ctrl-C, also while PyTorch is imported, and when all is done but for the telling."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

STATUS = 130  # as of a program that SIGINT killed


@contextmanager
def import_interruptible(answer: str) -> Iterator[None]:
    """Inside this context Ctrl-C in the midst of PyTorch's import prints `answer` and ends it all.

    The exception that Ctrl-C raises elsewhere would be lost there: what PyTorch runs when it is
    imported swallows it, or makes other errors of it. Nothing of ours that writes files has begun
    by then, so that there is nothing to clean up.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        if _importing_torch(frame):
            os.write(2, f"{answer}\n".encode())
            os._exit(STATUS)
        signal.default_int_handler(number, frame)

    # Whoever starts us may have chosen to ignore it; only the main thread may say what it does.
    usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not usual or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is stop:  # and is not to be ignored from now on
            signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def uninterruptible_once(done: Callable[[], bool]) -> Iterator[None]:
    """Inside this context Ctrl-C does nothing any more once `done` says that the work is done.

    Else a verb would say that it was interrupted while its result is there, whole.
    """
    before = signal.getsignal(signal.SIGINT)
    if not callable(before) or threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        if not done():
            before(number, frame)

    signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


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
