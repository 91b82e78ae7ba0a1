"""What a run's outcome looks like to a person, and as data."""

from __future__ import annotations

import shlex
from typing import Any

from . import explain
from .errors import Interrupted, KvproofError
from .evidence import CheckResult, Header, Measurement, Verdict
from .plan import Plan
from .run import Outcome

_WORDS = {Verdict.PASS: "PROVEN", Verdict.FAIL: "FAILED", Verdict.ERROR: "NOT JUDGED",
          Verdict.UNSUPPORTED: "UNSUPPORTED", Verdict.NOT_MEASURED: "NOT JUDGED"}


def text(outcome: Outcome) -> str:
    """What the logs say of a run that is not proven, the table of checks, and where everything is."""
    header = outcome.record.header
    found = explanation(outcome)
    lines = [] if found is None else [*explain.lines(found), ""]
    lines += [headline(header), ""]
    if outcome.record.checks:
        lines += [*check_lines(outcome.record.checks), ""]
    lines.append(f"  engine     {header.engine} {header.engine_version or '(version unknown)'}")
    lines.append(f"  connector  {header.connector} {header.connector_version or ''}".rstrip())
    lines.append(f"  weights    {header.weights}, {outcome.record.model.repository}")
    gpus = ", ".join(header.hardware.gpus) or "no GPU"
    lines.append(f"  hardware   {header.hardware.cpu}, {header.hardware.cores} cores, {gpus}")
    share = outcome.record.own_share_ratio
    if share is not None:
        lines.append(f"  duration   {header.duration_s:.0f} s, {share:.1%} of it kvproof's own")
    lines += [f"  no proof   {why}" for why in (*header.weaker, *filter(None, [header.damage_left_in]))]
    lines.append(f"  evidence   {outcome.evidence or 'not written'}")
    if outcome.folder.exists():
        lines.append(f"  logs       {outcome.folder}")
    return "\n".join(lines)


def explanation(outcome: Outcome) -> explain.Explanation | None:
    """What the logs of a run that is not proven say of it; None for a proven one, and where they say nothing."""
    if outcome.exit_code in (0, Interrupted.exit_code) or not outcome.folder.is_dir():
        return None
    # An engine without connector would only say that it has none.
    logs = sorted(path for path in outcome.folder.glob("*.log") if path.stem != "baseline")
    found = explain.lines_of(logs, outcome.record.header.engine_version)
    telling = (explain.Status.FAILURE, explain.Status.NOT_OFFLOADING)
    return found if found.status in telling else None


def headline(header: Header) -> str:
    """The recipe and how the run ended, with the reason unless it is proven."""
    reason = f" ({' '.join(header.reason.split())})" if header.reason else ""
    return f"{header.recipe}: {_WORDS[header.verdict]}{reason}"


def check_lines(checks: tuple[CheckResult, ...]) -> list[str]:
    """One line per check: its verdict, its name, and the numbers that matter or why it is not a pass."""
    rows = [(_mark(c.verdict), c.name, _summary(c)) for c in checks]
    width = max((len(name) for _, name, _ in rows), default=0)
    marks = max((len(mark) for mark, _, _ in rows), default=0)
    return [f"  {mark:<{marks}}  {name:<{width}}  {summary}".rstrip() for mark, name, summary in rows]


def _mark(verdict: Verdict) -> str:
    return {Verdict.PASS: "pass", Verdict.FAIL: "FAIL", Verdict.ERROR: "ERROR"}.get(verdict, verdict.value)


_SHOWN = {
    "noise-floor": ("floor_logprob_drift", "floor_disagreement_ratio"),
    "store": ("stores_finished", "stored_first_tier_bytes"),
    "retrieval": ("external_hit_tokens", "cache_server_hit_tokens", "cacheable_tokens"),
    "comparison": ("identical_samples", "logprob_drift", "score_computed", "score_retrieved"),
    "speculative": ("acceptance_computed_ratio", "acceptance_retrieved_ratio"),
    "overhead": ("miss_overhead_ratio",),
    "control-damage": ("changed_bytes", "logprob_drift"),
    "control-drop": ("external_hit_tokens",),
}


def _summary(check: CheckResult) -> str:
    if check.verdict is not Verdict.PASS:
        return " ".join((check.reason or "").split())
    shown = _SHOWN.get(check.name)
    if check.name == "latency":
        chosen = [m for m in check.measurements if m.name.startswith("ttft_speedup")]
    else:
        chosen = [m for m in check.measurements if shown and m.name in shown]
    return ", ".join(f"{m.name} {_value(m)}" for m in chosen)


def _value(m: Measurement) -> str:
    if m.value is None:
        return "unknown"
    if isinstance(m.value, float):
        return f"{m.value:.4g}" if not m.value.is_integer() else f"{m.value:.0f}"
    return str(m.value)


def as_data(outcome: Outcome) -> dict[str, Any]:
    """For --json: the header, the checks and where the files are."""
    found = explanation(outcome)
    return {
        "explanation": None if found is None else explain.as_data(found),
        "header": outcome.record.header.model_dump(mode="json"),
        "checks": [c.model_dump(mode="json") for c in outcome.record.checks],
        "own_share_ratio": outcome.record.own_share_ratio,
        "evidence": str(outcome.evidence) if outcome.evidence else None,
        "run_folder": str(outcome.folder) if outcome.folder.exists() else None,
        "exit_code": outcome.exit_code,
        "problem": outcome.problem.message if outcome.problem else None,
    }


def raise_for(outcome: Outcome) -> None:
    """End with the outcome's exit code: a problem with its text, a red check without repeating the table.

    Raises:
        KvproofError: when the recipe is not proven.
    """
    problem = outcome.problem
    if problem is None and outcome.exit_code:
        problem = KvproofError(f"{outcome.record.header.recipe} is not proven",
                               tip=f"logs of the servers: {outcome.folder}")
    if problem is not None:
        problem.result_printed = True
        raise problem


def plan_text(plan: Plan) -> str:
    """The plan as a person reads it: what would be started, in order."""
    lines = [f"recipe {plan.recipe.name}, digest {plan.recipe.digest()[:16]}", f"runtime {plan.runtime}"]
    if plan.image:
        lines.append(f"image {plan.image}")
    if plan.environment_name:
        lines.append(f"environment {plan.environment_name}, lock {(plan.lock_digest or '')[:16]}")
    for server in plan.servers:
        lines += ["", f"# {server.role}, ready when {server.url}{server.health_path} answers "
                      f"(at most {server.ready_timeout_s} s)"]
        lines += [f"{name}={shlex.quote(value)} \\" for name, value in sorted(server.environment.items())]
        lines.append(shlex.join(server.argv))
    return "\n".join(lines)
