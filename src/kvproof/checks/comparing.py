"""How far two passes over the same prompts are apart."""

from __future__ import annotations

from dataclasses import dataclass

from ..evidence import Sample


@dataclass(frozen=True)
class Distance:
    """Two passes, sample by sample.

    Attributes:
        compared: samples that both passes answered.
        disagreements: of those, how many gave other tokens.
        drift: largest absolute difference of a log-probability, nats, up to and including the first token that
            differs; None when no pair of log-probabilities was there.
        gaps: samples in which one pass had a log-probability and the other had none; a NaN shows like this.
    """

    compared: int
    disagreements: int
    drift: float | None
    gaps: int


def distance(left: tuple[Sample, ...], right: tuple[Sample, ...]) -> Distance:
    compared = disagreements = gaps = 0
    drift: float | None = None
    for a, b in zip(left, right, strict=True):
        if a.prompt_sha256 != b.prompt_sha256:
            raise ValueError("the passes were not sent the same prompts")
        if a.error is not None or b.error is not None:
            continue
        compared += 1
        if a.token_ids != b.token_ids:
            disagreements += 1
        pairs = _pairs(a, b)
        gaps += any((x is None) != (y is None) for x, y in pairs)
        found = [abs(x - y) for x, y in pairs if x is not None and y is not None]
        if found:
            drift = max(found) if drift is None else max(drift, *found)
    return Distance(compared, disagreements, drift, gaps)


def _pairs(a: Sample, b: Sample) -> list[tuple[float | None, float | None]]:
    """Log-probabilities at the same place, up to and including the first token that differs."""
    same = 0
    while same < min(len(a.token_ids), len(b.token_ids)) and a.token_ids[same] == b.token_ids[same]:
        same += 1
    return list(zip(a.logprobs[:same + 1], b.logprobs[:same + 1], strict=False))


def score(samples: tuple[Sample, ...]) -> float | None:
    """Mean score; None when no sample was scored."""
    scores = [s.score for s in samples if s.score is not None]
    return sum(scores) / len(scores) if scores else None


def failed_requests(samples: tuple[Sample, ...]) -> list[str]:
    return [s.error for s in samples if s.error is not None]
