"""Made-up recipes, headers and records for tests; every name says that it is a fixture."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import yaml

from kvproof import evidence
from kvproof.recipe import PROOF, Recipe

LOCK = "fixture-package==1.0\n"
LOCK_DIGEST = hashlib.sha256(LOCK.encode()).hexdigest()
RECIPE: dict[str, Any] = {
    "name": "fixture-recipe",
    "title": "A recipe made up for tests",
    "model": {
        "repository": "fixture/model",
        "revision": "1",
        "weights": "dummy",
        "architecture": "Gemma4ForCausalLM",
        "served_name": "fixture",
    },
    "engine": {"name": "vllm", "version": "1.2.3"},
    "connector": {"name": "lmcache-mp", "version": "4.5.6", "second_tier": "fs"},
    "environment": "fixture-env",
    "hardware": {"gpus": 0, "memory_gib": 1, "shm_gib": 1, "disk_gib": 1},
    "checks": {"required": list(PROOF)},
}
PASSES = tuple(evidence.CheckSummary(name=name, verdict=evidence.Verdict.PASS, required=True) for name in PROOF)


def checks(verdict: str, reason: str | None = None) -> tuple[evidence.CheckSummary, ...]:
    """Checks that make a run end with this verdict: all passed but, unless it is a pass, retrieval."""
    judged = {"verdict": evidence.Verdict(verdict), "reason": reason}
    return tuple(check.model_copy(update=judged) if check.name == "retrieval" else check for check in PASSES)


def recipe(**changes: Any) -> Recipe:
    return Recipe.model_validate(RECIPE | changes)


def project(folder: Path, *recipes: dict[str, Any]) -> tuple[Path, Path, Path]:
    """A project's recipes, evidence and images folders, with the given changes to the made-up recipe."""
    folders = folder / "recipes", folder / "evidence", folder / "images"
    for made in folders:
        made.mkdir(parents=True)
    (folders[2] / "fixture-env").mkdir()
    (folders[2] / "fixture-env" / "requirements.lock").write_text(LOCK)
    for changes in recipes:
        content = RECIPE | changes
        (folders[0] / f"{content['name']}.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    return folders


def header(of: Recipe | None = None, **changes: Any) -> evidence.Header:
    """The header of a run that passed, with the pins of a recipe (the made-up one when None).

    Another verdict comes with checks that make it so.
    """
    of = of or recipe()
    fields: dict[str, Any] = {
        "run_id": "fixture-run-1",
        "recipe": of.name,
        "recipe_digest": of.digest(),
        "lock_digest": LOCK_DIGEST,
        "runtime": "venv",
        "weights": of.model.weights,
        "engine": of.engine.name,
        "connector": of.connector.name,
        "engine_version": "1.2.3",
        "connector_version": "4.5.6",
        "hardware": evidence.Hardware(cpu="Fixture CPU", cores=2, memory_bytes=8 * 1024**3),
        "started_at": "2026-01-02T03:04:05Z",
        "duration_s": 61.5,
        "status": "completed",
        "verdict": "pass",
        "reason": None,
        "checks": checks(changes.get("verdict", "pass"), changes.get("reason")),
        "highlights": {"external_hit_ratio": 0.987654, "ttft_warm_s": 0.25, "mtp_acceptance_ratio": None},
    }
    return evidence.Header.model_validate(fields | changes)


def record(head: evidence.Header | None = None, **changes: Any) -> evidence.RunRecord:
    """A record whose checks are those of its header."""
    head = head or header()
    measurement = {
        "name": "external_hit_ratio",
        "value": 0.987654,
        "unit": "ratio",
        "limit": 0.9,
        "relation": ">=",
        "source": "fixture",
    }
    sample = {
        "prompt_sha256": "0" * 64,
        "prompt_tokens": 1064,
        "cached_tokens": 1024,
        "token_ids": [11, 12, 13],
        "logprobs": [-0.25, -1.5, None],
        "ttft_s": 0.25,
        "duration_s": 0.75,
        "answer": "42",
        "score": 1.0,
    }
    fields: dict[str, Any] = {
        "header": head,
        "recipe_text": "name: fixture-recipe  # lengths: [4,   16]\n",
        "plan": {"servers": [{"role": "engine", "argv": ["fixture", "serve", "--port", "1"]}]},
        "environment": {
            "kvproof_version": "0.1.0",
            "commit": "f" * 40,
            "dirty": False,
            "lock_file": "images/fixture-env/requirements.lock",
            "python": "3.11.0",
            "versions": {"vllm": "1.2.3", "lmcache": "4.5.6"},
        },
        "model": {
            "repository": "fixture/model",
            "revision": "1",
            "weights": "dummy",
            "files_sha256": {"model.safetensors": "1" * 64},
        },
        "dataset": {"name": "word-problems", "sha256": None, "seed": 0, "samples": 1},
        "host": {
            "kernel": "fixture",
            "memory_available_bytes": 1,
            "shm_bytes": 2,
            "shm_free_bytes": 3,
            "disk_free_bytes": 4,
        },
        "options": {"samples": None},
        "steps": [{"name": "start", "started_at": "2026-01-02T03:04:05Z", "duration_s": 30.0, "own_s": 0.01}],
        "passes": [
            {
                "name": "retrieve",
                "started_at": "2026-01-02T03:04:45Z",
                "duration_s": 1.5,
                "engine_before": {"vllm:external_prefix_cache_hits_total": 0.0},
                "engine_after": {"vllm:external_prefix_cache_hits_total": 1024.0},
                "cache_before": {},
                "cache_after": {},
                "samples": [sample],
            }
        ],
        "checks": [
            check.model_dump() | ({"measurements": [measurement]} if check.name == "retrieval" else {})
            for check in head.checks
        ],
        "logs": {"engine": ["fixture log, [ 1,   2 ]", "ready"]},
        "own_share_ratio": 0.01,
    }
    return evidence.RunRecord.model_validate(fields | changes)
