"""Time to first token, computed (cold) and brought back by the connector (warm), at several lengths."""

from __future__ import annotations

from statistics import median

from ..evidence import Measurement
from ..metrics import ratio
from ..session import Session
from .judgement import Judgement, error, judge

NAME = "latency"
CONTROL = False
NEEDS = ("retrieval",)


def run(session: Session) -> Judgement:
    wanted = session.recipe.checks.thresholds.latency
    found: list[Measurement] = []
    lengths = sorted(wanted.lengths_chunks)
    for chunks in lengths:
        length = chunks * session.recipe.prompts.chunk_tokens + session.recipe.prompts.remainder_tokens
        prompts = [session.fresh_prompt(f"latency {n}", length) for n in range(wanted.repeats)]
        cold = _times(session, "cold", prompts)
        if isinstance(cold, str):
            return error(cold, found)
        session.settle()
        session.empty_engine_cache()
        warm = _times(session, "warm", prompts)
        if isinstance(warm, str):
            return error(warm, found)
        speedup = ratio(median(cold), median(warm))
        longest = chunks == lengths[-1]
        for name, times in (("cold", cold), ("warm", warm)):
            found.append(Measurement(name=f"ttft_{name}_{length}_tokens_s", value=median(times), unit="s",
                                     source=f"median of {len(times)}; from {min(times):.4f} to {max(times):.4f} s"))
        found.append(Measurement(
            name=f"ttft_speedup_{length}_tokens_ratio", value=speedup, unit="ratio",
            limit=wanted.min_speedup_ratio if longest else None, relation=">=" if longest else None,
            source="median cold over median warm"))
    return judge(found)


def _times(session: Session, kind: str, prompts: list[list[int]]) -> list[float] | str:
    """TTFT of each prompt, seconds; or why one could not be had."""
    times = []
    for number, prompt in enumerate(prompts, 1):
        session.console.now(f"latency, {kind}, {len(prompt)} tokens: {number} of {len(prompts)}")
        answer = session.client.complete(prompt, max_tokens=2, salt=f"{session.run_id}-latency")
        if answer.error is not None or answer.ttft_s is None:
            return f"a {kind} request of {len(prompt)} tokens failed: {answer.error or 'no token came'}"
        times.append(answer.ttft_s)
    return times
