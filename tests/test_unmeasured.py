"""A counter that upstream is known not to offer makes a check unsupported; any other that is missing does not."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from types import ModuleType, SimpleNamespace

import pytest

from kvproof.checks import noise_floor, retrieval, speculative
from kvproof.connectors import lmcache_mp
from kvproof.engines import ENGINES, vllm
from kvproof.evidence import Pass, Sample, Verdict
from kvproof.metrics import Counter
from kvproof.session import Session
from made_up import RECIPE, recipe

LINK = "https://example.invalid/issues/1"
DRAFTING = recipe(
    speculative={"method": "mtp", "num_speculative_tokens": 2, "assistant": {"repository": "d", "revision": "1"}},
    checks={"required": [*RECIPE["checks"]["required"], "speculative"]},
)
SAMPLE = Sample(prompt_sha256="0", prompt_tokens=552, cached_tokens=512, token_ids=(1,), logprobs=(-0.1,), ttft_s=0.1,
                duration_s=0.2)
# What a good pass adds to each counter.
ENGINE_GROWTH = {"prompt_tokens": 552.0, "external_hit_tokens": 512.0, "source_external_tokens": 512.0,
                 "local_hit_tokens": 0.0, "drafts": 10.0, "draft_tokens": 20.0, "accepted_tokens": 15.0}
CACHE_GROWTH = {"hit_tokens": 512.0, "loaded_chunks": 2.0, "retrieves_submitted": 1.0, "retrieves_finished": 1.0}


class Sent(Exception):
    pass


class Untouched(Session):
    """A session that nothing may be sent through."""

    def send(self, name: str, salt: str | None = None) -> Pass:
        raise Sent


def session(counted: tuple[str, ...], unmeasured: Mapping[str, tuple[str, str]], kind: type[Session] = Session,
            **growth: float) -> Session:
    counters: dict[str, Counter] = {word: vllm.COUNTERS[word] for word in counted}
    engine = SimpleNamespace(NAME="fake", COUNTERS=counters, UNMEASURED=unmeasured)
    grown = ENGINE_GROWTH | CACHE_GROWTH | growth
    of_engine = {vllm.COUNTERS[word].key: grown[word] for word in ENGINE_GROWTH if word in counters}
    of_cache = {lmcache_mp.COUNTERS[word].key: grown[word] for word in CACHE_GROWTH}
    made = Pass(name="p", started_at="t", duration_s=1.0, engine_before=dict.fromkeys(of_engine, 0.0),
                engine_after=of_engine, cache_before=dict.fromkeys(of_cache, 0.0), cache_after=of_cache,
                samples=(SAMPLE,))
    return kind(recipe=DRAFTING, run_id="r", engine=engine, connector=lmcache_mp, layout=None, client=None,
                baseline=None, cache=None, engine_log=None, console=None, stopwatch=None,
                passes={"computed": made, "retrieved": made})


CASES = [
    (noise_floor, "local_hit_tokens"), (noise_floor, "external_hit_tokens"), (retrieval, "external_hit_tokens"),
    (retrieval, "source_external_tokens"), (speculative, "drafts"), (speculative, "draft_tokens"),
    (speculative, "accepted_tokens"),
]


@pytest.mark.parametrize(("check", "word"), CASES)
def test_known_to_be_unmeasured_is_unsupported(check: ModuleType, word: str) -> None:
    others = tuple(w for w in ENGINE_GROWTH if w != word)
    judged = check.run(session(others, {word: ("it counts no such thing", LINK)}, Untouched))
    assert (judged.verdict, judged.link) == (Verdict.UNSUPPORTED, LINK)
    assert judged.reason == f"fake does not offer {word}: it counts no such thing"


def test_all_that_is_missing_is_named_in_one_reason() -> None:
    judged = speculative.run(session((), dict.fromkeys(("draft_tokens", "accepted_tokens"), ("why", LINK)), Untouched))
    assert judged.reason == "fake does not offer draft_tokens, accepted_tokens: why"


def test_with_every_counter_they_pass() -> None:
    whole = session(tuple(ENGINE_GROWTH), {})
    assert retrieval.judge_pass(whole, whole.passes["retrieved"]).verdict is Verdict.PASS
    assert speculative.run(whole).verdict is Verdict.PASS


@pytest.mark.parametrize(("check", "word"), [c for c in CASES if c[0] is not noise_floor])
def test_missing_for_no_known_reason_stays_an_error(check: ModuleType, word: str) -> None:
    lacking = session(tuple(w for w in ENGINE_GROWTH if w != word), {})
    judged = (check.run(lacking) if check is speculative
              else retrieval.judge_pass(lacking, lacking.passes["retrieved"]))
    if word == "drafts":  # the acceptance is known without it, but not the mean length
        assert judged.reason == "mean_acceptance_length_share is unknown (retrieved over computed)"
    assert (judged.verdict, judged.link) == (Verdict.ERROR, None)
    assert "is unknown" in judged.reason


def test_a_broken_limit_stays_a_failure_although_another_counter_is_missing() -> None:
    lacking = session(tuple(w for w in ENGINE_GROWTH if w != "source_external_tokens"), {}, hit_tokens=0.0)
    judged = retrieval.judge_pass(lacking, lacking.passes["retrieved"])
    assert judged.verdict is Verdict.FAIL
    assert "cache_server_hit_ratio is 0" in judged.reason


def test_what_each_engine_cannot_show() -> None:
    seen: dict[str, list[str]] = {name: [] for name in ENGINES}
    for name, engine in ENGINES.items():
        at = session((), {}, Untouched)
        at.engine = engine
        for check in (noise_floor, retrieval, speculative):
            with contextlib.suppress(Sent):
                judged = check.run(at)
                seen[name] += [check.NAME] if judged.verdict is Verdict.UNSUPPORTED else []
    assert seen == {"vllm": [], "trtllm": ["noise-floor", "retrieval"], "sglang": ["speculative"]}
