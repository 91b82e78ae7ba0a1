"""Engine versions, known or not, against the bounds that a fact holds for."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

_FOUND = re.compile(r"v?(\d+\.\d+(?:\.\d+)*(?:[._-]?(?:rc|a|b|post|dev)[._-]?\d+)*)", re.I)


@dataclass(frozen=True)
class Line:
    """The releases of one program that lint can tell apart.

    Attributes:
        name: as people call it.
        releases: old to new; one more stands for whatever comes later.
        assumed: the oldest that a paste is taken to mean when it does not say; older ones are judged when named.
    """

    name: str
    releases: tuple[str, ...]
    assumed: str


VLLM = Line("vLLM", tuple(f"0.{n}" for n in range(11, 34)), assumed="0.21")
"""Before 0.21 there was no path for hybrid KV caches, and Gemma 4's assistants were not known."""
SGLANG = Line("SGLang", tuple(f"0.5.{n}" for n in range(10, 23)), assumed="0.5.18")
TRTLLM = Line("TensorRT-LLM", ("1.0", "1.1", "1.2", "1.3.0rc20", "1.3.0rc26", "1.3", "1.4"), assumed="1.3.0rc20")
LMCACHE = Line("LMCache", ("0.3", "0.4", "0.5.0", "0.5.2", "0.5.4", "0.5.5", "0.5.6", "0.6"), assumed="0.5.5")


@dataclass(frozen=True)
class Known:
    """What is known of an engine's version.

    Attributes:
        exact: the version itself; None when nothing says it.
        at_least: what it is taken to be at least when it is not known; None for the line's own assumption.
        source: where it was found, as a sentence part.
    """

    line: Line
    exact: Version | None = None
    at_least: str | None = None
    source: str = "not said"

    def holds(self, bounds: str | None) -> bool | None:
        """Whether it lies within bounds; None when it may."""
        if bounds is None:
            return True
        if self.exact is not None:
            return _within(self.exact, bounds)
        floor = Version(self.at_least or self.line.assumed)
        found = {_within(Version(r), bounds) for r in self.line.releases if Version(r) >= floor}
        return found.pop() if len(found) == 1 else None

    def text(self) -> str:
        name = self.line.name
        if self.exact is not None:
            return f"{name} {self.exact} ({self.source})"
        return f"{name}, version {self.source}: taken as {self.at_least or self.line.assumed} or later"


def parse(text: str) -> Version | None:
    """The version that a text is, such as 0.31, v0.30.0rc1 or 0.19.1.dev6+g6d4a8e6d2; None when it is none.

    A build towards a release behaves as that release, except in TensorRT-LLM, whose candidates are used as releases.
    """
    found = _FOUND.match(text.strip())
    if not found:
        return None
    try:
        version = Version(found[1])
    except InvalidVersion:
        return None
    return version if version.release[:1] == (1,) else Version(version.base_version)


@cache
def _specifiers(bounds: str) -> SpecifierSet:
    return SpecifierSet(bounds)


def _within(version: Version, bounds: str) -> bool:
    return _specifiers(bounds).contains(version, prereleases=True)
