"""One block of a log: what was searched, and the lines in it as they are shown."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator

from ..redact import Redactor
from .cleaning import Line, entries, excerpt, normalised

_NEWLINE = re.compile(rb"\n")
_AROUND_BYTES = 8 * 1024
_MAX_CANDIDATES = 50


class Block:
    """A block, the text that is searched in its place, and its lines.

    Args:
        log: name of its log.
        before: lines of the log before it.
        raw: what was read.
        redact: masks secrets in every line that leaves the block.

    Attributes:
        text: what is searched; it has the same lines as raw.
    """

    def __init__(self, log: str, before: int, raw: bytes, redact: Redactor):
        self.log, self.before, self.raw, self.text = log, before, raw, normalised(raw)
        self._redact = redact
        self._lines: list[bytes] | None = None
        self._ends: list[int] | None = None

    def line(self, end: int, around: re.Pattern[str] | None = None) -> Line:
        """All of the line in which a match ends; of a message of several lines, the one that the pattern is in."""
        index, parts = self._said(end)
        part = next((p for p in parts if around is not None and around.search(p)), parts[0])
        return self._shown(index, part)

    def matching(self, wanted: Callable[[str], bool], search: re.Pattern[bytes], end: int,
                 limit: int) -> Iterator[Line]:
        """All of each line that really matches, from a hit's own on; at most _MAX_CANDIDATES are looked at.

        Args:
            wanted: whether a line's text, fit to be shown, matches.
            search: finds further candidates.
            end: where the hit ends.
            limit: where to stop.
        """
        for _ in range(_MAX_CANDIDATES):
            index, parts = self._said(end)
            part = next(filter(wanted, parts), None)
            if part is not None:
                yield self._shown(index, part)
            newline = self.text.find(b"\n", end, limit)
            found = search.search(self.text, newline + 1, limit) if newline >= 0 else None
            if found is None:
                return
            end = found.end()

    def candidates(self, begin: int, count: int, worth: re.Pattern[bytes]) -> Iterator[tuple[int, str]]:
        """Of so many lines from an offset on, those worth a look: their number, and what they say, unmasked."""
        index = self._index(begin + 1)
        for number, raw in enumerate(self._split()[index:index + count], start=index):
            if worth.search(raw):
                for part in entries(raw[:2 * _AROUND_BYTES]):
                    yield self.before + number + 1, part

    def shown(self, number: int, text: str) -> Line:
        """A candidate as it may leave the block."""
        return Line(self.log, number, excerpt(self._redact(text)))

    def tail(self, count: int) -> list[Line]:
        """Its last lines that say something."""
        lines = self._split()
        index = [n for n in range(max(0, len(lines) - 4 * count), len(lines)) if lines[n].strip()][-count:]
        return [self.shown(self.before + n + 1, entries(lines[n][:2 * _AROUND_BYTES])[-1]) for n in index]

    def _index(self, end: int) -> int:
        """Lines of the block before the one in which a match ends."""
        if self._ends is None:
            self._ends = [found.start() for found in _NEWLINE.finditer(self.text)]
        return bisect_left(self._ends, max(0, end - 1))

    def _split(self) -> list[bytes]:
        if self._lines is None:
            self._lines = self.raw.split(b"\n")
        return self._lines

    def _said(self, end: int) -> tuple[int, list[str]]:
        index = self._index(end)
        raw = self._split()[index]
        if len(raw) > 2 * _AROUND_BYTES:
            begin = self.text.rfind(b"\n", 0, max(0, end - 1)) + 1
            stop = self.text.find(b"\n", end)
            stop = len(self.text) if stop < 0 else stop
            raw = self.text[max(begin, end - _AROUND_BYTES):min(stop, end + _AROUND_BYTES)]
        return index, entries(raw)

    def _shown(self, index: int, text: str) -> Line:
        return Line(self.log, self.before + index + 1, self._redact(text))
