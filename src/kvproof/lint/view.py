"""An engine's options as what they amount to: JSON values, connectors, pool, drafting, attention backend."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property

from . import jsonish, units
from .facts import models
from .facts.lmcache_names import MP_HOST, MP_PORT
from .facts.models import Family
from .facts.native import EXTRA, INPROCESS, MP, NATIVE, SIMPLE
from .jsonish import Parsed
from .model import Flag, Launch
from .source import Text
from .tree import Entry, Map, Node, Scalar, Seq, string

JSON_FLAGS = ("kv-transfer-config", "speculative-config", "attention-config", "hf-overrides", "compilation-config",
              "kv-events-config", "l2-adapter", "limit-mm-per-prompt", "override-generation-config",
              "default-chat-template-kwargs", "additional-config", "ec-transfer-config")
_INPROCESS_BEFORE = "<0.23"
_ADDRESS = re.compile(r"(?:(?P<scheme>[a-z0-9+]+)://)?(?P<host>\[[^\]]*\]|[^:/\s]*)(?::(?P<port>\d{1,5}))?.*", re.I)


@dataclass(eq=False)
class Connector:
    """One KV connector that a launch sets.

    Attributes:
        name: its class; None when none is named.
        at: where it is named, or would be.
        root: map that names it; None when an option of its own does.
        extra: its kv_connector_extra_config; None when there is none.
        custom: whether kv_connector_module_path says where its class comes from.
        chosen: name of the option that chose it.
    """

    name: str | None
    at: int
    root: Map | None = None
    extra: Map | None = None
    custom: bool = False
    chosen: str = "kv-transfer-config"

    def setting(self, key: str) -> Scalar | None:
        found = self.extra.get(key) if self.extra is not None else None
        return found if isinstance(found, Scalar) else None


@dataclass(eq=False)
class View:
    """A launch, seen through."""

    launch: Launch
    parsed: dict[int, Parsed] = field(default_factory=dict)

    def json(self, flag: Flag | None) -> Node | None:
        """The value of an option as JSON, whatever is wrong with it."""
        if flag is None:
            return None
        if flag.node is not None:
            return flag.node
        if flag.value is None:
            return None
        if id(flag) not in self.parsed:
            self.parsed[id(flag)] = jsonish.parse(flag.value)
        return self.parsed[id(flag)].root

    def map(self, name: str) -> Map | None:
        """An option that takes JSON, with what dotted options add to it."""
        root = self.json(self.launch.flag(name))
        dotted = self.launch.dotted(name)
        if not dotted:
            return root if isinstance(root, Map) else None
        made = Map(dotted[0].start, dotted[0].start)
        if isinstance(root, Map):
            made.merged.append(root)
        for flag in dotted:
            _plant(made, flag.name.split(".")[1:], flag)
        return made

    def is_broken(self, root: Map | None) -> bool:
        """Whether a map comes from JSON that could not be read to its end, so that what is missing may be there."""
        return root is not None and any(
            p.kind == "broken" for parsed in self.parsed.values() if parsed.root in (root, *root.merged)
            for p in parsed.problems)

    @cached_property
    def connectors(self) -> list[Connector]:
        """Every KV connector, those inside of a MultiConnector too."""
        root = self.map("kv-transfer-config")
        found = [_connector(root)] if root is not None else []
        for connector in found[:1]:
            children = connector.extra.get("connectors") if connector.extra is not None else None
            if connector.name == "MultiConnector" and isinstance(children, Seq):
                found += [_connector(child) for child in children.items[:20] if isinstance(child, Map)]
        size = self.launch.flag("kv-offloading-size")
        if size is not None and self.by_size:
            replaced = Connector(self.by_size, size.start, found[0].root if found else None,
                                 found[0].extra if found else None, chosen="kv-offloading-size")
            found = [replaced]
        return found

    @cached_property
    def by_size(self) -> str | None:
        """The connector that --kv-offloading-size stands for; None when that depends on a version not known."""
        backend = self.launch.flag("kv-offloading-backend")
        name = (backend.text if backend else None) or "native"
        if name == "lmcache":
            version = self.launch.version
            before = version.holds(_INPROCESS_BEFORE) if version is not None else None
            return INPROCESS if before else MP
        if name == "native":
            simple = self.launch.setting("VLLM_USE_SIMPLE_KV_OFFLOAD")
            return SIMPLE if simple not in (None, "", "0") else NATIVE
        return None

    def uses(self, *names: str) -> Connector | None:
        return next((c for c in self.connectors if c.name in names), None)

    @property
    def offloads(self) -> bool:
        return any(c.name for c in self.connectors)

    @cached_property
    def pool(self) -> tuple[int, int] | None:
        """Bytes of the native pool, in total over all GPUs, and where they are given; None when that is not known."""
        size = self.launch.flag("kv-offloading-size")
        if size is not None and size.text is not None:
            try:
                return int(float(size.text) * units.GIB), size.at
            except (ValueError, OverflowError):
                return None
        connector = self.uses(NATIVE)
        given = connector.setting("cpu_bytes_to_use") if connector else None
        if given is None:
            return None
        number = given.value
        if isinstance(number, str) and re.fullmatch(r"\d{1,18}", number):
            number = int(number)
        return (int(number), given.start) if isinstance(number, int | float) and abs(number) < 1e18 else None

    @cached_property
    def family(self) -> Family | None:
        overrides = self.map("hf-overrides")
        architectures = overrides.get("architectures") if overrides is not None else None
        named = [string(a) for a in architectures.items] if isinstance(architectures, Seq) else []
        served = self.launch.flag("served-model-name")
        model = self.launch.model.value if self.launch.model is not None else None
        return models.family(model, *named, served.text if served else None)

    @property
    def model_name(self) -> str:
        """The family's name for sentences."""
        return self.family.name if self.family else "this model"

    @cached_property
    def size(self) -> str | None:
        served = self.launch.flag("served-model-name")
        return models.size(self.launch.model.value if self.launch.model is not None else None) or models.size(
            served.text if served else None)

    @cached_property
    def draft(self) -> Map | None:
        return self.map("speculative-config")

    @cached_property
    def method(self) -> str | None:
        spelled = self.launch.flag("spec-method")
        return string(self.draft.get("method")) if self.draft is not None else spelled.text if spelled else None

    @cached_property
    def assistant(self) -> Scalar | None:
        """The draft model, as named."""
        found = self.draft.get("model") if self.draft is not None else None
        return found if isinstance(found, Scalar) and found.value else None

    @property
    def drafts_with_mtp(self) -> bool:
        named = self.assistant.text.value if self.assistant is not None else ""
        return self.method == "mtp" or (self.method is None and "assistant" in named.lower())

    @cached_property
    def backend(self) -> str | None:
        """The attention backend that is pinned; None when none is."""
        flag = self.launch.flag("attention-backend")
        if flag is not None and flag.text:
            return flag.text.upper()
        for name, key in (("attention-config", "backend"), ("speculative-config", "attention_backend")):
            root = self.map(name)
            found = string(root.get(key)) if root is not None else None
            if found:
                return found.upper()
        return None

    @cached_property
    def on_cpu(self) -> bool:
        """Whether the engine is a build for CPUs."""
        image = self.launch.container.image if self.launch.container is not None else None
        return any(n.startswith("VLLM_CPU_") for n in self.launch.settings) or bool(
            image is not None and re.search(r"vllm[\w/-]*-cpu", image.value)) or (
            self.launch.flag("device") is not None and (self.launch.flag("device").text or "") == "cpu")


@dataclass(frozen=True)
class Address:
    """Attributes:
        host: name or number; empty when it is not known.
        port: None when it is not known.
        at: where it is given, or would be.
        scheme: empty without one.
        given: whether it is in the paste at all.
    """

    host: str
    port: int | None
    at: int
    scheme: str = ""
    given: bool = True


def address(text: Text | None, at: int, port: object = None) -> Address:
    """An address out of a setting such as tcp://localhost or lm://cache:65432."""
    found = _ADDRESS.fullmatch(text.value.strip()) if text is not None else None
    number = port if isinstance(port, int) else int(str(port)) if re.fullmatch(r"\d{1,5}", str(port)) else None
    if found is None or text is None or "$" in found["host"] or "{" in found["host"]:
        return Address("", number, at)
    inner = int(found["port"]) if found["port"] else None
    return Address(found["host"], inner if number is None else number, text.start(), (found["scheme"] or "").lower())


def cache_server(connector: Connector) -> Address | None:
    """Where LMCacheMPConnector looks for its server; None when there are several, or it starts its own."""
    if connector.setting("lmcache.mp.autostart") is not None and str(
            connector.setting("lmcache.mp.autostart").value).lower() not in ("false", "0", "no", "off"):
        return None
    if connector.extra is not None and connector.extra.get("lmcache.mp.server_urls") is not None:
        return None
    host, port = connector.setting("lmcache.mp.host"), connector.setting("lmcache.mp.port")
    if host is None:
        default = Text.plain(MP_HOST, connector.at)
        found = address(default, connector.at, MP_PORT if port is None else port.value)
        return Address(found.host, found.port, port.start if port is not None else connector.at, "tcp", given=False)
    return address(host.text, host.start, MP_PORT if port is None else port.value)


def _connector(root: Map) -> Connector:
    entry = root.entry("kv_connector")
    extra = root.get(EXTRA)
    name = string(entry.value) if entry is not None and isinstance(entry.value, Scalar) and entry.value.value else None
    at = entry.value.start if entry is not None else root.start
    return Connector(name, at, root, extra if isinstance(extra, Map) else None,
                     custom=root.entry("kv_connector_module_path") is not None)


def _plant(root: Map, path: list[str], flag: Flag) -> None:
    """Put the value of a dotted option where its name says."""
    while len(path) > 1:
        # A name of LMCache's own has dots in it, and vLLM would take it apart too.
        below = root.get(path[0])
        if not isinstance(below, Map):
            below = Map(flag.start, flag.start)
            root.entries.append(Entry(_key(path[0], flag), below))
        elif below not in [e.value for e in root.entries]:
            below = Map(flag.start, flag.start, merged=[below])
            root.entries.append(Entry(_key(path[0], flag), below))
        root, path = below, path[1:]
    value = flag.value if flag.value is not None else Text("", [], [], flag.start)
    bare = jsonish.parse(value).root if value.value[:1] not in ("", '"') else None
    number = bare.value if isinstance(bare, Scalar) and not bare.quoted and not isinstance(bare.value, str) else None
    node: Node = bare if isinstance(bare, Map | Seq) else Scalar(
        value.start(), value.end(), value.value if number is None else number, value, quoted=number is None)
    root.entries.append(Entry(_key(path[0], flag), node))


def _key(name: str, flag: Flag) -> Scalar:
    return Scalar(flag.start, flag.end, name, Text(name, [flag.start] * len(name), [flag.end] * len(name), flag.start))
