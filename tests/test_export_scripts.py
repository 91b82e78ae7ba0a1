"""Exported scripts as they behave: started for real, mostly with stand-ins for servers and for docker."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import psutil
import pytest

import fakes
from kvproof import export as module
from kvproof.export import export, quoting
from kvproof.loading import load_recipe, recipe_paths
from kvproof.paths import PROJECT
from kvproof.recipe import Recipe

RECIPE = load_recipe(recipe_paths()["gemma4-nano-31b"])
MODULES = Path(__file__).with_name("fake_modules")
LIMIT_S = 60
HEALTHY = """\
#!/bin/sh
PYTHONPATH="{modules}" exec "{python}" "$@"
"""
CACHE_SERVER = """\
#!{folder}/python
import fake_lmcache_server
fake_lmcache_server.main()
"""
DYING = """\
#!/bin/sh
for number in $(seq 30); do echo "line $number"; done
exit 7
"""
HANGING = """\
#!/bin/sh
echo "never ready"
exec sleep 1000
"""
DOCKER = """\
#!/usr/bin/env bash
# Keeps containers as files of its folder: NAME holds the arguments, NAME.gone says that it has ended.
set -eu
cd "$FAKE_DOCKER"
echo "$*" >>calls
last=${!#}
case "$1" in
info) ;;
container) [[ -e $last ]] ;;
run)
    for ((n = 1; n <= $#; n++)); do [[ ${!n} != --name ]] || { n=$((n + 1)); name=${!n}; }; done
    printf '%s\\n' "$@" >"$name"
    [[ ! -e dies || $name != *engine ]] || touch "$name.gone"
    echo 0123456789ab ;;
inspect)
    [[ -e $last ]] || exit 1
    case "$3" in
    *Running*) if [[ -e $last.gone ]]; then echo false; else echo true; fi ;;
    *Health*) if [[ -e hangs && $last == *engine ]]; then echo starting; else echo healthy; fi ;;
    esac ;;
logs) echo "log of $last" ;;
stop | rm) for name in "${@:2}"; do [[ $1 != rm ]] || rm -f "$name"; done ;;
volume) ;;
*) exit 9 ;;
esac
"""


class Script:
    """An exported script that was started.

    Attributes:
        url: of its engine.
        folder: its run folder.
    """

    def __init__(self, text: str, folder: Path, python: Path | None = None, **environment: str):
        with contextlib.ExitStack() as stack:
            held = [stack.enter_context(socket.socket()) for _ in range(3)]
            for one in held:
                one.bind(("127.0.0.1", 0))
            ports = [str(one.getsockname()[1]) for one in held]
        self.folder, self.mark = folder / "run", f"{folder}-{time.monotonic_ns()}"
        self.url = f"http://127.0.0.1:{environment.get('PORT', ports[0])}"
        file = folder / "script.sh"
        file.write_text(text)
        given = {"PORT": ports[0], "CACHE_PORT": ports[1], "CACHE_HTTP_PORT": ports[2], "RUN_DIR": str(self.folder),
                 "KVPROOF_HOME": str(PROJECT), "SCRIPT_MARK": self.mark,
                 **({"PYTHON": str(python)} if python else {}), **environment}
        kept = {n: v for n, v in os.environ.items() if n not in ("HOST", "PYTHONPATH", "DETACH")}
        self.process = subprocess.Popen(["bash", str(file)], env={**kept, **given}, cwd=folder, text=True,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
        self._said: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self.process.stderr or ():
            self._said.append(line)

    @property
    def said(self) -> str:
        return "".join(self._said)

    def wait_said(self, text: str, limit_s: float = LIMIT_S) -> None:
        deadline = time.monotonic() + limit_s
        while text not in self.said:
            assert self.process.poll() is None, self.said
            assert time.monotonic() < deadline, self.said
            time.sleep(0.05)

    def end(self, number: int | None = None, limit_s: float = LIMIT_S) -> int:
        """Its exit status, once it has ended."""
        if number is not None:
            self.process.send_signal(number)
        code = self.process.wait(limit_s)
        self._reader.join(5)
        return code

    def out(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.read()

    def left(self) -> list[list[str]]:
        """Commands of the processes that it started and that still live."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get("SCRIPT_MARK") == self.mark and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process.cmdline())
        return found


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Script]]:
    """Starts scripts; whatever they left is ended with the test."""
    started: list[Script] = []

    def start(text: str, **environment: str) -> Script:
        folder = tmp_path / f"script{len(started)}"
        folder.mkdir()
        started.append(Script(text, folder, **environment))
        return started[-1]

    yield start
    for script in started:
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get("SCRIPT_MARK") == script.mark:
                    process.kill()
        script.process.wait()
        for stream in (script.process.stdout, script.process.stderr):
            script._reader.join(5)
            stream.close()


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """An interpreter whose environment has a fake engine, and a fake cache server beside it."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, text in (("python", HEALTHY), ("lmcache", CACHE_SERVER)):
        replace(folder / name, text.format(modules=MODULES, python=sys.executable, folder=folder))
    return folder / "python"


def replace(program: Path, text: str) -> None:
    program.write_text(text)
    program.chmod(0o755)


def with_timeout(seconds: int) -> Recipe:
    return RECIPE.model_copy(update={
        "engine": RECIPE.engine.model_copy(update={"ready_timeout_s": seconds}),
        "connector": RECIPE.connector.model_copy(update={"ready_timeout_s": seconds})})


# --- shell, with fake servers --------------------------------------------------------------------


@pytest.mark.process
@pytest.mark.parametrize("form", ["shell", "slurm"])
def test_a_script_serves_until_it_is_stopped(form: str, start: Callable[..., Script], python: Path) -> None:
    script = start(export(RECIPE, form), python=python, SLURM_JOB_ID="1")
    script.wait_said("engine is ready")
    assert script.said.index("cache-server is ready") < script.said.index("started engine")
    script.wait_said("Ctrl-C stops it" if form == "shell" else "scancel 1 stops it")
    body = {"model": "gemma4-nano-31b", "prompt": "one", "max_tokens": 4}
    assert httpx.post(f"{script.url}/v1/completions", json=body).status_code == 200
    assert (script.folder / "second-tier").is_dir()
    second = start(export(RECIPE, form), python=python, RUN_DIR=str(script.folder))
    assert second.end() == 3
    assert f"another one runs in {script.folder}\nnext: stop it, or set RUN_DIR" in second.said
    assert script.end(signal.SIGINT if form == "shell" else signal.SIGTERM) == (130 if form == "shell" else 143)
    assert f"Address: {script.url}/v1" in script.out()
    assert not script.left()
    assert not (script.folder / "second-tier").exists()
    assert {"engine.log", "cache_server.log"} <= {path.name for path in script.folder.iterdir()}


@pytest.mark.process
def test_a_server_that_dies_ends_the_wait(start: Callable[..., Script], python: Path) -> None:
    replace(python.with_name("lmcache"), DYING)
    script = start(export(RECIPE, "shell"), python=python)
    assert script.end() == 1
    assert "cache-server ended with exit status 7 while cache-server was starting" in script.said
    assert "\nline 11\n" in script.said
    assert "\nline 30\n" in script.said
    assert "\nline 10\n" not in script.said
    assert "started engine" not in script.said
    assert not script.left()


@pytest.mark.process
def test_a_server_that_is_never_ready_is_given_up(start: Callable[..., Script], python: Path) -> None:
    replace(python.with_name("lmcache"), HANGING)
    script = start(export(with_timeout(6), "shell"), python=python)
    assert script.end() == 1
    assert "waiting for cache-server, 5 of 6 s: never ready" in script.said
    assert f"cache-server was not ready after 6 s; the end of {script.folder}/cache_server.log:\nnever ready" in \
        script.said
    assert not script.left()


@pytest.mark.process
def test_ctrl_c_while_waiting_leaves_nothing(start: Callable[..., Script], python: Path) -> None:
    replace(python.with_name("lmcache"), HANGING)
    script = start(export(RECIPE, "shell"), python=python)
    script.wait_said("started cache-server")
    assert script.end(signal.SIGINT) == 130
    assert not script.left()


@pytest.mark.process
def test_a_server_that_dies_later_ends_the_others(start: Callable[..., Script], python: Path) -> None:
    script = start(export(RECIPE, "shell"), python=python)
    script.wait_said("Ctrl-C stops it")
    for process in psutil.Process(script.process.pid).children():
        if "lmcache" in " ".join(process.cmdline()):
            process.kill()
    assert script.end() == 1
    assert "cache-server ended with exit status 137 while it was serving" in script.said
    assert not script.left()


@pytest.mark.process
def test_shared_memory_that_servers_leave_is_removed(start: Callable[..., Script], python: Path) -> None:
    name = f"kvproof-test-{os.getpid()}"
    replace(python.with_name("lmcache"), f"""#!{sys.executable}
import mmap, time
file = open("/dev/shm/{name}", "w+b")
file.truncate(4096)
memory = mmap.mmap(file.fileno(), 4096)
print("mapped", flush=True)
time.sleep(1000)
""")
    try:
        script = start(export(RECIPE, "shell"), python=python)
        deadline = time.monotonic() + LIMIT_S
        while not Path("/dev/shm", name).exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        time.sleep(0.5)
        script.end(signal.SIGTERM)
        assert not Path("/dev/shm", name).exists()
    finally:
        Path("/dev/shm", name).unlink(missing_ok=True)


@pytest.mark.process
@pytest.mark.parametrize(("environment", "said"), [
    ({"HOST": "example"}, "HOST is example, expected 127.0.0.1 or 0.0.0.0"),
    ({"KVPROOF_HOME": "/nowhere"}, "KVPROOF_HOME (/nowhere) is no checkout of kvproof"),
    ({"PYTHON": "/nowhere/python"}, "PYTHON is no program"),
    ({"PYTHON": sys.executable}, "/lmcache is not here\nnext: leave PYTHON out, or use the image: ./inv export"),
])
def test_what_is_missing_is_said_before_anything_starts(environment: dict[str, str], said: str, python: Path,
                                                        start: Callable[..., Script]) -> None:
    script = start(export(RECIPE, "shell"), **({"PYTHON": str(python)} | environment))
    assert script.end() == 3
    assert said in script.said
    assert "\nnext: " in script.said
    assert "started" not in script.said


@pytest.mark.process
def test_a_taken_port_is_said(python: Path, start: Callable[..., Script]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        script = start(export(RECIPE, "shell"), python=python, PORT=str(port))
        assert script.end() == 3
    assert f"port {port} is taken\nnext: PORT={port + 100} " in script.said


@pytest.mark.process
def test_too_few_gpus_are_said(start: Callable[..., Script], tmp_path: Path) -> None:
    recipe = next(load_recipe(path) for path in recipe_paths().values() if load_recipe(path).hardware.gpus == 2)
    folder = tmp_path / "gpu"
    folder.mkdir()
    replace(folder / "nvidia-smi", "#!/bin/sh\necho 'GPU 0: one (UUID: x)'\n")
    script = start(export(recipe, "shell"), PATH=f"{folder}:{os.environ['PATH']}")
    assert script.end() == 3
    assert "this host shows 1 GPUs, the plan needs 2" in script.said


# --- docker, with a stand-in for it --------------------------------------------------------------


@pytest.fixture
def docker(tmp_path: Path) -> Path:
    """Folder of the stand-in's containers; its program is in PATH/.. of what `start` is given."""
    state, programs = tmp_path / "docker", tmp_path / "programs"
    state.mkdir()
    programs.mkdir()
    replace(programs / "docker", DOCKER)
    return state


def started_docker(start: Callable[..., Script], docker: Path, **environment: str) -> Script:
    return start(export(RECIPE, "docker"), FAKE_DOCKER=str(docker), **environment,
                 PATH=f"{docker.parent / 'programs'}:{os.environ['PATH']}")


@pytest.mark.process
def test_containers_are_started_in_order_and_removed(start: Callable[..., Script], docker: Path) -> None:
    script = started_docker(start, docker)
    script.wait_said("Ctrl-C stops it")
    cache, engine = (docker / f"kvproof-gemma4-nano-31b-{name}" for name in ("cache-server", "engine"))
    made = module.prepare(RECIPE, "docker")
    for container, part in zip((cache, engine), made.parts, strict=True):
        text = container.read_text()
        assert f"\n{made.image}\n-ec\n" in text
        assert f"{PROJECT}:/kvproof:ro" in text
        assert all(f"\n{name}={value}\n" in text for name, value in part.environment.items())
    assert f"\n{script.url.rpartition(':')[2]}\n" in engine.read_text()
    assert script.end(signal.SIGINT) == 130
    assert not cache.exists()
    assert not engine.exists()
    assert (script.folder / "kvproof-gemma4-nano-31b-engine.log").read_text().startswith("log of")
    calls = (docker / "calls").read_text()
    assert calls.index("run --detach --name kvproof-gemma4-nano-31b-cache-server") < calls.index(
        "run --detach --name kvproof-gemma4-nano-31b-engine")


@pytest.mark.process
def test_a_container_that_dies_ends_the_wait(start: Callable[..., Script], docker: Path) -> None:
    (docker / "dies").touch()
    (docker / "hangs").touch()
    script = started_docker(start, docker)
    assert script.end() == 1
    assert "kvproof-gemma4-nano-31b-engine ended while kvproof-gemma4-nano-31b-engine was starting" in script.said
    assert "log of kvproof-gemma4-nano-31b-engine" in script.said
    assert not list(docker.glob("kvproof-*-engine")), "removed, so that the next start finds the name free"


@pytest.mark.process
def test_containers_can_be_left_running(start: Callable[..., Script], docker: Path) -> None:
    script = started_docker(start, docker, DETACH="1")
    assert script.end() == 0
    assert "to stop it: docker rm -f kvproof-gemma4-nano-31b-cache-server kvproof-gemma4-nano-31b-engine" in script.said
    assert (docker / "kvproof-gemma4-nano-31b-engine").exists()
    again = started_docker(start, docker)
    assert again.end() == 3
    assert "there is a container kvproof-gemma4-nano-31b-cache-server already" in again.said
    assert (docker / "kvproof-gemma4-nano-31b-engine").exists(), "what another start left running is not touched"


# --- quoting, before a real shell ----------------------------------------------------------------

NASTY = ["", "a b", "it's", '"', "$HOME", "`id`", "$(id)", "\\", "\\n", "!x", "*", "~", "a\nb", "#", "&;|<>", "é", "-n",
         "'\"'", "${PORT}", "END", "a\\", "$"]


@pytest.mark.process
def test_words_reach_a_command_as_they_are() -> None:
    port = quoting.PORTS["engine"]
    words = [word for nasty in NASTY for word in (nasty, f"{nasty}@RUN_DIR@", f"@RUN_DIR@{nasty}", f"{nasty}{port}")]
    expected = [word.replace("@RUN_DIR@", "/my run").replace(str(port), "8000") for word in words]
    script = f"RUN_DIR='/my run'; PORT=8000; printf '%s\\0' {' '.join(map(quoting.bash, words))}"
    done = subprocess.run(["bash", "-euc", script], capture_output=True, text=True, check=True)
    assert done.stdout.split("\0")[:-1] == expected


@pytest.mark.process
@pytest.mark.parametrize("nasty", [n for n in NASTY if n != "END"])
def test_files_are_written_as_they_are(nasty: str) -> None:
    port = quoting.PORTS["engine"]
    text = f"a: {nasty}\nb: {port}{nasty.replace('8', '')}\n"
    script = f"PORT=8000; cat <<END\n{quoting.heredoc(text)}\nEND\n"
    done = subprocess.run(["bash", "-euc", script], capture_output=True, text=True, check=True)
    assert done.stdout == text.replace(str(port), "8000")


# --- the environment that scripts ask for -------------------------------------------------------


@pytest.mark.process
def test_an_environment_is_installed_and_its_interpreter_printed(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    fake = fakes.Fake(fakes.make_project(tmp_path / "project"), tmp_path / "cache", tmp_path / "evidence")
    for _ in range(2):
        ended = fake.inv("environment", "fake-env").end()
        assert ended.code == 0, ended.stderr
        interpreter = Path(ended.stdout.removesuffix("\n"))
        assert interpreter.is_file()
        assert interpreter.is_relative_to(tmp_path / "cache")
    assert "installing environment fake-env" not in ended.stderr
    unknown = fake.inv("environment", "fake-envy").end()
    assert (unknown.code, unknown.stdout) == (2, "")
    assert "no locked environment is called 'fake-envy'; did you mean fake-env?" in unknown.stderr


# --- for real ------------------------------------------------------------------------------------


@pytest.mark.engine
def test_the_exported_script_serves_for_real(start: Callable[..., Script]) -> None:
    """Nothing is given but ports and a run folder: it finds the checkout, and installs or finds the environment."""
    before = set(os.listdir("/dev/shm"))
    script = start(export(RECIPE, "shell"))
    script.wait_said("Ctrl-C stops it", limit_s=900)
    body = {"model": "gemma4-nano-31b", "prompt": "The capital of France is", "max_tokens": 8, "temperature": 0}
    answer = httpx.post(f"{script.url}/v1/completions", json=body, timeout=120)
    assert answer.status_code == 200
    assert answer.json()["usage"]["completion_tokens"] == 8
    curl = shutil.which("curl")
    assert curl
    shown = json.dumps({"model": "gemma4-nano-31b", "prompt": "The capital of France is", "max_tokens": 16})
    done = subprocess.run([curl, "-sf", f"{script.url}/v1/completions", "-H", "Content-Type: application/json",
                           "-d", shown], capture_output=True, text=True, timeout=120, check=True)
    assert json.loads(done.stdout)["choices"][0]["text"]
    assert "vllm:external_prefix_cache_hits_total" in httpx.get(f"{script.url}/metrics", timeout=30).text
    assert httpx.post(f"{script.url}/reset_prefix_cache").status_code == 404, "only a proof has that"
    assert script.end(signal.SIGINT) == 130
    assert shown in script.out()
    assert not script.left()
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{script.url}/health")
    assert not {name for name in set(os.listdir("/dev/shm")) - before if name.startswith("lmcache")}
    assert not (script.folder / "second-tier").exists()
