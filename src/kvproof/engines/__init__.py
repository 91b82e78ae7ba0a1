"""Engines: one file each, named in this table and nowhere else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from ..client import EngineClient
from ..errors import RecipeError, nearest
from ..metrics import Counter
from ..plan import Connection, Layout, Server
from ..recipe import Recipe
from . import sglang, trtllm, vllm


class Engine(Protocol):
    """What kvproof needs to know about an engine."""

    NAME: str
    CONNECTORS: Mapping[str, str]
    """KV connectors it has, by kvproof's name, to the engine's own name."""
    RESERVED: frozenset[str]
    """Flags that kvproof sets itself; a recipe that names one would not run what its evidence says."""
    RESERVED_VARIABLES: frozenset[str]
    """The same for variables of its environment."""
    COUNTERS: Mapping[str, Counter]
    """By kvproof's words, which are those of vllm.COUNTERS; prompt_tokens must be there."""
    METRICS_PATH: str
    PARALLEL_FLAG: str
    """Flag that sets over how many GPUs every layer is split."""

    UNMEASURED: Mapping[str, tuple[str, str]]
    """The other words: counters that the engine does not offer, to the reason and the upstream page that says so.
    A check that judges by one of them is unsupported."""

    def server(self, recipe: Recipe, layout: Layout, role: str, connection: Connection | None) -> Server:
        """The engine's process; connection is None for an engine without KV connector.

        Raises:
            RecipeError: the engine refuses what the recipe asks for.
        """

    def requirements(self, recipe: Recipe) -> tuple[str, ...] | None:
        """What pip installs for the engine, pinned; None when it is only to be had as an image."""

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


ENGINES: dict[str, Engine] = {module.NAME: module for module in (vllm, sglang, trtllm)}


def engine(name: str) -> Engine:
    """The adapter of that name.

    Raises:
        RecipeError: there is none.
    """
    if name not in ENGINES:
        raise RecipeError(f"engine.name: no engine is called {name!r}; {nearest(name, ENGINES)}")
    return ENGINES[name]

