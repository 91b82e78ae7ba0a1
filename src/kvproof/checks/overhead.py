"""What a miss costs: prompts that nothing has cached, with the connector and without it, in turn."""

from __future__ import annotations

from statistics import median

from ..evidence import Measurement, Verdict
from ..metrics import ratio
from ..session import Session
from .judgement import Judgement, error, judge

NAME = "overhead"
CONTROL = False
NEEDS = ("smoke",)
_REST_S = 0.5
"""Between two requests: an engine's threads spin for a while after an answer, and stores go on."""


def run(session: Session) -> Judgement:
    if session.baseline is None:
        return Judgement(Verdict.NOT_MEASURED, "the recipe runs no engine without a connector beside it")
    wanted = session.recipe.checks.thresholds.overhead
    length = wanted.length_chunks * session.recipe.prompts.chunk_tokens + session.recipe.prompts.remainder_tokens
    times: dict[str, list[float]] = {"with": [], "without": []}
    settled: bool | None = True
    for number in range(wanted.pairs):
        session.console.now(f"overhead of a miss: pair {number + 1} of {wanted.pairs}")
        prompt = session.fresh_prompt(f"overhead {number}", length)
        pair = [("with", session.client), ("without", session.baseline)]
        # Each goes first half of the time, so that a drift of the machine favours neither.
        for name, client in pair if number % 2 else reversed(pair):
            if settled is not False:  # stores that never end are waited for once, not before every request
                settled = session.settle()
            session.pause(_REST_S)
            answer = client.complete(prompt, max_tokens=2, salt=f"{session.run_id}-overhead")
            if answer.error is not None or answer.ttft_s is None:
                return error(f"a request {name} connector failed: {answer.error or 'no token came'}")
            times[name].append(answer.ttft_s)
    pairs = [r for a, b in zip(times["with"], times["without"], strict=True) if (r := ratio(a, b)) is not None]
    return judge([
        Measurement(name="ttft_miss_s", value=median(times["with"]), unit="s", source=_spread(times["with"])),
        Measurement(name="ttft_without_connector_s", value=median(times["without"]), unit="s",
                    source=_spread(times["without"])),
        Measurement(name="miss_overhead_median_ratio", value=median(pairs) if pairs else None, unit="ratio",
                    source=f"median of {len(pairs)} interleaved pairs of {length} tokens"
                           + (f", from {min(pairs):.3f} to {max(pairs):.3f}" if pairs else "")),
        # Other work on the host only ever adds time, so the fastest of each side are the ones to judge by.
        Measurement(name="miss_overhead_ratio", value=ratio(min(times["with"]), min(times["without"])), unit="ratio",
                    limit=wanted.max_ratio, relation="<=",
                    source=f"fastest of {len(pairs)} with connector over fastest of {len(pairs)} without"),
    ])


def _spread(times: list[float]) -> str:
    return f"median of {len(times)}; from {min(times):.4f} to {max(times):.4f} s"
