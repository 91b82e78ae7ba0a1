"""From the counters and answers of a running set-up to a verdict on its offloading. What cannot be seen is never taken
for good."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from enum import StrEnum

from .checks.comparing import distance, failed_requests
from .evidence import Measurement, Pass, Sample
from .live import Live
from .metrics import Reading
from .session import grown

LEAST_SHARE = 0.9
"""Of the cacheable tokens: less is not what a set-up that works gives for a prompt that it just stored."""
WATCH_S = 5.0
_ENOUGH_TOKENS = 25_600
"""So many prompt tokens without a store are no accident."""
GUIDE = "docs/guides/is-my-offload-working.md"
_ALONE = "try again while no other requests run"


class Verdict(StrEnum):
    WORKING = "working"
    IDLE = "configured but not offloading"
    ABSENT = "not configured"
    NEVER_SERVES = "storing but never serving"
    WRONG = "serving wrong answers"
    UNKNOWN = "cannot tell"


@dataclass(frozen=True)
class Judged:
    """A verdict.

    Attributes:
        tip: the next step; None when there is none.
    """

    verdict: Verdict
    reason: str
    tip: str | None = None


@dataclass
class Figures:
    """The numbers that a verdict rests on, in the order in which they were seen."""

    measurements: list[Measurement] = field(default_factory=list)

    def add(self, name: str, value: float | None, unit: str, source: str) -> None:
        self.measurements.append(Measurement(name=name, value=value, unit=unit, source=source))


def growth(live: Live, result: Pass, name: str) -> float | None:
    """Growth of one of the engine's counters over a pass; None when its page does not have it."""
    return grown(live.counters, result.engine_before, result.engine_after, name)


def others_tokens(live: Live, result: Pass) -> float:
    """Prompt tokens of requests that are not the probe's own; an engine counts those of requests that failed late."""
    total = growth(live, result, "prompt_tokens") or 0
    return max(0.0, total - sum(s.prompt_tokens for s in result.samples))


def stored(figures: Figures, live: Live, before: Reading, cache_before: Reading) -> float | None:
    """How much was stored since two readings, as far as anybody counts it; None when nobody does."""
    inside = live.stored(before, live.read())
    now, finished = live.read_cache(), None
    if live.cache is not None and live.connector is not None:
        finished = grown(live.connector.COUNTERS, cache_before, now, "stores_finished")
        figures.add("stores_finished", finished, "count", "cache server")
    if inside is not None:
        figures.add("stored_inside", inside, "bytes or blocks", "engine: counters of the connector inside it")
    return max((v for v in (inside, finished) if v is not None), default=None)


def served(figures: Figures, live: Live, result: Pass, cacheable: int, was_stored: float | None,
           configured: bool) -> Judged | None:
    """Whether prompts came back from outside the engine, by all that can be witnessed.

    Args:
        was_stored: as `stored` tells.
        configured: whether anything says that there is a connector.

    Returns:
        None when they did, and only the answers are still to be looked at.
    """
    came, others = growth(live, result, "external_hit_tokens"), others_tokens(live, result)
    by_source, loaded = growth(live, result, "source_external_tokens"), live.loaded(result.engine_before,
                                                                                  result.engine_after)
    cache = live.connector.COUNTERS if live.cache is not None and live.connector is not None else {}
    hits, chunks, submitted, finished = (
        grown(cache, result.cache_before, result.cache_after, name)
        for name in ("hit_tokens", "loaded_chunks", "retrieves_submitted", "retrieves_finished"))
    source = live.engine.COUNTERS["external_hit_tokens"].key
    figures.add("external_hit_tokens", came, "tokens", f"engine: {source}, when they were sent again")
    figures.add("source_external_tokens", by_source, "tokens", "engine: prompt tokens by source")
    figures.add("computed_tokens", growth(live, result, "source_computed_tokens"), "tokens", "engine")
    if cache:
        figures.add("cache_server_hit_tokens", hits, "tokens", "cache server")
        figures.add("loaded_chunks", chunks, "count", "cache server")
    if loaded is not None:
        figures.add("loaded_inside", loaded, "bytes or blocks", "engine: counters of the connector inside it")
    if others:
        figures.add("tokens_of_others", others, "tokens", "engine: prompt tokens that are not the probe's")
    if came is None:
        return Judged(Verdict.UNKNOWN, f"the engine's page has no {source}, so what comes back cannot be seen",
                      "use a version that has it")
    if came == 0:
        return _nothing_came_back(cacheable, was_stored, configured)
    if came - others < LEAST_SHARE * cacheable:
        if others:
            return Judged(Verdict.UNKNOWN, f"{came:.0f} of {cacheable} tokens came back, while {others:.0f} tokens of "
                                           "other requests came in", _ALONE)
        return Judged(Verdict.UNKNOWN, f"only {came:.0f} of {cacheable} tokens came back: the store may be too small "
                                       "and have lost the rest, or its chunks are of an unusual size",
                      "look at the size of the store")
    if submitted is not None and finished is not None and submitted > finished:
        return Judged(Verdict.UNKNOWN, f"{submitted - finished:.0f} of {submitted:.0f} retrieves never finished",
                      "look at the cache server's log")
    for whose, value in (("the engine's count by source", by_source), ("the cache server's count", hits),
                         ("the cache server's count of loaded chunks", chunks),
                         ("the count of what was loaded", loaded)):
        if value == 0:
            return Judged(Verdict.UNKNOWN, f"the counters contradict one another: the engine says that {came:.0f} "
                                           f"tokens came back, and {whose} is 0",
                          "look whether --cache-server is the one that this engine uses")
    return None


def _nothing_came_back(cacheable: int, was_stored: float | None, configured: bool) -> Judged:
    nothing = f"once the engine's own cache had lost them, none of {cacheable} tokens came back"
    if was_stored:
        return Judged(Verdict.NEVER_SERVES, f"{nothing}, though they were stored",
                      f"see 'Does anything come back' and 'Versions' in {GUIDE}")
    if not configured:
        return Judged(Verdict.ABSENT, f"{nothing}, and nothing shows a connector",
                      "if there is one, name it with --connector, or its server with --cache-server")
    return Judged(Verdict.IDLE, f"{nothing}; nobody counts what is stored, most likely nothing is",
                  f"look for an error in the engine's log ('degraded mode'); see {GUIDE}")


def compared(figures: Figures, live: Live, cacheable: int, first: Pass, local: Pass, again: Pass,
             retrieved: Pass) -> Judged:
    """Whether what came back gives the answers of a hit in the engine's own cache, cut at the same place.

    Args:
        first: the pass that computed the prompts.
        local, again: two passes that the engine's own cache served; they differ by its noise.
    """
    came = f"{growth(live, retrieved, 'external_hit_tokens'):.0f} tokens came back from outside the engine"
    failed, before = failed_requests(retrieved.samples), failed_requests(local.samples + again.samples)
    if failed and not before:
        return Judged(Verdict.WRONG, f"{came}, and {len(failed)} of {len(retrieved.samples)} requests failed, which "
                                     f"they had not before: {failed[0]}", "this is how a NaN from damaged KV shows")
    if failed or before:
        return Judged(Verdict.UNKNOWN, f"requests fail: {(failed or before)[0]}", "look at the engine's log")
    if any(t < 0 for s in (*local.samples, *retrieved.samples) for t in s.token_ids):
        return Judged(Verdict.UNKNOWN, f"{came}, but the engine gives no token ids, so answers cannot be compared",
                      "./inv recipe compares what a recipe's engine gives")
    if (growth(live, local, "local_hit_tokens") or 0) < LEAST_SHARE * cacheable:
        return _without_a_hit(figures, live, first, retrieved, came)
    same = _identical(local, retrieved)
    figures.add("identical_answers", same, "count", f"of {len(local.samples)}, against a hit in the engine's own cache")
    if not _same_cut(live, local, retrieved):
        cuts = sorted({(a.cached_tokens, b.cached_tokens)
                       for a, b in zip(local.samples, retrieved.samples, strict=True)}, key=str)[0]
        if same == len(local.samples):
            live.note(f"only tokens were compared: own cache and connector cut a prompt at {cuts} tokens")
            return Judged(Verdict.WORKING, f"{came}, and all {same} answers are the same")
        return Judged(Verdict.UNKNOWN, f"{came}, but cut elsewhere than by the engine's own cache ({cuts} tokens), so "
                                       "that different answers prove nothing", "./inv recipe compares at equal cuts")
    apart, floor = distance(local.samples, retrieved.samples), distance(local.samples, again.samples)
    figures.add("logprob_drift", apart.drift, "nats", "against that hit, cut at the same place")
    figures.add("logprob_drift_of_hits", floor.drift, "nats", "two such hits against one another")
    if apart.disagreements <= floor.disagreements and apart.gaps <= floor.gaps and \
            (apart.drift or 0) <= (floor.drift or 0):
        if apart.drift is None:
            live.note("the engine gives no log-probabilities, so only tokens were compared")
        return Judged(Verdict.WORKING, f"{came}, and the answers are those of a hit in the engine's own cache")
    differ = f"{came}, and {apart.disagreements} of {apart.compared} answers differ from those of a hit in the " \
             f"engine's own cache, log-probabilities by up to {apart.drift or 0:.4g}" \
             + (", and some are no numbers" if apart.gaps > floor.gaps else "")
    if any(others_tokens(live, one) for one in (local, again, retrieved)):
        return Judged(Verdict.UNKNOWN, f"{differ}; other requests ran beside, which can do that too", _ALONE)
    return Judged(Verdict.WRONG, f"{differ}; two such hits differ by {floor.drift or 0:.4g}",
                  "a store that loses precision (fp8, CacheGen) does this by design; any other must not")


def _identical(left: Pass, right: Pass) -> int:
    return sum(a.token_ids == b.token_ids for a, b in zip(left.samples, right.samples, strict=True))


def _without_a_hit(figures: Figures, live: Live, first: Pass, retrieved: Pass, came: str) -> Judged:
    """The engine's own cache serves nothing, so there are only computed answers, which may differ a little by right."""
    same = _identical(first, retrieved)
    figures.add("identical_answers", same, "count", f"of {len(first.samples)}, against computed ones")
    if same < len(first.samples):
        return Judged(Verdict.UNKNOWN, f"{came}, but {len(first.samples) - same} answers differ from computed ones, "
                                       "and the engine's own cache gave no hit to compare with",
                      "with the engine's prefix caching on they can be compared exactly")
    live.note("answers were compared with computed ones, by tokens only: the engine's own cache gave no hit")
    return Judged(Verdict.WORKING, f"{came}, and all {same} answers are the same")


def _same_cut(live: Live, local: Pass, retrieved: Pass) -> bool:
    def cached(samples: tuple[Sample, ...]) -> list[int | None]:
        return [s.cached_tokens for s in samples]

    if None not in cached(local.samples) + cached(retrieved.samples):
        return cached(local.samples) == cached(retrieved.samples)
    # Without --enable-prompt-tokens-details only the counters tell, and only when nobody else sends anything.
    if others_tokens(live, local) or others_tokens(live, retrieved):
        return False
    at = [sum(growth(live, one, name) or 0 for name in ("local_hit_tokens", "external_hit_tokens"))
          for one in (local, retrieved)]
    return at[0] == at[1] > 0


def from_counters(figures: Figures, live: Live) -> Judged:
    """The verdict without sending anything: from all that was counted since the servers' start, and a short watch."""
    first = live.read()
    live.console.now(f"watching the counters for {WATCH_S:g} s")
    time.sleep(WATCH_S)
    now, cache = live.read(), live.read_cache()
    theirs = live.connector.COUNTERS if live.connector is not None else {}

    def total(name: str) -> float | None:
        return now.get(live.counters[name].key) if name in live.counters else None

    def there(name: str) -> float | None:
        return cache.get(theirs[name].key) if name in theirs else None

    tokens, asked, hits = (total(name) for name in ("prompt_tokens", "external_query_tokens", "external_hit_tokens"))
    kept = max((v for v in (live.stored({}, now), there("stores_finished")) if v is not None), default=None)
    for name, value in (("prompt_tokens", tokens), ("external_query_tokens", asked), ("external_hit_tokens", hits)):
        figures.add(name, value, "tokens", "engine, since its start")
    figures.add("stored", kept, "any unit", "counters of stores, since the servers' start")
    if live.cache is not None:
        figures.add("cache_server_hit_tokens", there("hit_tokens"), "tokens", "cache server, since its start")
    if hits is None and "external_hit_tokens" in live.engine.UNMEASURED:
        hits = there("hit_tokens")
    elif hits and 0 in (there("hit_tokens"), there("loaded_chunks")):
        return Judged(Verdict.UNKNOWN, f"the engine counts {hits:.0f} tokens that came back, and the cache server none",
                      "look whether --cache-server is the one that this engine uses")
    try_out = "without --passive it is tried out"
    if not tokens:
        return Judged(Verdict.UNKNOWN, "no prompt was computed since the engine's start", try_out)
    if hits:
        fresh = grown(live.counters, first, now, "external_hit_tokens")
        live.note("from counters alone: whether the answers are right was not looked at")
        return Judged(Verdict.WORKING, f"{hits:.0f} tokens came back through the connector since the start, "
                                       f"{fresh or 0:.0f} of them in the last {WATCH_S:g} s")
    if asked == 0 and not (live.attached or live.shows_connector()) and tokens > (total("local_hit_tokens") or 0):
        return Judged(Verdict.ABSENT, f"the engine asked no connector for any of {tokens:.0f} prompt tokens",
                      f"see 'Was the connector made' in {GUIDE}")
    if hits is None:
        missing = live.engine.UNMEASURED.get("external_hit_tokens")
        return Judged(Verdict.UNKNOWN, "what comes back cannot be seen: " + (
            missing[0] if missing else "the engine's page has no counter of it"),
            f"see {missing[1]}; --cache-server names a second witness" if missing else "use a version that has it")
    if kept == 0 and tokens >= _ENOUGH_TOKENS:
        return Judged(Verdict.IDLE, f"nothing was stored of {tokens:.0f} prompt tokens",
                      f"unless every prompt is shorter than one chunk: {try_out}")
    return Judged(Verdict.UNKNOWN, "nothing came back so far: either no prompt was repeated after the engine's own "
                                   "cache had lost it, or offloading does not work", try_out)
