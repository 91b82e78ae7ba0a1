"""vLLM's native offloading: OffloadingConnector, which keeps KV in the host's memory inside the engine's processes.

Keys as in vLLM 0.29.0 (vllm/v1/kv_offload, vllm/distributed/kv_transfer/kv_connector/v1/offloading_connector.py).
"""

from __future__ import annotations

from collections.abc import Mapping

from ..client import Http
from ..errors import KvproofError
from ..metrics import Counter, Reading
from ..plan import Connection, Layout, Server
from ..recipe import Recipe

NAME = "native"
COUNTERS: Mapping[str, Counter] = {}
RESERVED: frozenset[str] = frozenset()
RESERVED_CONFIG: frozenset[str] = frozenset()
NOT_YET = "kvproof cannot yet empty or damage what vLLM's native connector keeps, so no negative control can run"


def unfit(recipe: Recipe) -> str | None:
    return None


def cache_server(recipe: Recipe, layout: Layout) -> Server | None:
    return None


def connection(recipe: Recipe, layout: Layout) -> Connection:
    return Connection(NAME, extra_config=recipe.connector.extra_config)


def requirements(recipe: Recipe) -> tuple[str, ...]:
    return ()


def fatal_line(line: str) -> str | None:
    return None


def version(versions: Mapping[str, str]) -> str | None:
    return None


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
