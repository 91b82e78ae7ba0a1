"""After the engine's own cache was emptied, the same prompts come back from outside the engine.

Shown by counters of two processes that do not share code: the engine's and the cache server's.
"""

from __future__ import annotations

from ..evidence import Measurement, Pass
from ..metrics import ratio
from ..session import Session, grown
from .judgement import Judgement, judge, unmeasured

NAME = "retrieval"
CONTROL = False
NEEDS = ("store",)


def run(session: Session) -> Judgement:
    unsupported = unmeasured(session.engine, "external_hit_tokens", "source_external_tokens")
    if unsupported is not None:
        return unsupported
    # A hit in the engine's own cache, cut at the same place: the comparison's reference.
    session.send("local_hit")
    session.settle()
    if session.damage_before_retrieval is not None:
        session.damage_before_retrieval(session)
    if session.restart_engine is not None:
        session.restart_engine()
        session.warm_up()
    else:
        session.empty_engine_cache()
    return judge_pass(session, session.send("retrieved"))


def judge_pass(session: Session, result: Pass) -> Judgement:
    """Whether a pass was served from outside the engine; also what the negative control asks."""
    least = session.recipe.checks.thresholds.min_external_hit_ratio
    cacheable = session.cacheable_tokens(result.samples)
    chunk = session.recipe.prompts.chunk_tokens

    def engine(name: str) -> float | None:
        return grown(session.engine.COUNTERS, result.engine_before, result.engine_after, name)

    def cache(name: str) -> float | None:
        return grown(session.connector.COUNTERS, result.cache_before, result.cache_after, name)

    def key(counters, name: str) -> str:
        return counters[name].key if name in counters else "no such counter"

    chunks = cache("loaded_chunks")
    loaded = None if chunks is None else chunks * chunk
    per_token = session.connector.bytes_per_token(session.cache) if session.cache else None
    submitted, finished = cache("retrieves_submitted"), cache("retrieves_finished")
    found = [
        Measurement(name="cacheable_tokens", value=cacheable, unit="tokens", source=f"whole chunks of {chunk} tokens"),
        Measurement(name="external_hit_tokens", value=engine("external_hit_tokens"), unit="tokens",
                    source=f"engine: {key(session.engine.COUNTERS, 'external_hit_tokens')}"),
        Measurement(name="cache_server_hit_tokens", value=cache("hit_tokens"), unit="tokens",
                    source=f"cache server: {key(session.connector.COUNTERS, 'hit_tokens')}"),
        Measurement(name="local_hit_tokens", value=engine("local_hit_tokens"), unit="tokens",
                    source=f"engine: {key(session.engine.COUNTERS, 'local_hit_tokens')}"),
        Measurement(name="computed_tokens", value=engine("source_computed_tokens"), unit="tokens",
                    source=f"engine: {key(session.engine.COUNTERS, 'source_computed_tokens')}"),
        _share("engine_external_hit_ratio", engine("external_hit_tokens"), cacheable, least, "engine"),
        _share("source_external_ratio", engine("source_external_tokens"), cacheable, least,
               "engine: prompt tokens by source"),
        _share("cache_server_hit_ratio", cache("hit_tokens"), cacheable, least, "cache server"),
        _share("loaded_ratio", loaded, cacheable, least, "cache server: chunks loaded to a worker"),
        Measurement(name="loaded_bytes", unit="bytes",
                    value=None if loaded is None or per_token is None else loaded * per_token,
                    source="chunks loaded, times bytes per token"),
        Measurement(name="retrieves_unfinished", unit="count", limit=0, relation="==",
                    value=None if submitted is None or finished is None else submitted - finished,
                    source="cache server: submitted less finished retrieves"),
    ]
    return judge(found)


def _share(name: str, part: float | None, whole: int, least: float, source: str) -> Measurement:
    return Measurement(name=name, value=ratio(part, whole), unit="ratio", limit=least, relation=">=", source=source)
