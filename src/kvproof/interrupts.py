"""Ctrl-C and friends: one exception, deferred where it would lose track of a process."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from .errors import Interrupted

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_depth = 0
_pending: str | None = None
_silenced = False


def _handle(number: int, _frame: object) -> None:
    global _pending
    name = signal.Signals(number).name
    if _silenced:
        with contextlib.suppress(OSError, ValueError, RuntimeError):
            print("\nstopping what was started; this takes a few seconds", file=sys.stderr, flush=True)
        return
    if _depth:
        _pending = name
        return
    raise Interrupted(f"interrupted by {name}", tip="run the same command again; nothing has to be cleaned up")


@contextmanager
def interruptible() -> Iterator[None]:
    """Turn SIGINT, SIGTERM and SIGHUP into `Interrupted` while inside; the old handlers return afterwards.

    Does nothing outside the main thread, where Python delivers no signals.
    """
    global _pending, _silenced
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _pending, _silenced = None, False
    old = {s: signal.signal(s, _handle) for s in _SIGNALS}
    try:
        yield
    finally:
        for s, handler in old.items():
            signal.signal(s, handler)
        _silenced = False


@contextmanager
def deferred() -> Iterator[None]:
    """Hold a signal back until the end of the block, so that what the block starts is also remembered."""
    global _depth, _pending
    _depth += 1
    try:
        yield
    finally:
        _depth -= 1
        if not _depth and _pending:
            name, _pending = _pending, None
            raise Interrupted(f"interrupted by {name}", tip="run the same command again; nothing has to be cleaned up")


def silence() -> None:
    """From here on signals only print a line: the run is being cleaned up and will end by itself."""
    global _silenced
    _silenced = True
