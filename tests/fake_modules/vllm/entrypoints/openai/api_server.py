"""Fake engine: the part of vLLM's HTTP API that kvproof uses, over a small and faithful model of KV caching.

A token is a byte. KV of a block of 256 tokens is some bytes that follow from all tokens up to its end. What a
prompt is answered with follows from the bytes of its KV, wherever they came from, so changed bytes change the
answer. A computed token takes a fixed time, one from a cache takes none.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import http.client
import json
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import fake_family
from fake_http import LIE, Counters, Failure, say, server

VERSION = "0.32.0"
BLOCK = 256
BYTES_PER_TOKEN = 2
SECONDS_PER_TOKEN = 60e-6
BOS, FIRST_BYTE = 2, 6
SOURCES = ("local_compute", "local_cache_hit", "external_kv_transfer")
HIDDEN = {
    "external-counter-missing": ("vllm:external_prefix_cache_hits",),
    "sources-missing": ("vllm:prompt_tokens_by_source",),
    "draft-counters-missing": ("vllm:spec_decode",),
}
BLOCKS = int(os.environ.get("FAKE_BLOCKS") or 0)
"""How many blocks the engine's own cache holds, which it then also tells; 0: any number, and it does not tell."""


class Connector:
    """The engine's side of the KV connector."""

    def __init__(self, config: dict):
        extra = config["kv_connector_extra_config"]
        self._host = urlsplit(extra["lmcache.mp.host"]).hostname
        self._port = extra["lmcache.mp.port"]

    def _ask(self, path: str, body: dict) -> dict | None:
        """None when the cache server is gone; an engine then computes."""
        connection = http.client.HTTPConnection(self._host, self._port, timeout=10)
        try:
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            data = response.read()
            return json.loads(data) if response.status == 200 else None
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()

    def register(self) -> bool:
        return self._ask("/register", {"engine": os.getpid()}) is not None

    def lookup(self, keys: list[str]) -> int:
        return (self._ask("/lookup", {"keys": keys}) or {"found": 0})["found"]

    def retrieve(self, keys: list[str]) -> list[bytes]:
        found = self._ask("/retrieve", {"keys": keys}) or {"chunks": []}
        return [base64.b64decode(c) for c in found["chunks"]]

    def store(self, chunks: dict[str, bytes]) -> None:
        self._ask("/store", {"chunks": {k: base64.b64encode(v).decode() for k, v in chunks.items()}})


class Degraded:
    """A connector inside the engine that could not be set up: it is asked, has nothing and keeps nothing."""

    def register(self) -> bool:
        say("LMCache ERROR: No supported cpu connector found. System will operate in degraded mode (recompute).")
        return True

    def lookup(self, keys: list[str]) -> int:
        return 0

    def retrieve(self, keys: list[str]) -> list[bytes]:
        return []

    def store(self, chunks: dict[str, bytes]) -> None:
        pass


class Native:
    """A connector inside the engine that keeps KV in the host's memory, and counts bytes on the engine's page."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}
        self.counters = Counters()

    def register(self) -> bool:
        return True

    def lookup(self, keys: list[str]) -> int:
        return next((n for n, key in enumerate(keys) if key not in self.kept), len(keys))

    def retrieve(self, keys: list[str]) -> list[bytes]:
        found = [self.kept[key] for key in keys]
        self.counters.add("vllm:kv_offload_load_bytes_total", sum(map(len, found)))
        return found

    def store(self, chunks: dict[str, bytes]) -> None:
        if LIE == "never-stores":
            return
        self.counters.add("vllm:kv_offload_store_bytes_total", sum(map(len, chunks.values())))
        if LIE != "forgets-stores":
            self.kept |= chunks

    def page(self) -> str:
        """As long as nothing was moved there are types and no samples."""
        types = [f"# TYPE vllm:kv_offload_{kind}_bytes_total counter\n" for kind in ("load", "store")]
        return "".join(types) + "\n".join(line for line in self.counters.page().splitlines() if line[:1] != "#") + "\n"


def connector_of(config: dict) -> Connector | Degraded | Native:
    made = {"LMCacheConnectorV1": Degraded, "OffloadingConnector": Native}.get(config["kv_connector"])
    return made() if made else Connector(config)


class Engine:
    longest: int | None = None

    def __init__(self, name: str, connector: Connector | None, drafted: int):
        """drafted: tokens that a draft proposes; 0 without speculative decoding."""
        self.name = name
        self.drafted = drafted
        self.connector = connector
        self.local: dict[str, bytes] = {}
        self.counters = Counters()
        self.labels = f'engine="0",model_name="{name}"'
        self.resets = self.since_reset = 0
        self.one_at_a_time = threading.Lock()
        for counter in ("prompt_tokens", "prefix_cache_hits", "external_prefix_cache_queries",
                        "external_prefix_cache_hits", "num_preemptions"):
            self.count(counter, 0)
        for source in SOURCES:
            self.count("prompt_tokens_by_source", 0, source)

    def count(self, counter: str, amount: int, source: str | None = None) -> None:
        labels = self.labels + (f',source="{source}"' if source else "")
        self.counters.add(f"vllm:{counter}_total", amount, labels)

    def models(self, body: Any) -> dict:
        about = {"max_model_len": self.longest, "parent": None, "root": "/models/fake"}
        names = ["another-model" if LIE == "wrong-model-name" else self.name]
        if LIE in ("two-models", "two-names"):
            names.append("the-other")
        adapters = [{"id": "adapter", **about, "parent": self.name}] if LIE == "with-adapter" else []
        if LIE == "two-models":
            about["root"] = None
        return {"data": [*({"id": name, **about} for name in names), *adapters]}

    def version(self, body: Any) -> dict:
        return {"version": "0.31.0" if LIE == "wrong-version" else VERSION}

    def tokenize(self, body: Any) -> dict:
        return {"tokens": tokens_of(body["prompt"])}

    def metrics(self, body: Any) -> str:
        if LIE == "metrics-garbage":
            return "vllm:prompt_tokens_total{ this is no metrics page\n"
        page = self.counters.page(HIDDEN.get(LIE, ()))
        if isinstance(self.connector, Native):
            page += self.connector.page()
        if BLOCKS or LIE == "no-prefix-cache":
            page += (f'vllm:cache_config_info{{block_size="{BLOCK}",enable_prefix_caching="{LIE != "no-prefix-cache"}",'
                     f'num_gpu_blocks="{BLOCKS}"}} 1.0\n')
        if LIE == "nan-counter":
            page = re.sub(r"(?m)^(vllm:external_prefix_cache_hits_total.*) .*", r"\1 NaN", page)
        return page

    def reset(self, body: Any) -> None:
        self.resets += 1
        self.since_reset = 0
        if LIE != "ignores-reset":
            self.local.clear()

    def chat(self, body: Any) -> dict:
        if LIE == "no-chat":
            raise Failure(404, "this engine has no chat")
        return {"choices": [{"message": {"content": "Hello."}}]}

    def complete(self, body: Any) -> Iterator[dict]:
        if LIE == "http-500":
            raise Failure(500, "the engine fails at everything")
        if LIE == "hangs":
            time.sleep(3600)
        prompt = body["prompt"]
        tokens = tokens_of(prompt) if isinstance(prompt, str) else prompt
        with self.one_at_a_time:
            yield from self._complete(tokens, body.get("cache_salt", ""), body["max_tokens"])

    def _complete(self, tokens: list[int], salt: str, max_tokens: int) -> Iterator[dict]:
        self.since_reset += 1
        self._misbehave_in_retrieval()
        contents = contents_of(tokens)
        keys = [hashlib.sha256(f"{salt} {content}".encode()).hexdigest() for content in contents]
        blocks: list[bytes] = []
        for key in keys:
            if key not in self.local:
                break
            blocks.append(self.local[key])
        local = len(blocks)
        external = 0
        if self.connector:
            found = self.connector.lookup(keys)
            if found > local and LIE != "claims-hits":
                blocks += self.connector.retrieve(keys[local:found])
                external = len(blocks) - local
        cached = (local + external) * BLOCK
        self._take_time(tokens, cached, external)
        new = {key: kv_of(content) for key, content in list(zip(keys, contents, strict=True))[local + external:]}
        blocks += new.values()
        for key, block in zip(keys, blocks, strict=True):
            self.local.pop(key, None)
            self.local[key] = block
        if LIE == "no-prefix-cache":
            self.local.clear()
        while BLOCKS and len(self.local) > BLOCKS:
            del self.local[next(iter(self.local))]
        if self.connector and new:
            self.connector.store(new)
        claimed = external
        if LIE == "claims-hits" and self.connector and self.resets:
            claimed = len(keys) - local
        self._count(len(tokens), local * BLOCK, claimed * BLOCK)
        if LIE == "unequal-cuts" and local and not external:
            cached += 32
        yield from self._answer(tokens, contents, blocks, external, cached, max_tokens)

    def _misbehave_in_retrieval(self) -> None:
        """After the first reset the proof retrieves; some lies begin in the middle of it."""
        if not self.connector or self.resets != 1 or self.since_reset != 2:
            return
        if LIE == "counters-reset":
            self.counters.reset()
        if LIE == "dies":
            say("ERROR: fake engine dies on purpose")
            os._exit(3)
        if LIE == "is-killed":
            say("INFO: fake engine is about to be killed")
            os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(60)

    def _take_time(self, tokens: list[int], cached: int, external: int) -> None:
        seconds = (len(tokens) - cached) * SECONDS_PER_TOKEN
        if LIE == "slow-first-token" and external:
            seconds = 2 * len(tokens) * SECONDS_PER_TOKEN
        if LIE == "miss-overhead" and self.connector and not cached:
            seconds *= 8
        time.sleep(seconds)

    def _count(self, total: int, local: int, external: int) -> None:
        self.count("prompt_tokens", total)
        self.count("prefix_cache_hits", local)
        self.count("external_prefix_cache_queries", total - local if self.connector else 0)
        self.count("external_prefix_cache_hits", external)
        for source, amount in zip(SOURCES, (total - local - external, local, external), strict=True):
            self.count("prompt_tokens_by_source", amount, source)

    def _count_drafts(self, answered: int, external: int) -> None:
        """As if one draft came before every token, and all of it were accepted."""
        if not self.drafted:
            return
        accepted = 0 if LIE == "draft-collapses" and external else answered
        self.count("spec_decode_num_drafts", answered)
        self.count("spec_decode_num_draft_tokens", answered * self.drafted)
        self.count("spec_decode_num_accepted_tokens", accepted * self.drafted)
        for place in range(self.drafted):
            labels = f'{self.labels},position="{place}"'
            self.counters.add("vllm:spec_decode_num_accepted_tokens_per_pos_total", accepted, labels)

    def _answer(self, tokens: list[int], contents: list[str], blocks: list[bytes], external: int, cached: int,
                max_tokens: int) -> Iterator[dict]:
        kv = b"".join(blocks)
        state = hashlib.sha256(kv + repr(tokens[len(contents) * BLOCK:]).encode())
        right = kv == b"".join(map(kv_of, contents))
        number = solve(tokens) if right else state.digest()[0]
        if LIE == "wrong-answer" and external:
            number += 1
        if LIE == "noisy":
            state.update(os.urandom(8))
        if LIE == "fails-on-retrieval" and external and self.resets == 1:
            raise Failure(400, "Out of range float values are not JSON compliant: nan")
        text = f" #### {number}."[:max_tokens]
        self._count_drafts(len(text), external)
        for place, letter in enumerate(text):
            probability: float = -hashlib.sha256(state.digest() + bytes([place])).digest()[0] / 64
            if LIE == "nan-on-retrieval" and external:
                probability = float("nan")
            token = letter if LIE == "no-ids" else f"token_id:{ord(letter) + FIRST_BYTE}"
            yield {"choices": [{"text": letter, "logprobs": {"tokens": [token], "token_logprobs": [probability]}}]}
        details = {} if LIE == "no-cached-tokens" else {"prompt_tokens_details": {"cached_tokens": cached}}
        yield {"choices": [], "usage": {"prompt_tokens": len(tokens), **details}}


def tokens_of(text: str) -> list[int]:
    return [BOS, *(b + FIRST_BYTE for b in text.encode())]


def contents_of(tokens: list[int]) -> list[str]:
    """A hash of all tokens up to the end of each whole block; at least one token is left to compute."""
    contents, previous = [], ""
    for start in range(0, (len(tokens) - 1) // BLOCK * BLOCK, BLOCK):
        previous = hashlib.sha256(f"{previous} {tokens[start:start + BLOCK]}".encode()).hexdigest()
        contents.append(previous)
    return contents


def kv_of(content: str) -> bytes:
    return hashlib.shake_128(content.encode()).digest(BLOCK * BYTES_PER_TOKEN)


def solve(tokens: list[int]) -> int:
    """The right answer to kvproof's word problems; 0 for everything else."""
    text = bytes(t - FIRST_BYTE for t in tokens if t >= FIRST_BYTE).decode(errors="replace")
    question = text.rpartition("Question: ")[2]
    numbers = [int(n) for n in re.findall(r"\d+", question)]
    if len(numbers) != 3:
        return 0
    a, b, c = numbers
    for word, answer in (("finds", a + b - c), ("packs", a * b + c), ("pays", c - a * b)):
        if word in question:
            return answer
    return (a - c) // b if "shares" in question and b else 0


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--served-model-name", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--kv-transfer-config", type=json.loads)
    parser.add_argument("--max-model-len", type=int)
    parser.add_argument("--speculative-config", type=json.loads, default={})
    options, _ = parser.parse_known_args()
    if LIE == "starts-once" and options.kv_transfer_config:
        note = Path(os.environ["FAKE_STARTS"]) / "started"
        if note.exists():
            os._exit(5)
        note.touch()
    fake_family.start()
    if "HF_TOKEN" in os.environ:
        say(f"INFO: fake engine was given the token {os.environ['HF_TOKEN']}")
    connector = None
    if options.kv_transfer_config and LIE != "connector-ignored":
        say(f"INFO [factory.py:1] Creating v1 connector with name: {options.kv_transfer_config['kv_connector']} "
            "and engine_id: fake")
        connector = connector_of(options.kv_transfer_config)
        if not connector.register():
            time.sleep(3600)  # as the real one does
    if LIE == "never-ready":
        say("INFO: fake engine takes its time")
        time.sleep(3600)
    engine = Engine(options.served_model_name, connector, options.speculative_config.get("num_speculative_tokens", 0))
    engine.longest = options.max_model_len
    routes = {
        "/health": lambda _: "", "/version": engine.version, "/v1/models": engine.models,
        "/v1/completions": engine.complete, "/v1/chat/completions": engine.chat, "/tokenize": engine.tokenize,
        "/metrics": engine.metrics, "/reset_prefix_cache": engine.reset,
    }
    if LIE == "no-reset":
        del routes["/reset_prefix_cache"]
    made = server(options.port, routes)
    say("INFO: fake engine is ready")
    made.serve_forever()


if __name__ == "__main__":
    main()
