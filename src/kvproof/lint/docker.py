"""Reads docker run (and podman, nerdctl) command lines: the container, and the words that run in it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from . import images, units
from .model import Container, Setting, Word
from .source import Text

_CLIENTS = {"docker", "podman", "nerdctl", "docker.exe"}
_BARE = {
    "-d", "--detach", "-i", "--interactive", "-t", "--tty", "-it", "-ti", "-itd", "-dit", "-di", "-id", "-td", "-dt",
    "--rm", "--init", "--privileged", "--read-only", "-P", "--publish-all", "--no-healthcheck", "--oom-kill-disable",
    "--sig-proxy", "-q", "--quiet", "--disable-content-trust", "--replace", "--no-hosts", "--rmi", "--tls-verify",
    "--help", "--use-api-socket", "--systemd",
}
_SHORT = {"-e": "--env", "-v": "--volume", "-m": "--memory", "-p": "--publish", "-w": "--workdir", "-u": "--user",
          "-h": "--hostname", "-l": "--label", "-c": "--cpu-shares"}


@dataclass(frozen=True)
class Run:
    """Attributes:
        entrypoint: program that takes the place of the image's own; None when none is given.
        words: what follows the image.
    """

    container: Container
    settings: dict[str, Setting]
    entrypoint: Word | None
    words: Sequence[Word]
    start: int
    end: int


def find(words: Sequence[Word]) -> Run | None:
    """The container that a command line starts; None when it starts none."""
    for n, word in enumerate(words):
        if word.value.rsplit("/", 1)[-1] not in _CLIENTS:
            continue
        rest = [w.value for w in words[n + 1:n + 3]]
        if rest[:1] in (["run"], ["create"]):
            return _read(words[n], words[n + 2:])
        if rest in (["container", "run"], ["container", "create"]):
            return _read(words[n], words[n + 3:])
    return None


def _read(client: Word, words: Sequence[Word]) -> Run | None:
    container = Container("docker", client.start, gpus=False)
    settings: dict[str, Setting] = {}
    entrypoint: Word | None = None
    n = 0
    while n < len(words):
        word = words[n]
        n += 1
        if not word.value.startswith("-") or word.value == "-":
            if word.open and word.value.startswith("$") and _holds_options(word.value):
                container.partial = True  # such as $DOCKER_ARGS
                continue
            break
        name, equals, _ = word.value.partition("=")
        value: Text | None = word.text[len(name) + 1:] if equals else None
        if not equals and name not in _BARE:
            if re.fullmatch(r"-[A-Za-z].+", name) and name[:2] in _SHORT and not name.startswith("--"):
                value, name = word.text[2:], name[:2]
            elif n < len(words):
                value = words[n].text
                n += 1
        name = _SHORT.get(name, name)
        if name == "--entrypoint":
            entrypoint = Word(value, value.start(), value.end()) if value is not None else None
        elif name in ("--env", "--env-file") and value is not None:
            if name == "--env-file":
                container.settings_open = True
            else:
                _set(settings, value)
        else:
            _option(container, name, value)
    else:
        return None
    container.image = word.text
    container.image_open = word.open
    return Run(container, settings, entrypoint, words[n:], client.start, words[-1].end)


def _holds_options(value: str) -> bool:
    return re.search(r"arg|opt|flag|extra|@|\*|run", value, re.I) is not None


def _set(settings: dict[str, Setting], value: Text) -> None:
    name, equals, _ = value.value.partition("=")
    settings[name] = Setting(name, value[len(name) + 1:] if equals else None, value.start())


def _option(container: Container, name: str, value: Text | None) -> None:
    text = value.value if value is not None else ""
    if name in ("--network", "--net"):
        container.network = text
    elif name == "--network-alias" or name in ("--name", "--hostname"):
        container.names.add(text)
    elif name == "--ipc":
        container.ipc = text
    elif name == "--shm-size" and value is not None:
        container.shm_bytes, container.shm_at = units.docker(text), value.start()
        container.partial = container.partial or container.shm_bytes is None
    elif name == "--memory" and value is not None:
        container.memory_bytes, container.memory_at = units.docker(text), value.start()
    elif name == "--gpus" or (name == "--runtime" and text == "nvidia") or (
            name == "--device" and ("nvidia" in text or "kfd" in text or "dri" in text)) or name == "--privileged":
        container.gpus = True
    elif name == "--tmpfs" and text.startswith("/dev/shm") and value is not None:
        size = re.search(r"size=([\w.]+)", text)
        container.shm_bytes, container.shm_at = units.docker(size[1]) if size else None, value.start()
        container.shm_shared = size is None
    elif name in ("--volume", "--mount"):
        _mount(container, name, value)


def _mount(container: Container, name: str, value: Text | None) -> None:
    text = value.value if value is not None else ""
    if name == "--volume":
        source, _, target = text.partition(":")
        target = target.split(":")[0]
    else:
        parts = dict(p.partition("=")[::2] for p in text.split(","))
        source = parts.get("source", parts.get("src", ""))
        target = parts.get("target", parts.get("destination", parts.get("dst", "")))
        if target.rstrip("/") == "/dev/shm" and parts.get("type") == "tmpfs" and value is not None:
            container.shm_bytes, container.shm_at = units.docker(parts.get("tmpfs-size")), value.start()
            container.shm_shared = container.shm_bytes is None
            return
    if target.rstrip("/") == "/dev/shm":
        container.shm_shared = True
    if source and target:
        container.files[target.rsplit("/", 1)[-1]] = source.rsplit("/", 1)[-1]


def image_of(container: Container) -> images.Image | None:
    """The container's image; None when the paste does not name it."""
    return images.read(container.image.value) if container.image is not None and not container.image_open else None
