"""What a signature file says: a strict, frozen model."""

from __future__ import annotations

import contextlib
import re
from typing import Annotated, Literal

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version
from pydantic import AfterValidator, Field, StringConstraints, model_validator

from ..recipe import Bounds, Name, Strict

Component = Literal["vllm", "lmcache", "sglang", "tensorrt-llm", "transformers"]
Severity = Literal["fatal", "error", "warning"]
_ANCHORED = re.compile(r"(?:\^|\\A).*|.*(?:(?<!\\)\$|\\Z)", re.S)
Words = Annotated[str, AfterValidator(lambda text: " ".join(text.split())), StringConstraints(min_length=1)]
"""Text to print, on one line however it is folded in the file."""


class Pattern(Strict):
    """What one line must contain, once colours and escapes are gone. Case counts."""

    literal: str | None = Field(default=None, min_length=6, description="these very characters")
    regex: str | None = Field(default=None, min_length=6, description="regular expression, ASCII, as Python has them")

    @model_validator(mode="after")
    def _one_kind(self) -> Pattern:
        if (self.literal is None) == (self.regex is None):
            raise ValueError("expected either literal or regex")
        if "\n" in (self.literal or self.regex or ""):
            raise ValueError("a pattern is searched for within one line: write one pattern per line, under all_of")
        if self.regex is None:
            return self
        if not self.regex.isascii():
            raise ValueError("a regular expression must be ASCII; other characters go into a literal")
        if _ANCHORED.fullmatch(self.regex):
            raise ValueError("a line has prefixes (process, time, container), so that ^ and $ would never hold")
        try:
            if re.compile(self.regex).search(""):
                raise ValueError("it matches an empty line")
        except re.error as error:
            raise ValueError(f"not a regular expression: {error}") from None
        return self

    @property
    def compiled(self) -> re.Pattern[str]:
        """The regular expression, or one for the literal."""
        return re.compile(re.escape(self.literal) if self.literal is not None else self.regex or "")

    def found_in(self, line: str) -> bool:
        """Whether a line without colours and escapes contains it."""
        return self.literal in line if self.literal is not None else self.compiled.search(line) is not None


class Signature(Strict):
    """One known failure."""

    id: Name = Field(description="the file's name")
    title: Words
    log: Literal["engine", "cache server", "any"] = Field(description="whose log the lines appear in")
    severity: Severity = Field(
        description="fatal: the process ends; error: requests or offloading fail; warning: something is lost, or may be"
    )
    means: Literal["failure", "not offloading"] = Field(
        default="failure", description="not offloading: the server stays up and healthy, and keeps or returns nothing"
    )
    any_of: list[Pattern] = Field(default_factory=list, description="one of them must be in the log")
    all_of: list[Pattern] = Field(default_factory=list, description="each of them must be in the log")
    unless: list[Pattern] = Field(default_factory=list, description="if one of them is in the log, it is not this")
    at_least: int = Field(default=1, ge=1, description="lines that must match, except in a few pasted lines")
    cause: Words
    fix: Words
    engine: Literal["vllm", "sglang", "trtllm"] | None = Field(default=None, description="null: any engine")
    connector: Name | None = Field(default=None, description="connector adapter it belongs to; null: any, or none")
    versions: dict[Component, Bounds] = Field(default_factory=dict, description="versions that it is known for")
    link: str = Field(pattern=r"^https://\S+$", description="where it was reported, or the source that says it")
    positive: list[str] = Field(min_length=1, description="lines from which alone it must be recognised")
    negative: list[str] = Field(min_length=1, description="similar lines from which it must not")

    @model_validator(mode="after")
    def _searchable(self) -> Signature:
        if not self.any_of and not self.all_of:
            raise ValueError("neither any_of nor all_of has a pattern: it could never be recognised")
        return self

    def excluded_by(self, versions: dict[str, str]) -> str | None:
        """Why these versions cannot have this failure, as a sentence part; None when they can, or are unknown."""
        for component, bounds in self.versions.items():
            seen = versions.get(component)
            if seen is not None and holds(bounds, seen) is False:
                return f"known for {component} {bounds}, and this is {seen}"
        return None


def holds(bounds: str, version: str) -> bool | None:
    """Whether version bounds hold; None when the version is not one.

    Unlike PEP 440's own rule, 0.29.0rc1 is below 0.29: a build from before a release may lack what the release has.
    """
    seen = _parsed(version)
    if seen is None:
        return None
    for specifier in SpecifierSet(bounds):
        below = specifier.operator == "<" and seen < Version(specifier.version)
        if not below and not specifier.contains(seen, prereleases=True):
            return False
    return True


def _parsed(version: str) -> Version | None:
    """A version, or the release that a build which calls itself 0.5.6-g3e11e108 comes from."""
    for text in (version, *re.findall(r"^v?\d+(?:\.\d+)+", version)):
        with contextlib.suppress(InvalidVersion):
            return Version(text)
    return None
