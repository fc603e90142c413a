"""The one error that the command line turns into a line of text and exit status 2.

That an optional package is missing is such an error, which `needed` raises. `is_out_of_memory` says
which errors of Python and PyTorch mean too little memory. `Interrupted` is Ctrl-C or SIGTERM,
`interrupts_kept` lets no library make another error of them, and `interrupts_sent_again` none be
lost by Python itself. `counted` is for numbers in messages, `nearest` for names in them.
"""

import difflib
import importlib
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType, ModuleType
from typing import Any

STOPS = (signal.SIGTERM, signal.SIGINT)


class UserError(Exception):
    """Something the person at the keyboard can put right.

    The message is a sentence for that person: what was wrong, where (file, line, key), and what
    to do about it.
    """


class Interrupted(KeyboardInterrupt):
    """A signal that ends things as Ctrl-C does; the command's exit status tells which."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.signal = number
        self.status = 128 + number  # as of a program that the signal killed


def needed(package: str, *, install: str, purpose: str) -> ModuleType:
    """An optional package, or a sentence that says how to get it."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise UserError(
            f"{purpose} needs the package {package}, which is not installed; "
            f"install it with: pip install {install}"
        ) from error


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory is used up: Python's own, or PyTorch's on any device.

    Compilers wrap PyTorch's own, so that what an error came from counts too.
    """
    said = ("out of memory", "can't allocate memory")
    while True:
        if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
            return True
        if isinstance(error, RuntimeError) and any(words in str(error) for words in said):
            return True
        before = error.__cause__ or error.__context__
        if before is None:
            return False
        error = before


@contextmanager
def interrupts_kept() -> Iterator[None]:
    """Inside, an interrupt stays one, whatever a library makes of it: another error, or nothing.

    PyTorch asks, as it makes a tensor of a file's bytes, what it was given, and takes an interrupt
    there for a no.
    """
    before = handlers()
    interrupt: KeyboardInterrupt | None = None

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal interrupt
        try:
            before[number](number, frame)
        except KeyboardInterrupt as error:
            interrupt = error
            raise

    for number in before:
        signal.signal(number, note)
    try:
        yield
    except BaseException:
        if interrupt is None:
            raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if interrupt is not None:
        raise interrupt


@contextmanager
def interrupts_sent_again(after: float = 0.01) -> Iterator[None]:
    """Inside, an interrupt that Python drops comes once more, after so many seconds.

    Python drops what is raised in `__del__` and in a callback of a weak reference, and those are
    what it runs first when it has collected garbage, where signals have to wait meanwhile.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before, main, over = sys.unraisablehook, threading.get_ident(), threading.Event()
    senders: list[threading.Thread] = []

    def send(number: int) -> None:
        if not over.wait(after):
            signal.pthread_kill(main, number)

    def dropped(what: Any) -> None:
        if not issubclass(what.exc_type, KeyboardInterrupt):
            before(what)
            return
        number = getattr(what.exc_value, "signal", signal.SIGINT)
        senders.append(threading.Thread(target=send, args=(number,), daemon=True))
        senders[-1].start()

    sys.unraisablehook = dropped
    try:
        yield
    finally:
        over.set()
        for sender in senders:
            sender.join()
        sys.unraisablehook = before


def handlers() -> dict[int, Callable[[int, FrameType | None], Any]]:
    """What Python runs on Ctrl-C and on SIGTERM; only the main thread may put others in between."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    found = {number: signal.getsignal(number) for number in STOPS}
    return {number: handler for number, handler in found.items() if callable(handler)}


def counted(number: float, one: str, many: str | None = None) -> str:
    """A number with its noun: 1 line, 1,000 lines; `many` where an s alone makes no plural."""
    shown = f"{number:g}" if isinstance(number, float) else f"{number:,}"
    return f"{shown} {one if number == 1 else many or f'{one}s'}"


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that was probably meant, of equally near ones the first; None if none was."""
    likeness = {each: difflib.SequenceMatcher(None, each, name).ratio() for each in known}
    near = [each for each, alike in likeness.items() if alike >= 0.65]
    return max(near, key=likeness.__getitem__, default=None)
