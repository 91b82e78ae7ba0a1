"""A plan: everything a run starts, as data.

A plan holds no decision that is taken later: argv, environment, ports, files and the environment lock.
`--dry-run` prints it; what documents tell a user to copy is this plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from .recipe import Argument, Recipe


@dataclass(frozen=True)
class Layout:
    """Where a plan runs: paths and addresses that differ between hosts and runs.

    Attributes:
        python: interpreter of the engine's environment.
        model: path or repository that the engine loads.
        assistant: the same for the draft model; None without speculative decoding.
        folder: run folder, for logs and stored KV.
        host: address that servers listen on.
        ports: by name: engine, baseline, cache (the connector's own protocol), cache_http.
        listen: address that engines listen on where clients come from outside, as to a pod; None where it is host.
    """

    python: str
    model: str
    folder: Path
    host: str
    ports: dict[str, int]
    assistant: str | None = None
    listen: str | None = None

    def tool(self, name: str) -> str:
        """A program installed beside the interpreter."""
        return str(Path(self.python).with_name(name)) if "/" in self.python else name


@dataclass(frozen=True)
class Connection:
    """How an engine reaches what a KV connector keeps.

    Attributes:
        connector: kvproof's name of the connector.
        host, port: of the cache server's own protocol; None for a connector without cache server.
        extra_config: the connector's own settings, for the engine to hand on.
        environment: what the engine's process needs for it.
    """

    connector: str
    host: str | None = None
    port: int | None = None
    extra_config: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Server:
    """One server of a plan.

    Attributes:
        role: engine, baseline (engine without connector) or cache_server.
        environment: what is set besides the environment that kvproof itself runs in.
        url: address of its HTTP interface; tcp:// when it has none, and is ready once the port is open.
        health_path: answers 200 when it is ready; empty with tcp://.
        log: file name in the run folder.
        files: configuration files that must lie in the run folder before it starts, by name.
        proof_only: names in the environment that only a proof needs, and that are not for a server that others use.
    """

    role: str
    argv: tuple[str, ...]
    environment: dict[str, str]
    url: str
    health_path: str
    ready_timeout_s: int
    log: str
    files: Mapping[str, str] = field(default_factory=dict)
    proof_only: frozenset[str] = frozenset()

    def for_use(self) -> Server:
        """The same server without what only a proof needs."""
        kept = {name: value for name, value in self.environment.items() if name not in self.proof_only}
        return replace(self, environment=kept)


@dataclass(frozen=True)
class Plan:
    recipe: Recipe
    """With what its engine's version needs taken in."""
    runtime: str
    servers: tuple[Server, ...]
    """In starting order."""
    environment_name: str | None
    lock_digest: str | None
    image: str | None = None
    """Reference with digest of the image that the servers run in; None in a locked environment."""

    def server(self, role: str) -> Server | None:
        return next((s for s in self.servers if s.role == role), None)

    def as_data(self) -> dict[str, Any]:
        """For evidence and --dry-run: JSON values only."""
        return {
            "recipe": self.recipe.name,
            "recipe_digest": self.recipe.digest(),
            "runtime": self.runtime,
            "environment": self.environment_name,
            "lock_digest": self.lock_digest,
            "image": self.image,
            "servers": [
                {"role": s.role, "argv": list(s.argv), "environment": dict(sorted(s.environment.items())),
                 "url": s.url, "health": s.health_path, "ready_timeout_s": s.ready_timeout_s, "log": s.log,
                 **({"files": dict(s.files)} if s.files else {})}
                for s in self.servers
            ],
        }


def flags(arguments: dict[str, Argument]) -> list[str]:
    """Command-line words of a recipe's arguments: true is a bare flag, false leaves it out."""
    words: list[str] = []
    for name, value in arguments.items():
        if value is False:
            continue
        words.append(f"--{name}")
        if isinstance(value, list):
            words += value
        elif value is not True:
            words.append(str(value))
    return words
