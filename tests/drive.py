"""Runs a recipe as tasks.py does, with hooks that the command line has no options for.

usage: python drive.py RECIPE HOOKS_JSON

Hooks: the fields of run.Options; `waits`, a factor for pauses between readings; `client_timeout_s`,
`settle_timeout_s`; `damage`, whether stored KV is damaged before the main retrieval; `occupy`, a port name whose
port is taken by another program once it was chosen; `disk_full`, whether writing evidence finds no space.
"""

from __future__ import annotations

import errno
import json
import socket
import sys
from pathlib import Path
from typing import Any

from kvproof import client, evidence, ports, report, run, session
from kvproof.checks import overhead
from kvproof.cli import report_errors
from kvproof.console import Console


def damage(live: session.Session) -> None:
    assert live.cache is not None
    live.connector.damage_store(live.cache, live.layout, live.recipe.prompts.seed)


def shorten_waits(factor: float) -> None:
    pause = session.Session.pause
    session.Session.pause = lambda self, seconds: pause(self, seconds * factor)  # type: ignore[method-assign]
    overhead._REST_S *= factor


def occupy(name: str) -> None:
    """Let another listener have a port right after it was chosen."""
    take, names, kept = ports.Ports.take, iter(run.PORTS), []

    def taken(self: ports.Ports) -> int:
        port = take(self)
        if next(names) == name:
            kept.append(socket.create_server(("127.0.0.1", port)))
        return port

    ports.Ports.take = taken  # type: ignore[method-assign]


def fill_disk() -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    evidence.os.fsync = full  # type: ignore[assignment]


def main() -> None:
    name, hooks = sys.argv[1], json.loads(sys.argv[2])
    options: dict[str, Any] = {k: v for k, v in hooks.items() if k in run.Options.__dataclass_fields__}
    options["evidence_dir"] = Path(options["evidence_dir"])
    shorten_waits(hooks.get("waits", 0.2))
    if "client_timeout_s" in hooks:
        client.EngineClient.__init__.__defaults__ = (hooks["client_timeout_s"],)
    if "settle_timeout_s" in hooks:
        session.Session.settle.__defaults__ = (hooks["settle_timeout_s"],)
    if "occupy" in hooks:
        occupy(hooks["occupy"])
    if hooks.get("disk_full"):
        fill_disk()
    with report_errors():
        outcome = run.prove(name, run.Options(**options), Console(), damage=damage if hooks.get("damage") else None)
        print(json.dumps(report.as_data(outcome)), flush=True)
        report.raise_for(outcome)


if __name__ == "__main__":
    main()
