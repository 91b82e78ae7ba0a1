"""KV connectors: one file each, named in this table and nowhere else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from ..client import Http
from ..errors import RecipeError, nearest
from ..metrics import Counter, Reading
from ..plan import Connection, Layout, Server
from ..recipe import Recipe
from . import lmcache_inprocess, lmcache_mp, native


class Connector(Protocol):
    """What kvproof needs to know about a KV connector."""

    NAME: str
    COUNTERS: Mapping[str, Counter]
    """On the cache server's page, by kvproof's words: hit_tokens, loaded_chunks, stores_finished, …"""
    RESERVED: frozenset[str]
    """Flags of the cache server that kvproof sets itself."""

    RESERVED_CONFIG: frozenset[str]
    """Keys of extra_config that kvproof sets itself."""
    NOT_YET: str | None
    """What kvproof cannot do with it yet, so that no recipe with it can be proven; None when there is nothing."""

    def unfit(self, recipe: Recipe) -> str | None:
        """Why a recipe cannot be proven with this connector; None when it can."""

    def cache_server(self, recipe: Recipe, layout: Layout) -> Server | None:
        """The cache server's process; None when the connector has none."""

    def connection(self, recipe: Recipe, layout: Layout) -> Connection:
        """What the engine needs to know of it."""

    def requirements(self, recipe: Recipe) -> tuple[str, ...]:
        """What pip installs for it beside the engine, pinned; empty when the engine brings it along."""

    def fatal_line(self, line: str) -> str | None:
        """Why a line of the cache server's log means that the engine will never be ready; else None."""

    def version(self, versions: Mapping[str, str]) -> str | None:
        """The connector's own version among those that the environment reported."""

    def registered_engines(self, cache: Http) -> int | None:
        """Engines whose KV cache the cache server knows; None when it does not say."""

    def bytes_per_token(self, cache: Http) -> int | None:
        """Size of one token's KV as the cache server sees it; None when it does not say."""

    def is_settled(self, cache: Http, reading: Reading) -> bool | None:
        """Whether no store is under way; None when it cannot be told."""

    def drop_store(self, cache: Http, layout: Layout) -> None:
        """Empty everything that was stored, in every tier."""

    def damage_store(self, cache: Http, layout: Layout, seed: int) -> Damage:
        """Change bytes of stored KV so that the next retrieval brings them back."""


class Damage(Protocol):
    changed_bytes: int
    total_bytes: int
    files: int


CONNECTORS: dict[str, Connector] = {module.NAME: module for module in (lmcache_mp, lmcache_inprocess, native)}


def connector(name: str) -> Connector:
    """The adapter of that name.

    Raises:
        RecipeError: there is none.
    """
    if name not in CONNECTORS:
        raise RecipeError(f"connector.name: no connector is called {name!r}; {nearest(name, CONNECTORS)}")
    return CONNECTORS[name]


