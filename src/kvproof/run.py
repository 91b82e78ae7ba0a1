"""One run, from a recipe's name to a record: load, plan, preflight, start, wait, check, record, stop.

This is the only module that joins the others.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from . import __version__, evidence, host, interrupts, loading, ports, preflight, process, prompts, weights
from .checks import CHECKS, CONTROLS, chosen
from .checks.judgement import Judgement
from .client import EngineClient, Http, Stopwatch
from .connectors import connector
from .console import Console
from .engines import engine, require_connector
from .errors import (
    CannotRunError,
    EvidenceError,
    Interrupted,
    KvproofError,
    NotReadyError,
    ServerError,
    UsageError,
    nearest,
)
from .evidence import CheckResult, Header, RunRecord, Step, Verdict
from .paths import EVIDENCE, PROJECT, cache_folder, places, runs_folder
from .plan import Layout, Plan, Server
from .recipe import Recipe
from .redact import Redactor
from .runtimes import RUNTIMES, venv
from .session import Session, utc_now

LOG_LINES_KEPT = 40
PORTS = ("engine", "baseline", "cache", "cache_http")
HIGHLIGHTS = (
    "external_hit_tokens", "cache_server_hit_tokens", "engine_external_hit_ratio", "cache_server_hit_ratio",
    "floor_logprob_drift", "logprob_drift", "score_computed", "score_retrieved", "miss_overhead_ratio",
    "acceptance_computed_ratio", "acceptance_retrieved_ratio",
)


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
    recipe, _ = _load(name, options)
    lock = venv.lock_of(recipe)
    return _plan(recipe, lock, options, Layout(
        python=str(lock.interpreter), model=weights.location(recipe.model, lock.digest), folder=folder,
        host="127.0.0.1", ports=numbers or dict.fromkeys(PORTS, 0),
        assistant=weights.location(recipe.speculative.assistant, lock.digest) if recipe.speculative else None,
    ))


def _load(name: str, options: Options) -> tuple[Recipe, Path]:
    if options.runtime not in RUNTIMES:
        raise UsageError(f"no runtime is called {options.runtime!r}; {nearest(options.runtime, RUNTIMES)}")
    if options.samples is not None and options.samples < 1:
        raise UsageError(f"--samples is {options.samples}, expected 1 or more")
    path = loading.find_recipe(name)
    recipe = loading.load_recipe(path)
    require_connector(recipe)
    connector(recipe.connector.name)
    unknown = [c for c in recipe.checks.required if c not in CHECKS]
    if unknown:
        raise UsageError(f"{path}: checks.required: no check is called {unknown[0]!r}; {nearest(unknown[0], CHECKS)}")
    return recipe, path


def _plan(recipe: Recipe, lock: venv.Lock, options: Options, layout: Layout) -> Plan:
    adapter, attached = engine(recipe.engine.name), connector(recipe.connector.name)
    servers: list[Server] = []
    cache = attached.cache_server(recipe, layout)
    if cache is not None:
        servers.append(cache)
    servers.append(adapter.server(recipe, layout, "engine", attached.engine_flags(recipe, layout),
                                  attached.engine_environment(recipe)))
    if recipe.checks.thresholds.overhead.baseline == "beside":
        servers.append(adapter.server(recipe, layout, "baseline", {}, {}))
    return Plan(recipe=recipe, runtime=options.runtime, servers=tuple(servers), environment_name=lock.name,
                lock_digest=lock.digest)


@dataclass
class _Run:
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
    launched: dict[str, process.Launched] = field(default_factory=dict)

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


def prove(name: str, options: Options, console: Console, *,
          damage: Callable[[Session], None] | None = None) -> Outcome:
    """Run a recipe and record what was seen.

    Args:
        damage: changes stored KV just before the main retrieval, to show that the proof turns red; the record
            says so and the matrix never counts it.

    Returns:
        The outcome, whatever the verdict, once a server was started or the run was interrupted.

    Raises:
        UsageError: a name or option is wrong.
        CannotRunError: this host does not fit, or the environment cannot be made; nothing was started.
    """
    recipe, path = _load(name, options)
    lock = venv.lock_of(recipe)
    dataset = _dataset(recipe, options)
    run_id = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"
    folder = runs_folder() / f"{recipe.name}-{run_id}"
    run = _Run(recipe=recipe, text=loading.recipe_text(path), options=options, console=console, folder=folder,
               run_id=run_id, damage=damage, dataset=dataset.facts(_effective(recipe, options).prompts))
    problem: KvproofError | None = None
    servers = process.Processes(folder)
    held = ports.Ports(cache_folder() / "ports")
    with interrupts.interruptible():
        try:
            _make_folder(folder)
            process.sweep(runs_folder(), console.say)
            missing = 0 if lock.interpreter.exists() else lock.installed_bytes
            with run.step("preflight"):
                preflight.require(recipe, missing)
            _execute(run, lock, dataset, servers, held)
        except KvproofError as error:
            problem = error
        except KeyboardInterrupt:
            problem = Interrupted("interrupted", tip="run the same command again")
        finally:
            interrupts.silence()
            if run.launched:
                with run.step("stop"), run.stopwatch.waiting():
                    servers.stop_all(say=console.now)
            held.release()
        if isinstance(problem, CannotRunError) and not run.launched:
            shutil.rmtree(folder, ignore_errors=True)
            raise problem
        return _finish(run, problem)


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise CannotRunError(f"the run folder {folder} cannot be made: {error.strerror}",
                             tip="free space, or set KVPROOF_CACHE to a folder you may write to") from None


def _effective(recipe: Recipe, options: Options) -> Recipe:
    """The recipe with the command line's number of samples."""
    if options.samples is None:
        return recipe
    return recipe.model_copy(update={"prompts": recipe.prompts.model_copy(update={"samples": options.samples})})


def _dataset(recipe: Recipe, options: Options) -> prompts.Dataset:
    wanted = options.dataset or recipe.prompts.dataset
    if wanted == "word-problems":
        return prompts.word_problems(recipe.prompts.seed)
    if wanted == "gsm8k":
        return prompts.fetch_gsm8k(cache_folder())
    return prompts.read_jsonl(Path(wanted))


def _execute(run: _Run, lock: venv.Lock, dataset: prompts.Dataset, servers: process.Processes,
             held: ports.Ports) -> None:
    recipe = _effective(run.recipe, run.options)
    with run.step("environment"), run.stopwatch.waiting():
        prepared = RUNTIMES[run.options.runtime].prepare(lock, run.console)
        run.versions = prepared.versions
    with run.step("model"), run.stopwatch.waiting():
        made = weights.ensure(recipe.model, recipe.model.weights, lock.digest, prepared.interpreter, run.console)
        run.model, assistant = made.facts, None
        if recipe.speculative is not None:
            drafting = weights.ensure(recipe.speculative.assistant, recipe.model.weights, lock.digest,
                                      prepared.interpreter, run.console)
            run.assistant, assistant = drafting.facts, drafting.location
    layout = Layout(python=str(prepared.interpreter), model=made.location, folder=run.folder, host="127.0.0.1",
                    ports={name: held.take() for name in PORTS}, assistant=assistant)
    run.plan = plan_ = _plan(recipe, lock, run.options, layout)
    (run.folder / "second-tier").mkdir()
    for group in _start_groups(plan_):
        with run.step("start " + " and ".join(s.role.replace("_", " ") for s in group)), run.stopwatch.waiting():
            for server in group:
                _start(run, servers, server)
            for server in group:
                _wait_ready(run, servers, server)
    session = _connect(run, recipe, plan_, layout, servers)
    run.engine_version = session.engine.version(session.client)
    with run.step("prompts"):
        session.prompts = prompts.build(dataset, recipe.prompts, session.tokenize, session.engine.max_tokens(recipe))
    with run.step("warm-up"):
        session.warm_up()
    servers.observe()
    for check in chosen(recipe.checks.required):
        _check(run, session, check)
        servers.observe()


def _start_groups(plan_: Plan) -> list[list[Server]]:
    """The cache server first, because an engine gives up when it cannot reach it; then all engines at once."""
    cache = [s for s in plan_.servers if s.role == "cache_server"]
    return [g for g in (cache, [s for s in plan_.servers if s not in cache]) if g]


def _start(run: _Run, servers: process.Processes, server: Server) -> None:
    environment = {**os.environ, "KVPROOF_RUN_ID": run.run_id, **server.environment}
    run.launched[server.role] = servers.start(server.role, server.argv, environment, run.folder / server.log)


def _wait_ready(run: _Run, servers: process.Processes, server: Server) -> None:
    """Wait for the health endpoint, and give up early when it can no longer come.

    Raises:
        NotReadyError: a process ended, the cache server logged that it refused the engine, or the time is over.
    """
    client = Http(server.role, server.url, run.stopwatch, timeout_s=5)
    started = time.monotonic()
    scanner = _FatalLines(run)
    try:
        while True:
            _require_alive(run, f"before {server.role} was ready")
            fatal = scanner.look()
            if fatal is not None:
                raise NotReadyError(f"{server.role} will not become ready: the cache server refused it: {fatal}",
                                    tip=f"change the recipe; logs are in {run.folder}",
                                    log_tail=run.launched[server.role].tail(5))
            if client.is_healthy(server.health_path):
                servers.observe()
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


class _FatalLines:
    """Reads the cache server's log as it grows."""

    def __init__(self, run: _Run):
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


def _require_alive(run: _Run, when: str) -> None:
    for role, launched in run.launched.items():
        code = launched.exit_code()
        if code is not None:
            how = f"was ended by signal {-code}" if code < 0 else f"exited with code {code}"
            taken = any("Errno 98" in line or "address already in use" in line.lower() for line in launched.tail(80))
            error = NotReadyError if "ready" in when else ServerError
            raise error(
                f"{role} {how} {when}" + (": its port was taken by another program" if taken else ""),
                tip="run again; other ports will be chosen" if taken else f"its whole log is {launched.log}",
                log_tail=launched.tail(10),
            )


def _connect(run: _Run, recipe: Recipe, plan_: Plan, layout: Layout, servers: process.Processes) -> Session:
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
        session.restart_engine = lambda: _restart(run, servers, server)
    return session


def _engine_client(run: _Run, server: Server) -> EngineClient:
    return EngineClient(server.role, server.url, run.recipe.model.served_name, run.stopwatch,
                        timeout_s=run.recipe.engine.request_timeout_s)


def _restart(run: _Run, servers: process.Processes, server: Server) -> None:
    with run.stopwatch.waiting():
        run.console.now("restarting the engine")
        servers.stop(run.launched.pop(server.role))
        _start(run, servers, server)
        _wait_ready(run, servers, server)


def _check(run: _Run, session: Session, check: Any) -> None:
    """Run one check; an unexpected end of a server ends the run."""
    required = check.NAME in run.recipe.checks.required
    passed = {r.name for r in run.results if r.verdict is Verdict.PASS}
    missing = [n for n in check.NEEDS if n not in passed]
    if missing:
        judged = Judgement(Verdict.NOT_MEASURED, f"{missing[0]} did not pass, so this would mean nothing")
    else:
        try:
            with run.step(check.NAME):
                judged = check.run(session)
        except ServerError as problem:
            judged = Judgement(Verdict.ERROR, problem.message)
        except Interrupted:
            run.results.append(CheckResult(name=check.NAME, verdict=Verdict.ERROR, required=required,
                                           reason="interrupted while it ran"))
            raise
    try:
        _require_alive(run, f"during {check.NAME}")
    except ServerError as death:
        run.results.append(CheckResult(name=check.NAME, verdict=Verdict.ERROR, required=required,
                                       reason=death.message, measurements=judged.measurements))
        raise
    run.results.append(CheckResult(name=check.NAME, verdict=judged.verdict, required=required, reason=judged.reason,
                                   link=judged.link, measurements=judged.measurements))


def _finish(run: _Run, problem: KvproofError | None) -> Outcome:
    record = _record(run, problem)
    redact = Redactor(places=places())
    kept = run.folder / "record.json"
    with contextlib.suppress(OSError):
        kept.write_text(json.dumps(redact.tree(record.model_dump(mode="json"))), encoding="utf-8")
    written = None
    try:
        written = evidence.write(record, run.options.evidence_dir, redact)
    except EvidenceError as error:
        error.tip = f"the record is in {kept}; free space or pass --evidence-dir DIR"
        problem = problem or error
    if record.header.verdict is Verdict.PASS and written and not run.options.keep:
        shutil.rmtree(run.folder, ignore_errors=True)
    else:
        shutil.rmtree(run.folder / "second-tier", ignore_errors=True)
    return Outcome(record, written, run.folder, problem)


def _record(run: _Run, problem: KvproofError | None) -> RunRecord:
    results = tuple(run.results)
    verdict, reason = evidence.overall(results, run.recipe.checks.required, CONTROLS)
    if problem is not None:
        failed = [r for r in results if r.verdict is Verdict.FAIL and r.required]
        verdict, reason = (Verdict.FAIL if failed else Verdict.ERROR), problem.message
    duration = time.monotonic() - run.started
    own = sum(s.own_s for s in run.steps)
    status = "completed" if problem is None else "interrupted" if isinstance(problem, Interrupted) else "failed"
    facts = host.facts(cache_folder())
    attached = connector(run.recipe.connector.name)
    lock_digest = run.plan.lock_digest if run.plan else None
    header = Header(
        run_id=run.run_id, recipe=run.recipe.name, recipe_digest=run.recipe.digest(), lock_digest=lock_digest,
        runtime=run.options.runtime, weights=run.recipe.model.weights, engine=run.recipe.engine.name,
        connector=run.recipe.connector.name, engine_version=run.engine_version,
        connector_version=attached.version(run.versions), hardware=host.hardware(), started_at=run.started_at,
        duration_s=round(duration, 3), status=status, verdict=verdict, reason=reason, weaker=_weaker(run),
        damage_left_in="stored KV was changed before the main retrieval" if run.damage else None,
        checks=evidence.summaries(results), highlights=_highlights(results),
    )
    return RunRecord(
        header=header, recipe_text=run.text, plan=run.plan.as_data() if run.plan else {},
        environment=_environment(run), model=run.model or weights.unknown(run.recipe.model, run.recipe.model.weights),
        assistant=run.assistant, dataset=run.dataset,
        host=facts, options={**asdict(run.options), "evidence_dir": None}, steps=tuple(run.steps),
        passes=tuple(run.session.passes.values()) if run.session else (), checks=results, logs=_logs(run),
        own_share_ratio=round(own / duration, 4) if duration else None,
    )


def _weaker(run: _Run) -> tuple[str, ...]:
    asked, wanted = run.options.samples, run.recipe.prompts.samples
    return (f"{asked} samples, the recipe asks for {wanted}",) if asked is not None and asked < wanted else ()


def _highlights(results: tuple[CheckResult, ...]) -> dict[str, float | int | str | None]:
    """The numbers for tables; those of controls are left out, since they are meant to be bad."""
    found: dict[str, float | int | str | None] = {}
    for result in results:
        if result.name in CONTROLS:
            continue
        for m in result.measurements:
            if m.name in HIGHLIGHTS or m.name.startswith("ttft_"):
                found.setdefault(m.name, m.value)
    return found


def _environment(run: _Run) -> evidence.Environment:
    commit, dirty = code_state()
    return evidence.Environment(
        kvproof_version=__version__, commit=commit, dirty=dirty,
        lock_file=f"images/{run.recipe.environment}/requirements.lock" if run.recipe.environment else None,
        python=run.versions.get("python"), versions=run.versions,
    )


def code_state() -> tuple[str | None, bool | None]:
    """kvproof's commit and whether its files differ from it; None outside a git checkout.

    Evidence and generated documents do not count: a run writes them itself.
    """
    def git(*words: str) -> str | None:
        try:
            done = subprocess.run(["git", "-C", str(PROJECT), *words], capture_output=True, text=True, timeout=20,
                                  check=True)
        except (OSError, subprocess.SubprocessError):
            return None
        return done.stdout.strip()

    commit = git("rev-parse", "HEAD")
    if commit is None:
        return None, None
    changed = git("status", "--porcelain", "--", ".", ":!evidence", ":!docs")
    return commit, bool(changed) if changed is not None else None


def _logs(run: _Run) -> dict[str, tuple[str, ...]]:
    return {role: tuple(launched.tail(LOG_LINES_KEPT)) for role, launched in run.launched.items()}
