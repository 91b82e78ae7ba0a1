"""Speculative decoding keeps its acceptance when KV comes back from outside: a collapsed draft leaves every
answer right and only makes it slow, so accuracy cannot show it.

Acceptance is accepted over drafted tokens. The mean acceptance length counts the target's own token too: 1 plus
accepted tokens per draft (as vLLM reports it, vllm/v1/spec_decode/metrics.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from ..evidence import Measurement, Pass, Verdict
from ..metrics import ratio
from ..session import Session, grown
from .judgement import Judgement, judge, unmeasured

NAME = "speculative"
CONTROL = False
NEEDS = ("retrieval",)


@dataclass(frozen=True)
class Drafting:
    """What was drafted and accepted during one pass. All None when no draft ran or the engine does not say."""

    drafts: float | None
    draft_tokens: float | None
    accepted_tokens: float | None
    accepted_at: tuple[float | None, ...]
    """Accepted tokens by position in the draft."""

    @property
    def acceptance(self) -> float | None:
        return ratio(self.accepted_tokens, self.draft_tokens)

    @property
    def mean_length(self) -> float | None:
        per_draft = ratio(self.accepted_tokens, self.drafts)
        return None if per_draft is None else 1 + per_draft


def drafting(session: Session, result: Pass, positions: int) -> Drafting:
    def count(name: str) -> float | None:
        return grown(session.engine.COUNTERS, result.engine_before, result.engine_after, name)

    return Drafting(count("drafts"), count("draft_tokens"), count("accepted_tokens"),
                    tuple(count(f"accepted_tokens_{i}") for i in range(positions)))


def run(session: Session) -> Judgement:
    spec = session.recipe.speculative
    if spec is None:
        return Judgement(Verdict.NOT_MEASURED, "the recipe does not use speculative decoding")
    unsupported = unmeasured(session.engine, "drafts", "draft_tokens", "accepted_tokens")
    if unsupported is not None:
        return unsupported
    limits = session.recipe.checks.thresholds.acceptance
    found: list[Measurement] = []
    seen = {}
    for kind in ("computed", "retrieved"):
        seen[kind] = d = drafting(session, session.passes[kind], spec.num_speculative_tokens)
        found += [
            Measurement(name=f"acceptance_{kind}_ratio", value=d.acceptance, unit="ratio", limit=limits.min_ratio,
                        relation=">=", source=f"engine: {_text(d.accepted_tokens)} of {_text(d.draft_tokens)} drafted "
                                              "tokens accepted"),
            Measurement(name=f"mean_acceptance_length_{kind}_tokens", value=d.mean_length, unit="tokens",
                        source="1 + accepted tokens per draft"),
            Measurement(name=f"drafts_{kind}", value=d.drafts, unit="count", source="engine"),
        ]
        found += [Measurement(name=f"acceptance_{kind}_position_{i}_ratio", value=ratio(accepted, d.drafts),
                              unit="ratio", source="engine: accepted tokens by position over drafts")
                  for i, accepted in enumerate(d.accepted_at)]
    first, second = seen["computed"], seen["retrieved"]
    both = first.acceptance is not None and second.acceptance is not None
    found += [
        Measurement(name="acceptance_difference", unit="ratio", limit=limits.max_difference, relation="<=",
                    value=abs(second.acceptance - first.acceptance) if both else None,
                    source="retrieved against computed"),
        Measurement(name="mean_acceptance_length_share", unit="ratio", limit=limits.min_length_share, relation=">=",
                    value=ratio(second.mean_length, first.mean_length), source="retrieved over computed"),
    ]
    return judge(found)


def _text(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.0f}"
