"""Containers of a run: started, followed in a log file, ended, and found again by label."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from ..interrupts import deferred
from ..process import GRACE_S, is_alive, mapped_segments, tail
from .docker_errors import told_apart

if TYPE_CHECKING:
    from docker import DockerClient
    from docker.models.containers import Container

RUN, RECIPE, ROLE, OWNER = "kvproof.run", "kvproof.recipe", "kvproof.role", "kvproof.owner"
_LOG_END_S = 5.0
"""How long the last lines of an ended container may take to arrive."""


def connect() -> DockerClient:
    """The daemon that DOCKER_HOST names, or this host's.

    Raises:
        HostError: there is none, it may not be used, or it does not answer.
    """
    import docker

    with told_apart("connecting"):
        return docker.from_env(version="auto", timeout=120)


def owner() -> str:
    """This process, for whoever finds its containers: where its id means something, and its start time."""
    own = psutil.Process()
    return json.dumps({"space": _space(), "pid": own.pid, "created": own.create_time()})


def _space() -> str:
    """Where process ids are counted: this boot of this host, and the namespace that we are in."""
    boot = namespace = ""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = os.readlink("/proc/self/ns/pid")
    return f"{boot} {namespace}"


class Running:
    """One server in a container, with its output in a log file."""

    def __init__(self, client: DockerClient, role: str, options: Mapping[str, Any], log: Path):
        self.role, self.log = role, log
        self.removed = False
        self._client = client
        with deferred(), told_apart(f"{role}: creating its container"):
            self._container: Container = client.containers.create(**options)
        try:
            with told_apart(f"{role}: starting its container"):
                self._container.start()
        except BaseException:
            self.remove()
            raise
        self._follower = threading.Thread(target=self._follow, name=f"log of {role}", daemon=True)
        self._follower.start()

    @property
    def identity(self) -> str:
        return f"container {self._container.name} ({self._container.short_id})"

    @property
    def name(self) -> str:
        return str(self._container.name)

    def _follow(self) -> None:
        """Copy its output to the log as it comes."""
        with self.log.open("ab", buffering=0) as output, contextlib.suppress(Exception):
            for piece in self._container.logs(stream=True, follow=True):
                output.write(piece)

    def _state(self) -> dict[str, Any]:
        import docker.errors

        with told_apart(f"{self.role}: looking at its container"):
            try:
                return self._client.api.inspect_container(self._container.id)["State"]
            except docker.errors.NotFound:
                return {"Running": False, "Status": "removed", "ExitCode": 137}

    def exit_code(self) -> int | None:
        state = self._state()
        if state["Running"] or state["Status"] in ("created", "restarting", "paused"):
            return None
        self._follower.join(_LOG_END_S)
        code = int(state["ExitCode"])
        return 128 - code if code > 128 else code

    def ending(self) -> tuple[str, str | None]:
        state, code = self._state(), self.exit_code() or 0
        if state["Status"] == "removed":
            return "was removed by somebody else", "look who removes containers here, then run again"
        if state.get("OOMKilled"):
            return "was killed because its container ran out of memory", \
                "give it more (memory_gib in docker.toml), or free memory on this host"
        if state.get("Error"):
            return f"ended: {state['Error']}", None
        return f"was ended by signal {-code}" if code < 0 else f"exited with code {code}", None

    def tail(self, lines: int = 10) -> list[str]:
        return tail(self.log, lines)

    def segments(self) -> set[str]:
        """Names under the host's /dev/shm that its processes have mapped."""
        found: set[str] = set()
        with contextlib.suppress(Exception):
            listed = self._client.api.top(self._container.id)
            column = listed["Titles"].index("PID")
            for line in listed["Processes"]:
                found |= mapped_segments(int(line[column]))
        return found

    def stop(self) -> None:
        """End it, by force where it does not end when asked, and remove it; never raises."""
        with contextlib.suppress(Exception):
            self._container.stop(timeout=int(GRACE_S))
        self._follower.join(_LOG_END_S)
        self.remove()

    def remove(self) -> None:
        import docker.errors

        try:
            self._container.remove(force=True, v=True)
            self.removed = True
        except docker.errors.NotFound:
            self.removed = True
        except Exception:
            self.removed = False


def run_once(client: DockerClient, options: Mapping[str, Any], on_line: Callable[[str], None]) -> int:
    """Run a command to its end in a container that is removed then.

    Returns:
        The exit code.
    """
    container = None
    with told_apart("running a command in a container"):
        try:
            with deferred():
                container = client.containers.create(**options)
            container.start()
            rest = ""
            for piece in container.logs(stream=True, follow=True):
                *lines, rest = (rest + piece.decode("utf-8", errors="replace")).split("\n")
                for line in lines:
                    on_line(line.rstrip("\r"))
            if rest:
                on_line(rest)
            return int(container.wait()["StatusCode"])
        finally:
            if container is not None:
                with deferred(), contextlib.suppress(Exception):
                    container.remove(force=True, v=True)


def found(client: DockerClient) -> Iterator[tuple[Container, bool | None]]:
    """Every container of a run of kvproof, and whether its kvproof lives; None where that cannot be told."""
    with told_apart("listing containers"):
        listed = client.containers.list(all=True, filters={"label": RUN}, ignore_removed=True)
    for container in listed:
        try:
            of = json.loads(container.labels.get(OWNER, ""))
            alive = is_alive(int(of["pid"]), float(of["created"])) if of["space"] == _space() else None
        except (ValueError, KeyError, TypeError):
            alive = None
        yield container, alive
