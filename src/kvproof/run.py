"""One run, from a recipe's name to a record: load, plan, preflight, start, wait, check, record, stop.

What it has in common with serving, from the name to servers that run, is in `starting`.
"""

from __future__ import annotations

import secrets
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from . import (
    evidence,
    interrupts,
    launching,
    loading,
    planning,
    ports,
    preflight,
    prompts,
    recording,
    starting,
    weights,
)
from .checks import chosen
from .checks.judgement import Judgement
from .client import EngineClient, Http
from .connectors import connector
from .console import Console
from .engines import engine
from .errors import (
    CannotRunError,
    EvidenceError,
    Interrupted,
    KvproofError,
    ServerError,
)
from .evidence import CheckResult, RunRecord, Verdict
from .paths import cache_folder, places, runs_folder
from .plan import Layout, Plan, Server
from .recipe import Recipe
from .redact import Redactor
from .runnable import lacking
from .runstate import Options, RunState
from .runtimes import RUNTIMES, Runtime
from .session import Session

MADE_DATASETS = ("word-problems", prompts.NANO, "gsm8k")
"""Datasets that --dataset takes by name; anything else is a file."""


@dataclass
class Outcome:
    """How a run ended.

    Attributes:
        record: what was seen, also when the run failed.
        evidence: where the record was written; None when it could not be.
        folder: run folder with logs; it may be gone after a proven run.
        problem: what ended the run early, or kept the evidence from being written; None when nothing did.
    """

    record: RunRecord
    evidence: Path | None
    folder: Path
    problem: KvproofError | None

    @property
    def exit_code(self) -> int:
        if self.problem is not None:
            return self.problem.exit_code
        return 0 if self.record.header.verdict is Verdict.PASS else 1


def plan(name: str, options: Options, *, folder: Path, numbers: dict[str, int] | None = None) -> Plan:
    """What a run of the recipe would start. Reads files and decides; starts, installs and reserves nothing.

    Args:
        folder: the run folder.
        numbers: TCP ports by name; None leaves them 0, as --dry-run shows them.

    Raises:
        UsageError: a name or option is wrong.
    """
    recipe, _ = starting.load(name, options)
    if options.dataset is not None and options.dataset not in MADE_DATASETS and not Path(options.dataset).is_file():
        prompts.read_jsonl(Path(options.dataset))
    place = RUNTIMES[options.runtime].place(recipe)
    layout = Layout(
        python=place.python, model=weights.location(recipe.model, place.digest),
        folder=folder, host="127.0.0.1", ports=numbers or dict.fromkeys(starting.PORTS, 0),
        assistant=weights.location(recipe.speculative.assistant, place.digest) if recipe.speculative else None,
    )
    return planning.compose(recipe, layout, runtime=options.runtime, environment_name=place.environment,
                            lock_digest=place.lock_digest, image=place.image)


def prove(name: str, options: Options, console: Console, *,
          damage: Callable[[Session], None] | None = None,
          afterwards: Callable[[Session], None] | None = None) -> Outcome:
    """Run a recipe and record what was seen.

    Args:
        damage: changes stored KV just before the main retrieval, to show that the proof turns red; the record
            says so and the matrix never counts it.
        afterwards: called once all checks have run, while the servers still live; for measuring the proof itself.

    Returns:
        The outcome, whatever the verdict, once a server was started or the run was interrupted.

    Raises:
        UsageError: a name or option is wrong.
        CannotRunError: this host does not fit, or the environment cannot be made; nothing was started.
    """
    recipe, path = starting.load(name, options)
    missing = lacking(recipe, options.runtime)
    if missing or recipe.hardware.gpus:
        # Asked here too: what no installing or freeing can mend is said before a dataset is fetched.
        preflight.require(recipe.resolved(), 0, missing, lambda: starting.elsewhere(recipe))
    dataset = _dataset(recipe, options)
    run_id = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"
    folder = runs_folder() / f"{recipe.name}-{run_id}"
    run = RunState(recipe=recipe, text=loading.recipe_text(path), options=options, console=console, folder=folder,
                   run_id=run_id, damage=damage, dataset=dataset.facts(_effective(recipe, options).prompts))
    problem: KvproofError | None = None
    defect: Exception | None = None
    runtime = RUNTIMES[options.runtime].open(recipe, folder, run_id)
    held = ports.Ports(cache_folder() / "ports")
    with interrupts.interruptible():
        try:
            starting.make_folder(folder)
            starting.sweep(run)
            with run.step("preflight"):
                preflight.require(recipe.resolved(), runtime.place.installing_bytes, (),
                                  lambda: starting.elsewhere(recipe))
            _execute(run, runtime, dataset, held)
            if afterwards is not None and run.session is not None:
                afterwards(run.session)
        except KvproofError as error:
            interrupts.silence()
            problem = error
        except KeyboardInterrupt:
            problem = Interrupted("interrupted", tip="run the same command again")
        except Exception as error:
            defect, problem = error, KvproofError(f"kvproof itself failed: {type(error).__name__}: {error}")
        finally:
            interrupts.silence()
            run.logs = {role: launched.tail(recording.LOG_LINES_KEPT) for role, launched in run.launched.items()}
            with run.step("stop"), run.stopwatch.waiting():
                runtime.stop_all(say=console.now)
            held.release()
        if isinstance(problem, CannotRunError) and not run.launched:
            shutil.rmtree(folder, ignore_errors=True)
            raise problem
        outcome = _finish(run, problem)
        if defect is not None:
            raise defect
        return outcome


def _effective(recipe: Recipe, options: Options) -> Recipe:
    """The recipe with the command line's number of samples."""
    if options.samples is None:
        return recipe
    return recipe.model_copy(update={"prompts": recipe.prompts.model_copy(update={"samples": options.samples})})


def _dataset(recipe: Recipe, options: Options) -> prompts.Dataset:
    wanted = options.dataset or recipe.prompts.dataset
    if wanted == "word-problems":
        return prompts.word_problems(recipe.prompts.seed)
    if wanted == prompts.NANO:
        return prompts.nano()
    if wanted == "gsm8k":
        return prompts.fetch_gsm8k(cache_folder())
    return prompts.read_jsonl(Path(wanted))


def _execute(run: RunState, runtime: Runtime, dataset: prompts.Dataset, held: ports.Ports) -> None:
    recipe = _effective(run.recipe, run.options)
    plan_, layout = starting.start(run, recipe, runtime, lambda _: held.take())
    session = _connect(run, plan_.recipe, plan_, layout, runtime)
    run.engine_version = session.engine.version(session.client)
    with run.step("prompts"):
        session.prompts = prompts.build(dataset, recipe.prompts, session.tokenize, session.engine.max_tokens(recipe))
    with run.step("warm-up"):
        session.warm_up()
    runtime.observe()
    for check in chosen([*recipe.checks.required, *recipe.checks.reported]):
        _check(run, session, check)
        runtime.observe()


def _connect(run: RunState, recipe: Recipe, plan_: Plan, layout: Layout, runtime: Runtime) -> Session:
    adapter = engine(recipe.engine.name)
    server, baseline, cache = (plan_.server(role) for role in ("engine", "baseline", "cache_server"))
    assert server is not None
    run.session = session = Session(
        recipe=recipe, run_id=run.run_id, engine=adapter, connector=connector(recipe.connector.name), layout=layout,
        client=_engine_client(run, server),
        baseline=_engine_client(run, baseline) if baseline else None,
        cache=Http("cache server", cache.url, run.stopwatch, timeout_s=30) if cache else None,
        engine_log=run.folder / server.log, console=run.console, stopwatch=run.stopwatch,
        damage_before_retrieval=run.damage,
    )
    if run.options.restart_engine:
        session.restart_engine = lambda: _restart(run, runtime, server)
    return session


def _engine_client(run: RunState, server: Server) -> EngineClient:
    return EngineClient(server.role, server.url, run.recipe.model.served_name, run.stopwatch,
                        timeout_s=run.recipe.engine.request_timeout_s)


def _restart(run: RunState, runtime: Runtime, server: Server) -> None:
    with run.stopwatch.waiting():
        run.console.now("restarting the engine")
        runtime.stop(run.launched.pop(server.role))
        launching.start(run, runtime, server)
        launching.wait_ready(run, runtime, server)


def _check(run: RunState, session: Session, check: Any) -> None:
    """Run one check; an unexpected end of a server ends the run."""
    required = check.NAME in run.recipe.checks.required
    passed = {r.name for r in run.results if r.verdict is Verdict.PASS}
    missing = [n for n in check.NEEDS if n not in passed]
    limits = {r.name: r for r in run.results if r.verdict is Verdict.UNSUPPORTED}
    if missing and all(n in limits for n in missing):
        # What rests on a known upstream limit alone is under the same limit, and not an open question.
        judged = Judgement(Verdict.UNSUPPORTED, f"{missing[0]} is unsupported", link=limits[missing[0]].link)
    elif missing:
        judged = Judgement(Verdict.NOT_MEASURED, f"{missing[0]} did not pass, so this would mean nothing")
    else:
        try:
            with run.step(check.NAME):
                judged = check.run(session)
        except (CannotRunError, Interrupted) as problem:
            reason = "interrupted while it ran" if isinstance(problem, Interrupted) else problem.message
            run.results.append(CheckResult(name=check.NAME, verdict=Verdict.ERROR, required=required, reason=reason))
            raise
        except KvproofError as problem:
            judged = Judgement(Verdict.ERROR, problem.message)
            _wait_for_death(run, session)
    try:
        launching.require_alive(run, f"during {check.NAME}")
    except ServerError as death:
        run.results.append(CheckResult(name=check.NAME, verdict=Verdict.ERROR, required=required,
                                       reason=death.message, measurements=judged.measurements))
        raise
    run.results.append(CheckResult(name=check.NAME, verdict=judged.verdict, required=required, reason=judged.reason,
                                   link=judged.link, measurements=judged.measurements))


def _wait_for_death(run: RunState, session: Session, timeout_s: float = 10.0) -> None:
    """After a failed exchange: a dying engine closes its port some seconds before its process ends, so wait until it
    has ended or is healthy again."""
    server = run.plan.server("engine") if run.plan else None
    deadline = time.monotonic() + timeout_s
    while server and time.monotonic() < deadline and not session.client.is_healthy(server.health_path):
        if any(launched.exit_code() is not None for launched in run.launched.values()):
            return
        session.pause(0.25)


def _finish(run: RunState, problem: KvproofError | None) -> Outcome:
    record = recording.compose(run, problem)
    redact = Redactor(places=places())
    kept = run.folder / "record.json"
    where = f"the record is in {kept}"
    try:
        kept.write_text(evidence.to_json(record, redact), encoding="utf-8", errors="replace")
    except OSError as error:
        where = f"nor could it be kept in {kept}: {error.strerror}; what is printed is all there is"
    written = None
    try:
        written = evidence.write(record, run.options.evidence_dir, redact)
    except EvidenceError as error:
        error.tip = f"{where}; free space or pass --evidence-dir DIR"
        problem = problem or error
    if record.header.verdict is Verdict.PASS and written and not run.options.keep:
        shutil.rmtree(run.folder, ignore_errors=True)
    else:
        shutil.rmtree(run.folder / "second-tier", ignore_errors=True)
    return Outcome(record, written, run.folder, problem)
