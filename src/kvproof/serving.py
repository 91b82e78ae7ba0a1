"""A recipe's servers left running for use, from the same plan that a proof starts."""

from __future__ import annotations

import json
import secrets
import shlex
import shutil
import time
from collections.abc import Callable
from datetime import UTC, datetime

from . import interrupts, launching, loading, ports, preflight, starting
from .console import Console
from .errors import Interrupted, UsageError
from .paths import cache_folder, runs_folder
from .plan import Plan
from .runnable import lacking_to_run
from .runstate import Options, RunState
from .runtimes import RUNTIMES

_LOOK_EVERY_S = 1.0


def serve(name: str, console: Console, *, runtime: str = "venv", port: int | None = None,
          ready: Callable[[Plan], None]) -> None:
    """Start a recipe's servers and stay until Ctrl-C, which stops them all.

    Args:
        port: TCP port of the engine; None lets the program choose one.
        ready: called once with the plan, when the engine answers.

    Raises:
        UsageError: a name or the port is wrong.
        CannotRunError: this host does not fit, or a server never became ready.
        ServerError: a server ended by itself.
    """
    if port is not None and not 1 <= port <= 65535:
        raise UsageError(f"--port is {port}, expected 1 to 65535")
    options = Options(runtime=runtime)
    recipe, path = starting.load(name, options)
    preflight.require(recipe.resolved(), 0, lacking_to_run(recipe, options.runtime), lambda: starting.elsewhere(recipe))
    run_id = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"
    folder = runs_folder() / f"{recipe.name}-{run_id}"
    run = RunState(recipe=recipe, text=loading.recipe_text(path), options=options, console=console, folder=folder,
                   run_id=run_id, damage=None)
    servers, held = RUNTIMES[runtime].open(recipe, folder, run_id), ports.Ports(cache_folder() / "ports")
    failed = True
    with interrupts.interruptible():
        try:
            starting.make_folder(folder)
            starting.sweep(run)
            preflight.require(recipe.resolved(), servers.place.installing_bytes, (), lambda: starting.elsewhere(recipe))
            plan, _ = starting.start(run, recipe, servers,
                                     lambda role: port if port and role == "engine" else held.take(), proving=False)
            try:
                ready(plan)
                while True:
                    launching.require_alive(run, "while it was serving")
                    servers.observe()
                    time.sleep(_LOOK_EVERY_S)
            except Interrupted:
                failed = False
        finally:
            interrupts.silence()
            servers.stop_all(say=console.now)
            held.release()
            if not failed:
                shutil.rmtree(folder, ignore_errors=True)
    console.say(f"stopped {recipe.name}; nothing is left running")


def how_to_use(plan: Plan) -> str:
    """What to tell a person once the engine answers: its address and a request to try."""
    engine = plan.server("engine")
    assert engine is not None
    body = json.dumps({"model": plan.recipe.model.served_name, "prompt": "The capital of France is", "max_tokens": 16})
    request = shlex.join(["curl", f"{engine.url}/v1/completions", "-H", "Content-Type: application/json", "-d", body])
    return (f"{plan.recipe.name} is ready at {engine.url}/v1\n\n"
            f"{request}\n\n"
            "Ctrl-C stops it")
