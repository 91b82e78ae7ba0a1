"""Runs a recipe as tasks.py does, with hooks that the command line has no options for.

usage: python drive.py RECIPE HOOKS_JSON

Hooks: the fields of run.Options; `waits`, a factor for pauses between readings; `settle_timeout_s`; `damage`,
whether stored KV is damaged before the main retrieval; `occupy`, a port name whose port is taken by another
program once it was chosen; `disk_full`, whether writing evidence finds no space; `assistant_folder`, a draft
model to use instead of the recipe's; `gate_at`, a step and the path of a gate file that is made when the step begins.
"""

from __future__ import annotations

import errno
import json
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kvproof import evidence, ports, report, run, session, starting
from kvproof.checks import overhead
from kvproof.cli import report_errors
from kvproof.console import Console
from kvproof.recipe import Recipe


def damage(live: session.Session) -> None:
    assert live.cache is not None
    live.connector.damage_store(live.cache, live.layout, live.recipe.prompts.seed)


def shorten_waits(factor: float) -> None:
    pause = session.Session.pause
    session.Session.pause = lambda self, seconds: pause(self, seconds * factor)  # type: ignore[method-assign]
    overhead._REST_S *= factor


def occupy(name: str) -> None:
    """Let another listener have a port right after it was chosen."""
    take, names, kept = ports.Ports.take, iter(starting.PORTS), []

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


def swap_assistant(folder: str) -> None:
    """Let the recipe name another model's draft model."""
    load = run.loading.load_recipe

    def swapped(path: Path) -> Recipe:
        recipe = load(path)
        if path.stem != sys.argv[1]:
            return recipe
        assert recipe.speculative is not None
        assistant = recipe.speculative.assistant.model_copy(update={"folder": folder})
        return recipe.model_copy(
            update={"speculative": recipe.speculative.model_copy(update={"assistant": assistant})}
        )

    run.loading.load_recipe = swapped  # type: ignore[assignment]


def gate_at(step: str, path: str) -> None:
    original = Console.step

    @contextmanager
    def gated(self: Console, text: str) -> Iterator[None]:
        if text == step:
            Path(path).touch()
        with original(self, text):
            yield

    Console.step = gated  # type: ignore[method-assign]


def main() -> None:
    name, hooks = sys.argv[1], json.loads(sys.argv[2])
    options: dict[str, Any] = {k: v for k, v in hooks.items() if k in run.Options.__dataclass_fields__}
    options["evidence_dir"] = Path(options["evidence_dir"])
    shorten_waits(hooks.get("waits", 0.2))
    if "settle_timeout_s" in hooks:
        session.Session.settle.__defaults__ = (hooks["settle_timeout_s"],)
    if "occupy" in hooks:
        occupy(hooks["occupy"])
    if "gate_at" in hooks:
        gate_at(*hooks["gate_at"])
    if "assistant_folder" in hooks:
        swap_assistant(hooks["assistant_folder"])
    if hooks.get("disk_full"):
        fill_disk()
    with report_errors():
        outcome = run.prove(name, run.Options(**options), Console(), damage=damage if hooks.get("damage") else None)
        print(json.dumps(report.as_data(outcome)), flush=True)
        report.raise_for(outcome)


if __name__ == "__main__":
    main()
