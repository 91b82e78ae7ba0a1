"""What was computed has reached the connector's store: every store that began has finished."""

from __future__ import annotations

from ..evidence import Measurement
from ..host import free_bytes
from ..session import SETTLE_TIMEOUT_S, Session, grown
from .judgement import Judgement, error, judge

NAME = "store"
CONTROL = False
NEEDS = ("noise-floor",)


def run(session: Session) -> Judgement:
    settled = session.settle()
    if settled is False:
        free_mib = free_bytes(session.layout.folder) // 2**20
        return error(f"stores were still under way after {SETTLE_TIMEOUT_S:g} s ({free_mib} MiB free on their disk)")
    before, after = session.passes["computed"].cache_before, session.read_cache()
    counters = session.connector.COUNTERS
    passes = (session.passes["computed"], session.passes["computed_again"])
    prompts = sum(len(p.samples) for p in passes)
    submitted = grown(counters, before, after, "stores_submitted")
    cache_bytes = grown(counters, before, after, "l1_bytes") if _only_grew(before, after, counters) else None
    per_token = session.connector.bytes_per_token(session.cache) if session.cache else None
    tokens = sum(session.cacheable_tokens(p.samples) for p in passes)
    found = [
        Measurement(name="stores_finished", value=grown(counters, before, after, "stores_finished"), unit="count",
                    limit=prompts, relation=">=", source="cache server: finished stores, one per prompt or more"),
        Measurement(name="stores_unfinished", unit="count", limit=0, relation="==",
                    value=None if submitted is None else submitted
                    - (grown(counters, before, after, "stores_finished") or 0),
                    source="cache server: submitted less finished"),
        Measurement(name="stored_first_tier_bytes", value=cache_bytes, unit="bytes",
                    source="cache server: growth of memory in use"),
        Measurement(name="expected_bytes", value=None if per_token is None else tokens * per_token, unit="bytes",
                    source="cacheable tokens times the cache server's bytes per token"),
    ]
    return judge(found)


def _only_grew(before: dict, after: dict, counters) -> bool:
    key = counters["l1_bytes"].key if "l1_bytes" in counters else None
    return key is not None and key in after and after[key] >= before.get(key, 0)
