"""Reads Kubernetes manifests, and Helm values, whose shape every chart chooses for itself."""

from __future__ import annotations

from collections.abc import Iterator

from . import compose, units
from .commands import Reader
from .compose import items
from .model import Container, Word
from .source import Text
from .tree import Map, Node, Scalar, Seq, dig, string, walk

_PLAIN = {"Pod", "Deployment", "StatefulSet", "DaemonSet", "Job", "CronJob", "ReplicaSet", "ReplicationController"}
"""Kinds whose containers get nothing added that the manifest does not say; other controllers may add what they like."""
_COMMANDS = ("command", "args", "extraArgs", "extraArguments", "extraEngineArgs", "extraCmdArgs", "vllmArgs",
             "additionalArgs", "engineArgs", "extra_args")
_IMAGES = ("image", "repository")
_MODELS = ("modelURL", "model", "modelName", "modelId", "model_id")


def is_manifest(root: Map) -> bool:
    """Whether it is one, or a part of one that has containers."""
    whole = root.entry("apiVersion") is not None and root.entry("kind") is not None
    return whole or any(isinstance(dig(root, *path, "containers"), Seq)
                        for path in ((), ("spec",), ("template", "spec"), ("spec", "template", "spec")))


def read(root: Map, reader: Reader) -> None:
    """Add what the containers of a manifest start, and the files of its ConfigMaps."""
    if string(root.get("kind")) == "List":
        for item in items(root.get("items")):
            if isinstance(item, Map):
                read(item, reader)
        return
    if string(root.get("kind")) == "ConfigMap":
        data = root.get("data")
        for entry in data.all() if isinstance(data, Map) else ():
            if isinstance(entry.value, Scalar):
                reader.files.append((entry.name, entry.value.text))
        return
    partial = string(root.get("kind")) not in _PLAIN
    found = False
    for node in walk(root):
        if isinstance(node, Map) and isinstance(node.get("containers"), Seq):
            found = True
            _pod(node, reader, partial, string(dig(root, "metadata", "name")) or "")
    if not found and partial:
        values(root, reader, runtime="kubernetes")


def _pod(spec: Map, reader: Reader, partial: bool, name: str) -> None:
    pod = object()
    for key in ("initContainers", "containers"):
        for item in items(spec.get(key)):
            if isinstance(item, Map):
                _container(item, spec, pod, reader, partial, name)


def _container(item: Map, spec: Map, pod: object, reader: Reader, partial: bool, name: str) -> None:
    container = Container("kubernetes", item.start, pod=pod, partial=partial, names={name} if name else set())
    image = item.get("image")
    if isinstance(image, Scalar):
        container.image, container.image_open = image.text, "$" in image.text.value or "{{" in image.text.value
        reader.paste.images.append(container)
    container.network = "host" if string(spec.get("hostNetwork")) == "true" else ""
    container.ipc = "host" if string(spec.get("hostIPC")) == "true" else ""
    container.settings_open = item.entry("envFrom") is not None
    _resources(container, item)
    _volumes(container, item, spec)
    settings = compose.environment(item.get("env"))
    if "NVIDIA_VISIBLE_DEVICES" in settings:
        container.gpus = True
    _start(item, container, settings, reader)


def _start(item: Map, container: Container, settings: dict, reader: Reader) -> None:
    words, script = compose.command(item.get("args"), reader)
    entry = item.get("command")
    if entry is not None:
        head, _ = compose.command(entry, reader)
        words = [*head, *words]
    for name in _COMMANDS[2:]:
        more, _ = compose.command(item.get(name), reader)
        words += more
    if not words:
        return
    first = words[0] if entry is not None else None
    reader.container(container, settings, first, words[1:] if first is not None else words, is_shell=script)


def _resources(container: Container, item: Map) -> None:
    limit = dig(item, "resources", "limits", "memory")
    if isinstance(limit, Scalar):
        container.memory_bytes, container.memory_at = units.kubernetes(limit.text.value), limit.start
    named = [e.name for part in ("limits", "requests") if isinstance(m := dig(item, "resources", part), Map)
             for e in m.all()]
    claims = dig(item, "resources", "claims")
    container.gpus = claims is not None or any("gpu" in n or "mig-" in n for n in named)


def _volumes(container: Container, item: Map, spec: Map) -> None:
    volumes = {string(v.get("name")): v for v in items(spec.get("volumes")) if isinstance(v, Map)}
    for mount in items(item.get("volumeMounts")):
        if not isinstance(mount, Map):
            continue
        path = (string(mount.get("mountPath")) or "").rstrip("/")
        volume = volumes.get(string(mount.get("name")))
        if path == "/dev/shm":
            empty = dig(volume, "emptyDir")
            if empty is None:
                container.shm_shared = True
            else:
                _memory(container, empty, mount)
        elif dig(volume, "configMap") is not None:
            container.files[path.rsplit("/", 1)[-1]] = (string(mount.get("subPath")) or path).rsplit("/", 1)[-1]


def _memory(container: Container, empty: Node, mount: Map) -> None:
    """A memory volume at /dev/shm: without a limit of its own it takes half of the node's memory or the pod's limit."""
    limit = dig(empty, "sizeLimit")
    if isinstance(limit, Scalar):
        container.shm_bytes, container.shm_at = units.kubernetes(limit.text.value), limit.start
        container.partial = container.partial or container.shm_bytes is None
    else:
        container.shm_shared = True


def values(root: Node, reader: Reader, runtime: str = "helm") -> None:
    """Add what the containers of a chart's values, or of a resource of some operator, seem to start."""
    for node, parents in _container_like(root):
        container = Container(runtime, node.start, partial=True)
        settings: dict = {}
        for part in (*parents, node):
            _take(container, part)
            for name in ("env", "extraEnv", "extraEnvVars", "envVars", "environment"):
                settings |= compose.environment(part.get(name))
        if container.image is not None:
            reader.paste.images.append(container)
        before = len(reader.paste.launches)
        _start(node, container, settings, reader)
        if len(reader.paste.launches) == before and _has_flags(node):
            reader.argv(_words(node, reader), container=container, settings=settings, default="vllm")
        for launch in reader.paste.launches[before:]:
            model = next((m for part in (node, *reversed(parents)) for name in _MODELS
                          if isinstance(m := part.get(name), Scalar)), None)
            if launch.model is None and isinstance(model, Scalar):
                launch.model = model.text
            launch.open = True


def _has_flags(node: Map) -> bool:
    return any((string(i) or "").startswith("--") for name in _COMMANDS for i in items(node.get(name)))


def _words(node: Map, reader: Reader) -> list[Word]:
    return [w for name in _COMMANDS for w in compose.command(node.get(name), reader)[0]]


def _take(container: Container, part: Map) -> None:
    image = part.get("image")
    if isinstance(image, Map):
        part_of, tag, digest = image.get("repository"), image.get("tag"), image.get("digest")
    else:
        part_of, tag, digest = part.get("repository"), part.get("tag"), None
    if isinstance(image, Scalar) and image.value is not None:
        container.image, container.image_open = image.text, "{{" in image.text.value or "$" in image.text.value
    elif isinstance(part_of, Scalar) and part_of.value is not None:
        value = part_of.text.value
        for joint, more in ((":", tag), ("@", digest)):
            if isinstance(more, Scalar) and more.value not in (None, ""):
                value += joint + more.text.value
        container.image = Text(value, [part_of.start] * len(value), [part_of.end] * len(value), part_of.start)
    size = part.get("shmSize") or dig(part, "shm", "sizeLimit") or dig(part, "shm", "size")
    if isinstance(size, Scalar):
        container.shm_bytes, container.shm_at = units.kubernetes(size.text.value), size.start
    if string(part.get("hostIPC")) == "true":
        container.ipc = "host"
    if string(part.get("hostNetwork")) == "true":
        container.network = "host"


def _container_like(root: Node) -> Iterator[tuple[Map, tuple[Map, ...]]]:
    """Maps that hold a command line, with the maps around them, outermost first."""
    todo: list[tuple[Node, tuple[Map, ...]]] = [(root, ())]
    seen: set[int] = set()
    while todo:
        node, parents = todo.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, Map):
            if any(node.entry(name) is not None for name in _COMMANDS):
                yield node, parents
            around = (*parents[-8:], node)
            todo += [(e.value, around) for e in reversed(list(node.all()))]
        elif isinstance(node, Seq):
            todo += [(item, parents) for item in reversed(node.items)]
