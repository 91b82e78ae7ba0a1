"""Turns what is known of a run into its record, at whatever moment it ended."""

from __future__ import annotations

import subprocess
import time
from dataclasses import asdict

from . import __version__, evidence, host, weights
from .checks import CONTROLS
from .connectors import connector
from .errors import Interrupted, KvproofError
from .evidence import CheckResult, Header, RunRecord, Verdict
from .paths import PROJECT, cache_folder
from .runstate import RunState

LOG_LINES_KEPT = 40
HIGHLIGHTS = (
    "external_hit_tokens", "cache_server_hit_tokens", "engine_external_hit_ratio", "cache_server_hit_ratio",
    "floor_logprob_drift", "logprob_drift", "score_computed", "score_retrieved", "miss_overhead_ratio",
    "acceptance_computed_ratio", "acceptance_retrieved_ratio",
)


def compose(run: RunState, problem: KvproofError | None) -> RunRecord:
    results = tuple(run.results)
    verdict, reason = evidence.overall(results, run.recipe.checks.required, CONTROLS)
    if problem is not None:
        verdict, reason = (Verdict.FAIL if verdict is Verdict.FAIL else Verdict.ERROR), problem.message
    duration = time.monotonic() - run.started
    own = sum(s.own_s for s in run.steps)
    status = "completed" if problem is None else "interrupted" if isinstance(problem, Interrupted) else "failed"
    facts = host.facts(cache_folder())
    attached = connector(run.recipe.connector.name)
    lock_digest = run.plan.lock_digest if run.plan else None
    header = Header(
        run_id=run.run_id, recipe=run.recipe.name, recipe_digest=run.recipe.digest(), lock_digest=lock_digest,
        image_digest=run.plan.image.partition("@")[2] or None if run.plan and run.plan.image else None,
        runtime=run.options.runtime, weights=run.recipe.model.weights, engine=run.recipe.engine.name,
        connector=run.recipe.connector.name, engine_version=run.engine_version,
        connector_version=attached.version(run.versions), hardware=host.hardware(), started_at=run.started_at,
        duration_s=round(duration, 3), status=status, verdict=verdict, reason=reason, weaker=_weaker(run),
        damage_left_in="stored KV was changed before the main retrieval" if run.damage else None,
        checks=evidence.summaries(results), highlights=_highlights(results),
    )
    return RunRecord(
        header=header, recipe_text=run.text, plan=run.plan.as_data() if run.plan else {},
        environment=_environment(run), model=run.model or weights.unknown(run.recipe.model, run.recipe.model.weights),
        assistant=run.assistant, dataset=run.dataset,
        host=facts, options={**asdict(run.options), "evidence_dir": None}, steps=tuple(run.steps),
        passes=tuple(run.session.passes.values()) if run.session else (), checks=results,
        logs={role: tuple(lines) for role, lines in run.logs.items()},
        own_share_ratio=round(own / duration, 4) if duration else None,
    )


def _weaker(run: RunState) -> tuple[str, ...]:
    asked, wanted = run.options.samples, run.recipe.prompts.samples
    return (f"{asked} samples, the recipe asks for {wanted}",) if asked is not None and asked < wanted else ()


def _highlights(results: tuple[CheckResult, ...]) -> dict[str, float | int | str | None]:
    """The numbers for tables; those of controls are left out, since they are meant to be bad."""
    found: dict[str, float | int | str | None] = {}
    for result in results:
        if result.name in CONTROLS:
            continue
        for m in result.measurements:
            if m.name in HIGHLIGHTS or m.name.startswith("ttft_"):
                found.setdefault(m.name, m.value)
    return found


def _environment(run: RunState) -> evidence.Environment:
    commit, dirty = code_state()
    name = run.plan.environment_name if run.plan else run.recipe.environment
    return evidence.Environment(
        kvproof_version=__version__, commit=commit, dirty=dirty,
        lock_file=f"images/{name}/requirements.lock" if name else None,
        python=run.versions.get("python"), versions=run.versions, container=run.container,
    )


def code_state() -> tuple[str | None, bool | None]:
    """kvproof's commit and whether its files differ from it; None outside a git checkout.

    Evidence and generated documents do not count: a run writes them itself.
    """
    def git(*words: str) -> str | None:
        try:
            done = subprocess.run(["git", "-C", str(PROJECT), *words], capture_output=True, text=True, timeout=20,
                                  check=True)
        except (OSError, subprocess.SubprocessError):
            return None
        return done.stdout.strip()

    commit = git("rev-parse", "HEAD")
    if commit is None:
        return None, None
    changed = git("status", "--porcelain", "--", ".", ":!evidence", ":!docs")
    return commit, bool(changed) if changed is not None else None
