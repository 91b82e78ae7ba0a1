"""A copy of the project in which every server is a fake, and runs of it in processes of their own.

The copy has kvproof's code as it is, its own recipes and images, and an interpreter that installs a fake
environment: kvproof takes the same path as with a real one, through the same files and processes.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import yaml

from kvproof.evidence import RunRecord, read
from kvproof.paths import PROJECT

HERE = Path(__file__).parent
MODULES = HERE / "fake_modules"
FAKE_PYTHON = "3.99"
"""The version that the fake lock wants: only the fake interpreter has it."""
LIMIT_S = 60

RECIPE: dict[str, Any] = {
    "name": "fake",
    "title": "Fake servers, for tests of kvproof itself",
    "model": {"repository": "fake/model", "revision": "1", "weights": "dummy", "architecture": "Fake",
              "served_name": "fake", "build": {"builder": "fake_model", "seed": 0}},
    "engine": {"name": "vllm", "version": "0.32.0", "arguments": {"max-model-len": 8192}, "ready_timeout_s": 30,
               "request_timeout_s": 3},
    "connector": {"name": "lmcache-mp", "version": "0.5.6", "arguments": {"chunk-size": 256}, "second_tier": "fs",
                  "ready_timeout_s": 30},
    "environment": "fake-env",
    "hardware": {"gpus": 0, "memory_gib": 0.1, "shm_gib": 0, "disk_gib": 0.01},
    "prompts": {"samples": 3, "chunk_tokens": 256, "min_chunks": 2, "max_chunks": 3, "remainder_tokens": 40,
                "output_tokens": 12},
    "checks": {
        "required": ["smoke", "noise-floor", "store", "retrieval", "comparison", "latency", "overhead", "control-drop",
                     "control-damage"],
        "thresholds": {
            "latency": {"lengths_chunks": [2, 12], "repeats": 3, "min_speedup_ratio": 1.3},
            "overhead": {"baseline": "beside", "pairs": 3, "length_chunks": 3, "max_ratio": 4.0},
        },
    },
}
IMPATIENT = RECIPE | {
    "name": "impatient",
    "engine": RECIPE["engine"] | {"ready_timeout_s": 1},
}
QUICK = RECIPE | {
    "name": "quick",
    "checks": RECIPE["checks"] | {
        "required": [c for c in RECIPE["checks"]["required"] if c not in ("latency", "overhead")]},
}
"""Nothing in it depends on time."""
DRAFTING = RECIPE | {
    "name": "drafting",
    "speculative": {"method": "mtp", "num_speculative_tokens": 2,
                    "assistant": {"repository": "fake/assistant", "revision": "1"}},
    "checks": RECIPE["checks"] | {"required": [*RECIPE["checks"]["required"], "speculative"]},
}
ENVIRONMENT = f"""\
python = "{FAKE_PYTHON}"
platform = "{sys.platform}-{os.uname().machine}"
first = "fake-first"
first_index = "https://fake.invalid/cpu"
installed_gib = 0.001
"""
LOCK = """\
fake-first==1.0 \\
    --hash=sha256:00
fake-rest==2.0 \\
    --hash=sha256:00
"""
# As `python3.99 -m venv FOLDER`; the interpreter it makes plays pip and compileall, and is a real one otherwise.
BASE_INTERPRETER = """\
#!/bin/sh
[ "$1 $2" = "-m venv" ] || exit 9
mkdir -p "$3/bin" "$3/lib"
cp "{interpreter}" "$3/bin/python"
printf '#!%s\\nimport fake_lmcache_server\\nfake_lmcache_server.main()\\n' "$3/bin/python" > "$3/bin/lmcache"
chmod +x "$3/bin/lmcache"
"""
INTERPRETER = """\
#!/bin/sh
case "$1 $2" in
"-m pip")
    echo "Collecting fake"
    while [ -e "$FAKE_PIP_GATE" ]; do sleep 0.05; done
    exit 0 ;;
"-m compileall")
    exit 0 ;;
esac
PYTHONPATH="{modules}" exec "{python}" "$@"
"""
BUILDER = '''\
"""Fake builder: waits for the file FAKE_BUILD_GATE to go, then writes a model of a few bytes."""

import os
import sys
import time
from pathlib import Path

while os.path.exists(os.environ.get("FAKE_BUILD_GATE") or "/nonexistent"):
    time.sleep(0.05)
out = Path(sys.argv[1])
out.mkdir()
(out / "config.json").write_text("{}")
'''


def make_project(folder: Path) -> Path:
    """A project with kvproof's code and fake servers.

    Returns:
        Its folder.
    """
    shutil.copytree(PROJECT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(PROJECT / "tasks.py", folder)
    (folder / "src/kvproof/builders/fake_model.py").write_text(BUILDER)
    (folder / "recipes").mkdir()
    for recipe in (RECIPE, QUICK, IMPATIENT, DRAFTING):
        (folder / "recipes" / f"{recipe['name']}.yaml").write_text(yaml.safe_dump(recipe, sort_keys=False))
    image = folder / "images" / "fake-env"
    image.mkdir(parents=True)
    (image / "environment.toml").write_text(ENVIRONMENT)
    (image / "requirements.lock").write_text(LOCK)
    tools = folder / "tools"
    tools.mkdir()
    interpreter = tools / "interpreter"
    interpreter.write_text(INTERPRETER.format(modules=MODULES, python=sys.executable))
    base = tools / f"python{FAKE_PYTHON}"
    base.write_text(BASE_INTERPRETER.format(interpreter=interpreter))
    for program in (interpreter, base):
        program.chmod(0o755)
    return folder


@dataclass
class Fake:
    """Runs of a fake project that share a cache folder.

    Attributes:
        cache: KVPROOF_CACHE of the runs; every process of theirs carries it, which is how strays are found.
        evidence: where they write their evidence.
    """

    project: Path
    cache: Path
    evidence: Path
    environment: dict[str, str] = field(default_factory=dict)

    def start(self, recipe: str = "fake", *, environment: Mapping[str, str] | None = None, **hooks: Any) -> Run:
        """Start a run; `hooks` are what drive.py takes."""
        hooks = {"evidence_dir": str(self.evidence)} | hooks
        return Run(self, [sys.executable, str(HERE / "drive.py"), recipe, json.dumps(hooks)], environment or {})

    def inv(self, *words: str, environment: Mapping[str, str] | None = None) -> Run:
        """Start the command line itself, without any hook."""
        return Run(self, [sys.executable, "-m", "kvproof.cli", *words], environment or {})

    def run(self, recipe: str = "fake", *, environment: Mapping[str, str] | None = None, **hooks: Any) -> Ended:
        return self.start(recipe, environment=environment, **hooks).end()

    def variables(self) -> dict[str, str]:
        """Little of this process's own environment: no secrets, no settings of tests."""
        kept = {k: os.environ[k] for k in ("HOME", "LANG", "TMPDIR") if k in os.environ}
        return kept | {
            "PATH": f"{self.project / 'tools'}:{os.environ['PATH']}", "PYTHONPATH": str(self.project / "src"),
            "KVPROOF_CACHE": str(self.cache), "PYTHONUNBUFFERED": "1", **self.environment,
        }

    def strays(self) -> list[psutil.Process]:
        """Living processes that belong to these runs."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                mine = process.environ().get("KVPROOF_CACHE") == str(self.cache)
                if mine and process.status() != psutil.STATUS_ZOMBIE and process.pid != os.getpid():
                    found.append(process)
        return found


@dataclass(frozen=True)
class Ended:
    """How a run ended.

    Attributes:
        data: what --json gave; empty when it gave nothing.
    """

    code: int
    stdout: str
    stderr: str
    data: dict[str, Any]

    @property
    def record(self) -> RunRecord:
        """The evidence that was written."""
        return read(Path(self.data["evidence"]))

    @property
    def kept(self) -> dict[str, Any]:
        """The record in the run folder."""
        return json.loads((Path(self.data["run_folder"]) / "record.json").read_text())

    @property
    def red(self) -> dict[str, str]:
        """Checks that are neither passed nor left out, with their verdicts."""
        return {c["name"]: c["verdict"] for c in self.data["checks"] if c["verdict"] not in ("pass", "not_measured")}

    @property
    def reasons(self) -> dict[str, str | None]:
        return {c["name"]: c["reason"] for c in self.data["checks"]}


class Run:
    """A run that is under way; its progress can be waited for."""

    def __init__(self, fake: Fake, argv: list[str], environment: Mapping[str, str]):
        self._process = subprocess.Popen(
            argv, env=fake.variables() | dict(environment), cwd=fake.project, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        )
        self.pid = self._process.pid
        self._texts: dict[str, list[str]] = {"stdout": [], "stderr": []}
        self._news = threading.Condition()
        self._readers = [threading.Thread(target=self._read, args=(name,), daemon=True) for name in self._texts]
        for reader in self._readers:
            reader.start()

    def _read(self, name: str) -> None:
        with getattr(self._process, name) as stream:
            for line in stream:
                with self._news:
                    self._texts[name].append(line)
                    self._news.notify_all()

    def wait_for(self, words: str, stream: str = "stderr") -> None:
        """Until its progress (or what it prints to stdout) says these words."""
        deadline = time.monotonic() + LIMIT_S
        with self._news:
            while not any(words in line for line in self._texts[stream]):
                if self._process.poll() is not None or time.monotonic() >= deadline:
                    raise AssertionError(f"never said {words!r}:\n{''.join(self._texts['stderr'])}")
                self._news.wait(timeout=0.5)

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        """End kvproof as the system does when memory is short: it cannot clean up."""
        self._process.kill()
        self._process.wait(LIMIT_S)

    def end(self, limit_s: float = LIMIT_S) -> Ended:
        try:
            code = self._process.wait(limit_s)
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(LIMIT_S)
            raise AssertionError(f"no end within {limit_s} s:\n{''.join(self._texts['stderr'])}") from None
        for reader in self._readers:
            reader.join(5)
        stdout, stderr = ("".join(self._texts[name]) for name in ("stdout", "stderr"))
        data = {}
        with contextlib.suppress(ValueError):
            data = json.loads(stdout)
        return Ended(code, stdout, stderr, data)


def family(folder: Path) -> tuple[set[int], set[str]]:
    """Process ids and shared-memory names that fake engines noted in FAKE_FAMILY."""
    pids: set[int] = set()
    segments: set[str] = set()
    for note in folder.glob("*.json"):
        content = json.loads(note.read_text())
        pids |= set(content["pids"])
        segments |= set(content["segments"])
    return pids, segments


@contextlib.contextmanager
def gate(path: Path) -> Iterator[Path]:
    """A file that exists inside the block; fakes that were told its name wait while it does."""
    path.touch()
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)
