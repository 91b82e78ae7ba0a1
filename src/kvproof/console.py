"""Progress for people, on stderr; results go to stdout and are not this module's business."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from .redact import Redactor

_PLAIN_INTERVAL_S = 10.0


class Console:
    """Says what happens now. On a terminal the current line is redrawn; elsewhere every step is one line,
    and a long wait repeats its line every ten seconds.

    Args:
        quiet: say nothing (used in tests).
    """

    def __init__(self, *, quiet: bool = False):
        self._quiet = quiet
        self._redact = Redactor()
        self._terminal = sys.stderr.isatty() and not quiet
        self._status = None
        self._last = (0.0, "")
        self._started = time.monotonic()

    def say(self, text: str) -> None:
        """A line that stays."""
        if self._quiet:
            return
        text = self._redact(text)
        with self._unless_closed():
            if self._status is not None:
                self._status.console.print(text, markup=False, highlight=False)
            else:
                stamp = "" if self._terminal else f"[{time.monotonic() - self._started:6.1f} s] "
                print(f"{stamp}{text}", file=sys.stderr, flush=True)

    def now(self, text: str) -> None:
        """What a step that is under way is doing; may be called as often as wanted."""
        if self._quiet:
            return
        text = self._redact(text)
        if self._status is not None:
            from rich.markup import escape

            with self._unless_closed():
                self._status.update(escape(text))
            return
        at, _ = self._last
        if time.monotonic() - at >= _PLAIN_INTERVAL_S:
            self._last = (time.monotonic(), text)
            self.say(f"  {text}")

    @contextmanager
    def step(self, text: str) -> Iterator[None]:
        """A step: shown while it lasts, with its duration when it is over."""
        started = time.monotonic()
        self._last = (started, text)
        if self._terminal and self._status is None and not self._quiet:
            self._show(text)
            try:
                yield
            finally:
                self._hide()
        else:
            self.say(f"{text} ...")
            yield
        self.say(f"{text}: {time.monotonic() - started:.1f} s")

    def _show(self, text: str) -> None:
        from rich.console import Console as RichConsole

        with self._unless_closed():
            self._status = RichConsole(stderr=True).status(text)
            self._status.start()

    def _hide(self) -> None:
        status, self._status = self._status, None
        with self._unless_closed():
            if status is not None:
                status.stop()

    @contextmanager
    def _unless_closed(self) -> Iterator[None]:
        """A terminal or reader that went away must not end a run: from then on nothing is said."""
        try:
            yield
        except (OSError, ValueError):
            self._quiet = True
