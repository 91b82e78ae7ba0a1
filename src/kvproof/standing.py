"""Where one recipe stands, judged from the headers of its runs; and the words for it.

Only of the run that decides is the whole file read, to see that its header says no more than its checks.
Nothing is recomputed and no log is read. A recipe is proven only while the newest run that could be
judged, with the pins that the recipe has now, passed everything that the recipe requires.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import Field

from .checks import CONTROLS
from .errors import EvidenceError
from .evidence import CheckSummary, Hardware, Header, Record, Verdict, overall, read, read_header, summaries
from .recipe import PROOF, Caveat, Claim, Recipe

_WORKS = frozenset({"validated", "supported"})
CLAIM_TOLERANCE = 0.05
"""How far a measured score or ratio may lie from a claimed one, absolute: 100 samples are no finer than that."""
_CLOCK_ERROR = timedelta(days=1)
_JUDGED = {Verdict.PASS: "passed", Verdict.FAIL: "failed", Verdict.UNSUPPORTED: "was unsupported"}


class Standing(StrEnum):
    PROVEN = "proven"
    FAILING = "failing"
    STALE = "stale"
    """There is evidence, but the recipe or its lock changed since."""
    CLAIMED = "claimed"
    """An upstream page says something, and nothing was run here."""
    UNSUPPORTED = "unsupported"
    NOT_RUN = "not run"


class Problem(Record):
    """A file that could not be used; everything else still counts."""

    kind: Literal["recipe", "lock", "evidence"]
    path: str
    """Relative to the folder that holds recipes, evidence and images."""
    reason: str

    @property
    def blocking(self) -> bool:
        """Whether the matrix cannot be called up to date while it lasts."""
        return self.kind != "evidence"


class StandIn(Record):
    """A recipe that proves the same path on other hardware or with other weights."""

    recipe: str
    standing: Standing
    weights: Literal["real", "nano", "dummy"]
    evidence: str | None
    """As in Cell."""


class Cell(Record):
    """One recipe, and the run on record that decides where it stands."""

    recipe: str
    title: str
    model: str
    feature: str
    engine: str
    engine_pin: str
    connector: str
    connector_pin: str | None
    """None for a connector without a version of its own."""
    standing: Standing
    reason: str | None = None
    """Why it is not proven; None when it is, or when nothing was run."""
    weights: Literal["real", "nano", "dummy"]
    run_id: str | None = None
    """The run that decides, or for stale the last that was judged; None, as all below, without one."""
    evidence: str | None = None
    """Its file, relative to the folder that holds the evidence folder; with forward slashes."""
    date: str | None = None
    """UTC day on which it started."""
    runtime: str | None = None
    hardware: Hardware | None = None
    engine_version: str | None = None
    """As the engine reported it; None when it never did."""
    connector_version: str | None = None
    checks: tuple[CheckSummary, ...] = ()
    highlights: dict[str, float | int | str | None] = Field(default_factory=dict)
    claims: tuple[Claim, ...] = ()
    caveats: tuple[Caveat, ...] = ()
    """Those that hold for the engine version that the recipe pins."""
    stands_for: str | None = None
    """Recipe whose path this one proves; None when there is none."""
    stand_ins: tuple[StandIn, ...] = ()
    contradictions: tuple[str, ...] = ()
    """Where evidence and claims, or claims among themselves, say opposite things."""
    notes: tuple[str, ...] = ()
    """Runs that decide nothing, but that a reader should know of."""


class Orphan(Record):
    """Evidence that belongs to no recipe here."""

    recipe: str
    reason: str
    runs: int
    evidence: str
    """The newest file, as in Cell."""
    verdict: Verdict
    date: str


class Matrix(Record):
    cells: tuple[Cell, ...]
    """One per recipe, by name."""
    orphans: tuple[Orphan, ...] = ()
    problems: tuple[Problem, ...] = ()


class Run(NamedTuple):
    """An evidence file; compares by start, then run id."""

    started: datetime
    run_id: str
    evidence: str
    header: Header

    @property
    def date(self) -> str:
        return self.started.date().isoformat()


class Current(NamedTuple):
    """A recipe with the pins it has now."""

    recipe: Recipe
    digest: str
    lock_digest: str | None
    """None without an environment, or when its lock file cannot be read: then nothing matches it."""
    image_digests: frozenset[str] = frozenset()
    """Of the pinned image that its containers run in or whose packages they add to; empty where none is pinned."""
    layer_digest: str | None = None
    """Of the lock of what is added to that image; None where nothing is, or where it is the environment's lock."""

    def changed(self, header: Header) -> list[str]:
        """Which pins of a run are not the present ones; empty when all are."""
        changed = [] if header.recipe_digest == self.digest else ["the recipe"]
        if header.image_digest is not None:
            if header.image_digest not in self.image_digests:
                changed.append("the image" if self.image_digests else "the image (none is pinned)")
            # An image of the recipe's own may bring every package; one of its environment brings none of them.
            locks = {self.lock_digest, self.layer_digest} - {None}
            may_lack = self.recipe.image is not None and self.layer_digest is None
            if header.lock_digest not in locks and not (header.lock_digest is None and may_lack):
                changed.append(f"the lock of {self.recipe.environment or self.recipe.image}")
        elif self.recipe.environment is None:
            changed.append("where the engine comes from")
        elif self.lock_digest is None or header.lock_digest != self.lock_digest:
            changed.append(f"the lock of {self.recipe.environment}")
        return changed


class Newest:
    """The newest run of each kind that one recipe has."""

    def __init__(self) -> None:
        self.runs: dict[str, Run] = {}
        self._candidates: dict[str, list[tuple[datetime, str, str, Path]]] = {"decides": [], "stale": []}

    def add(self, kind: str, run: Run, path: Path) -> None:
        """Take a run into account; one that could decide counts only once `settle` has confirmed it."""
        if kind in self._candidates:
            self._candidates[kind].append((*run[:3], path))
        elif kind not in self.runs or run[:3] > self.runs[kind][:3]:
            self.runs[kind] = run

    def settle(self, current: Current) -> Iterator[tuple[Path, str, EvidenceError]]:
        """Find the newest run that decides, else the newest stale one, whose whole file bears its header out.

        Yields:
            Newer files that do not, each with the path under which it is shown and what is wrong.
        """
        for kind, candidates in self._candidates.items():
            for started, run_id, shown, path in sorted(candidates, reverse=True):
                try:
                    self.runs[kind] = Run(started, run_id, shown, confirm(path, current))
                    return
                except EvidenceError as error:
                    yield path, shown, error

    def after(self, kind: str, decisive: Run | None) -> Run | None:
        """The newest of a kind, unless the decisive run is newer still."""
        run = self.runs.get(kind)
        return run if run and (decisive is None or run[:3] > decisive[:3]) else None


def read_run(path: Path, shown: str, now: datetime) -> Run:
    """Read the header of an evidence file.

    Args:
        path: the file.
        shown: the path under which the matrix names it.
        now: the present time; a later start than the clocks of two hosts can differ by would decide for ever.

    Raises:
        EvidenceError: as `read_header`, or it does not say when it started, or says a time to come.
    """
    header = read_header(path)
    try:
        started = datetime.fromisoformat(header.started_at)
        started = started.replace(tzinfo=UTC) if started.tzinfo is None else started.astimezone(UTC)
    except (ValueError, OverflowError):
        raise EvidenceError(f"{path}: started_at is no ISO 8601 time: {header.started_at!r}") from None
    if started > now + _CLOCK_ERROR:
        raise EvidenceError(f"{path}: started_at is in the future: {header.started_at!r}")
    return Run(started, header.run_id, shown, header)


def confirm(path: Path, current: Current) -> Header:
    """Read a whole evidence file and compare its header with the rest of it.

    Raises:
        EvidenceError: as `read`, or the header says something else than the checks.
    """
    record = read(path)
    header = record.header
    if header != read_header(path):
        raise EvidenceError(f"{path}: it has two headers")
    if header.checks != summaries(record.checks):
        raise EvidenceError(f"{path}: its header names other checks or results than the record")
    if current.changed(header):  # what its recipe required then is known only from the record
        required = [check.name for check in record.checks if check.required]
    else:
        required = current.recipe.checks.required
    verdict, _ = overall(record.checks, required, CONTROLS)
    if verdict is not header.verdict:
        raise EvidenceError(f"{path}: says {header.verdict}, but its checks make it {verdict}")
    return header


def kind(header: Header, current: Current) -> str:
    """What a run is to its recipe: decides, stale, unjudged, uncounted, or nothing (old).

    Raises:
        EvidenceError: it says pass, but its own checks do not.
    """
    counts = not header.weaker and header.damage_left_in is None
    judged = header.status == "completed" and header.verdict in _JUDGED
    if current.changed(header):
        return "stale" if counts and judged else "old"
    if not counts:
        return "uncounted"
    if not judged:
        return "unjudged"
    if header.verdict is Verdict.PASS:
        others = {check.name for check in header.checks if check.verdict is not Verdict.PASS}
        passed = {check.name for check in header.checks} - others
        lacking = [name for name in dict.fromkeys((*PROOF, *current.recipe.checks.required)) if name not in passed]
        if lacking:
            raise EvidenceError(f"says pass, but has no pass of: {', '.join(lacking)}")
    return "decides"


def cell(current: Current, newest: Newest) -> Cell:
    """A recipe's place in the matrix, from the newest run of each kind."""
    recipe = current.recipe
    decisive = newest.runs.get("decides")
    shown = decisive or newest.runs.get("stale")
    standing, reason = _standing(current, decisive, shown)
    known = Cell(
        recipe=recipe.name,
        title=recipe.title,
        model=recipe.model.repository,
        feature=recipe.feature,
        engine=recipe.engine.name,
        engine_pin=recipe.engine.version,
        connector=recipe.connector.name,
        connector_pin=recipe.connector.version,
        standing=standing,
        reason=reason,
        weights=recipe.model.weights,
        claims=tuple(recipe.claims),
        caveats=tuple(caveat for caveat in recipe.caveats if recipe.applies(caveat.versions)),
        stands_for=recipe.stands_for,
        contradictions=tuple(_contradictions(recipe.claims, standing, decisive)),
        notes=tuple(_notes(newest, decisive, recipe, standing)),
    )
    if shown is None:
        return known
    header = shown.header
    return known.model_copy(
        update={
            "weights": header.weights,
            "run_id": header.run_id,
            "evidence": shown.evidence,
            "date": shown.date,
            "runtime": header.runtime,
            "hardware": header.hardware,
            "engine_version": header.engine_version,
            "connector_version": header.connector_version,
            "checks": header.checks,
            "highlights": header.highlights,
        }
    )


def _standing(current: Current, decisive: Run | None, shown: Run | None) -> tuple[Standing, str | None]:
    if decisive:
        header = decisive.header
        if header.verdict is Verdict.PASS:
            return Standing.PROVEN, None
        standing = Standing.FAILING if header.verdict is Verdict.FAIL else Standing.UNSUPPORTED
        return standing, header.reason or "the run gives no reason"
    if shown:
        ended = f"{_JUDGED[shown.header.verdict]} on {shown.date}"
        changed = " and ".join(current.changed(shown.header))
        return Standing.STALE, f"{ended}, but since then {changed} changed"
    if current.recipe.claims:
        return Standing.CLAIMED, "; ".join(f"{c.says} ({c.date}): {c.source}" for c in current.recipe.claims)
    return Standing.NOT_RUN, None


def beside(cells: tuple[Cell, ...]) -> tuple[Cell, ...]:
    """The cells, each with those that stand in for it, and with what these say against its claims."""
    result = []
    for known in cells:
        ins = tuple(StandIn(recipe=c.recipe, standing=c.standing, weights=c.weights, evidence=c.evidence)
                    for c in cells if c.stands_for == known.recipe)
        against = [
            f"upstream says {claim.says} ({claim.source}, {claim.date}), but {stand_in.recipe}, which stands in for "
            f"it with {stand_in.weights} weights, is {stand_in.standing}"
            for claim in known.claims if claim.says in _WORKS
            for stand_in in ins if stand_in.standing in (Standing.FAILING, Standing.UNSUPPORTED)
        ]
        result.append(known.model_copy(update={"stand_ins": ins,
                                               "contradictions": (*known.contradictions, *against)}))
    return tuple(result)


def _contradictions(claims: list[Claim], standing: Standing, decisive: Run | None) -> Iterator[str]:
    works = standing is Standing.PROVEN
    if works or standing in (Standing.FAILING, Standing.UNSUPPORTED):
        for claim in claims:
            if claim.says == "not supported" if works else claim.says in _WORKS:
                said = f"upstream says {claim.says} ({claim.source}, {claim.date})"
                yield f"{said}, but the evidence here makes it {standing}"
    said = {claim.says for claim in claims}
    if "not supported" in said and said & _WORKS:
        yield "the claims contradict each other: " + ", ".join(f"{c.says} ({c.source})" for c in claims)
    measured = decisive.header.highlights if decisive and decisive.header.weights == "real" else {}
    for claim in claims:
        for name, value in claim.numbers.items():
            here = measured.get(name)
            if isinstance(here, int | float) and abs(here - value) > CLAIM_TOLERANCE:
                yield f"upstream gives {name} {value:g} ({claim.source}, {claim.date}), measured here: {here:.4g}"


def _notes(newest: Newest, decisive: Run | None, recipe: Recipe, standing: Standing) -> Iterator[str]:
    unjudged = newest.after("unjudged", decisive)
    if unjudged:
        header = unjudged.header
        why = header.reason or ("no reason given" if header.status == "completed" else header.status)
        yield f"last run could not be judged: {why} ({unjudged.date}, {unjudged.evidence})"
    uncounted = newest.after("uncounted", decisive)
    if uncounted:
        header = uncounted.header
        why = [*header.weaker]
        if header.damage_left_in is not None:
            why.append(f"damage left in: {header.damage_left_in}")
        yield f"last run does not count: {', '.join(why)} ({uncounted.date}, {uncounted.evidence})"
    if standing is Standing.PROVEN and any(c.says == "not validated" for c in recipe.claims):
        yield "beyond what upstream claims, which is: not validated"
