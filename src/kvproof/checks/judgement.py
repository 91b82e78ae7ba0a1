"""From measurements and their limits to a verdict."""

from __future__ import annotations

from dataclasses import dataclass

from ..engines import Engine
from ..evidence import Measurement, Verdict


@dataclass(frozen=True)
class Judgement:
    """What a check found.

    Attributes:
        reason: why it is not a pass; None for a pass.
        link: upstream issue or page, required for unsupported.
    """

    verdict: Verdict
    reason: str | None = None
    measurements: tuple[Measurement, ...] = ()
    link: str | None = None


def judge(measurements: list[Measurement]) -> Judgement:
    """Pass when every measurement with a limit keeps it.

    A limited measurement without a value makes it an error: unknown is not a pass, and not a failure either.
    """
    limited = [m for m in measurements if m.limit is not None]
    if not limited:
        return Judgement(Verdict.ERROR, "nothing was judged", tuple(measurements))
    broken = [m for m in limited if m.holds() is False]
    if broken:
        return Judgement(Verdict.FAIL, "; ".join(map(_complaint, broken)), tuple(measurements))
    unknown = [m for m in limited if m.holds() is None]
    if unknown:
        reason = "; ".join(f"{m.name} is unknown ({m.source or 'no source'})" for m in unknown)
        return Judgement(Verdict.ERROR, reason, tuple(measurements))
    return Judgement(Verdict.PASS, None, tuple(measurements))


def unmeasured(engine: Engine, *names: str) -> Judgement | None:
    """The verdict of a check that judges by engine counters, when upstream is known not to offer one of them.

    Args:
        names: the counters, by kvproof's words.

    Returns:
        unsupported, with the upstream page; None when none of them is known to be missing. One that is missing all the
        same leaves its measurement without a value, which `judge` makes an error.
    """
    missing = [name for name in names if name in engine.UNMEASURED]
    if not missing:
        return None
    reason, link = engine.UNMEASURED[missing[0]]
    return Judgement(Verdict.UNSUPPORTED, f"{engine.NAME} does not offer {', '.join(missing)}: {reason}", link=link)


def error(reason: str, measurements: list[Measurement] | None = None) -> Judgement:
    return Judgement(Verdict.ERROR, reason, tuple(measurements or ()))


def _complaint(m: Measurement) -> str:
    return f"{m.name} is {_number(m.value)} {m.unit}, expected {m.relation} {_number(m.limit)}"


def _number(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
