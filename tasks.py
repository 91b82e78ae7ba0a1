"""The command line: thin tasks; what they do is in src/kvproof."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from invoke import Context, task

from kvproof.cli import task_errors

if TYPE_CHECKING:
    from pathlib import Path


@task(help={"json": "print the list as JSON"})
@task_errors
def recipes(c: Context, json: bool = False) -> None:
    """List recipes with their standing."""
    from kvproof import matrix

    rows = matrix.standings()
    print(_dumps(rows) if json else matrix.standings_table(rows))


@task(
    positional=["name"],
    help={
        "name": "recipe to run, as ./inv recipes lists it",
        "runtime": "where servers run: venv or docker",
        "dry-run": "print the plan and start nothing",
        "samples": "number of prompts; fewer than the recipe's is no proof",
        "restart-engine": "empty the engine's cache by restarting it",
        "dataset": "gsm8k, or a JSONL file of questions and answers",
        "evidence-dir": "folder for the evidence file; the matrix stays as it is",
        "no-matrix": "do not bring docs/ up to date",
        "keep": "keep the run folder (logs, stored KV) of a proven run too",
        "json": "print the result as JSON",
    },
)
@task_errors
def recipe(c: Context, name: str, runtime: str = "venv", dry_run: bool = False, samples: int | None = None,
           restart_engine: bool = False, dataset: str | None = None, evidence_dir: str | None = None,
           no_matrix: bool = False, keep: bool = False, json: bool = False) -> None:
    """Prove a recipe: start its servers, check them, write evidence."""

    from kvproof import report, run
    from kvproof.console import Console
    from kvproof.errors import UsageError
    from kvproof.paths import EVIDENCE, runs_folder
    from kvproof.redact import Redactor

    if evidence_dir == "":
        raise UsageError("--evidence-dir is empty, expected a folder")
    options = run.Options(
        runtime=runtime, samples=_whole_number("--samples", samples), restart_engine=restart_engine, dataset=dataset,
        evidence_dir=_path("--evidence-dir", evidence_dir) if evidence_dir else EVIDENCE, keep=keep,
    )
    redact = Redactor()
    if dry_run:
        plan = run.plan(name, options, folder=runs_folder() / f"{name}-RUN_ID")
        print(redact(_dumps(plan.as_data()) if json else report.plan_text(plan)))
        return
    outcome = run.prove(name, options, Console())
    print(redact(_dumps(report.as_data(outcome)) if json else report.text(outcome)), flush=True)
    if evidence_dir is None and not no_matrix and outcome.evidence is not None:
        _update_documents()
    report.raise_for(outcome)


@task(help={"check": "write nothing; exit 1 when the file is not up to date", "json": "print the matrix as JSON"})
@task_errors
def matrix(c: Context, check: bool = False, json: bool = False) -> None:
    """Write docs/support-matrix.md from evidence and recipes alone."""
    from kvproof import matrix as module

    if check:
        _report_drift(module.check(), "docs/support-matrix.md", "./inv matrix", json)
        return
    made = module.collect()
    path = module.write(made)
    print(_dumps(made.model_dump(mode="json")) if json else f"wrote {path}")


@task(help={
    "check": "write nothing; exit 1 when a page is missing, not up to date, or has no recipe",
    "site": "build the site into this folder, once the pages are written",
    "json": "print what was written, or the drift, as JSON",
})
@task_errors
def docs(c: Context, check: bool = False, site: str | None = None, json: bool = False) -> None:
    """Write a page per recipe into docs/recipes; build the site."""

    from kvproof import matrix, pages
    from kvproof.errors import KvproofError, UsageError

    if check and site:
        raise UsageError("--check and --site exclude each other: --check writes nothing")
    if site == "":
        raise UsageError("--site is empty, expected a folder")
    if check:
        _report_drift(pages.check(), "docs/recipes", "./inv docs; an orphan is removed by hand", json)
        return
    made = matrix.collect()
    written = [str(path) for path in pages.write(made)]
    if site:
        from kvproof import site as builder

        orphans = pages.orphans(made)
        if orphans:
            raise KvproofError("\n".join(orphans), tip="remove the page, or bring its recipe back")
        matrix.write(made)
        written.append(str(builder.build(_path("--site", site))))
    print(_dumps({"written": written}) if json else "\n".join(f"wrote {path}" for path in written) or
          "docs/recipes is up to date")


@task(positional=["name"], help={"name": "recipe to serve, as ./inv recipes lists it",
                                 "runtime": "where servers run: venv or docker",
                                 "port": "TCP port of the engine; a free one is chosen otherwise"})
@task_errors
def serve(c: Context, name: str, runtime: str = "venv", port: int | None = None) -> None:
    """Start a recipe's servers and leave them running until Ctrl-C."""
    from kvproof import serving
    from kvproof.console import Console
    from kvproof.redact import Redactor

    serving.serve(name, Console(), runtime=runtime, port=_whole_number("--port", port),
                  ready=lambda plan: print(Redactor()(serving.how_to_use(plan)), flush=True))


@task(optional=["name"], help={"name": "recipe to look for; the host in general otherwise",
                              "json": "print the findings as JSON"})
@task_errors
def doctor(c: Context, name: str | None = None, json: bool = False) -> None:
    """Say whether this host fits: for a recipe, or in general."""
    from kvproof import doctor as module
    from kvproof.errors import UsageError
    from kvproof.redact import Redactor

    if name is not None and not isinstance(name, str):
        raise UsageError("--name needs a value")
    found = module.examine(name)
    print(Redactor()(_dumps(module.as_data(found)) if json else module.text(found)), flush=True)
    module.raise_for(found)


@task(
    positional=["url"],
    help={
        "url": "address of a running engine, such as http://localhost:8000",
        "cache-server": "address of its cache server's HTTP interface, a second witness",
        "connector": "KV connector that it should have; the servers are asked otherwise",
        "model": "served model name; needed where there are several",
        "passive": "send no prompts: judge from the counters alone",
        "prompts": "how many prompts to make up and send, 1 to 16; 3 otherwise",
        "json": "print the verdict as JSON",
    },
)
@task_errors
def probe(c: Context, url: str, cache_server: str | None = None, connector: str | None = None,
          model: str | None = None, passive: bool = False, prompts: int | None = None, json: bool = False) -> None:
    """Say whether a running server offloads its KV cache now."""
    from kvproof import probe as module
    from kvproof.console import Console
    from kvproof.redact import Redactor

    count = _whole_number("--prompts", prompts)
    wishes = module.Wishes(connector=connector, model=model, passive=passive, prompts=3 if count is None else count)
    report = module.probe(url, Console(), wishes, cache_server)
    print(Redactor()(_dumps(module.as_data(report)) if json else module.text(report)), flush=True)
    module.raise_for(report)


@task(
    positional=["name"],
    help={
        "name": "recipe to export, as ./inv recipes lists it",
        "to": "form: shell, docker, compose, k8s or slurm",
        "gpus": "number of GPUs to split the model over; the recipe's otherwise",
        "out": "file to write; the text is printed otherwise",
        "json": "print the result as JSON",
    },
)
@task_errors
def export(c: Context, name: str, to: str | None = None, gpus: int | None = None, out: str | None = None,
           json: bool = False) -> None:
    """Print a recipe's plan to run elsewhere: shell, docker, compose, k8s, slurm."""

    from kvproof import export as module
    from kvproof import loading
    from kvproof.errors import UsageError
    from kvproof.runnable import require_known

    if to is None:
        raise UsageError(f"--to is missing, expected one of {', '.join(module.FORMS)}",
                         tip=f"./inv export {name} --to docker")
    if out == "":
        raise UsageError("--out is empty, expected a file")
    path = loading.find_recipe(name)
    recipe = loading.load_recipe(path)
    require_known(recipe, path)
    made = module.prepare(recipe, to, gpus=_whole_number("--gpus", gpus))
    if out is None or out == "-":
        text = module.render(made)
        print(_dumps({**made.as_data(), "text": text}) if json else text, end="\n" if json else "")
        return
    written = str(module.write(made, _path("--out", out)))
    print(_dumps({**made.as_data(), "file": written}) if json else f"wrote {written}")


@task(
    positional=["file"],
    help={
        "file": "command, manifest or configuration as it was pasted, or - for standard input",
        "engine-version": "version of the engine, in place of what the paste says",
        "fix": "print the corrected text, and the findings to stderr",
        "json": "print the findings as JSON",
    },
)
@task_errors
def lint(c: Context, file: str, engine_version: str | None = None, fix: bool = False, json: bool = False) -> None:
    """Say what is wrong with a pasted command, manifest or configuration; nothing of it is run."""
    from kvproof import lint as module

    report = module.lint(file, engine_version)
    mended = module.fix(report, engine_version) if fix else None
    if json:
        print(_dumps(module.data(report, mended)), flush=True)
    elif mended is not None:
        print(module.text(report), file=sys.stderr)
        print(mended.text, end="", flush=True)
    else:
        print(module.text(report), flush=True)
    sys.exit((mended.left if mended is not None else report).exit_code)


@task(
    positional=["log"],
    help={
        "log": "log or metrics page, - for standard input, or a recipe's name for its newest run",
        "engine-version": "version of the engine, in place of what the log says",
        "json": "print the answer as JSON",
    },
)
@task_errors
def explain(c: Context, log: str, engine_version: str | None = None, json: bool = False) -> None:
    """Say why a server does not offload, or that it does, from its logs."""
    from kvproof import explain as module

    found = module.what(log, sys.stdin.buffer, engine_version)
    print(_dumps(module.as_data(found)) if json else "\n".join(module.lines(found)), flush=True)
    sys.exit(found.exit_code)


@task(positional=["name"], help={"name": "locked environment, a folder under images/"})
@task_errors
def environment(c: Context, name: str) -> None:
    """Install a locked environment and print its interpreter."""
    from kvproof.console import Console
    from kvproof.runtimes import venv

    print(venv.ensure(venv.read_lock(name), Console()))


@task(positional=["name"], help={"name": "image, a folder under images/",
                                 "again": "build it though nothing changed, from nothing of earlier builds",
                                 "json": "print what was built as JSON"})
@task_errors
def build(c: Context, name: str, again: bool = False, json: bool = False) -> None:
    """Build an image of images/ for the docker runtime."""
    from kvproof import building
    from kvproof.console import Console

    made = building.build(name, Console(), again=again)
    print(_dumps(made) if json else f"{made['image']} is {made['id']}, built from {made['base']}")


@task(help={"dry-run": "list what is left and remove nothing", "json": "print the list as JSON"})
@task_errors
def clean(c: Context, dry_run: bool = False, json: bool = False) -> None:
    """Remove what runs that were killed have left: processes, containers."""
    from kvproof import cleaning
    from kvproof.redact import Redactor

    found = cleaning.find()
    if not dry_run:
        cleaning.remove(found)
    shown = _dumps(found.as_data(not dry_run)) if json else \
        "\n".join(found.lines("would be removed" if dry_run else "removed"))
    print(Redactor()(shown), flush=True)


@task(help={"fast": "leave out what starts an engine", "json": "print the counts as JSON, all else to stderr"})
@task_errors
def test(c: Context, fast: bool = False, json: bool = False) -> None:
    """Run all tests; real servers are started unless --fast."""
    from kvproof.paths import PROJECT

    words = [sys.executable, "-m", "pytest", *(["-m", "not engine"] if fast else []), "--durations=15"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    if not json:
        sys.exit(subprocess.run(words, cwd=PROJECT, env=environment, check=False).returncode)
    with tempfile.TemporaryDirectory() as folder:
        report = os.path.join(folder, "report.xml")
        done = subprocess.run([*words, f"--junitxml={report}"], cwd=PROJECT, env=environment, stdout=sys.stderr,
                              check=False)
        suite = ElementTree.parse(report).getroot().find("testsuite") if os.path.exists(report) else None
    counts = {} if suite is None else {n: int(suite.get(n, 0)) for n in ("tests", "failures", "errors", "skipped")}
    print(_dumps({**counts, "exit_code": done.returncode}), flush=True)
    sys.exit(done.returncode)


@task(positional=["name"], help={"name": "folder under images/"})
@task_errors
def lock(c: Context, name: str) -> None:
    """Resolve images/NAME/requirements.in into requirements.lock, with hashes."""
    from kvproof import locking

    print(f"wrote {locking.resolve(name)}")


@task(
    iterable=["image"],
    help={
        "image": "entry of images/lock.toml, by name or REPOSITORY:TAG; all otherwise",
        "check": "write nothing; exit 1 when a tag has moved or a digest is gone",
        "update": "write what the registries say into images/lock.toml and the Dockerfiles",
        "json": "print the comparison as JSON",
    },
)
@task_errors
def pin(c: Context, image: list[str] | None = None, check: bool = False, update: bool = False,
        json: bool = False) -> None:
    """Compare pinned images with their registries, old and new digest."""
    from kvproof import pinning
    from kvproof.console import Console
    from kvproof.errors import KvproofError, UsageError
    from kvproof.registry import Registry

    if check and update:
        raise UsageError("--check and --update exclude each other: --check writes nothing")
    images = pinning.chosen(image or ())
    with Registry() as registry:
        rows = list(pinning.compare(images, registry, Console()))
    print(_dumps([row.as_data() for row in rows]) if json else pinning.text(rows), flush=True)
    for path in pinning.write(rows) if update else ():
        print(f"wrote {path}", file=sys.stderr)
    try:
        pinning.raise_for(rows, check=check)
    except KvproofError as error:
        error.result_printed = True
        raise


def _report_drift(drift: list[str], what: str, mend: str, as_json: bool) -> None:
    """Say that generated files are up to date, or end with exit code 1 and what is not."""
    from kvproof.errors import KvproofError

    if as_json:
        print(_dumps({"drift": drift}), flush=True)
    if drift:
        error = KvproofError("\n".join(drift), tip=mend)
        error.result_printed = as_json
        raise error
    if not as_json:
        print(f"{what} is up to date")


def _update_documents() -> None:
    """Bring matrix and pages up to date after a run, whose own result stands whatever comes of this."""
    from kvproof import matrix, pages
    from kvproof.errors import KvproofError

    try:
        made = matrix.collect()
        matrix.write(made)
        pages.write(made)
    except KvproofError as error:
        print(f"docs/ was not brought up to date: {error.message}", file=sys.stderr)


def _path(option: str, text: str) -> Path:
    from pathlib import Path

    from kvproof.errors import UsageError

    try:
        return Path(text).expanduser()
    except RuntimeError as error:  # ~ of a user that there is not
        raise UsageError(f"{option} is {text!r}: {error}") from None


def _dumps(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


def _whole_number(option: str, value: object) -> int | None:
    from kvproof.errors import UsageError

    if value is None:
        return None
    if not re.fullmatch(r"-?[0-9]{1,6}", str(value)):
        raise UsageError(f"{option} is {value!r}, expected a whole number from 1 to 999999")
    return int(str(value))
