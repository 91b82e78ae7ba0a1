"""What the forms are written from: a recipe's plan, laid out for a form, and what its servers need around them."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

from .. import planning, weights
from ..connectors import connector
from ..engines import engine
from ..errors import RecipeError
from ..image_lock import Image, read_image
from ..metrics import Counter
from ..plan import Layout, Server
from ..recipe import Checkpoint, Recipe
from ..runtimes import venv
from . import quoting

HOST_FORMS = frozenset({"shell", "slurm"})
CHECKOUT = "/kvproof"
"""Where containers find the checkout."""
FOLDER = "/var/lib/kvproof"
"""The run folder in containers."""
SECOND_TIER = "second-tier"
"""Folder of a cache server's files in the run folder, as connectors name it."""
INSTALL_TIMEOUT_S = 1800
"""What a container that first installs packages may take on top of its server's own time."""
_INSTALL = ('install() { PIP_BREAK_SYSTEM_PACKAGES=1 python3 -m pip install --no-cache-dir --disable-pip-version-check '
            '"$@"; }')
_PYPI = "https://pypi.org/simple"
# Without quotes and dollars, so that they stay readable in every language; and no proxy comes between.
_HTTP_PROBE = ("import http.client as h, sys; c = h.HTTPConnection(*sys.argv[1:3], timeout=5); "
               "c.request(*sys.argv[3:]); sys.exit(c.getresponse().status >= 400)")
_TCP_PROBE = "import socket, sys; socket.create_connection(sys.argv[1:3], 5)"


@dataclass(frozen=True)
class Part:
    """One server, and what its container needs.

    Attributes:
        environment: the server's, without what only a proof needs.
        setup: lines of a shell that a container runs before the server; empty when the image has everything.
        gpus: number of GPUs, or "all"; 0 for none.
        second_tier: whether it keeps stored KV in files.
    """

    server: Server
    environment: dict[str, str]
    setup: tuple[str, ...]
    gpus: int | str
    second_tier: bool

    @property
    def name(self) -> str:
        return self.server.role.replace("_", "-")

    @property
    def is_tcp(self) -> bool:
        return self.server.url.startswith("tcp://")

    @property
    def address(self) -> list[str]:
        """Host and port."""
        return self.server.url.partition("://")[2].split(":")

    @property
    def probe(self) -> tuple[str, ...]:
        """Command that succeeds in the container once the server is ready."""
        if self.is_tcp:
            return ("python3", "-c", _TCP_PROBE, *self.address)
        return ("python3", "-c", _HTTP_PROBE, *self.address, "GET", self.server.health_path)

    @property
    def probe_text(self) -> str:
        """The same for a shell."""
        program, option, code, *rest = self.probe
        return f"{program} {option} '{code}' {' '.join(rest)}"

    @property
    def start_s(self) -> int:
        """Longest wait until a container's server is ready."""
        return self.server.ready_timeout_s + (INSTALL_TIMEOUT_S if self.setup else 0)

    @property
    def entrypoint(self) -> tuple[str, ...]:
        """What a container starts; `arguments` follow."""
        if not self.setup:
            return self.server.argv[:1]
        return ("sh", "-ec", "\n".join([*self.setup, 'exec "$@"']), "sh")

    @property
    def arguments(self) -> tuple[str, ...]:
        return self.server.argv if self.setup else self.server.argv[1:]


@dataclass(frozen=True)
class Build:
    """A checkpoint that is made before the engine starts.

    Attributes:
        folder: where the engine looks for it.
        builder: file of the checkout that makes it.
        specification: the builder's second argument.
    """

    folder: str
    builder: str
    specification: str


@dataclass(frozen=True)
class Deployment:
    """A recipe laid out for one form.

    Attributes:
        recipe: as it is started, with what its engine's version needs taken in.
        asked: as its file has it.
        image: reference with digest; None where servers run on the host.
        parts: servers in starting order.
        requirements: what pip installs where no locked environment is named; None when only an image has it.
        checkout: whether files of the checkout are needed.
        metrics_path: of the engine.
        hit_counter: its counter of tokens that came back through the connector; None when it has none.
    """

    recipe: Recipe
    asked: Recipe
    form: str
    image: str | None
    parts: tuple[Part, ...]
    requirements: tuple[str, ...] | None
    builds: tuple[Build, ...]
    checkout: bool
    metrics_path: str
    hit_counter: Counter | None

    @property
    def name(self) -> str:
        """A name that every container tool takes, cluster names included."""
        return "kvproof-" + self.recipe.name.replace(".", "-").replace("_", "-")[:40].rstrip("-")

    @property
    def engine(self) -> Part:
        return next(part for part in self.parts if part.server.role == "engine")

    @property
    def gpus(self) -> int:
        return self.recipe.hardware.gpus

    @property
    def is_hub(self) -> bool:
        """Whether a checkpoint comes from the hub, for which a token may be needed."""
        return any(not (c.folder or c.build) for c in _checkpoints(self.recipe))

    @property
    def is_installing(self) -> bool:
        return any(part.setup for part in self.parts)

    @property
    def shares_gpu_memory(self) -> bool:
        return bool(self.gpus) and len(self.parts) > 1

    @property
    def second_tier(self) -> str | None:
        """The folder of the cache server's files; None when it keeps none."""
        if not any(part.second_tier for part in self.parts):
            return None
        return f"{quoting.RUN_DIR if self.form in HOST_FORMS else FOLDER}/{SECOND_TIER}"

    @property
    def files(self) -> dict[str, str]:
        return {name: text for part in self.parts for name, text in part.server.files.items()}

    @property
    def proof_only(self) -> list[str]:
        """Environment of the plan that is left out."""
        return sorted({name for part in self.parts for name in part.server.proof_only})

    @property
    def variables(self) -> set[str]:
        """Names of the variables that the servers' texts use."""
        return quoting.variables(text for part in self.parts for text in (
            *part.server.argv, *part.environment.values(), *part.server.files.values(), part.server.url))

    @property
    def ports(self) -> list[tuple[str, int]]:
        """Variables and numbers of the ports in use."""
        return [(variable, quoting.NUMBERS[name]) for name, variable in quoting.VARIABLES.items()
                if variable in self.variables]

    @property
    def programs(self) -> list[str]:
        """What must be there to be started on the host."""
        return list(dict.fromkeys(part.server.argv[0] for part in self.parts))

    @property
    def modules(self) -> list[str]:
        """Python packages that the interpreter on the host must have."""
        return list(dict.fromkeys(part.server.argv[2].partition(".")[0] for part in self.parts
                                  if part.server.argv[1] == "-m"))

    @property
    def usage(self) -> list[str]:
        """Lines that say where it answers, how to ask it, and how to see whether KV comes back."""
        body = json.dumps({"model": self.recipe.model.served_name, "prompt": "The capital of France is",
                           "max_tokens": 16})
        url = self.engine.server.url
        page = f"curl -s {url}{self.metrics_path}"
        metrics = [f"Metrics: {page}"]
        if self.hit_counter is not None:
            wanted = [self.hit_counter.name, *(f'{k}="{v}"' for k, v in sorted(self.hit_counter.labels.items()))]
            metrics = ["Tokens that came back through the connector; they rise when what the engine's own cache has "
                       "dropped is asked again:",
                       " | ".join([f"         {page}", *(f"grep {shlex.quote(word)}" for word in wanted)])]
        return [f"Address: {url}/v1",
                f"Try:     curl {url}/v1/completions -H 'Content-Type: application/json' -d {shlex.quote(body)}",
                *metrics]

    @property
    def memory_gib(self) -> int:
        return ceil(self.recipe.hardware.memory_gib)

    @property
    def shm_gib(self) -> int:
        return max(1, ceil(self.recipe.hardware.shm_gib))

    @property
    def disk_gib(self) -> int:
        return ceil(self.recipe.hardware.disk_gib)

    def as_data(self) -> dict[str, Any]:
        """For --json: what the text is of, without the text."""
        return {"recipe": self.recipe.name, "recipe_digest": self.asked.digest(), "form": self.form, "gpus": self.gpus,
                "image": self.image}


def lay_out(recipe: Recipe, form: str, *, asked: Recipe, images: Path) -> Deployment:
    """A recipe laid out for a form.

    Args:
        recipe: what to start.
        asked: the recipe as its file has it.

    Raises:
        RecipeError: something that it names is not there, or its image has no digest.
    """
    on_host = form in HOST_FORMS
    adapter, attached = engine(recipe.engine.name), connector(recipe.connector.name)
    needs, also = adapter.requirements(recipe), attached.requirements(recipe)
    lock = venv.read_lock(recipe.environment, images) if recipe.environment is not None else None
    image, setup = (None, ()) if on_host else _container(recipe, lock, needs, also, images)
    own_python = on_host and (lock is not None or needs is not None)
    plan = planning.compose(recipe, _layout(recipe, form, own_python), runtime=form,
                            image=image.reference if image else None, proving=False)
    builds = tuple(Build(_place(c, form), f"src/kvproof/builders/{weights.builder_path(c.build.builder).name}",
                         json.dumps({"seed": c.build.seed, "config": c.build.config}))
                   for c in _checkpoints(recipe) if c.build is not None)
    making = () if on_host else tuple(
        f"HF_HUB_OFFLINE=1 {shlex.join(['python3', f'{CHECKOUT}/{b.builder}', b.folder, b.specification])}"
        for b in builds)
    return Deployment(
        recipe=plan.recipe, asked=asked, form=form, image=plan.image,
        parts=tuple(_part(server, plan.recipe, setup, making) for server in plan.servers),
        requirements=None if needs is None else (*needs, *also), builds=builds,
        checkout=any(CHECKOUT in line for line in setup) or any(c.folder or c.build for c in _checkpoints(recipe)),
        metrics_path=adapter.METRICS_PATH,
        hit_counter=adapter.COUNTERS.get("external_hit_tokens"),
    )


def _checkpoints(recipe: Recipe) -> list[Checkpoint]:
    return [recipe.model, *([recipe.speculative.assistant] if recipe.speculative else [])]


def _place(checkpoint: Checkpoint, form: str) -> str:
    """Where the engine finds a checkpoint: its repository at the hub, or a folder."""
    on_host = form in HOST_FORMS
    if checkpoint.folder is not None:
        return f"{quoting.KVPROOF_HOME if on_host else CHECKOUT}/{checkpoint.folder}"
    if checkpoint.build is not None:
        return f"{quoting.RUN_DIR if on_host else FOLDER}/models/{checkpoint.repository.replace('/', '--')}"
    return checkpoint.repository


def _layout(recipe: Recipe, form: str, own_python: bool) -> Layout:
    in_pod = form == "k8s"
    return Layout(
        # Without an interpreter of its own, programs are those of the image, or of the caller's PATH.
        python=f"{quoting.BIN}/python" if own_python else "python3",
        model=_place(recipe.model, form),
        assistant=_place(recipe.speculative.assistant, form) if recipe.speculative else None,
        folder=Path(quoting.RUN_DIR if form in HOST_FORMS else FOLDER),
        # Containers share the host's network or the pod's, so servers meet on the loopback everywhere.
        host="127.0.0.1", listen="0.0.0.0" if in_pod else quoting.HOST,
        ports=quoting.NUMBERS if in_pod else quoting.PORTS,
    )


def _container(recipe: Recipe, lock: venv.Lock | None, needs: tuple[str, ...] | None, also: tuple[str, ...],
               images: Path) -> tuple[Image, tuple[str, ...]]:
    """The image, and what its containers run before their server.

    An image without the engine gets the locked environment; one that has the engine gets what it lacks beside it, by
    pinned version.
    """
    name = recipe.image or (lock.image if lock else None)
    if name is None:
        raise RecipeError(f"recipe {recipe.name} names no image, and neither does its environment {recipe.environment}",
                          tip=f"add image to images/{recipe.environment}/environment.toml, or export to shell")
    image = read_image(name, images)
    if image.reference is None:
        raise RecipeError(f"image {name} ({image.repository}:{image.tag}) has no digest in images/lock.toml, and "
                          "without one it could be anything", tip=image.tip)
    lacking = [need for need in (*(needs or ()), *also) if image.lacks(need)]
    if lock is not None and needs is not None and set(needs) <= set(lacking):
        return image, (*image.prepare, _INSTALL, *_install_lock(lock))
    return image, (*image.prepare, *([_INSTALL, f"install {shlex.join(lacking)}"] if lacking else []))


def _install_lock(lock: venv.Lock) -> list[str]:
    """As `venv.ensure` does, so that an index that cannot be reached is asked for one package only."""
    file = f"{CHECKOUT}/images/{lock.name}/requirements.lock"
    options = "--no-deps --require-hashes --only-binary :all:"
    whole = f"install {options} -r {file}"
    if lock.first_index == _PYPI:
        return [whole]
    return [
        rf'sed -n "/^{lock.first}==/,/[^\\]$/p" {file} >/tmp/first.txt',
        f"install {options} -r /tmp/first.txt ||",
        f"    install {options} --index-url {shlex.quote(lock.first_index)} -r /tmp/first.txt",
        whole,
    ]


def _part(server: Server, recipe: Recipe, setup: tuple[str, ...], making: tuple[str, ...]) -> Part:
    is_engine, gpus = server.role == "engine", recipe.hardware.gpus
    return Part(
        server=server, environment=dict(sorted(server.environment.items())),
        setup=(*setup, *(making if is_engine else ())),
        # A cache server opens the memory of every GPU that the engine has, so it must see them all.
        gpus=gpus if is_engine or not gpus else "all",
        second_tier=not is_engine and recipe.connector.second_tier is not None,
    )
