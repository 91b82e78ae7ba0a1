"""Real runs of the nano recipe with the real engine and the real cache server: minutes each, no fakes."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from kvproof.evidence import Measurement, RunRecord, Verdict, read
from kvproof.paths import PROJECT

pytestmark = pytest.mark.engine
RECIPE = "gemma4-nano"
REPORTED = {"overhead"}
"""Checks that the nano recipes report without deciding by them: other work on the host can turn them red."""
LIMIT_S = 900
"""An installation included."""


def run(words: list[str], limit_s: float = LIMIT_S) -> tuple[int, dict]:
    """Exit code and --json of a run; its progress goes where the tests' own output goes."""
    done = subprocess.run(words, cwd=PROJECT, stdout=subprocess.PIPE, text=True, timeout=limit_s, check=False)
    assert done.stdout, f"nothing on stdout, exit status {done.returncode}"
    return done.returncode, json.loads(done.stdout)


def numbers(record: RunRecord) -> dict[tuple[str, str], Measurement]:
    return {(check.name, m.name): m for check in record.checks for m in check.measurements}


def verdicts(record: RunRecord) -> dict[str, Verdict]:
    return {check.name: check.verdict for check in record.checks}


def red(record: RunRecord) -> dict[str, Verdict]:
    return {name: verdict for name, verdict in verdicts(record).items()
            if verdict not in (Verdict.PASS, Verdict.NOT_MEASURED) and name not in REPORTED}


def assert_nothing_is_left(record: RunRecord) -> None:
    left = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("KVPROOF_RUN_ID") == record.header.run_id:
                left.append(process.cmdline())
    assert not left


def test_the_nano_recipe_is_proven(tmp_path: Path) -> None:
    code, data = run([str(PROJECT / "inv"), "recipe", RECIPE, "--evidence-dir", str(tmp_path), "--json"])
    assert code == 0, data["header"]["reason"]
    record = read(Path(data["evidence"]))
    assert tmp_path in Path(data["evidence"]).parents
    header, found = record.header, numbers(record)
    assert (header.status, header.verdict, header.weaker, header.damage_left_in) == ("completed", "pass", (), None)
    assert {verdict for name, verdict in verdicts(record).items() if name not in REPORTED} == {Verdict.PASS}
    cacheable = found["retrieval", "cacheable_tokens"].value
    assert cacheable > 0
    for name in ("external_hit_tokens", "cache_server_hit_tokens"):
        assert found["retrieval", name].value >= 0.9 * cacheable
        assert found["control-drop", name].value < 0.9 * cacheable
    assert found["retrieval", "loaded_bytes"].value > 0
    for name in ("floor_logprob_drift", "floor_disagreement_ratio"):
        assert found["noise-floor", name].holds()
    for name in ("score_computed", "score_retrieved"):
        assert found["comparison", name].value is not None
    for length in (1064, 4136):
        for kind in ("cold", "warm"):
            assert found["latency", f"ttft_{kind}_{length}_tokens_s"].value > 0
    assert found["control-damage", "changed_bytes"].value > 0
    assert found["control-damage", "logprob_drift"].holds() is False
    assert header.engine_version.startswith("0.32.0")
    assert header.connector_version == "0.5.6"
    assert 0 <= record.own_share_ratio <= 1
    assert_nothing_is_left(record)


def test_damage_left_in_is_not_proven(tmp_path: Path) -> None:
    """Bytes of stored KV are changed before the main retrieval: they come back, and the comparison sees it."""
    hooks = {"evidence_dir": str(tmp_path), "damage": True, "waits": 1}
    code, data = run([sys.executable, str(Path(__file__).with_name("drive.py")), RECIPE, json.dumps(hooks)])
    assert code == 1
    record = read(Path(data["evidence"]))
    assert (record.header.status, record.header.verdict) == ("completed", "fail")
    assert record.header.damage_left_in is not None
    assert red(record) == {"comparison": Verdict.FAIL}
    assert verdicts(record)["retrieval"] is Verdict.PASS
    assert numbers(record)["comparison", "logprob_drift"].holds() is False
    assert_nothing_is_left(record)


def test_a_mismatched_assistant_is_seen_though_every_answer_is_right(tmp_path: Path) -> None:
    """Another model's assistant: the target refuses its drafts, so answers stay right and only acceptance shows it."""
    hooks = {"evidence_dir": str(tmp_path), "waits": 1, "assistant_folder": "models/gemma4-nano-12b/assistant"}
    drive = str(Path(__file__).with_name("drive.py"))
    code, data = run([sys.executable, drive, f"{RECIPE}-31b-mtp", json.dumps(hooks)])
    assert code == 1
    record = read(Path(data["evidence"]))
    assert red(record) == {"speculative": Verdict.FAIL}
    found = numbers(record)
    assert 0 < found["speculative", "acceptance_computed_ratio"].value < 0.6
    assert found["speculative", "acceptance_computed_ratio"].holds() is False
    assert found["comparison", "score_retrieved"].value == found["comparison", "score_computed"].value >= 0.6
    assert_nothing_is_left(record)
