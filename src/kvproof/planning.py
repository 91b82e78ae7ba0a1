"""From a recipe to a plan: which servers, in which order, attached to one another."""

from __future__ import annotations

from .connectors import connector
from .engines import engine
from .plan import Layout, Plan, Server
from .recipe import Recipe


def compose(recipe: Recipe, layout: Layout, *, runtime: str, environment_name: str | None = None,
            lock_digest: str | None = None, image: str | None = None, proving: bool = True) -> Plan:
    """What the recipe starts where the layout says. Decides; starts, reads and reserves nothing.

    Args:
        image: reference with digest of the image that it runs in; None in a locked environment.
        proving: False for servers that are only used: without the engine that the check overhead compares with,
            and without what only a proof needs.
    """
    recipe = recipe.resolved()
    adapter, attached = engine(recipe.engine.name), connector(recipe.connector.name)
    servers: list[Server] = []
    cache = attached.cache_server(recipe, layout)
    if cache is not None:
        servers.append(cache)
    servers.append(adapter.server(recipe, layout, "engine", attached.connection(recipe, layout)))
    if proving and recipe.checks.thresholds.overhead.baseline == "beside":
        servers.append(adapter.server(recipe, layout, "baseline", None))
    if not proving:
        servers = [server.for_use() for server in servers]
    return Plan(recipe=recipe, runtime=runtime, servers=tuple(servers), environment_name=environment_name,
                lock_digest=lock_digest, image=image)
