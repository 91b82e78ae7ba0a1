"""The image that a recipe's containers run in: which one, and how it comes to the daemon.

An image that brings engine and connector is pulled by digest. One that lacks something is built: from
images/NAME/Dockerfile, or, where there is none, from a Dockerfile of a few lines made here. A built image is tagged by
the digest of everything that it was built from, so a later run takes it as it is.
"""

from __future__ import annotations

import hashlib
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..connectors import connector
from ..console import Console
from ..engines import engine
from ..errors import EnvironmentBuildError, RecipeError, UsageError, nearest
from ..image_lock import Image, read_image
from ..paths import IMAGES, PROJECT
from ..recipe import Recipe
from . import docker_build, venv
from .docker_errors import explain, told_apart
from .docker_profile import Profile

if TYPE_CHECKING:
    from docker import DockerClient

_NOT_BUILT_FROM = frozenset({"lock.toml", "environment.toml", "requirements.in", "overrides.txt"})


@dataclass(frozen=True)
class Source:
    """Where an image comes from.

    Attributes:
        base: reference with digest: the image itself, or what it is built from.
        name: folder under images/ that it is built from; None when it is pulled.
        lock: what is installed in it, with hashes; None where it is pulled or gets packages by version.
        dockerfile: text; empty when it is pulled.
        context: folder that a build sees.
    """

    base: str
    name: str | None = None
    lock: venv.Lock | None = None
    dockerfile: str = ""
    context: Path = IMAGES
    arguments: tuple[tuple[str, str], ...] = ()

    @property
    def digest(self) -> str:
        """Of all that decides what a build makes."""
        parts = [self.base, self.dockerfile, *(f"{k}={v}" for k, v in self.arguments)]
        parts += [f"{path.relative_to(self.context)} {hashlib.sha256(path.read_bytes()).hexdigest()}"
                  for path in self.files()]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    @property
    def tag(self) -> str:
        """Name of the image in the daemon."""
        return f"kvproof/{self.name}:{self.digest[:16]}" if self.name else self.base

    def files(self) -> list[Path]:
        """What a build sees: the image's own folder, and what lies beside all folders for every image."""
        if self.name is None:
            return []
        own = self.context / self.name
        found = [*self.context.glob("*"), *own.rglob("*")]
        return sorted(p for p in found if p.is_file() and p.name not in _NOT_BUILT_FROM
                      and "__pycache__" not in p.parts)


def source_of(recipe: Recipe, profile: Profile, images: Path = IMAGES) -> Source:
    """The image for a recipe.

    Raises:
        RecipeError: the recipe names none, or one without a digest.
    """
    lock = venv.read_lock(recipe.environment, images) if recipe.environment is not None else None
    name = recipe.image or (lock.image if lock else None)
    if name is None:
        raise RecipeError(f"recipe {recipe.name} names no image, and neither does its environment {recipe.environment}",
                          tip=f"add image to images/{recipe.environment}/environment.toml, or use --runtime venv")
    image = read_image(name, images)
    needs, also = engine(recipe.engine.name).requirements(recipe), connector(recipe.connector.name).requirements(recipe)
    lacking = [need for need in (*(needs or ()), *also) if image.lacks(need)]
    base = pinned(name, image, profile)
    if not lacking:
        return Source(base)
    # An image without the engine gets the locked environment; one that has it gets what it lacks beside it.
    whole = lock is not None and needs is not None and set(needs) <= set(lacking)
    folder = lock.name if lock is not None and whole else name
    return _built(folder, base, image, lock if whole else None, lacking, images)


def source_named(name: str, profile: Profile, images: Path = IMAGES) -> Source:
    """The image that images/NAME builds.

    Raises:
        UsageError: there is nothing to build it from.
    """
    known = sorted(p.parent.name for p in images.glob("*/environment.toml"))
    if name not in known:
        raise UsageError(f"no image is called {name!r}; {nearest(name, known)}")
    lock = venv.read_lock(name, images)
    if lock.image is None:
        raise UsageError(f"images/{name}/environment.toml names no image to build from",
                         tip="add image = NAME, an entry of images/lock.toml")
    image = read_image(lock.image, images)
    return _built(name, pinned(lock.image, image, profile), image, lock, [], images)


def _built(name: str, base: str, image: Image, lock: venv.Lock | None, lacking: list[str], images: Path) -> Source:
    file = images / name / "Dockerfile"
    if not file.is_file():
        return Source(base, name, lock, _made(name, image, lock, lacking), images)
    own = images / name / "requirements.lock"
    return Source(base, name, venv.read_lock(name, images) if own.is_file() else lock,
                  file.read_text(encoding="utf-8"), images)


def pinned(name: str, image: Image, profile: Profile) -> str:
    """Reference with digest: the lock's, or the stand-in that the user's host has for it.

    Raises:
        RecipeError: there is no digest.
    """
    if name in profile.bases:
        return profile.bases[name]
    if image.reference is None:
        raise RecipeError(f"image {name} ({image.repository}:{image.tag}) has no digest in images/lock.toml, and "
                          "without one it could be anything", tip=image.tip)
    return image.reference


def _made(name: str, image: Image, lock: venv.Lock | None, lacking: list[str]) -> str:
    """A Dockerfile for an image that has none of its own."""
    pip = "python3 -m pip install --no-cache-dir --disable-pip-version-check"
    lines = ["ARG BASE", "FROM ${BASE}", "ARG PIP_INDEX_URL PIP_FIND_LINKS PIP_TRUSTED_HOST",
             "ARG PIP_BREAK_SYSTEM_PACKAGES=1", *(f"RUN {command}" for command in _together(image.prepare))]
    if lock is None:
        return "\n".join([*lines, f"RUN {pip} {shlex.join(lacking)}", "ENTRYPOINT []", ""])
    options, file = "--no-deps --require-hashes --only-binary :all:", "/opt/kvproof/requirements.lock"
    first = [rf'sed -n "/^{lock.first}==/,/[^\\]$/p" {file} >/tmp/first.txt',
             f"{{ {pip} {options} -r /tmp/first.txt || "
             f"{pip} {options} --index-url {shlex.quote(lock.first_index)} -r /tmp/first.txt; }}"]
    return "\n".join([*lines, f"COPY {name}/requirements.lock {file}",
                      "RUN " + " && ".join([*first, f"{pip} {options} -r {file}"]), "ENTRYPOINT []", ""])


def _together(commands: list[str]) -> list[str]:
    return [" && ".join(commands)] if commands else []


def ensure(client: DockerClient, source: Source, console: Console) -> Any:
    """The image as the daemon has it; pulled or built when it has not.

    Raises:
        CannotRunError: it cannot be had, or is not what its digest says.
    """
    import docker.errors

    with told_apart(f"image {source.tag}"):
        try:
            return client.images.get(source.tag)
        except docker.errors.ImageNotFound:
            pass
    if source.name is None:
        pull(client, source.base, console)
    else:
        build(client, source, console)
    with told_apart(f"image {source.tag}"):
        return client.images.get(source.tag)


def pull(client: DockerClient, reference: str, console: Console) -> None:
    """Pull by digest, which the daemon holds the content to."""
    doing = f"pulling {reference}"
    with console.step(doing), told_apart(doing):
        for said in client.api.pull(reference, stream=True, decode=True):
            if "error" in said:
                raise explain(doing, str(said["error"]))
            progress = f" {said['progress']}" if said.get("progress") else ""
            console.now(f"{said.get('id', '')} {said.get('status', '')}{progress}".strip())
    digest = reference.partition("@")[2]
    with told_apart(doing):
        has = client.images.get(reference).attrs.get("RepoDigests") or []
    if digest not in {name.partition("@")[2] for name in has}:
        raise EnvironmentBuildError(f"{doing}: the daemon gives the image other digests: {', '.join(has) or 'none'}",
                                    tip="remove it with docker image rm, then run again")


def build(client: DockerClient, source: Source, console: Console, *, again: bool = False) -> str:
    """Build an image, with its progress on the console and whole in a log.

    Args:
        again: use nothing of earlier builds.

    Returns:
        Its tag.
    """
    assert source.name is not None
    commit = _commit()
    labels = {
        "kvproof.image": source.name, "kvproof.base": source.base, "kvproof.inputs": source.digest,
        "kvproof.dockerfile": hashlib.sha256(source.dockerfile.encode()).hexdigest(), "kvproof.commit": commit,
        **({"kvproof.lock": source.lock.digest} if source.lock else {}),
    }
    arguments = {"BASE": source.base, "KVPROOF_COMMIT": commit, **dict(source.arguments)}
    docker_build.build(client, docker_build.Order(
        name=source.name, tag=source.tag, dockerfile=source.dockerfile, labels=labels, arguments=arguments,
        files=dict(_named(source)), lock=source.lock, again=again), console)
    return source.tag


def _commit() -> str:
    """kvproof's commit, with + where files of images/ differ from it; unknown outside a git checkout."""
    def git(*words: str) -> str:
        done = subprocess.run(["git", "-C", str(PROJECT), *words], capture_output=True, text=True, timeout=20,
                              check=True)
        return done.stdout.strip()

    try:
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "--", "images") else "")
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def _named(source: Source) -> Iterator[tuple[str, Path]]:
    for path in source.files():
        yield path.relative_to(source.context).as_posix(), path
