"""What lint found: one thing that is wrong or worth knowing, where, why, and what to do."""

from __future__ import annotations

from dataclasses import dataclass, field

SEVERITIES = ("error", "warning", "note")
"""An error does not start or does not work; a warning starts and does something else than meant; a note is for
information, or holds for versions that may not be the one used. Only errors and warnings count as findings."""


@dataclass(frozen=True)
class Fact:
    """One thing that lint knows.

    Attributes:
        severity: where its bounds hold.
        message, reason, fix: texts; {names} are filled in where it is found.
        versions: engine versions that it holds for; None for all.
        link: where it can be read.
        maybe: severity when the engine's version is not known and some that it may be are outside the bounds; None to
            say nothing then.
        absence: whether it is about something that is not there, and so cannot be judged where part of the command
            or of the container is not in the paste.
    """

    severity: str
    message: str
    reason: str
    fix: str
    versions: str | None = None
    link: str | None = None
    maybe: str | None = "note"
    absence: bool = False


@dataclass(frozen=True)
class Edit:
    """One replacement in the paste.

    Attributes:
        start, end: offsets in its text; equal for an insertion.
    """

    start: int
    end: int
    text: str


@dataclass(frozen=True)
class Finding:
    """Attributes:
        id: in kebab-case, a key of facts.FACTS.
        offset: where in the paste's text.
        versions: with the program's name, as in "vLLM >=0.27"; None when it holds for all.
        edits: that mend it for certain; empty when only a person can.
    """

    id: str
    severity: str
    offset: int
    message: str
    reason: str
    fix: str
    versions: str | None = None
    link: str | None = None
    edits: tuple[Edit, ...] = field(default=(), repr=False)
