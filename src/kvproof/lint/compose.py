"""Reads compose files: each service is a container with an engine or a cache server in it, or neither."""

from __future__ import annotations

import re
from collections.abc import Sequence

from . import shell, units
from .commands import Reader
from .model import Container, Setting, Word
from .source import Text
from .tree import Entry, Map, Node, Scalar, Seq, dig, string

_DEFAULT = re.compile(r"\$\{[A-Za-z_]\w*:?[-=]([^{}$]*)\}|\$(?P<dollar>\$)")
_VARIABLE = re.compile(r"\$\{|\$\(|\{\{|(?<!\$)\$[A-Za-z_]")
_SERVICE_ONLY = {"shm_size", "network_mode", "container_name", "depends_on", "ipc", "restart", "healthcheck", "deploy",
                 "entrypoint", "mem_limit", "env_file"}


def is_compose(root: Map) -> bool:
    services = root.get("services")
    return isinstance(services, Map) and any(
        isinstance(e.value, Map) and e.value.entry("image", "command", "entrypoint", "build", "extends", "environment")
        for e in services.all())


def fragment(root: Map) -> Map | None:
    """The services of a part of a compose file, which may be one service's own lines; None when it is no such part."""
    if _is_service(root):
        at, name = root.start, "service"
        key = Scalar(at, at, name, Text(name, [at] * len(name), [at] * len(name), at))
        return Map(root.start, root.end, [Entry(key, root)])
    parts = [e.value for e in root.all() if isinstance(e.value, Map)]
    return root if parts and any(_is_service(part) for part in parts) else None


def _is_service(node: Map) -> bool:
    named = {e.name for e in node.all()}
    return "image" in named and bool(named & _SERVICE_ONLY) and not named & {"args", "extraArgs"}


def read(root: Map, reader: Reader) -> None:
    """Add what the services start."""
    services = root.get("services")
    if not isinstance(services, Map):
        services = fragment(root)
    assert services is not None
    configs = root.get("configs")
    for entry in configs.all() if isinstance(configs, Map) else ():
        content = dig(entry.value, "content")
        if isinstance(content, Scalar):
            reader.files.append((entry.name, with_defaults(content.text)))
    shareable = {e.name: object() for e in services.all()}
    for entry in services.all():
        if isinstance(entry.value, Map):
            _service(entry.name, entry.value, entry.key.start, reader, shareable)


def _service(name: str, service: Map, start: int, reader: Reader, pods: dict[str, object]) -> None:
    container = Container("compose", start, gpus=False, names={name}, partial=service.entry("extends") is not None)
    image = service.get("image")
    if isinstance(image, Scalar):
        container.image = image.text
        container.image_open = "$" in image.text.value
        reader.paste.images.append(container)
    _names(container, service)
    _resources(container, service)
    container.network = string(service.get("network_mode")) or _network(service.get("networks"))
    container.ipc = string(service.get("ipc")) or ""
    container.pod = pods.get(container.network.removeprefix("service:")) if container.network.startswith(
        "service:") else pods.get(name)
    container.settings_open = service.entry("env_file") is not None
    for part in items(service.get("configs")):
        source, target = string(dig(part, "source")), string(dig(part, "target"))
        if source and target:
            container.files[target.rsplit("/", 1)[-1]] = source
    settings = environment(service.get("environment"))
    words, script = command(service.get("command"), reader)
    entry = service.get("entrypoint")
    if entry is not None:
        head, more = command(entry, reader)
        words, script = [*head, *words], script or more
    if not words:
        return
    _open_variables(container, words)
    first = words[0] if entry is not None else None
    reader.container(container, settings, first, words[1:] if first is not None else words, is_shell=script)


def _names(container: Container, service: Map) -> None:
    for key in ("container_name", "hostname"):
        found = string(service.get(key))
        if found:
            container.names.add(found)
    networks = service.get("networks")
    for entry in networks.all() if isinstance(networks, Map) else ():
        container.names |= {string(a) or "" for a in items(dig(entry.value, "aliases"))}


def _network(networks: Node | None) -> str:
    if isinstance(networks, Map):
        return ",".join(sorted(e.name for e in networks.all()))
    return ",".join(sorted(string(n) or "" for n in items(networks)))


def _resources(container: Container, service: Map) -> None:
    size = service.get("shm_size")
    if isinstance(size, Scalar):
        container.shm_bytes, container.shm_at = units.docker(size.text.value), size.start
        container.partial = container.partial or container.shm_bytes is None
    limit = service.get("mem_limit") or dig(service, "deploy", "resources", "limits", "memory")
    if isinstance(limit, Scalar):
        container.memory_bytes, container.memory_at = units.docker(limit.text.value), limit.start
    devices = dig(service, "deploy", "resources", "reservations", "devices")
    named = " ".join(string(d) or "" for d in items(service.get("devices")))
    container.gpus = bool(items(devices)) or service.entry("gpus") is not None or "nvidia" in named or (
        "dri" in named) or string(service.get("runtime")) == "nvidia" or string(service.get("privileged")) == "true"
    for volume in (*items(service.get("volumes")), *items(service.get("tmpfs")), service.get("tmpfs")):
        _mount(container, volume)


def _mount(container: Container, volume: Node | None) -> None:
    if isinstance(volume, Map):
        target = string(volume.get("target")) or ""
        source = string(volume.get("source")) or ""
        if target.rstrip("/") == "/dev/shm":
            size = dig(volume, "tmpfs", "size")
            container.shm_bytes = units.docker(string(size))
            container.shm_at = size.start if size is not None else volume.start
            container.shm_shared = container.shm_bytes is None
    else:
        source, _, rest = (string(volume) or "").partition(":")
        target = rest.split(":")[0]
        if source.rstrip("/") == "/dev/shm" and rest.startswith("size=") and volume is not None:
            container.shm_bytes, container.shm_at = units.docker(rest[5:].split(",")[0]), volume.start
            return
        container.shm_shared = container.shm_shared or target.rstrip("/") == "/dev/shm"
    if source and target:
        container.files[target.rsplit("/", 1)[-1]] = source.rsplit("/", 1)[-1]


def items(node: Node | None) -> Sequence[Node]:
    return node.items if isinstance(node, Seq) else ()


def environment(node: Node | None) -> dict[str, Setting]:
    """Variables of a map, of a list of NAME=VALUE, or of Kubernetes' list of names and values."""
    found: dict[str, Setting] = {}
    if isinstance(node, Map):
        for entry in node.all():
            value = entry.value.text if isinstance(entry.value, Scalar) and entry.value.value is not None else None
            found[entry.name] = Setting(entry.name, value, entry.key.start)
    for item in items(node):
        if isinstance(item, Map):
            name, value = string(item.get("name")), item.get("value")
            if name:
                found[name] = Setting(name, value.text if isinstance(value, Scalar) else None, item.start)
        elif isinstance(item, Scalar):
            name, equals, _ = item.text.value.partition("=")
            found[name] = Setting(name, item.text[len(name) + 1:] if equals else None, item.start)
    return found


def command(node: Node | None, reader: Reader) -> tuple[list[Word], bool]:
    """The words of a command given as list or as one string, and whether it is one that a shell-like reader splits."""
    if isinstance(node, Scalar) and node.value is not None:
        variables: dict[str, Text] = {}
        statements = shell.split(node.text, argv=True, variables=variables, slips=reader.paste.slips)
        return [word for statement in statements for word in statement.words], False
    return [word(item, reader) for item in items(node) if isinstance(item, Scalar | Map)], False


def word(node: Node, reader: Reader) -> Word:
    """An item of a list of arguments; what YAML did not take for a string is kept as it is written."""
    if isinstance(node, Scalar):
        text, slip = shell.straight_dashes(node.text)
        if slip is not None:
            reader.paste.slips.append(slip)
        made = Word(text, node.start, node.end, node.style if node.style in ("'", '"') else "")
        made.open = bool(_VARIABLE.search(text.value))
        return made
    return Word(Text("", [], [], node.start), node.start, node.end, node=node)


def _open_variables(container: Container, words: list[Word]) -> None:
    """Variables with a default stand for it, as compose would take them with nothing set."""
    for n, item in enumerate(words):
        if "$" in item.value:
            text = with_defaults(item.text)
            words[n] = Word(text, item.start, item.end, item.quote, bool(_VARIABLE.search(text.value)), item.stripped)


def with_defaults(text: Text) -> Text:
    """A text of a compose file with ${NAME:-default} as its default; a default keeps the place where it is written."""
    value, starts, ends, last = "", [], [], 0
    for found in _DEFAULT.finditer(text.value):
        kept = found.span("dollar" if found["dollar"] else 1)
        for part in (text[last:found.start()], text[kept[0]:kept[1]]):
            value += part.value
            starts += part.starts
            ends += part.ends
        last = found.end()
    if not last:
        return text
    rest = text[last:]
    return Text(value + rest.value, [*starts, *rest.starts], [*ends, *rest.ends], text.at)
