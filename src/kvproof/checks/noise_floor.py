"""The same prompts computed twice with nothing cached: how much the engine disagrees with itself.

The first pass is also the one whose KV the connector stores; the second carries a salt of its own, so that
neither the engine's cache nor the connector can serve it.
"""

from __future__ import annotations

from ..evidence import Measurement
from ..session import Session, grown
from .comparing import distance, failed_requests, score
from .judgement import Judgement, error, judge, unmeasured

NAME = "noise-floor"
CONTROL = False
NEEDS = ("smoke",)
_HITS = ("local_hit_tokens", "external_hit_tokens")


def run(session: Session) -> Judgement:
    unsupported = unmeasured(session.engine, *_HITS)
    if unsupported is not None:
        return unsupported
    first = session.send("computed")
    second = session.send("computed_again", salt=f"{session.run_id}-again")
    failures = failed_requests(first.samples) + failed_requests(second.samples)
    if failures:
        return error(f"{len(failures)} requests failed, the first with: {failures[0]}")
    limits = session.recipe.checks.thresholds
    found = []
    for result in (first, second):
        for kind in _HITS:
            found.append(Measurement(
                name=f"{kind}_{result.name}", value=grown(session.engine.COUNTERS, result.engine_before,
                                                          result.engine_after, kind),
                unit="tokens", limit=0, relation="==", source=f"engine: {session.engine.COUNTERS[kind].key}"))
    apart = distance(first.samples, second.samples)
    found += [
        Measurement(name="floor_logprob_drift", value=apart.drift, unit="nats",
                    limit=limits.max_floor_logprob_drift, relation="<=", source="log-probabilities of both passes"),
        Measurement(name="floor_disagreement_ratio", value=apart.disagreements / apart.compared, unit="ratio",
                    limit=limits.max_floor_disagreement_ratio, relation="<=", source="tokens of both passes"),
        Measurement(name="score_computed", value=score(first.samples), unit="ratio", source="answers"),
        *[Measurement(name=f"score_computed_{kind}", value=score(tuple(s for s in first.samples if s.kind == kind)),
                      unit="ratio", source=f"answers to prompts of kind {kind}")
          for kind in sorted({s.kind for s in first.samples if s.kind is not None})],
        Measurement(name="score_computed_again", value=score(second.samples), unit="ratio", source="answers"),
    ]
    return judge(found)
