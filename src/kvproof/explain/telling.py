"""Picks the lines that tell most when no signature matches: what was raised, and other errors."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from .blocks import Block
from .cleaning import Line, bare

SHOWN = 5
_LOOKED_AT = 400
_MAX_LOOKS = 32
_WORTH = re.compile(rb"Error|Exception|Interrupt|Exit|Refused|ERROR|CRITICAL|FATAL|error: |Seg|Killed|core dumped|"
                    rb"exit code")
_RAISED = re.compile(r"(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Refused)\b(?::\s.*)?$")
_ERROR = re.compile(r"\b(?:ERROR|CRITICAL|FATAL)\b|\berror: |Segfault|Segmentation fault|Out of memory: Killed"
                    r"|core dumped|exit code: -")
_FRAME = re.compile(r"\s+\S|Traceback \(most recent|[\s^~]*$|During handling of|The above exception")
# These only say that something else went wrong.
_FOLLOWS = re.compile(r"Engine core initialization failed|Engine process failed|EngineDeadError|failed to start\.?$"
                      r"|died unexpectedly|SystemExit|KeyboardInterrupt|CancelledError")


@dataclass
class Collector:
    """Lines of one log that tell, each text once.

    Attributes:
        roots: what was raised.
        errors: other errors.
        follow: errors that follow from others.
        last: what was raised last, near the log's end; None when nothing was.
    """

    roots: list[Line] = field(default_factory=list)
    errors: list[Line] = field(default_factory=list)
    follow: list[Line] = field(default_factory=list)
    last: Line | None = None
    _looks: int = 0
    _messages: set[str] = field(default_factory=set)

    def take(self, block: Block, places: Iterable[int]) -> None:
        """Look at the lines from each place on where something was found that tells."""
        if self._looks >= _MAX_LOOKS or len(self.roots) >= SHOWN:
            return
        self._looks += 1
        looked_at = 0
        for place in sorted(places):
            begin = block.text.rfind(b"\n", 0, max(0, place - 1)) + 1
            for number, text in block.candidates(begin, _LOOKED_AT, _WORTH):
                if number > looked_at:
                    self._sort(block, number, text)
                    looked_at = number - 1  # a message may have several lines

    def end(self, block: Block) -> None:
        """Look at the end of the log, for what it died of may come long after the first errors."""
        ending = Collector()
        begin = len(block.text)
        for _ in range(_LOOKED_AT // 2):
            begin = max(0, block.text.rfind(b"\n", 0, max(0, begin - 1)))
        ending.take(block, [begin + 1])
        if ending.roots:
            self.last = ending.roots[-1]

    def best(self) -> list[Line]:
        """At most SHOWN lines, in the order of the log."""
        chosen = [*self.roots[:SHOWN - 1], *filter(None, [self.last])]
        chosen = list(dict.fromkeys([*chosen, *self.roots, *self.errors]))[:SHOWN] or self.follow
        return sorted(chosen, key=lambda line: (line.log, line.number))

    def _sort(self, block: Block, number: int, text: str) -> None:
        message = bare(text)
        if _RAISED.match(message):
            kind = self.follow if _FOLLOWS.search(message) else self.roots
        elif _FRAME.match(message) or not _ERROR.search(text):
            return
        else:
            kind = self.follow if _FOLLOWS.search(message) else self.errors
        if len(kind) < SHOWN and message not in self._messages:
            self._messages.add(message)
            kind.append(block.shown(number, text))
