"""Fake cache server: the part of LMCache's HTTP interface that kvproof uses, and a store with two tiers.

The engine talks to it over HTTP on the port where LMCache has its own protocol. Stored KV is kept in memory
(first tier) and in one file per chunk (second tier); a chunk that left the first tier is read from its file
as it is, so bytes that were changed there come back changed.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

from fake_http import LIE, Counters, Failure, say, server

CHUNK = 256
BYTES_PER_TOKEN = 2
STORE_S = 0.01
WARM_UPS = 2
"""Stores of requests that are not counted yet."""
LOOKED_UP = "lmcache_mp_lookup_requested_tokens_total"
HIDDEN = {"cache-counters-missing": ("lmcache_mp_lookup",)}


class Store:
    def __init__(self, folder: Path | None):
        self.folder = folder
        self.first_tier: dict[str, bytes] = {}
        self.originals: dict[str, bytes] = {}
        """All that was ever stored; an honest server has no such memory."""
        self.counters = Counters()
        self.engines: list[int] = []
        self.stores = self.unfinished = 0
        self.lock = threading.Lock()

    def file(self, key: str) -> Path | None:
        return self.folder / f".{key}.data" if self.folder else None

    def find(self, key: str) -> bytes | None:
        """A chunk from wherever it is; None when it is nowhere."""
        with self.lock:
            if key in self.first_tier:
                return self.first_tier[key]
            file = self.file(key)
            data = file.read_bytes() if file and file.exists() else None
            original = self.originals.get(key)
            if LIE == "ignores-drop" and data is None and file and original:
                file.write_bytes(original)
                data = original
            if LIE == "ignores-damage" and data is not None:
                data = original
            if LIE == "drops-on-damage" and data != original:
                data = None
            if data is not None:
                self.first_tier[key] = data
            return data

    def register(self, body: Any) -> dict:
        if LIE == "dies-at-register":
            die("register")
        if LIE == "refuses-registration":
            say("[1970-01-01] LMCache ERROR: sub-chunk sliding window size 64 must be a multiple of "
                "tokens_per_block 256 (fake.py:1)")
            raise Failure(500, "refused")
        self.engines.append(body["engine"])
        say(f"LMCache INFO: Registered KV cache for engine {body['engine']}")
        return {}

    def lookup(self, body: Any) -> dict:
        """How many leading chunks are there."""
        keys = body["keys"]
        self.counters.add(LOOKED_UP, len(keys) * CHUNK)
        found = 0
        while found < len(keys) and LIE != "never-hits" and self.find(keys[found]) is not None:
            found += 1
        if LIE == "half-hits":
            found //= 2
        if found:
            self.counters.add("lmcache_mp_lookup_hit_tokens_total", found * CHUNK)
        return {"found": found}

    def retrieve(self, body: Any) -> dict:
        if LIE == "dies-at-retrieve":
            die("retrieve")
        chunks = [self.find(key) for key in body["keys"]]
        self.counters.add("lmcache_mp_num_submitted_retrieves_total")
        if LIE == "loses-retrieves":
            return {"chunks": [base64.b64encode(c or b"").decode() for c in chunks]}
        self.counters.add("lmcache_mp_num_finished_retrieves_total")
        self.counters.add("lmcache_mp_num_chunks_loaded_total", len(chunks))
        return {"chunks": [base64.b64encode(c or b"").decode() for c in chunks]}

    def store(self, body: Any) -> dict:
        self.stores += 1
        if LIE == "dies-at-store" and self.stores > WARM_UPS:
            die("store")
        if LIE == "never-stores":
            return {}
        self.counters.add("lmcache_mp_num_submitted_stores_total")
        self.counters.add("lmcache_mp_l2_store_submitted_requests_total")
        with self.lock:
            self.unfinished += 1
        chunks = {key: base64.b64decode(data) for key, data in body["chunks"].items()}
        threading.Thread(target=self._finish, args=(chunks,), daemon=True).start()
        return {}

    def _finish(self, chunks: dict[str, bytes]) -> None:
        time.sleep(STORE_S)
        with self.lock:
            for key, data in chunks.items():
                if LIE != "forgets-stores":
                    self.first_tier[key] = self.originals[key] = data
                    file = self.file(key)
                    if file and LIE != "no-second-tier":
                        file.write_bytes(data)
            self.unfinished -= 1
        self.counters.add("lmcache_mp_num_finished_stores_total")
        if LIE != "second-tier-unfinished":
            self.counters.add("lmcache_mp_l2_store_completed_requests_total")

    def clear(self, body: Any) -> dict:
        with self.lock:
            self.first_tier.clear()
        return {"status": "ok"}

    def metrics(self, body: Any) -> str:
        with self.lock:
            held = sum(map(len, self.first_tier.values()))
        return (self.counters.page(HIDDEN.get(LIE, ()))
                + '# TYPE lmcache_mp_l1_memory_usage_bytes gauge\n'
                + f'lmcache_mp_l1_memory_usage_bytes{{backend="dram",l1_tag="_default"}} {held}\n')

    def status(self, body: Any) -> dict:
        return {
            "registered_gpu_ids": self.engines,
            "cache_context_meta": {str(e): {"kv_cache_layout": {"cache_size_per_token": BYTES_PER_TOKEN}}
                                   for e in self.engines},
            "storage_manager": {"store_controller": {"pending_keys_count": 0, "in_flight_task_count": self.unfinished}},
        }


def die(at: str) -> None:
    say(f"LMCache ERROR: fake cache server dies at {at}")
    os._exit(4)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("command", choices=["server"])
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--http-port", type=int, required=True)
    parser.add_argument("--l2-adapter", type=json.loads, default={})
    options, _ = parser.parse_known_args()
    if LIE == "cache-dies-at-start":
        die("start")
    folder = options.l2_adapter.get("base_path")
    store = Store(Path(folder) if folder else None)
    engine_side = server(options.port, {"/register": store.register, "/lookup": store.lookup,
                                        "/retrieve": store.retrieve, "/store": store.store})
    http = server(options.http_port, {
        "/healthcheck": lambda _: {"status": "healthy"}, "/status": store.status, "/metrics": store.metrics,
        "/cache/clear": store.clear,
    })
    threading.Thread(target=engine_side.serve_forever, daemon=True).start()
    say("LMCache INFO: fake cache server is ready")
    http.serve_forever()
