"""What speaks for an answer, and the answer itself."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from ..signatures import Signature
from .cleaning import Line


class Kind(StrEnum):
    WORKING = "working"
    """KV came back from outside the engine's own cache."""
    SILENT = "silent"
    """Offloading cannot work like this, though nothing fails."""
    HINT = "hint"
    """It looks as if nothing comes back; a cache that was never needed looks much the same."""
    NOTE = "note"
    """Worth knowing; decides nothing."""


@dataclass(frozen=True)
class Evidence:
    """One thing that was seen.

    Attributes:
        line: where it was seen; None for a sum over a metrics page.
        then: the next step; empty when there is none of its own.
    """

    kind: Kind
    text: str
    line: Line | None = None
    then: str = ""


@dataclass(frozen=True)
class Match:
    """A signature whose lines were found.

    Attributes:
        line: the first of them.
        excluded: why the versions that ran cannot have this failure; None when they can, or are unknown.
        earlier: whether the server was started again afterwards, and KV came back then.
    """

    signature: Signature
    line: Line
    excluded: str | None = None
    earlier: bool = False


class Status(StrEnum):
    FAILURE = "known failure"
    NOT_OFFLOADING = "configured but not offloading"
    WORKING = "working"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Input:
    """One log that was read.

    Attributes:
        remark: what was odd about it, or why it could not be read; empty when nothing was.
    """

    name: str
    size_bytes: int
    lines: int
    remark: str = ""


@dataclass(frozen=True)
class Explanation:
    """What logs say about a server's KV offloading.

    Attributes:
        status: the answer.
        matches: known failures in their versions' bounds, those that decide the answer first.
        doubtful: matches whose version bounds exclude what ran, or that are earlier than a start that worked.
        evidence: for the answer and, as notes, beside it.
        telling: lines that tell most, when the answer is unknown.
        versions: what ran, by component, as far as the logs say.
        inputs: what was read.
    """

    status: Status
    matches: tuple[Match, ...] = ()
    doubtful: tuple[Match, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    telling: tuple[Line, ...] = ()
    versions: tuple[tuple[str, str], ...] = ()
    inputs: tuple[Input, ...] = ()

    @property
    def exit_code(self) -> int:
        """0 when there is an answer, 1 when it is unknown."""
        return 1 if self.status is Status.UNKNOWN else 0
