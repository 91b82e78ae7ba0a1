"""What is known of a run while it goes on: options, steps, results, and the servers it started."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from . import evidence
from .client import Stopwatch
from .console import Console
from .evidence import CheckResult, Step
from .paths import EVIDENCE
from .plan import Plan
from .recipe import Recipe
from .runtimes import Running
from .session import Session, utc_now


@dataclass(frozen=True)
class Options:
    """What the command line can change.

    Attributes:
        samples: prompts to send; None for the recipe's number. Fewer proves nothing in the matrix.
        dataset: gsm8k or a JSONL file; None for the recipe's own.
        restart_engine: empty the engine's cache by restarting it, which is stricter than its reset endpoint.
        keep: keep the run folder of a proven run; others are always kept.
    """

    runtime: str = "venv"
    samples: int | None = None
    restart_engine: bool = False
    dataset: str | None = None
    evidence_dir: Path = EVIDENCE
    keep: bool = False


@dataclass
class RunState:
    """Everything that is known of a run so far, so that a record can be written at any moment."""

    recipe: Recipe
    text: str
    options: Options
    console: Console
    folder: Path
    run_id: str
    damage: Callable[[Session], None] | None
    stopwatch: Stopwatch = field(default_factory=Stopwatch)
    started_at: str = field(default_factory=utc_now)
    started: float = field(default_factory=time.monotonic)
    steps: list[Step] = field(default_factory=list)
    plan: Plan | None = None
    versions: dict[str, str] = field(default_factory=dict)
    engine_version: str | None = None
    model: evidence.ModelFacts | None = None
    assistant: evidence.ModelFacts | None = None
    dataset: evidence.DatasetFacts | None = None
    session: Session | None = None
    results: list[CheckResult] = field(default_factory=list)
    container: evidence.ContainerFacts | None = None
    launched: dict[str, Running] = field(default_factory=dict)
    logs: dict[str, list[str]] = field(default_factory=dict)
    """Last lines of each server's log before the servers were asked to stop."""

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        at, started, waited = utc_now(), time.monotonic(), self.stopwatch.waited_s
        try:
            with self.console.step(name):
                yield
        finally:
            duration = time.monotonic() - started
            own = max(0.0, duration - (self.stopwatch.waited_s - waited))
            self.steps.append(Step(name=name, started_at=at, duration_s=round(duration, 4), own_s=round(own, 4)))
