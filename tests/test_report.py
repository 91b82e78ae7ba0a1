"""What a person reads at the end of a run, and what a program gets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvproof import report
from kvproof.errors import EvidenceError, Interrupted, KvproofError, NotReadyError
from kvproof.evidence import CheckResult, Measurement, Verdict
from kvproof.run import Outcome
from made_up import header, record

CHECKS = (
    CheckResult(name="smoke", verdict=Verdict.PASS, required=True),
    CheckResult(name="retrieval", verdict=Verdict.PASS, required=True, measurements=(
        Measurement(name="external_hit_tokens", value=1792.0, unit="tokens"),
        Measurement(name="cacheable_tokens", value=1792, unit="tokens"),
        Measurement(name="cache_server_hit_tokens", value=None, unit="tokens"),
        Measurement(name="loaded_bytes", value=1, unit="bytes"),
    )),
    CheckResult(name="latency", verdict=Verdict.PASS, required=True, measurements=(
        Measurement(name="ttft_cold_8_tokens_s", value=0.5, unit="s"),
        Measurement(name="ttft_speedup_8_tokens_ratio", value=6.54321, unit="ratio"),
    )),
)


def outcome(tmp_path: Path, problem: KvproofError | None = None, checks=CHECKS, **changes) -> Outcome:
    folder = tmp_path / "run"
    folder.mkdir(exist_ok=True)
    made = record(header(**changes), checks=[c.model_dump() for c in checks])
    return Outcome(made, None if isinstance(problem, EvidenceError) else tmp_path / "e.json", folder, problem)


def test_a_proven_run(tmp_path: Path) -> None:
    proven = outcome(tmp_path)
    proven.folder.rmdir()
    lines = report.text(proven).splitlines()
    assert lines[0] == "fixture-recipe: PROVEN"
    assert lines[2:5] == [
        "  pass  smoke",
        "  pass  retrieval  external_hit_tokens 1792, cacheable_tokens 1792, cache_server_hit_tokens unknown",
        "  pass  latency    ttft_speedup_8_tokens_ratio 6.543",
    ]
    assert "  engine     vllm 1.2.3" in lines
    assert "  weights    dummy, fixture/model" in lines
    assert "  hardware   Fixture CPU, 2 cores, no GPU" in lines
    assert "  duration   62 s, 1.0% of it kvproof's own" in lines
    assert lines[-1] == f"  evidence   {tmp_path / 'e.json'}"
    assert proven.exit_code == 0
    report.raise_for(proven)


def test_a_red_check_says_why(tmp_path: Path) -> None:
    red = CheckResult(name="retrieval", verdict=Verdict.FAIL, required=True, reason="hits are 0, expected >= 1")
    left_out = CheckResult(name="latency", verdict=Verdict.NOT_MEASURED, required=True, reason="retrieval did not pass")
    failed = outcome(tmp_path, checks=(CHECKS[0], red, left_out), verdict="fail", reason="retrieval: hits are 0")
    text = report.text(failed)
    assert text.startswith("fixture-recipe: FAILED (retrieval: hits are 0)\n")
    assert "  FAIL          retrieval  hits are 0, expected >= 1" in text
    assert "  not_measured  latency    retrieval did not pass" in text
    assert f"  logs       {tmp_path / 'run'}" in text
    assert failed.exit_code == 1
    with pytest.raises(KvproofError, match="fixture-recipe is not proven") as caught:
        report.raise_for(failed)
    assert str(tmp_path / "run") in caught.value.tip


@pytest.mark.parametrize("verdict", ["error", "not_measured"])
def test_what_could_not_be_judged(tmp_path: Path, verdict: str) -> None:
    assert report.text(outcome(tmp_path, verdict=verdict, reason="why")).startswith("fixture-recipe: NOT JUDGED (why)")


@pytest.mark.parametrize(
    ("problem", "code"), [(NotReadyError("x"), 3), (Interrupted("x"), 130), (EvidenceError("x"), 1)], ids=str)
def test_a_problem_ends_it_with_its_own_code(tmp_path: Path, problem: KvproofError, code: int) -> None:
    ended = outcome(tmp_path, problem)
    assert ended.exit_code == code
    assert report.as_data(ended)["exit_code"] == code
    assert report.as_data(ended)["problem"] == "x"
    with pytest.raises(type(problem)):
        report.raise_for(ended)
    assert ("evidence   not written" in report.text(ended)) == isinstance(problem, EvidenceError)


def test_what_makes_a_run_no_proof_is_said(tmp_path: Path) -> None:
    text = report.text(outcome(tmp_path, weaker=("1 samples, the recipe asks for 8",), damage_left_in="KV was changed"))
    assert "  no proof   1 samples, the recipe asks for 8\n  no proof   KV was changed\n" in text


def test_nothing_is_known_yet(tmp_path: Path) -> None:
    text = report.text(outcome(tmp_path, Interrupted("x"), checks=(), engine_version=None, connector_version=None))
    assert "  engine     vllm (version unknown)" in text
    assert "  connector  lmcache-mp\n" in text


def test_as_data(tmp_path: Path) -> None:
    data = json.loads(json.dumps(report.as_data(outcome(tmp_path))))
    assert data["header"]["recipe"] == "fixture-recipe"
    assert [c["name"] for c in data["checks"]] == ["smoke", "retrieval", "latency"]
    assert data["evidence"] == str(tmp_path / "e.json")
    assert data["run_folder"] == str(tmp_path / "run")
    assert data["problem"] is None


def test_what_the_logs_say_comes_first(tmp_path: Path) -> None:
    failed = outcome(tmp_path, verdict="fail", reason="x")
    (failed.folder / "engine.log").write_text(
        "RuntimeError: FlashAttention forward only supports head dimension at most 256\n")
    text = report.text(failed)
    assert "TRITON_ATTN" in text.split("fixture-recipe: FAILED")[0]
    assert "TRITON_ATTN" in json.dumps(report.as_data(failed)["explanation"])


@pytest.mark.parametrize("log", ["INFO all is well\n", ""])
def test_logs_that_say_nothing_are_not_shown(tmp_path: Path, log: str) -> None:
    failed = outcome(tmp_path, verdict="fail", reason="x")
    (failed.folder / "engine.log").write_text(log)
    assert report.text(failed).startswith("fixture-recipe: FAILED")
    assert report.as_data(failed)["explanation"] is None


def test_the_engine_without_connector_is_not_asked(tmp_path: Path) -> None:
    failed = outcome(tmp_path, verdict="fail", reason="x")
    (failed.folder / "baseline.log").write_text(
        "RuntimeError: FlashAttention forward only supports head dimension at most 256\n")
    assert report.text(failed).startswith("fixture-recipe: FAILED")
