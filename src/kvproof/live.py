"""A set-up that runs already and was not started here: what is sent to it, and what its counters say of that."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .connectors import CONNECTORS, Connector
from .console import Console
from .engines import Engine
from .errors import ServerError
from .evidence import Pass
from .metrics import Counter, Reading
from .prompts import Prompt, filler
from .remote import OutOfTime, Remote, labels_of, names_on, read_finite
from .session import grown, to_sample, utc_now

OUTPUT_TOKENS = 16
CHUNK_TOKENS = 256
"""What connectors store at once, where the cache server does not say."""
PROMPT_TOKENS = 2048
"""Whole chunks of 256, 512 and 1,024 tokens."""
COMPLETE_S = 90.0
"""For one answer; the first one after a start is slow."""
SETTLE_S = 30.0
STILL_S = 3.0
"""How long counters must stand still where nothing says that a store is under way."""
_COUNTED_S = 5.0
_FLUSH_S = 70.0
# On the engine's page, by its connectors: vLLM 0.24 and later, 0.16 and later, and SimpleCPUOffloadConnector.
_STORES = {
    "store_bytes": Counter("vllm:kv_offload_store_bytes_total"),
    "old_store_bytes": Counter("vllm:kv_offload_total_bytes_total", {"transfer_type": "GPU_to_CPU"}),
    "stored_blocks": Counter("vllm:simple_kv_offload_save_outcomes_total", {"outcome": "stored"}),
}
_LOADS = {
    "load_bytes": Counter("vllm:kv_offload_load_bytes_total"),
    "old_load_bytes": Counter("vllm:kv_offload_total_bytes_total", {"transfer_type": "CPU_to_GPU"}),
    "loaded_blocks": Counter("vllm:simple_kv_offload_load_blocks_total"),
}


_STORE_PAIRS = (("stores_submitted", "stores_finished"), ("l2_stores_submitted", "l2_stores_completed"))
"""On the cache server's page: what begins and what ends, in both tiers."""


class NoReset(ServerError):
    """The engine has no endpoint that empties its own cache."""


@dataclass
class Live:
    """The set-up.

    Attributes:
        page: the engine's metrics page as it was first.
        cache: the cache server; None when none was named, or it cannot be asked.
        connector: whose counters the cache server has, or who is known to be attached; None when unknown.
        attached: the engine's own name of its connector; None when it has none, or does not say.
        told: whether the engine says which connector it has.
        context_tokens: longest prompt and answer together; None when it is not told.
        notes: what is worth knowing beside the verdict.
    """

    client: Remote
    engine: Engine
    page: str
    cache: Remote | None
    connector: Connector | None
    console: Console
    attached: str | None = None
    told: bool = False
    context_tokens: int | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def counters(self) -> Mapping[str, Counter]:
        return {**self.engine.COUNTERS, **_STORES, **_LOADS}

    def read(self) -> Reading:
        page = self.client.get_text(self.engine.METRICS_PATH)
        reading, broken = read_finite(self.client.name, page, self.counters.values())
        for name in broken:
            self.note(f"{name} is no number on the engine's page, so it counts as unknown")
        for counter in (*_STORES.values(), *_LOADS.values()):
            # A connector that has moved nothing yet shows the counter's type and no sample.
            declared = rf"(?m)^# TYPE {re.escape(counter.name.removesuffix('_total'))}(_total)? "
            if counter.key not in reading and counter.key not in broken and re.search(declared, page):
                reading[counter.key] = 0.0
        return reading

    def read_cache(self) -> Reading:
        """The cache server's counters; from the first failure on it is left out."""
        if self.cache is None or self.connector is None:
            return {}
        try:
            page = self.cache.get_text("/metrics")
            reading, broken = read_finite(self.cache.name, page, self.connector.COUNTERS.values())
        except OutOfTime:
            raise
        except ServerError as error:
            self.note(f"without the cache server: {error.message}")
            self.cache = None
            return {}
        for name in broken:
            self.note(f"{name} is no number on the cache server's page, so it counts as unknown")
        finished = self.connector.COUNTERS.get("stores_finished")
        if finished is not None and finished.key not in broken:
            reading.setdefault(finished.key, 0.0)  # it comes with the first store, and the page is there
        return reading

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def prompts(self, seed: str, count: int, length: int) -> list[Prompt]:
        """Random words that nobody sent before under this seed, cut to so many tokens."""
        made = []
        for number in range(count):
            self.console.now(f"making prompt {number + 1} of {count}")
            made.append(Prompt(filler(f"{seed} {number}", length, lambda text: self.engine.tokenize(self.client, text)),
                               None))
        return made

    def send(self, name: str, prompts: Sequence[Prompt], output_tokens: int = OUTPUT_TOKENS) -> Pass:
        """Send prompts one after the other.

        Raises:
            ServerError: an answer did not come in time; the others would only wait as long.
        """
        started_at, started = utc_now(), time.monotonic()
        engine_before, cache_before = self.read(), self.read_cache()
        samples = []
        for number, prompt in enumerate(prompts, 1):
            self.console.now(f"{name}: prompt {number} of {len(prompts)}")
            self.client.allow(COMPLETE_S)
            answer = self.client.complete(list(prompt.token_ids), max_tokens=output_tokens)
            if answer.timed_out:
                raise ServerError(f"{self.client.name}: {answer.error}, at prompt {number} of {name}",
                                  tip="look whether it is busy or hangs, then try again")
            samples.append(to_sample(prompt, answer))
        self._wait_for_counters(engine_before, sum(s.prompt_tokens for s in samples if s.error is None))
        return Pass(name=name, started_at=started_at, duration_s=time.monotonic() - started,
                    engine_before=engine_before, engine_after=self.read(), cache_before=cache_before,
                    cache_after=self.read_cache(), samples=tuple(samples))

    def _wait_for_counters(self, before: Reading, tokens: int) -> None:
        """Engines publish counters a moment after the last answer."""
        deadline = time.monotonic() + _COUNTED_S
        while time.monotonic() < deadline:
            counted = grown(self.counters, before, self.read(), "prompt_tokens")
            if counted is None or counted >= tokens:
                return
            time.sleep(0.1)

    def settle(self) -> bool:
        """Wait until no store is under way, or until all that were have finished, as the cache server says; without one
        until the counters stood still, or for a while when other people's requests keep them moving.

        Returns:
            False when stores were still under way at the end of the time.
        """
        began = since = time.monotonic()
        first, last = self.read_cache(), None
        while (now := time.monotonic()) - began < SETTLE_S:
            self.console.now("waiting for stores to finish")
            cache = self.read_cache()
            settled = self.connector.is_settled(self.cache, cache) if self.cache and self.connector else None
            seen = {k: v for k, v in self.read().items() if k in {c.key for c in _STORES.values()}} | cache
            if seen != last:
                last, since = seen, now
            if settled is None and (now - since >= STILL_S or now - began >= 3 * STILL_S):
                return True
            if (settled and now - since >= 0.2) or (now - began >= 1 and self._have_finished(first, cache)):
                return True
            time.sleep(min(0.25, STILL_S))
        return False

    def _have_finished(self, first: Reading, now: Reading) -> bool:
        """Whether as many stores have finished as had begun at the first reading."""
        counters = self.connector.COUNTERS if self.connector else {}
        begun = {finished: first.get(counters[submitted].key) for submitted, finished in _STORE_PAIRS
                 if submitted in counters and finished in counters}
        return any(begun.values()) and all(now.get(counters[name].key, 0) >= count for name, count in begun.items()
                                           if count is not None)

    def empty(self) -> None:
        """Empty the engine's own prefix cache by its endpoint; what the connector stored stays.

        Raises:
            NoReset: it has no such endpoint.
            ServerError: it refuses.
        """
        self.client.ask_s, before = _FLUSH_S, self.client.ask_s
        try:
            self.engine.empty_cache(self.client)
        except ServerError as error:
            if re.search(r"HTTP (404|405)", error.message) or "no endpoint" in error.message:
                raise NoReset(error.message, tip=error.tip) from None
            raise
        finally:
            self.client.ask_s = before

    def prompt_chunks(self) -> tuple[int, int]:
        """Tokens of a chunk, and of so many whole chunks as a prompt is to have; 0 when none fits the context."""
        chunk = CHUNK_TOKENS
        if self.cache is not None:
            try:
                told = self.cache.get_json("/status").get("chunk_size")
                chunk = told if isinstance(told, int) and told > 0 else chunk
            except OutOfTime:
                raise
            except (ServerError, AttributeError):
                pass
        whole = max(2 * chunk, PROMPT_TOKENS // chunk * chunk)
        if self.context_tokens is not None:
            whole = min(whole, max(0, self.context_tokens - OUTPUT_TOKENS - 1) // chunk * chunk)
        return chunk, whole

    def capacity_tokens(self) -> int | None:
        """At most so many tokens fit the engine's own cache; None when its page does not say.

        Groups of a hybrid cache share the blocks, so that fewer fit in truth.
        """
        info = labels_of(self.page, "vllm:cache_config_info")
        engines = len(re.findall(r"(?m)^vllm:cache_config_info\{", self.page))
        try:
            return engines * int(info["num_gpu_blocks"]) * int(info["block_size"]) or None
        except (KeyError, ValueError):
            return None

    def keeps_prefixes(self) -> bool:
        """Whether the engine has a prefix cache of its own, as far as its page says."""
        return labels_of(self.page, "vllm:cache_config_info").get("enable_prefix_caching") != "False"

    def stored(self, before: Reading, after: Reading) -> float | None:
        """How much the engine's connector says it stored between two readings; None when it does not count that."""
        return most(grown(_STORES, before, after, name) for name in _STORES)

    def loaded(self, before: Reading, after: Reading) -> float | None:
        return most(grown(_LOADS, before, after, name) for name in _LOADS)

    def shows_connector(self) -> bool:
        """Whether the engine's page has counters of a connector inside it."""
        return re.search(r"(?m)^(# TYPE )?vllm:(kv_offload|simple_kv_offload)_", self.page) is not None

    def ask_what_is_attached(self) -> None:
        """Which connector the engine itself says it has: vLLM in its development mode, and SGLang."""
        try:
            info = self.client.get_json("/server_info" if self.engine.NAME == "sglang" else
                                        "/server_info?config_format=json")
        except OutOfTime:
            raise
        except ServerError:
            return
        info = info if isinstance(info, dict) else {}
        config = info.get("vllm_config")
        if isinstance(config, dict) and "kv_transfer_config" in config:
            self.told = True
            transfer = config["kv_transfer_config"]
            self.attached = _text(transfer.get("kv_connector")) if isinstance(transfer, dict) else None
        elif isinstance(info.get("enable_lmcache"), bool):
            self.told = True
            self.attached = self.engine.CONNECTORS.get("lmcache-mp") if info["enable_lmcache"] else \
                "HiCache" if info.get("enable_hierarchical_cache") else None
        ours = next((n for n, theirs in self.engine.CONNECTORS.items() if self.attached == theirs), None)
        if ours is not None and self.connector is None:
            self.connector = CONNECTORS[ours]


def connector_of(page: str) -> Connector | None:
    """The connector whose cache server shows this page."""
    return next((c for c in CONNECTORS.values() if c.COUNTERS and names_on(page, c.COUNTERS.values())), None)


def most(values: Any) -> float | None:
    """The largest of those that are known; None when none is."""
    return max((v for v in values if v is not None), default=None)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
