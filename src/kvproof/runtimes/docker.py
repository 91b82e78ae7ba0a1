"""The docker runtime: servers in containers, one each, of an image that is pinned by digest.

Containers share the host's network, so a plan's addresses are the same inside and outside; the run folder and the
model lie at the same paths inside as outside, so its paths are, too. They run as the user who runs kvproof, who
therefore owns what they store. The daemon is the one that DOCKER_HOST names; it must see this host's folders.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..console import Console
from ..errors import EnvironmentBuildError
from ..evidence import ContainerFacts
from ..interrupts import deferred
from ..paths import PROJECT, cache_folder
from ..plan import Server
from ..process import remove_unmapped
from ..recipe import GIB, Recipe
from . import docker_containers as containers
from . import docker_images, docker_profile, venv
from .docker_errors import told_apart
from .protocol import Leftover, Place, Prepared

if TYPE_CHECKING:
    from docker import DockerClient

NAME = "docker"
PYTHON = "python3"
"""As the image's PATH has it."""
_TOKEN = "HF_TOKEN"
_TOKEN_FILE = ".hf-token"


def place(recipe: Recipe) -> Place:
    source = docker_images.source_of(recipe, docker_profile.read())
    return Place(PYTHON, source.lock.name if source.lock else None, source.lock.digest if source.lock else None,
                 image=source.base)


def open(recipe: Recipe, folder: Path, run_id: str) -> Containers:
    """A run's own containers; nothing is started, pulled or built yet.

    Raises:
        UsageError: the host profile is damaged.
        RecipeError: the recipe has no image with a digest.
    """
    return Containers(recipe, place(recipe), folder, run_id)


class Containers:
    """Servers as containers of one image."""

    def __init__(self, recipe: Recipe, place: Place, folder: Path, run_id: str):
        self.place = place
        self._recipe, self._folder, self._run_id = recipe, folder, run_id
        self._profile = docker_profile.read()
        self._client: DockerClient | None = None
        self._image = ""
        self._home: str | None = None
        self._started: list[containers.Running] = []
        self._segments: set[str] = set()

    def prepare(self, console: Console) -> Prepared:
        self._client = client = containers.connect()
        source = docker_images.source_of(self._recipe, self._profile)
        image = docker_images.ensure(client, source, console)
        self._image = image.id
        inside = dict(word.partition("=")[::2] for word in image.attrs["Config"].get("Env") or ())
        # A user whom the image does not know has / for a home, where nothing can be written.
        self._home = None if inside.get("HOME") or not os.getuid() else "/tmp"
        with told_apart("asking the daemon for its version"):
            daemon = client.version()
        facts = ContainerFacts(
            reference=source.tag, id=image.id, base=source.base if source.name else None,
            labels=dict(sorted((image.labels or {}).items())),
            daemon=f"{(daemon.get('Platform') or {}).get('Name') or 'Docker'} {daemon['Version']}",
            options={k: v for k, v in {**self._isolation(0), **self._profile.options()}.items() if v is not None},
        )
        return Prepared(self._versions(), self._run_step, facts)

    def _versions(self) -> dict[str, str]:
        said: list[str] = []
        code = self._once([PYTHON, "-c", venv.VERSIONS], {}, {}, said.append)
        with contextlib.suppress(ValueError, IndexError):
            if code == 0:
                return json.loads(said[-1])
        raise EnvironmentBuildError(f"image {self.place.image}: {PYTHON} does not run in it (exit code {code})",
                                    tip="./inv build NAME --again builds it anew", log_tail=said[-6:])

    def _run_step(self, argv: list[str], environment: Mapping[str, str], log: Path,
                  on_line: Callable[[str], None]) -> int:
        """As `process.run_step`, in a container: for a checkpoint that is made in the cache folder."""
        own = {name: value for name, value in environment.items() if os.environ.get(name) != value}
        mounts = {str(cache_folder() / "models"): "rw", str(Path(__file__).parents[1] / "builders"): "ro"}
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("a", encoding="utf-8") as output:
            def told(line: str) -> None:
                output.write(f"{line}\n")
                on_line(line)

            return self._once(argv, own, mounts, told)

    def _once(self, argv: list[str], environment: Mapping[str, str], mounts: Mapping[str, str],
              on_line: Callable[[str], None]) -> int:
        assert self._client is not None
        options = self._options("step", argv, environment, mounts, 0) | {"network_mode": "none", "name": None}
        return containers.run_once(self._client, options, on_line)

    def start(self, server: Server) -> containers.Running:
        assert self._client is not None
        gpus = self._recipe.hardware.gpus
        # A cache server opens the memory of every GPU that the engine has, so it must see them all.
        wanted = 0 if not gpus else -1 if server.role == "cache_server" else gpus
        environment = {"KVPROOF_RUN_ID": self._run_id, **server.environment}
        options = self._options(server.role, server.argv, environment | self._hub(server), self._mounts(server), wanted)
        with deferred():
            running = containers.Running(self._client, server.role, options, self._folder / server.log)
            self._started.append(running)
        return running

    def _options(self, role: str, argv: list[str] | tuple[str, ...], environment: Mapping[str, str],
                 mounts: Mapping[str, str], gpus: int) -> dict[str, Any]:
        """What the SDK makes a container from."""
        import docker.types

        handed_on = {name: os.environ[name] for name in self._profile.environment if name in os.environ}
        home = {"HOME": self._home, "USER": "kvproof"} if self._home else {}
        return {
            "image": self._image, "name": f"kvproof-{self._run_id}-{role.replace('_', '-')}",
            "entrypoint": [argv[0]], "command": list(argv[1:]), "environment": {**home, **handed_on, **environment},
            "labels": {containers.RUN: self._run_id, containers.RECIPE: self._recipe.name, containers.ROLE: role,
                       containers.OWNER: containers.owner()},
            "mounts": [docker.types.Mount(target=path, source=path, type="bind", read_only=mode == "ro")
                       for path, mode in mounts.items()],
            "device_requests": [docker.types.DeviceRequest(count=gpus, capabilities=[["gpu"]])] if gpus else None,
            "ulimits": [docker.types.Ulimit(name=name, soft=limit, hard=limit)
                        for name, limit in self._profile.ulimits.items()],
            "cap_add": self._profile.capabilities or None,
            "mem_limit": int(self._profile.memory_gib * GIB) if self._profile.memory_gib else None,
            "log_config": docker.types.LogConfig(type="json-file"),
            # Readiness is what the plan's own addresses answer.
            "healthcheck": {"test": ["NONE"]}, "working_dir": "/", "init": True, "detach": True,
            **self._isolation(gpus),
        }

    def _isolation(self, gpus: int) -> dict[str, Any]:
        first = next((running for running in self._started if not running.removed), None)
        # The cache server hands its memory to the engines: over the host's where GPUs do, else over its own.
        ipc = "host" if gpus or self._recipe.hardware.gpus else f"container:{first.name}" if first else "shareable"
        return {
            "network_mode": "host", "ipc_mode": ipc,
            "shm_size": max(1, int(self._recipe.hardware.shm_gib)) * GIB if ipc == "shareable" else None,
            "security_opt": ["no-new-privileges"], "user": f"{os.getuid()}:0", "group_add": [os.getgid()],
        }

    def _mounts(self, server: Server) -> dict[str, str]:
        """Folders of this host, at the same path in the container."""
        mounts = {str(self._folder): "rw"}
        if server.role == "cache_server":
            return mounts
        drafts = [self._recipe.speculative.assistant] if self._recipe.speculative else []
        for checkpoint in (self._recipe.model, *drafts):
            if checkpoint.folder is not None:
                mounts[str(PROJECT / checkpoint.folder)] = "ro"
            elif checkpoint.build is not None:
                mounts[str(cache_folder() / "models")] = "ro"
            else:
                _hub_folder().mkdir(parents=True, exist_ok=True)
                mounts[str(_hub_folder())] = "rw"
        return mounts

    def _hub(self, server: Server) -> dict[str, str]:
        """What the engine needs to fetch from the hub. The token is named by a file, as everybody who may use the
        daemon can read the environment of its containers."""
        if str(_hub_folder()) not in self._mounts(server):
            return {}
        found = {"HF_HOME": str(_hub_folder())}
        if os.environ.get(_TOKEN):
            file = self._folder / _TOKEN_FILE
            file.touch(mode=0o600)
            file.write_text(os.environ[_TOKEN])
            found["HF_TOKEN_PATH"] = str(file)
        return found

    def observe(self) -> None:
        if self._recipe.hardware.gpus:  # memory of a container of its own goes with it
            for running in self._started:
                self._segments |= running.segments()

    def stop(self, running: containers.Running) -> None:
        self.observe()
        running.stop()
        if running in self._started:
            self._started.remove(running)

    def stop_all(self, say: Callable[[str], None]) -> None:
        self.observe()
        (self._folder / _TOKEN_FILE).unlink(missing_ok=True)
        if self._started:
            say("stopping " + ", ".join(running.role.replace("_", " ") for running in self._started))
            with ThreadPoolExecutor(len(self._started)) as pool:
                list(pool.map(containers.Running.stop, self._started))
        for running in self._started:
            if not running.removed:
                say(f"{running.identity} could not be removed: docker rm -f {running.name}")
        self._started.clear()
        remove_unmapped(self._segments)
        if self._client is not None:
            self._client.close()


def _hub_folder() -> Path:
    return Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface").expanduser().resolve()


def sweep(runs: Path, say: Callable[[str], None]) -> None:
    """Remove the containers of runs whose kvproof is gone.

    Raises:
        HostError: there is no daemon.
    """
    for leftover in leftovers(runs):
        if leftover.remove is not None:
            say(f"cleaning up after a run that was killed: {leftover.what}")
            leftover.remove()


def leftovers(runs: Path) -> list[Leftover]:
    """Containers of runs, found by label.

    Raises:
        HostError: there is no daemon.
    """
    client, found = containers.connect(), []
    for container, alive in containers.found(client):
        run = container.labels[containers.RUN]
        what = f"container {container.name} ({container.status}) of {container.labels.get(containers.RECIPE)}"
        if alive is False:
            folder = runs / f"{container.labels.get(containers.RECIPE)}-{run}"
            found.append(Leftover(what, partial(_remove, container, folder)))
        elif alive is None:
            found.append(Leftover(f"{what}: of another host or container, whose kvproof cannot be seen from here; "
                                  f"docker rm -f {container.name}", None))
        else:
            found.append(Leftover(f"{what}: its run goes on", None))
    return found


def _remove(container: Any, folder: Path) -> None:
    import docker.errors

    with contextlib.suppress(docker.errors.NotFound), told_apart(f"removing container {container.name}"):
        container.remove(force=True, v=True)
    (folder / _TOKEN_FILE).unlink(missing_ok=True)
    shutil.rmtree(folder / "second-tier", ignore_errors=True)
