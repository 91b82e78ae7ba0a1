"""The rules: functions that look at a paste, or at one launch of it, and tell what they find."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ..facts import FACTS
from ..finding import Edit, Finding
from ..model import ENGINES, Launch, Paste
from ..versions import Known
from ..view import View

MAX_OF_A_KIND = 100


class Judge:
    """Collects findings, each with what its fact says and how sure it is.

    Attributes:
        views: engines of the paste, seen through.
        more: number of findings that are not told, because there are so many of their kind.
    """

    def __init__(self, paste: Paste):
        self.paste, self.source = paste, paste.source
        self.views = {id(launch): View(launch) for launch in paste.launches}
        self.findings: list[Finding] = []
        self.more = 0
        self._told: set[tuple[str, int, str]] = set()
        self._counts: Counter[str] = Counter()

    def view(self, launch: Launch) -> View:
        return self.views[id(launch)]

    @property
    def engines(self) -> list[View]:
        return [self.views[id(launch)] for launch in self.paste.launches if launch.program in ENGINES]

    def tell(self, name: str, at: int, launch: Launch | None = None, /, *, versions: str | None = None,
             edits: Sequence[Edit] = (), version: Known | None = None, **fields: object) -> None:
        """Note a finding, unless the engine's version rules it out.

        Args:
            name: key of FACTS.
            at: where.
            launch: whose version and completeness count; None when neither matters.
            versions: bounds, where the fact has none of its own.
            edits: what mends it for certain.
            version: the version that counts, where it is not the launch's.
            fields: what its texts leave open.
        """
        fact = FACTS[name]
        bounds = fact.versions if fact.versions is not None else versions
        known = version or (launch.version if launch is not None else None)
        holds = known.holds(bounds) if known is not None else True if bounds is None else None
        severity = fact.severity if holds else fact.maybe
        if holds is False or severity is None:
            return
        if fact.absence and launch is not None and not launch.complete:
            severity = "note"
        message = fact.message.format(**fields)
        key = (name, at, message)
        if key in self._told:
            return
        self._told.add(key)
        self._counts[name] += 1
        if self._counts[name] > MAX_OF_A_KIND:
            self.more += 1
            return
        said = f"{known.line.name} {bounds}" if bounds is not None and known is not None else bounds
        self.findings.append(Finding(
            name, severity, at, message, fact.reason.format(**fields), fact.fix.format(**fields), said, fact.link,
            tuple(edits) if severity != "note" else ()))


def run(paste: Paste) -> tuple[list[Finding], int]:
    """Everything that the rules find, in the order of the paste, and how many more of the same kinds there are."""
    from . import hygiene, lmcache, models, native, others, places, transfer, writing

    judge = Judge(paste)
    for rule in (*writing.RULES, *transfer.RULES, *native.RULES, *models.RULES, *places.RULES, *lmcache.RULES,
                 *others.RULES, *hygiene.RULES):
        rule(judge)
    return sorted(judge.findings, key=lambda f: (f.offset, f.id)), judge.more
