"""Where it runs: shared memory, IPC, GPUs, memory limits, and whether the cache server can be reached."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from .. import mend, units
from ..facts.native import MP, NATIVE
from ..facts.places import DEFAULT_SHM_BYTES
from ..model import Container, Document, Launch
from ..tree import Scalar
from ..view import Address, View, address, cache_server
from . import Judge, near

_LOCAL = ("localhost", "127.0.0.1", "[::1]", "::1")
_ANY = ("0.0.0.0", "[::]", "::", "*")
_SHM_FIX = {
    "docker": "--ipc=host, or --shm-size {size}g",
    "compose": "ipc: host, or shm_size: {size}gb",
    "kubernetes": "hostIPC: true, or an emptyDir with medium: Memory and sizeLimit: {size}Gi mounted at /dev/shm",
    "helm": "shmSize, or an emptyDir with medium: Memory and sizeLimit: {size}Gi mounted at /dev/shm",
}
_IPC_FIX = {"docker": "--ipc=host for both containers", "compose": "ipc: host for both services",
            "kubernetes": "hostIPC: true for both pods, or both containers in one pod", "helm": "hostIPC: true"}
_GPU_FIX = {"docker": "--gpus all", "compose": "gpus: all, or the engine's deploy.resources",
            "kubernetes": "NVIDIA_VISIBLE_DEVICES=all, or the GPUs as a resource", "helm": "the engine's GPUs"}


def shared_memory(judge: Judge) -> None:
    for view in judge.engines:
        container, pool = view.launch.container, view.pool
        native = view.uses(NATIVE)
        if container is None or pool is None or native is None or view.on_cpu or pool[0] < DEFAULT_SHM_BYTES:
            continue
        tiering = native.setting("spec_name")
        fact = "shm-tiering" if tiering is not None and tiering.value == "TieringOffloadingSpec" else "shm-too-small"
        needed = units.shown(pool[0])
        fix = _SHM_FIX[container.runtime].format(size=-(-pool[0] // units.GIB))
        if _is_shared(container) or container.shm_shared:
            continue
        if container.shm_bytes is None:
            at = native.at if container.runtime != "compose" else pool[1]
            judge.tell("shm-missing", at, view.launch, needed=needed, fix=fix)
        elif container.shm_bytes < pool[0]:
            judge.tell(fact, container.shm_at if container.shm_at is not None else pool[1], view.launch,
                       seen=units.shown(container.shm_bytes), needed=needed, fix=fix)


def _is_shared(container: Container) -> bool:
    return container.ipc == "host" or container.ipc.startswith(("container:", "service:"))


def memory(judge: Judge) -> None:
    """Limits below what is kept in memory alone."""
    for launch in judge.paste.launches:
        container = launch.container
        if container is None or container.memory_bytes is None or container.memory_at is None:
            continue
        what, needed = "the pool of native offloading", 0
        if launch.program == "vllm":
            pool = judge.view(launch).pool
            needed = pool[0] if pool is not None and judge.view(launch).uses(NATIVE) else 0
        elif launch.program == "lmcache-server":
            what, needed = "--l1-size-gb", (launch.number("l1-size-gb") or 0) * 10**9
        if needed > container.memory_bytes:
            judge.tell("memory-limit", container.memory_at, launch, seen=units.shown(container.memory_bytes), what=what,
                       needed=units.shown(needed))


# --- the cache server beside the engine -----------------------------------------------------------


def _with_mp(judge: Judge) -> Iterator[View]:
    return (view for view in judge.engines if view.uses(MP) is not None)


def ipc(judge: Judge) -> None:
    """LMCache's server maps the engine's memory, so the two must be in one IPC namespace."""
    servers = judge.paste.servers()
    for view in chain(_with_mp(judge), _others_with_server(judge)):
        container = view.launch.container
        if container is None or _copies(judge, view):
            continue
        beside = [s for s in servers if _together(container, s.container)]
        if beside or _owns_server(judge, view):
            continue
        fix = _IPC_FIX[container.runtime]
        connector = view.uses(MP)
        if not _is_shared(container) and container.ipc != "shareable":
            judge.tell("ipc-not-shared", connector.at if connector else view.launch.start, view.launch, fix=fix,
                       who="the engine's container")
        for server in servers:
            place = server.container
            if place is not None and not _is_shared(place) and place.ipc != "shareable":
                judge.tell("ipc-not-shared", server.start, server, fix=fix, who="the cache server's container")


def _others_with_server(judge: Judge) -> Iterator[View]:
    """Engines other than vLLM that are started beside a cache server."""
    return (view for view in judge.engines if view.launch.program == "sglang" and view.launch.flag("enable-lmcache")
            and judge.paste.servers())


def _copies(judge: Judge, view: View) -> bool:
    """Whether KV is copied between the two instead of mapped."""
    connector = view.uses(MP)
    isolated = connector.setting("lmcache.mp.isolated_ipc") if connector else None
    mode = connector.setting("lmcache.mp.mp_transfer_mode") if connector else None
    named = [str(mode.value) if mode else "", view.launch.setting("LMCACHE_MP_TRANSFER_MODE") or ""]
    return "engine_driven" in named or (isolated is not None and isolated.value not in (False, "false")) or any(
        s.flag("isolated-ipc") for s in judge.paste.servers())


def _together(one: Container | None, other: Container | None) -> bool:
    return one is other or (one is not None and other is not None and one.pod is not None and one.pod is other.pod)


def _owns_server(judge: Judge, view: View) -> bool:
    connector = view.uses(MP)
    auto = connector.setting("lmcache.mp.autostart") if connector else None
    return auto is not None and auto.value not in (False, "false", "0", 0)


def gpus(judge: Judge) -> None:
    engines = [v for v in _with_mp(judge) if v.launch.container is not None and v.launch.container.gpus]
    if not engines:
        return
    for server in judge.paste.servers():
        if server.container is not None and server.container.gpus is False and not any(
                _copies(judge, v) or server.container is v.launch.container for v in engines):
            judge.tell("server-without-gpus", server.start, server, fix=_GPU_FIX[server.container.runtime])


def reach(judge: Judge) -> None:
    """Whether the engine finds its cache server where it looks."""
    for view in judge.engines:
        for found, key in _addresses(judge, view):
            _reach(judge, view, found, key)


def _addresses(judge: Judge, view: View) -> Iterator[tuple[Address, str]]:
    connector = view.uses(MP)
    if connector is not None:
        found = cache_server(connector)
        if found is not None:
            yield found, "lmcache.mp.host"
    for document in documents_of(judge, view.launch):
        host, port = document.root.get("mp_host"), document.root.get("mp_port")
        if isinstance(host, Scalar) and host.value:
            found = address(host.text, host.start, port.value if isinstance(port, Scalar) else 5555)
            yield Address(found.host, found.port, found.at, found.scheme or "tcp"), "mp_host"
        connection = document.root.get("kv_connector_config")
        url = connection.get("server_url") if connection is not None and hasattr(connection, "get") else None
        if isinstance(url, Scalar) and url.value:
            yield address(url.text, url.start), "server_url"


def documents_of(judge: Judge, launch: Launch) -> list[Document]:
    """Configuration files that a launch is started with, as far as they are in the paste."""
    flag = launch.flag("lmcache-config-file", "extra-llm-api-options", "config")
    name = (flag.text or "").rsplit("/", 1)[-1] if flag is not None else ""
    if not name:
        return []
    source = launch.container.files.get(name, name) if launch.container is not None else name
    return [d for d in judge.paste.documents if d.name and d.name in (name, source)]


def _reach(judge: Judge, view: View, found: Address, key: str) -> None:
    launch, servers = view.launch, judge.paste.servers()
    container = launch.container
    if not found.host:
        return
    if key == "lmcache.mp.host" and found.given and not found.scheme:
        connector = view.uses(MP)
        host = connector.setting(key) if connector else None
        if host is not None:
            judge.tell("server-scheme", found.at, launch, key=key, seen=found.host,
                       edits=mend.replace(judge.source, host.text, f"tcp://{host.text.value}"))
    local = found.host in _LOCAL
    here = [s for s in servers if _shares_network(container, s.container)]
    if local and container is not None and not here and _is_own(container):
        if container.runtime != "helm":
            _own_localhost(judge, view, found)
        return
    reached = here if local else [s for s in servers if s.container is not None and found.host in s.container.names]
    if reached:
        _port(judge, view, found, reached)
        if not local:
            _listens(judge, view, reached)
    elif not local and container is not None and container.runtime == "compose" and servers and "." not in found.host:
        names = {n for s in servers if s.container is not None for n in s.container.names}
        right = near.match(found.host, names)
        if right is not None:
            judge.tell("server-name", found.at, launch, seen=found.host, right=f"tcp://{right}",
                       near=near.sentence(found.host, right, names))


def _is_own(container: Container) -> bool:
    """Whether it has a localhost that no other container has."""
    return container.network != "host" and not container.network.startswith(("container:", "service:"))


def _own_localhost(judge: Judge, view: View, found: Address) -> None:
    container = view.launch.container
    assert container is not None
    servers = [s for s in judge.paste.servers() if s.container is not None]
    name = next((n for s in servers for n in sorted(s.container.names) if s.container), None)
    host = {"docker": "--network host", "compose": "network_mode: host"}.get(container.runtime, "hostNetwork: true")
    fix = f"{host} for both" if name is None else f'{host} for both, or the server\'s name: "tcp://{name}"'
    judge.tell("server-on-own-localhost", found.at, view.launch, what="the cache server", seen=found.host, fix=fix)


def _shares_network(one: Container | None, other: Container | None) -> bool:
    if one is other:
        return True
    if one is None or other is None:
        place = one or other
        return place is not None and place.network == "host"
    if one.network == "host" and other.network == "host":
        return True
    if one.runtime == "kubernetes" and one.pod is not None and one.pod is other.pod:
        return True
    return any(a.network.partition(":")[0] in ("container", "service") and a.network.partition(":")[2] in b.names
               for a, b in ((one, other), (other, one)))


def _port(judge: Judge, view: View, found: Address, servers: list[Launch]) -> None:
    ports = [_listening(s) for s in servers]
    if found.port is None or None in ports or found.port in ports or any(not s.complete for s in servers):
        return
    judge.tell("server-port", found.at, view.launch, seen=found.port, right=ports[0])


def _listening(server: Launch) -> int | None:
    flag = server.flag("port")
    return 5555 if flag is None else server.number("port")


def _listens(judge: Judge, view: View, servers: list[Launch]) -> None:
    for server in servers:
        if _shares_network(view.launch.container, server.container):
            continue
        flag = server.flag("host")
        host = flag.text if flag is not None else "localhost"
        if host in _LOCAL:
            judge.tell("server-listens-on-localhost", flag.at if flag is not None else server.start, server, seen=host)


def remote_url(judge: Judge) -> None:
    """The in-process connector's remote store, on a localhost that is not there."""
    for view in judge.engines:
        container, setting = view.launch.container, view.launch.settings.get("LMCACHE_REMOTE_URL")
        if container is None or setting is None or setting.value is None or container.runtime not in (
                "docker", "compose"):
            continue
        found = address(setting.value, setting.start)
        if found.host in _LOCAL and container.network in ("", "bridge") and not any(
                _shares_network(container, s.container) for s in judge.paste.servers("lmcache-remote")):
            judge.tell("server-on-own-localhost", found.at, view.launch, what="the remote store", seen=found.host,
                       fix="the store's name or address, or the host's network for both")


RULES = (shared_memory, memory, ipc, gpus, reach, remote_url)
