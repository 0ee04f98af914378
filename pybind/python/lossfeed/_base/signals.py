"""Exceptions that are not what they seem: a signal handler's, in the middle of whatever ran then, and a StopIteration of a
function of the user's, which would end a loop as if the epoch were over (see PEP 479)."""

from __future__ import annotations

import contextlib
import dis
import inspect
import os
import signal
import threading
from types import TracebackType
from typing import Any, Callable, Iterator


def named(function: Any) -> str:
    """The name by which a user knows it."""
    return getattr(function, "__name__", None) or type(function).__name__


def called(keyword: str, function: Callable[..., Any], *given: Any) -> Any:
    """Calls a function of the user's.

    Raises:
        RuntimeError: it raised StopIteration.
    """
    try:
        return function(*given)
    except StopIteration as end:
        raise RuntimeError(
            f"{keyword}={named(function)} raised StopIteration: an iterator that it asks is exhausted; begin it again, or "
            "give next() a default"
        ) from end


class Called:
    """A function of the user's, for torch to call by :func:`called`."""

    def __init__(self, keyword: str, function: Callable[..., Any]) -> None:
        self.keyword, self.function = keyword, function

    def __call__(self, *given: Any) -> Any:
        return called(self.keyword, self.function, *given)


def of_signal(error: BaseException) -> bool:
    """Whether a handler of :mod:`signal` raised it, and not the code that it fell into.

    Python calls a handler as ``handler(signum, frame)`` with the very frame that it interrupts, which no other caller does.
    Asking :func:`signal.getsignal` would miss the many that put another in their place first."""
    trace, before = error.__traceback__, None
    while trace is not None:
        # The interrupted frame has no line of the traceback where code without frames was interrupted, and caught this.
        interrupted, given = [trace.tb_frame.f_back], _positional(trace.tb_frame)
        # A function that was only about to begin may be passed over.
        if before is not None and before.tb_frame is interrupted[0] and _begins(before):
            interrupted.append(before.tb_frame.f_back)
        # By identity: an argument may be an array, whose == has no truth value.
        frames = {id(frame) for frame in interrupted if frame is not None}
        if any(isinstance(signum, int) and id(frame) in frames for signum, frame in zip(given, given[1:])):
            return True
        trace, before = trace.tb_next, trace
    return False


def _begins(trace: TracebackType) -> bool:
    """True if a function was left before its first instruction."""
    at, code = trace.tb_lasti, trace.tb_frame.f_code.co_code
    return at < 0 or dis.opname[code[at]] == "RESUME"


def _positional(frame: Any) -> list[Any]:
    """What a function was called with, but for keywords."""
    code, values = frame.f_code, frame.f_locals
    names = code.co_varnames
    given = [values.get(name) for name in names[: code.co_argcount]]
    if code.co_flags & inspect.CO_VARARGS:
        rest = values.get(names[code.co_argcount + code.co_kwonlyargcount])
        given += rest if isinstance(rest, tuple) else ()
    return given


@contextlib.contextmanager
def kept_while(forking: bool) -> Iterator[None]:
    """Keeps signals that have handlers in Python until processes are forked. Python runs functions of its own after a
    fork (logging's, for one), and an exception that a handler raises in them is printed and lost."""
    handlers: dict[int, Any] = {}
    came: list[int] = []
    over, here = False, os.getpid()

    def instead(number: int, frame: Any) -> None:
        # A child has it still; torch's own handler may call it later; and a signal may end the loop that puts back.
        if over or os.getpid() != here:
            handlers[number](number, frame)
        else:
            came.append(number)

    if forking and threading.current_thread() is threading.main_thread():
        handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
        handlers = {number: handler for number, handler in handlers.items() if callable(handler)}
    try:
        for number in handlers:
            signal.signal(number, instead)
        yield
    finally:
        over = True
        try:
            for number, handler in handlers.items():
                if signal.getsignal(number) is instead:
                    signal.signal(number, handler)
        finally:
            _raise_all(came)


def _raise_all(came: list[int]) -> None:
    """Raises each signal, also where the handler of one before raises."""
    if came:
        try:
            signal.raise_signal(came[0])
        finally:
            _raise_all(came[1:])
