"""LMCache multiprocess: a cache server beside the engine, attached by vLLM's LMCacheMPConnector.

Flags, counters and endpoints as in LMCache 0.5.6 (lmcache/v1/multiprocess, lmcache/v1/mp_observability).
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..client import Http
from ..errors import KvproofError, ServerError
from ..metrics import Counter, Reading
from ..plan import Connection, Layout, Server, flags
from ..recipe import Recipe

NAME = "lmcache-mp"
_LOOKUPS = "lmcache_mp_lookup_requested_tokens_total"
_STORES = "lmcache_mp_num_submitted_stores_total"
COUNTERS = {
    "requested_tokens": Counter(_LOOKUPS),
    "hit_tokens": Counter("lmcache_mp_lookup_hit_tokens_total", witness=_LOOKUPS),
    "hit_l1_tokens": Counter("lmcache_mp_lookup_hit_l1_tokens_total", witness=_LOOKUPS),
    "hit_l2_tokens": Counter("lmcache_mp_lookup_hit_l2_tokens_total", witness=_LOOKUPS),
    "stores_submitted": Counter(_STORES),
    "stores_finished": Counter("lmcache_mp_num_finished_stores_total", witness=_STORES),
    "retrieves_submitted": Counter("lmcache_mp_num_submitted_retrieves_total", witness=_LOOKUPS),
    "retrieves_finished": Counter("lmcache_mp_num_finished_retrieves_total", witness=_LOOKUPS),
    "loaded_chunks": Counter("lmcache_mp_num_chunks_loaded_total", witness=_LOOKUPS),
    "l1_bytes": Counter("lmcache_mp_l1_memory_usage_bytes"),
    "l2_stores_submitted": Counter("lmcache_mp_l2_store_submitted_requests_total"),
    "l2_stores_completed": Counter("lmcache_mp_l2_store_completed_requests_total",
                                   witness="lmcache_mp_l2_store_submitted_requests_total"),
}
RESERVED = frozenset({"host", "port", "http-host", "http-port", "l2-adapter"})
RESERVED_CONFIG = frozenset({"lmcache.mp.host", "lmcache.mp.port"})
NOT_YET = None
_REGISTRATION_FAILED = re.compile(
    r"must be a multiple of|REGISTER_KV_CACHE.*(?:failed|timeout)|Error registering|sub-chunk sliding window", re.I
)
_MANTISSA_BIT = 0x20
DAMAGE_SHARE = 0.01
"""Part of the stored bytes that the negative control changes."""


def unfit(recipe: Recipe) -> str | None:
    if recipe.connector.second_tier is None:
        return ("second_tier is missing: without it stored KV is in memory alone, out of reach of control-damage; "
                "add second_tier: fs")
    return None


def second_tier_folder(layout: Layout) -> Path:
    return layout.folder / "second-tier"


def cache_server(recipe: Recipe, layout: Layout) -> Server | None:
    argv = [
        layout.tool("lmcache"), "server", "--host", layout.host, "--port", str(layout.ports["cache"]),
        "--http-host", layout.host, "--http-port", str(layout.ports["cache_http"]),
        *flags(recipe.connector.arguments),
    ]
    if recipe.connector.second_tier == "fs":
        tier = {"type": "fs", "base_path": str(second_tier_folder(layout))}
        codec = recipe.connector.codec
        argv += ["--l2-adapter", json.dumps({**tier, **({"serde": {"type": codec}} if codec else {})})]
    return Server(
        role="cache_server",
        argv=tuple(argv),
        environment={"LMCACHE_TRACK_USAGE": "false", "LMCACHE_DISABLE_BANNER": "1", **recipe.connector.environment},
        url=f"http://{layout.host}:{layout.ports['cache_http']}",
        health_path="/healthcheck",
        ready_timeout_s=recipe.connector.ready_timeout_s,
        log="cache_server.log",
    )


def connection(recipe: Recipe, layout: Layout) -> Connection:
    environment = {"LMCACHE_TRACK_USAGE": "false", "LMCACHE_DISABLE_BANNER": "1"}
    if not recipe.hardware.gpus:
        # Without a GPU there is no IPC handle that the engine could hand over, so the cache server moves the bytes.
        environment["LMCACHE_MP_TRANSFER_MODE"] = "lmcache_driven"
    port = layout.ports["cache"]
    settings = {"lmcache.mp.host": f"tcp://{layout.host}", "lmcache.mp.port": port, **recipe.connector.extra_config}
    return Connection(NAME, layout.host, port, settings, environment)


def requirements(recipe: Recipe) -> tuple[str, ...]:
    return (f"lmcache=={recipe.connector.version}",) if recipe.connector.version else ("lmcache",)


def fatal_line(line: str) -> str | None:
    return line.strip() if _REGISTRATION_FAILED.search(line) else None


def version(versions: Mapping[str, str]) -> str | None:
    return versions.get("lmcache")


def _status(cache: Http) -> dict:
    found = cache.get_json("/status")
    if not isinstance(found, dict):
        raise ServerError(f"{cache.name}: /status is not an object")
    return found


def registered_engines(cache: Http) -> int | None:
    ids = _status(cache).get("registered_gpu_ids")
    return len(ids) if isinstance(ids, list) else None


def bytes_per_token(cache: Http) -> int | None:
    contexts = _status(cache).get("cache_context_meta")
    sizes = {
        _dig(meta, "kv_cache_layout", "cache_size_per_token") for meta in contexts.values()
    } if isinstance(contexts, dict) else set()
    return sizes.pop() if len(sizes) == 1 and all(isinstance(s, int) for s in sizes) else None


def is_settled(cache: Http, reading: Reading) -> bool | None:
    pairs = (("stores_submitted", "stores_finished"), ("l2_stores_submitted", "l2_stores_completed"))
    known = [(reading.get(COUNTERS[a].key), reading.get(COUNTERS[b].key)) for a, b in pairs]
    if known[0][0] is None:
        return None
    if any(submitted is not None and submitted != finished for submitted, finished in known):
        return False
    status = _status(cache)
    return not any(_dig(status, "storage_manager", "store_controller", name)
                   for name in ("pending_keys_count", "in_flight_task_count"))


def _dig(value: object, *keys: str) -> object:
    """What lies under a path of keys; None where something on the way is no object or lacks the key."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _clear_first_tier(cache: Http) -> None:
    cache.post_json("/cache/clear", {"tier": "l1", "force": False})


def drop_store(cache: Http, layout: Layout) -> None:
    folder = second_tier_folder(layout)
    if folder.is_dir():
        for path in _files(folder):
            path.unlink(missing_ok=True)
    _clear_first_tier(cache)


@dataclass(frozen=True)
class Damage:
    changed_bytes: int
    total_bytes: int
    files: int


def damage_store(cache: Http, layout: Layout, seed: int) -> Damage:
    """Change bytes in the second tier's files, then clear the first tier, so that the next retrieval reads
    the changed files.

    One bit is flipped in DAMAGE_SHARE of the bytes, always the second highest bit of a bf16 mantissa: values
    change by up to half and stay finite, so the engine has no NaN to stumble over and the comparison alone must
    notice. LMCache 0.5.6 does not notice changed bytes in these files.

    Raises:
        KvproofError: the recipe has no second tier, or nothing is in it.
    """
    folder = second_tier_folder(layout)
    files = _files(folder) if folder.is_dir() else []
    if not files:
        raise KvproofError(f"nothing is stored in {folder}, so there is nothing to damage",
                           tip="the recipe needs connector.second_tier: fs for this control")
    r = random.Random(f"kvproof damage {seed}")
    changed = total = 0
    for path in files:
        data = bytearray(path.read_bytes())
        places = r.sample(range(0, len(data), 2), k=max(1, int(len(data) * DAMAGE_SHARE)))
        for at in places:
            data[at] ^= _MANTISSA_BIT
        path.write_bytes(data)
        changed += len(places)
        total += len(data)
    _clear_first_tier(cache)
    return Damage(changed_bytes=changed, total_bytes=total, files=len(files))


def _files(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.is_file())
