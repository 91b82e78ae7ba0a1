"""Starts the servers of a plan and waits until they are ready, or until it is certain that they never will be."""

from __future__ import annotations

import socket
import time
from urllib.parse import urlsplit

from . import process
from .client import Http
from .connectors import connector
from .errors import NotReadyError, ServerError
from .plan import Plan, Server
from .runstate import RunState
from .runtimes import Runtime


def start_groups(plan_: Plan) -> list[list[Server]]:
    """The cache server first, because an engine gives up when it cannot reach it; then all engines at once."""
    cache = [s for s in plan_.servers if s.role == "cache_server"]
    return [g for g in (cache, [s for s in plan_.servers if s not in cache]) if g]


def start(run: RunState, runtime: Runtime, server: Server) -> None:
    for name, text in server.files.items():
        (run.folder / name).write_text(text, encoding="utf-8")
    run.launched[server.role] = runtime.start(server)


def wait_ready(run: RunState, runtime: Runtime, server: Server) -> None:
    """Wait for the health endpoint, and give up early when it can no longer come.

    Raises:
        NotReadyError: a process ended, the cache server logged that it refused the engine, or the time is over.
    """
    client = Http(server.role, server.url, run.stopwatch, timeout_s=5)
    started = time.monotonic()
    scanner = _FatalLines(run)
    try:
        while True:
            require_alive(run, f"before {server.role} was ready")
            fatal = scanner.look()
            if fatal is not None:
                raise NotReadyError(f"{server.role} will not become ready: the cache server refused it: {fatal}",
                                    tip=f"change the recipe; logs are in {run.folder}",
                                    log_tail=run.launched[server.role].tail(5))
            if _is_ready(client, server):
                runtime.observe()
                return
            waited = time.monotonic() - started
            if waited > server.ready_timeout_s:
                raise NotReadyError(
                    f"{server.role} was not ready after {server.ready_timeout_s} s",
                    tip=f"look at {run.launched[server.role].log}, or raise ready_timeout_s in the recipe",
                    log_tail=run.launched[server.role].tail(10))
            last = run.launched[server.role].tail(1)
            run.console.now(f"waiting for {server.role}, {waited:.0f} s: {last[0][:120] if last else 'no output yet'}")
            time.sleep(0.25)
    finally:
        client.close()


def _is_ready(client: Http, server: Server) -> bool:
    address = urlsplit(server.url)
    if address.scheme != "tcp":
        return client.is_healthy(server.health_path)
    try:
        socket.create_connection((address.hostname or "", address.port or 0), timeout=1).close()
    except OSError:
        return False
    return True


class _FatalLines:
    """Reads the cache server's log as it grows."""

    def __init__(self, run: RunState):
        self._launched = run.launched.get("cache_server")
        self._ask = connector(run.recipe.connector.name).fatal_line
        self._offset = 0

    def look(self) -> str | None:
        if self._launched is None or not self._launched.log.exists():
            return None
        with self._launched.log.open("rb") as log:
            log.seek(self._offset)
            data = log.read()
        whole = data.rfind(b"\n") + 1
        self._offset += whole
        for line in data[:whole].decode("utf-8", errors="replace").splitlines():
            found = self._ask(process.plain(line))
            if found:
                return found
        return None


def require_alive(run: RunState, when: str) -> None:
    for role, launched in run.launched.items():
        if launched.exit_code() is not None:
            how, advice = launched.ending()
            taken = any("Errno 98" in line or "address already in use" in line.lower() for line in launched.tail(80))
            error = NotReadyError if "ready" in when else ServerError
            raise error(
                f"{role} {how} {when}" + (": its port was taken by another program" if taken else ""),
                tip="run again; other ports will be chosen" if taken else advice or f"its whole log is {launched.log}",
                log_tail=launched.tail(10),
            )
