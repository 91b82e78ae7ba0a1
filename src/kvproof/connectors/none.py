"""No KV connector: the engine alone, as a baseline."""

from __future__ import annotations

from collections.abc import Mapping

from ..client import Http
from ..errors import KvproofError
from ..metrics import Counter, Reading
from ..plan import Layout, Server
from ..recipe import Argument, Recipe

NAME = "none"
COUNTERS: Mapping[str, Counter] = {}
HARMLESS: tuple[str, ...] = ()


def cache_server(recipe: Recipe, layout: Layout) -> Server | None:
    return None


def engine_flags(recipe: Recipe, layout: Layout) -> Mapping[str, Argument]:
    return {}


def engine_environment(recipe: Recipe) -> Mapping[str, str]:
    return {}


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
    raise KvproofError("connector none stores nothing, so there is nothing to drop")


def damage_store(cache: Http, layout: Layout, seed: int) -> object:
    raise KvproofError("connector none stores nothing, so there is nothing to damage")
