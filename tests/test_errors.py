"""What messages need: missing packages, too little memory, interrupts, numbers, names."""

import json
import signal
import sys
import time
import weakref
from contextlib import suppress

import pytest
import torch

from multibranch.errors import (
    STOPS,
    Interrupted,
    UserError,
    counted,
    interrupts_kept,
    interrupts_sent_again,
    is_out_of_memory,
    nearest,
    needed,
)


def test_a_package_that_is_there_is_given_back() -> None:
    assert needed("json", install="json", purpose="Reading") is json


def test_one_that_is_not_is_named_with_what_needs_it_and_how_to_get_it() -> None:
    with pytest.raises(UserError) as caught:
        needed("no_such_package", install="'multibranch[study]'", purpose="Drawing")
    assert str(caught.value) == (
        "Drawing needs the package no_such_package, which is not installed; "
        "install it with: pip install 'multibranch[study]'"
    )


@pytest.mark.parametrize(
    ("error", "is_it"),
    [
        (MemoryError(), True),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate"), True),
        (RuntimeError("shapes do not match"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_too_little_memory_is_recognised_also_where_a_compiler_wraps_it(
    error: Exception, is_it: bool
) -> None:
    assert is_out_of_memory(error) is is_it
    wrapped = RuntimeError("backend failed")
    wrapped.__cause__ = error
    assert is_out_of_memory(wrapped) is is_it


def test_an_interrupt_stays_one_where_a_library_swallows_it() -> None:
    with pytest.raises(KeyboardInterrupt), interrupts_kept(), suppress(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("number", STOPS)
def test_it_stays_the_one_that_it_was(number: int) -> None:
    def stop(number: int, frame: object) -> None:
        raise Interrupted(number)

    before = signal.signal(number, stop)
    try:
        with pytest.raises(Interrupted) as caught, interrupts_kept(), suppress(KeyboardInterrupt):
            signal.raise_signal(number)
    finally:
        signal.signal(number, before)
    assert caught.value.status == 128 + number


def test_an_interrupt_that_is_only_noted_raises_nothing() -> None:
    noted = []
    before = signal.signal(signal.SIGINT, lambda number, _: noted.append(number))
    try:
        with interrupts_kept():
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
    assert noted == [signal.SIGINT]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((0, "line"), "0 lines"),
        ((1, "line"), "1 line"),
        ((1000, "line"), "1,000 lines"),
        ((1.0, "second"), "1 second"),
        ((0.5, "second"), "0.5 seconds"),
        ((1, "batch", "batches"), "1 batch"),
        ((2, "update is done", "updates are done"), "2 updates are done"),
    ],
)
def test_a_number_has_its_noun_in_singular_or_plural(words: tuple, said: str) -> None:
    assert counted(*words) == said


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("bulitin", "builtin"),
        ("wmt14-de", "wmt14-en-de"),  # the first of two that are equally near
        ("nope", None),
        ("folder", None),
        ("", None),
    ],
)
def test_only_a_name_that_is_near_was_meant(name: str, meant: str | None) -> None:
    known = ["code", "builtin", "wmt14-en-de", "wmt14-de-en"]
    assert nearest(name, known) == meant
    assert nearest(name, []) is None


class Thing:
    """What a weak reference can be to."""


def drop(number: int, *, seconds: float = 20) -> None:
    """Have a signal come where Python drops what its handler raises; wait for it to come again."""
    thing = Thing()
    reference = weakref.ref(thing, lambda _: signal.raise_signal(number))
    del thing
    assert reference() is None
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        time.sleep(0.01)


@pytest.mark.parametrize("number", STOPS)
def test_an_interrupt_that_python_drops_comes_again(number: int) -> None:
    def stop(number: int, frame: object) -> None:
        raise Interrupted(number)

    before, hook = signal.signal(number, stop), sys.unraisablehook
    try:
        with pytest.raises(Interrupted) as caught, interrupts_sent_again():
            drop(number)
    finally:
        signal.signal(number, before)
    assert caught.value.status == 128 + number
    assert sys.unraisablehook is hook


def test_pythons_own_ctrl_c_comes_again_too() -> None:
    with pytest.raises(KeyboardInterrupt), interrupts_sent_again():
        drop(signal.SIGINT)


def test_other_errors_that_python_drops_are_told_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    told = []
    monkeypatch.setattr(sys, "unraisablehook", lambda what: told.append(what.exc_type))
    with interrupts_sent_again():
        thing = Thing()
        reference = weakref.ref(thing, lambda _: 1 // 0)
        del thing
    assert reference() is None and told == [ZeroDivisionError]


def test_an_interrupt_is_not_sent_again_once_the_block_is_over() -> None:
    came = []

    def stop(number: int, frame: object) -> None:
        came.append(number)
        raise Interrupted(number)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        with interrupts_sent_again(after=30):
            drop(signal.SIGTERM, seconds=0)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert came == [signal.SIGTERM]
