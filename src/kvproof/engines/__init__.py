"""Engines: one file each, named in this table and nowhere else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from ..client import EngineClient
from ..errors import RecipeError, nearest
from ..metrics import Counter
from ..plan import Layout, Server
from ..recipe import Argument, Recipe
from . import vllm


class Engine(Protocol):
    """What kvproof needs to know about an engine."""

    NAME: str
    CONNECTORS: Mapping[str, str]
    """KV connectors it has, by kvproof's name, to the engine's own name."""
    RESERVED: frozenset[str]
    """Flags that kvproof sets itself; a recipe that names one would not run what its evidence says."""
    COUNTERS: Mapping[str, Counter]
    """By kvproof's words: prompt_tokens, local_hit_tokens, external_hit_tokens, computed_tokens, …"""
    METRICS_PATH: str

    def server(self, recipe: Recipe, layout: Layout, role: str, connector: Mapping[str, Argument],
               environment: Mapping[str, str]) -> Server:
        """The engine's process; connector holds the flags that attach the KV connector."""

    def max_tokens(self, recipe: Recipe) -> int | None:
        """Longest context of the recipe; None when only the model knows."""

    def version(self, client: EngineClient) -> str | None:
        """As the running process reports it; None when it does not."""

    def tokenize(self, client: EngineClient, text: str) -> list[int]:
        """Token ids with the model's special tokens."""

    def empty_cache(self, client: EngineClient) -> None:
        """Empty the engine's own prefix cache and nothing else."""

    def active_connector(self, log: str) -> str | None:
        """kvproof's name of the connector that the engine says it made; None when it made none."""


ENGINES: dict[str, Engine] = {module.NAME: module for module in (vllm,)}


def engine(name: str) -> Engine:
    """The adapter of that name.

    Raises:
        RecipeError: there is none.
    """
    if name not in ENGINES:
        raise RecipeError(f"engine.name: no engine is called {name!r}; {nearest(name, ENGINES)}")
    return ENGINES[name]

