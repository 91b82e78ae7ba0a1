"""Reads a log once, block by block, and keeps what was found in it.

The automaton of `signatures.Matcher` looks at whole blocks; Python looks only at the lines that it points to.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache

from ..redact import Redactor
from ..signatures import Expression, Matcher, Pattern, Signature
from ..signatures.matching import escaped
from .blocks import Block
from .cleaning import Line
from .inputs import Source
from .pages import Samples
from .telling import Collector
from .watching import ENOUGH, STARTS, TELLING, VERSIONS, WATCHES

PASTE_LINES = 20
"""A log of at most so many lines is one that somebody has cut out, with care."""
_LAST_LINES = 3
TOLD_APART = 32
"""So many starts of a server are kept; of more, the oldest are merged."""

PatternKey = tuple[str, str, int]
"""A signature's id, one of its lists of patterns, and the place in it."""


@dataclass
class Start:
    """What was seen from one start of a server to the next; there is always one, wherever a log begins.

    Attributes:
        found: first line of each pattern and watch.
        counts: how many of their lines were seen; counting ends where it no longer matters.
    """

    found: dict[PatternKey | str, Line] = field(default_factory=dict)
    counts: dict[PatternKey | str, int] = field(default_factory=dict)


@dataclass
class Log:
    """What was found in one log.

    Attributes:
        remarks: what was odd about it.
        starts: in order; a server that was restarted has several.
        versions: by component, how much it is to be believed, and the version.
        last: its last lines.
        known: first line of everything that was found in it.
    """

    name: str
    remarks: list[str]
    size_bytes: int = 0
    lines: int = 0
    starts: list[Start] = field(default_factory=lambda: [Start()])
    samples: Samples = field(default_factory=Samples)
    versions: dict[str, tuple[int, str]] = field(default_factory=dict)
    telling: Collector = field(default_factory=Collector)
    last: list[Line] = field(default_factory=list)
    known: dict[PatternKey | str, Line] = field(default_factory=dict)

    def begin(self) -> None:
        """A server was started."""
        self.starts.append(Start())
        if len(self.starts) > TOLD_APART:
            first, second = self.starts[:2]
            second.found |= first.found
            second.counts |= {key: count + second.counts.get(key, 0) for key, count in first.counts.items()}
            del self.starts[0]

    @property
    def is_crash_loop(self) -> bool:
        """Whether it holds so many starts that what was found once is not looked at again in each."""
        return len(self.starts) >= TOLD_APART

    @property
    def is_paste(self) -> bool:
        return self.lines <= PASTE_LINES


class Patterns:
    """All that is looked for, ready to be searched for at once.

    Args:
        signatures: known failures.
    """

    def __init__(self, signatures: Sequence[Signature]):
        self.signatures = tuple(signatures)
        self.of: dict[PatternKey, Pattern] = {
            (s.id, name, place): pattern for s in signatures for name in ("any_of", "all_of", "unless")
            for place, pattern in enumerate(getattr(s, name))
        }
        self.at_least = {s.id: s.at_least for s in signatures}
        self.matcher = Matcher([
            *(Expression(key, _searched(p)) for key, p in self.of.items()),
            *(Expression(name, watch.regex, every=watch.every) for name, watch in WATCHES.items()),
            *(Expression(place, version.regex) for place, version in enumerate(VERSIONS)),
        ])


class Scanner:
    """Reads logs.

    Args:
        redact: masks secrets in every line that is kept.
    """

    def __init__(self, patterns: Patterns, redact: Redactor):
        self._patterns, self._redact = patterns, redact

    def read(self, source: Source) -> Log:
        """Everything in one log.

        Raises:
            UsageError: it is empty, or not text.
        """
        log = Log(source.name, source.remarks)
        block = None
        for raw in source.blocks():
            block = Block(log.name, log.lines, raw, self._redact)
            self._take(log, block)
            log.size_bytes += len(raw)
            log.lines += block.text.count(b"\n")
        if block is not None:
            log.lines += not block.raw.endswith(b"\n")
            log.last = block.tail(_LAST_LINES)
            log.telling.end(block)
        return log

    def _take(self, log: Log, block: Block) -> None:
        text, hits = block.text, self._patterns.matcher.scan(block.text)
        begins = sorted({text.rfind(b"\n", 0, end) + 1 for key, end in hits if key in STARTS})
        if not begins:
            self._note(log, block, hits, len(text))
            return
        # A pattern is reported once per scan, so the part of each start is searched by itself.
        for begin, end in zip([0, *begins], [*begins, len(text)], strict=True):
            if begin in begins:
                log.begin()
            part = self._patterns.matcher.scan(memoryview(text)[begin:end])
            self._note(log, block, [(key, begin + at) for key, at in part], end)

    def _note(self, log: Log, block: Block, hits: list, limit: int) -> None:
        tells = [end for key, end in hits if key in TELLING]
        if tells:
            log.telling.take(block, tells)
        for key, end in hits:
            if key == "sample":
                log.samples.take(block.line(end).text)
            elif isinstance(key, int):
                self._version(log, block, key, end)
            elif isinstance(key, str):
                counted = WATCHES[key].counted
                self._count(log, key, block, end, limit, lambda text, c=counted: c.search(text) is not None,
                            WATCHES[key].regex, ENOUGH.get(key, 1))
            else:
                pattern = self._patterns.of[key]
                self._count(log, key, block, end, limit, pattern.found_in, _searched(pattern),
                            1 if key[1] == "unless" else self._patterns.at_least[key[0]])

    def _count(self, log: Log, key: PatternKey | str, block: Block, end: int, limit: int,
               wanted: Callable[[str], bool], regex: str, enough: int) -> None:
        """Keep the first line that really matches, and count until it is enough."""
        start = log.starts[-1]
        seen = start.counts.get(key, 0)
        if seen >= enough:
            return
        if log.is_crash_loop and key in log.known:
            start.found.setdefault(key, log.known[key])
            start.counts[key] = seen + 1
            return
        for line in block.matching(wanted, _compiled(regex), end, limit):
            start.found.setdefault(key, line)
            log.known.setdefault(key, line)
            seen += 1
            if seen >= enough:
                break
        start.counts[key] = seen

    def _version(self, log: Log, block: Block, place: int, end: int) -> None:
        version = VERSIONS[place]
        if log.is_crash_loop and version.component in log.versions:
            return
        found = version.line.search(block.line(end, around=version.line).text)
        if found is not None and version.belief >= log.versions.get(version.component, (0, ""))[0]:
            log.versions[version.component] = (version.belief, found[1].rstrip(".,;:"))


def _searched(pattern: Pattern) -> str:
    return escaped(pattern.literal) if pattern.literal is not None else pattern.regex or ""


@cache
def _compiled(regex: str) -> re.Pattern[bytes]:
    return re.compile(regex.encode())
