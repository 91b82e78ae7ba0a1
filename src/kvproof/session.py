"""A live set-up that checks work on: clients, prompts, passes, and ways to empty what was cached."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from .client import Completion, EngineClient, Http, Stopwatch
from .connectors import Connector
from .console import Console
from .engines import Engine
from .errors import ServerError
from .evidence import Pass, Sample
from .metrics import Counter, Reading, delta, read_page
from .plan import Layout
from .prompts import Prompt, extract_answer, filler
from .recipe import Recipe

SETTLE_TIMEOUT_S = 60.0


def utc_now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


@dataclass
class Session:
    """What a check gets.

    Attributes:
        baseline: a second engine without connector; None when the recipe has none.
        cache: the cache server's HTTP interface; None when the connector has no cache server.
        engine_log: where the engine's output goes.
        restart_engine: ends the engine and starts it again while the cache server lives; the way in which the
            main retrieval empties the engine's cache. None: the reset endpoint is used.
        damage_before_retrieval: called just before the main retrieval; for showing that a proof turns red.
    """

    recipe: Recipe
    run_id: str
    engine: Engine
    connector: Connector
    layout: Layout
    client: EngineClient
    baseline: EngineClient | None
    cache: Http | None
    engine_log: Path
    console: Console
    stopwatch: Stopwatch
    prompts: list[Prompt] = field(default_factory=list)
    restart_engine: Callable[[], None] | None = None
    damage_before_retrieval: Callable[[Session], None] | None = None
    passes: dict[str, Pass] = field(default_factory=dict)

    def read_engine(self) -> Reading:
        return read_page(self.client.get_text(self.engine.METRICS_PATH), self.engine.COUNTERS.values())

    def read_cache(self) -> Reading:
        if self.cache is None:
            return {}
        return read_page(self.cache.get_text("/metrics"), self.connector.COUNTERS.values())

    def send(self, name: str, salt: str | None = None) -> Pass:
        """Send every prompt once, one after the other, and keep it as a pass.

        Args:
            salt: keeps the pass apart from all others (nothing it asks for can have been cached).

        Raises:
            ServerError: an answer did not come in time; the other prompts would only wait as long.
        """
        started_at, started = utc_now(), time.monotonic()
        engine_before, cache_before = self.read_engine(), self.read_cache()
        samples = []
        for number, prompt in enumerate(self.prompts, 1):
            self.console.now(f"{name.replace('_', ' ')}: prompt {number} of {len(self.prompts)}")
            answer = self.client.complete(
                list(prompt.token_ids), max_tokens=self.recipe.prompts.output_tokens, salt=salt, stop=prompt.stop
            )
            if answer.timed_out:
                raise ServerError(f"{self.client.name}: {answer.error}, at prompt {number} of {name}",
                                  tip=f"the server hangs; its log is {self.engine_log}")
            samples.append(to_sample(prompt, answer))
        self._wait_for_counters(engine_before, sum(s.prompt_tokens for s in samples if s.error is None))
        self.passes[name] = result = Pass(
            name=name, started_at=started_at, duration_s=time.monotonic() - started,
            engine_before=engine_before, engine_after=self.read_engine(),
            cache_before=cache_before, cache_after=self.read_cache(), samples=tuple(samples),
        )
        return result

    def _wait_for_counters(self, before: Reading, tokens: int, timeout_s: float = 5.0) -> None:
        """Engines publish counters a moment after the last answer: wait until this pass's tokens are counted."""
        counter = self.engine.COUNTERS["prompt_tokens"]
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            after = self.read_engine()
            if counter.key not in after or after[counter.key] - before.get(counter.key, 0) >= tokens:
                return
            self.pause(0.1)

    def pause(self, seconds: float) -> None:
        with self.stopwatch.waiting():
            time.sleep(seconds)

    def settle(self, timeout_s: float = SETTLE_TIMEOUT_S) -> bool | None:
        """Wait until no store is under way and the counters stand still.

        Returns:
            False when stores were still under way at the end of the time; None when it cannot be told.
        """
        if self.cache is None:
            return None
        deadline, last = time.monotonic() + timeout_s, None
        while time.monotonic() < deadline:
            reading = self.read_cache()
            settled = self.connector.is_settled(self.cache, reading)
            if settled is None:
                return None
            if settled and reading == last:
                return True
            last = reading if settled else None
            self.console.now("waiting for stores to finish")
            self.pause(0.25)
        return False

    def empty_engine_cache(self) -> None:
        """Empty the engine's own prefix cache by its endpoint; what the connector stored stays."""
        self.engine.empty_cache(self.client)

    def warm_up(self) -> None:
        """Send requests that are not counted: the first ones after a start are slow.

        A failure ends it quietly; the smoke check, which comes next, says what is wrong.
        """
        for client in filter(None, (self.client, self.baseline)):
            for length in (self.recipe.prompts.chunk_tokens, self.longest_tokens()):
                self.console.now(f"warming up {client.name}")
                answer = client.complete(self.fresh_prompt(f"warm-up {client.name}", length), max_tokens=4,
                                         salt=f"{self.run_id}-warm-up")
                if answer.error is not None:
                    return

    def longest_tokens(self) -> int:
        p = self.recipe.prompts
        return p.max_chunks * p.chunk_tokens + p.remainder_tokens

    def fresh_prompt(self, purpose: str, length: int) -> list[int]:
        return list(filler(f"{self.run_id} {purpose} {length}", length, self.tokenize))

    def tokenize(self, text: str) -> list[int]:
        return self.engine.tokenize(self.client, text)

    def cacheable_tokens(self, samples: tuple[Sample, ...]) -> int:
        """Prompt tokens in whole chunks, at least one token of each prompt left to compute."""
        chunk = self.recipe.prompts.chunk_tokens
        return sum((s.prompt_tokens - 1) // chunk * chunk for s in samples)


def to_sample(prompt: Prompt, answer: Completion) -> Sample:
    said = extract_answer(answer.text) if answer.error is None else None
    score = None
    if prompt.expected is not None and answer.error is None:
        score = 1.0 if said == prompt.expected else 0.0
    return Sample(
        prompt_sha256=prompt.sha256, kind=prompt.kind,
        prompt_tokens=answer.prompt_tokens if answer.prompt_tokens is not None else len(prompt.token_ids),
        cached_tokens=answer.cached_tokens, token_ids=answer.token_ids, logprobs=answer.logprobs,
        ttft_s=answer.ttft_s, duration_s=answer.duration_s, answer=said, score=score, error=answer.error,
    )


def grown(counters: Mapping[str, Counter], before: Reading, after: Reading, name: str) -> float | None:
    """Growth of one counter over a pass; None when it is unknown. Raises CounterReset when it went backwards."""
    counter = counters.get(name)
    return None if counter is None else delta(before, after, counter)
