"""LMCache's server and settings."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import islice
from math import lcm

from .. import mend, units
from ..facts.lmcache_names import BLOCK_TOKENS, MP_SERDES, SERVER_FLAGS, SETTINGS
from ..facts.native import INPROCESS, MAX_GIB
from ..model import Launch
from ..source import Text
from ..tree import Map, Scalar, Seq, walk
from ..view import View
from . import Judge, near

_PREFIX = "LMCACHE_"
_MAX_ENTRIES = 300
_NOT_SETTINGS = re.compile(
    r"LMCACHE_(?:CONFIG_FILE|USE_EXPERIMENTAL|TRACK_USAGE|DISABLE_BANNER|LOG_LEVEL|LOG_.*|MP_.*|MQ_.*|SERVER_.*|"
    r"CONTROLLER_.*|COORDINATOR_.*|DEVICE_.*|EC_.*|RESP_.*|REQUEST_.*|PLUGIN_.*|RUNTIME_.*|USAGE_.*|AEROSPIKE_.*|"
    r"ROCM_.*|MUSA_.*|VERSION|COMMIT|FORCE_.*|OFFLOAD_.*|GPU_.*|INSTANCE_.*|HOST.*|PORT.*|API_.*|URL)")
_GB_SETTINGS = {"max_local_cpu_size", "max_local_disk_size", "reserve_local_cpu_size", "max_hidden_state_cpu_size"}
_SEEDLESS = ("sha256", "sha256_cbor", "sha256_cbor_64bit", "blake3", "xxhash", "xxhash_cbor")


def chunks(judge: Judge) -> None:
    """Chunks that are no multiple of the engine's block."""
    for server in judge.paste.servers():
        flag = server.flag("chunk-size")
        seen = server.number("chunk-size")
        if flag is None or seen is None or flag.value is None:
            continue
        given = [b for v in judge.engines if (b := v.launch.number("block-size", "page-size")) and b > 1]
        block = lcm(*given) if given else BLOCK_TOKENS
        if seen % block:
            judge.tell("chunk-size", flag.at, server, seen=seen, block=block,
                       right=lcm(seen, block) if seen else block * BLOCK_TOKENS)
    for document in judge.paste.documents:
        chunk = document.root.get("chunk_size") if document.kind == "lmcache" else None
        if isinstance(chunk, Scalar) and isinstance(chunk.value, int) and chunk.value % BLOCK_TOKENS:
            judge.tell("chunk-size", chunk.start, seen=chunk.value, block=BLOCK_TOKENS,
                       right=lcm(chunk.value, BLOCK_TOKENS))
    for view in judge.engines:
        for name, text, at in _settings(judge, view):
            block = view.launch.number("block-size", "page-size") or BLOCK_TOKENS
            if name == "chunk_size" and re.fullmatch(r"\d{1,9}", text.value) and int(text.value) % block:
                seen = int(text.value)
                judge.tell("chunk-size", at, view.launch, seen=seen, block=block, right=lcm(seen, block) or block)


def _settings(judge: Judge, view: View) -> Iterator[tuple[str, Text, int]]:
    """Settings that an engine's LMCache reads from the environment."""
    for setting in view.launch.settings.values():
        if setting.name.startswith(_PREFIX) and setting.value is not None:
            yield setting.name[len(_PREFIX):].lower(), setting.value, setting.start


def seeds(judge: Judge) -> None:
    """Python's own hash, between processes that must agree."""
    for view in judge.engines:
        launch = view.launch
        connector = view.uses(INPROCESS)
        if connector is None or "PYTHONHASHSEED" in launch.settings or _settings_open(launch):
            continue
        algorithm = (launch.setting("LMCACHE_PRE_CACHING_HASH_ALGORITHM") or "").lower()
        config = launch.setting("LMCACHE_CONFIG_FILE")
        if algorithm in _SEEDLESS or (config is not None and not _is_here(judge, config)):
            continue
        documents = [d for d in judge.paste.documents if config and d.name and d.name == config.rsplit("/", 1)[-1]]
        if any(str(getattr(d.root.get("pre_caching_hash_algorithm"), "value", "")).lower() in _SEEDLESS
               for d in documents):
            continue
        parts = launch.number("tensor-parallel-size") or 1
        remote = launch.settings.get("LMCACHE_REMOTE_URL") or any(d.root.entry("remote_url") for d in documents)
        engines = sum(v.uses(INPROCESS) is not None for v in judge.engines)
        why = f"over {parts} GPUs" if parts > 1 else "with a remote store" if remote else ""
        if why or (engines > 1 and remote):
            judge.tell("hash-seed", connector.at, launch, why=why)
    for server in judge.paste.servers():
        flag = server.flag("hash-algorithm")
        if flag is not None and flag.text == "builtin" and "PYTHONHASHSEED" not in server.settings and (
                not _settings_open(server)):
            judge.tell("hash-seed-server", flag.at, server)


def _settings_open(launch: Launch) -> bool:
    return launch.container is not None and launch.container.settings_open


def _is_here(judge: Judge, path: str) -> bool:
    return any(d.name and d.name == path.rsplit("/", 1)[-1] for d in judge.paste.documents)


def names(judge: Judge) -> None:
    """Settings that LMCache does not know, in a file or in the environment."""
    for document in judge.paste.documents:
        if document.kind != "lmcache":
            continue
        for entry in islice(document.root.all(), _MAX_ENTRIES):
            if entry.name not in SETTINGS:
                right = near.match(entry.name, SETTINGS, 0.75)
                sure = right is not None and near.is_sure(entry.name, right) and document.root.entry(right) is None
                judge.tell("setting-unknown", entry.key.start, seen=entry.name, right=right or "leave it out",
                           near=_meant(entry.name, right),
                           edits=mend.rename(judge.source, entry, right) if sure and right else ())
            elif isinstance(entry.value, Scalar):
                _number(judge, entry.name, entry.value.text, entry.value.start)
    for view in judge.engines:
        for setting in view.launch.settings.values():
            if setting.name.startswith(_PREFIX) and not _NOT_SETTINGS.fullmatch(setting.name):
                name = setting.name[len(_PREFIX):].lower()
                right = near.match(name, SETTINGS, 0.8)
                if name not in SETTINGS and right is not None:
                    judge.tell("setting-unknown", setting.start, view.launch, seen=setting.name,
                               right=_PREFIX + right.upper(), near=_meant(setting.name, _PREFIX + right.upper()))
        for name, text, at in _settings(judge, view):
            _number(judge, name, text, at)


def _meant(seen: str, right: str | None) -> str:
    return f"did you mean {right}?" if right else f"none of its settings is like {seen}"


def _number(judge: Judge, name: str, text: Text, at: int) -> None:
    if name not in _GB_SETTINGS or "$" in text.value:
        return
    if re.fullmatch(r"\d{1,20}(?:\.\d{1,9})?", text.value):
        number = float(text.value)
        if number > MAX_GIB:
            right = f"{number / 10**9:.4g}" if number >= 10**9 else None
            judge.tell("setting-in-bytes", at, name=name, seen=text.value, fix=right or "the number of GB",
                       edits=mend.replace(judge.source, text, right) if right else ())
    elif units.written(text.value) is not None:
        found = re.match(r"\s*(\d+(?:\.\d+)?)\s*[gG]", text.value)
        right = found[1] if found else None
        judge.tell("setting-as-text", at, name=name, seen=repr(text.value), fix=right or "the number of GB",
                   edits=mend.replace(judge.source, text, right) if right else ())


def server(judge: Judge) -> None:
    for launch in judge.paste.servers():
        engine = launch.flag("engine-type")
        if engine is not None and engine.text == "blend":
            judge.tell("blend-never", engine.at, launch)
        for flag in launch.flags:
            right = near.match(flag.name, SERVER_FLAGS, 0.85) if flag.name not in SERVER_FLAGS else None
            if right is not None and not _is_pair(flag.name, right):
                judge.tell("flag-unknown", flag.start, program="lmcache server", seen=flag.name, right=right,
                           near=near.sentence(flag.name, f"--{right}", ()))
            if flag.name == "l2-adapter":
                _serde(judge, launch, judge.view(launch).json(flag))


def _is_pair(seen: str, right: str) -> bool:
    """Whether two names differ in a way that makes them two options, such as no-x and x."""
    return seen.removeprefix("no-") == right or seen.rstrip("s") == right or {seen, right} <= {
        "max-cpu-workers", "max-gpu-workers", "max-workers"} or seen.split("-")[0] != right.split("-")[0]


def _serde(judge: Judge, launch: Launch, root: object) -> None:
    for node in walk(root) if isinstance(root, Map | Seq) else ():
        entry = node.entry("serde") if isinstance(node, Map) else None
        if entry is None:
            continue
        kind = entry.value.get("type") if isinstance(entry.value, Map) else entry.value
        name = kind.text.value if isinstance(kind, Scalar) else ""
        if name and name not in MP_SERDES and "$" not in name:
            right = near.match(name, MP_SERDES)
            judge.tell("serde-unknown", kind.start, launch, seen=json.dumps(name[:40]), right=right or "one of these",
                       near=near.sentence(name, right, MP_SERDES))
        hybrid = next((v for v in judge.engines if v.family is not None and v.family.uneven), None)
        if name == "fp8" and hybrid is not None:
            judge.tell("serde-fp8-hybrid", kind.start, launch, model=hybrid.model_name)


RULES = (chunks, seeds, names, server)
