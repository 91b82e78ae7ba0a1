"""LMCache inside the engine's process (LMCacheConnectorV1), with a remote server that keeps what it stores.

Settings as in LMCache 0.5.5 (lmcache/v1/config.py, lmcache/v1/server).
"""

from __future__ import annotations

from collections.abc import Mapping

from ..client import Http
from ..errors import KvproofError
from ..metrics import Counter, Reading
from ..plan import Connection, Layout, Server
from ..recipe import Recipe

NAME = "lmcache-inprocess"
COUNTERS: Mapping[str, Counter] = {}
RESERVED = frozenset({"host", "port"})
RESERVED_CONFIG = frozenset({"remote_url"})
NOT_YET = "kvproof cannot yet empty or damage what LMCache's remote server keeps, so no negative control can run"


def unfit(recipe: Recipe) -> str | None:
    return None


def cache_server(recipe: Recipe, layout: Layout) -> Server | None:
    port = layout.ports["cache"]
    return Server(
        role="cache_server",
        argv=(layout.tool("lmcache_server"), layout.host, str(port)),
        environment={"LMCACHE_TRACK_USAGE": "false", **recipe.connector.environment},
        url=f"tcp://{layout.host}:{port}",
        health_path="",
        ready_timeout_s=recipe.connector.ready_timeout_s,
        log="cache_server.log",
    )


def connection(recipe: Recipe, layout: Layout) -> Connection:
    # The connector has no settings of its own in kv-transfer-config: LMCache reads them from the environment.
    port = layout.ports["cache"]
    settings = {f"LMCACHE_{name.upper()}": str(value) for name, value in recipe.connector.extra_config.items()}
    return Connection(NAME, layout.host, port, environment={
        "LMCACHE_TRACK_USAGE": "false", "LMCACHE_REMOTE_URL": f"lm://{layout.host}:{port}", **settings,
    })


def requirements(recipe: Recipe) -> tuple[str, ...]:
    return (f"lmcache=={recipe.connector.version}",) if recipe.connector.version else ("lmcache",)


def fatal_line(line: str) -> str | None:
    return None


def version(versions: Mapping[str, str]) -> str | None:
    return versions.get("lmcache")


def registered_engines(cache: Http) -> int | None:
    return None


def bytes_per_token(cache: Http) -> int | None:
    return None


def is_settled(cache: Http, reading: Reading) -> bool | None:
    return None


def drop_store(cache: Http, layout: Layout) -> None:
    raise KvproofError(NOT_YET)


def damage_store(cache: Http, layout: Layout, seed: int) -> None:
    raise KvproofError(NOT_YET)
