"""What came back gives the same answers as the engine's own cache does, cut at the same place.

Never compared with the cold pass token by token: computing a prompt in other pieces already moves
log-probabilities a little, though nothing is wrong.
"""

from __future__ import annotations

from ..evidence import Measurement, Pass, Sample
from ..session import Session
from .comparing import distance, failed_requests, score
from .judgement import Judgement, error, judge

NAME = "comparison"
CONTROL = False
NEEDS = ("retrieval",)


def run(session: Session) -> Judgement:
    return judge_pass(session, session.passes["retrieved"])


def judge_pass(session: Session, result: Pass) -> Judgement:
    """Whether a pass answered as the local hit did; also what the negative control asks."""
    local, computed = session.passes["local_hit"], session.passes["computed"]
    if failed_requests(local.samples):
        return error(f"the local-hit pass had failures: {failed_requests(local.samples)[0]}")
    failures = failed_requests(result.samples)
    pairs = [(a, b) for a, b in zip(local.samples, result.samples, strict=True) if _same_cut(a, b)]
    left, right = tuple(a for a, _ in pairs), tuple(b for _, b in pairs)
    apart = distance(left, right)
    floor = distance(computed.samples, session.passes["computed_again"].samples)
    floor_ratio = floor.disagreements / floor.compared if floor.compared else None
    found = [
        Measurement(name="failed_requests", value=len(failures), unit="count", limit=0, relation="==",
                    source=failures[0] if failures else "HTTP status of every request"),
        Measurement(name="comparable_samples", value=len(pairs), unit="count",
                    limit=len(result.samples) - len(failures), relation="==",
                    source="cached tokens of local hit and retrieval are the same"),
        Measurement(name="identical_samples", value=apart.compared - apart.disagreements, unit="count",
                    source="generated tokens"),
        Measurement(name="disagreement_ratio", unit="ratio", limit=floor_ratio, relation="<=",
                    value=apart.disagreements / apart.compared if apart.compared else None,
                    source="generated tokens; limit is the noise floor"),
        Measurement(name="logprob_drift", value=apart.drift, unit="nats", limit=floor.drift, relation="<=",
                    source="log-probabilities against the local hit; limit is the noise floor"),
        Measurement(name="samples_with_missing_logprobs", value=apart.gaps, unit="count", limit=floor.gaps,
                    relation="<=", source="a log-probability on one side only, as a NaN gives"),
        *_scores(session, local.samples, computed.samples, result.samples),
    ]
    if not pairs and not failures:
        seen = sorted({(a.cached_tokens, b.cached_tokens) for a, b in zip(local.samples, result.samples, strict=True)},
                      key=str)
        return error(f"no prompt was cut at the same place by the local hit and the retrieval: {seen[:3]}; "
                     "choose prompts.chunk_tokens as a multiple of the engine's block and the connector's chunk", found)
    judged = judge(found)
    if not failures and len(pairs) < len(result.samples) and not _red_besides_cut(found):
        return error(f"only {len(pairs)} of {len(result.samples)} prompts were cut at the same place", found)
    return judged


def _red_besides_cut(found: list[Measurement]) -> bool:
    return any(m.holds() is False for m in found if m.name != "comparable_samples")


def _same_cut(a: Sample, b: Sample) -> bool:
    return b.error is None and a.cached_tokens is not None and a.cached_tokens == b.cached_tokens


def _scores(session: Session, local: tuple[Sample, ...], computed: tuple[Sample, ...],
            result: tuple[Sample, ...]) -> list[Measurement]:
    """Scores, and their difference against what the engine does to itself without any connector."""
    first, again, hit = score(computed), score(session.passes["computed_again"].samples), score(local)
    seen = score(result)
    scores = [
        Measurement(name="score_computed", value=first, unit="ratio", source="answers"),
        Measurement(name="score_local_hit", value=hit, unit="ratio", source="answers"),
        Measurement(name="score_retrieved", value=seen, unit="ratio", source="answers"),
    ]
    if first is None:
        return scores
    floor = max((abs(first - other) for other in (again, hit) if other is not None), default=0.0)
    return [*scores, Measurement(
        name="score_difference", value=None if seen is None else abs(seen - first), unit="ratio", limit=floor,
        relation="<=", source="retrieved against computed; limit is what computing twice and a local hit differ by")]
