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
            differs; None when no pair of log-probabilities was there. Infinite when one pass had a number and the
            other had none (a NaN on its way shows like this).
    """

    compared: int
    disagreements: int
    drift: float | None


def distance(left: tuple[Sample, ...], right: tuple[Sample, ...]) -> Distance:
    compared = disagreements = 0
    drift: float | None = None
    for a, b in zip(left, right, strict=True):
        if a.prompt_sha256 != b.prompt_sha256:
            raise ValueError("the passes were not sent the same prompts")
        if a.error is not None or b.error is not None:
            continue
        compared += 1
        if a.token_ids != b.token_ids:
            disagreements += 1
        for found in _differences(a, b):
            drift = found if drift is None else max(drift, found)
    return Distance(compared, disagreements, drift)


def _differences(a: Sample, b: Sample) -> list[float]:
    found = []
    for i, (x, y) in enumerate(zip(a.logprobs, b.logprobs, strict=False)):
        if x is not None and y is not None:
            found.append(abs(x - y))
        elif (x is None) != (y is None):
            found.append(float("inf"))
        if a.token_ids[i:i + 1] != b.token_ids[i:i + 1]:
            break
    return found


def score(samples: tuple[Sample, ...]) -> float | None:
    """Mean score; None when no sample was scored."""
    scores = [s.score for s in samples if s.score is not None]
    return sum(scores) / len(scores) if scores else None


def failed_requests(samples: tuple[Sample, ...]) -> list[str]:
    return [s.error for s in samples if s.error is not None]
