"""SGLang and TensorRT-LLM."""

from __future__ import annotations

from .. import mend
from ..facts.models import GEMMA
from ..model import Document, Launch
from ..tree import Map, Scalar, string
from ..view import View
from . import Judge, near
from .places import documents_of

_PRESETS = ("lmcache", "lmcache-mp", "kvbm")


def sglang(judge: Judge) -> None:
    for view in judge.engines:
        launch = view.launch
        if launch.program != "sglang":
            continue
        lmcache = launch.flag("enable-lmcache")
        drafting = next((f for f in launch.flags if f.name.startswith("speculative-")), None)
        if lmcache is not None and drafting is not None:
            judge.tell("sglang-speculative", drafting.start, launch)
        hierarchical = launch.flag("enable-hierarchical-cache")
        if hierarchical is not None and view.family is GEMMA:
            judge.tell("sglang-hierarchical", hierarchical.start, launch, model=GEMMA.name)
        if lmcache is not None:
            _with_lmcache(judge, view)


def _with_lmcache(judge: Judge, view: View) -> None:
    launch = view.launch
    lmcache = launch.flag("enable-lmcache")
    assert lmcache is not None
    if launch.flag("lmcache-config-file") is None and not any(
            n in launch.settings for n in ("LMCACHE_CONFIG_FILE", "LMCACHE_MP_HOST")) and view.family is GEMMA:
        judge.tell("sglang-settings", lmcache.start, launch)
    if view.family is GEMMA:
        for server in judge.paste.servers():
            if server.flag("separate-object-groups") is None:
                judge.tell("sglang-groups", server.start, server, model=GEMMA.name,
                           edits=mend.option(judge.source, server, "--separate-object-groups"))


def trtllm(judge: Judge) -> None:
    started = [v for v in judge.engines if v.launch.program == "trtllm"]
    seen = []
    for view in started:
        launch = view.launch
        documents = documents_of(judge, launch)
        if not documents and len(started) == 1 and launch.flag("extra-llm-api-options", "config") is not None:
            documents = [d for d in judge.paste.documents if d.kind == "trtllm-options" and not d.name]
        seen += documents
        named = launch.flag("kv-connector")
        if named is not None and named.text:
            _preset(judge, launch, named.text, named.at)
        connected = named is not None or any(_connects(d) for d in documents)
        if not connected:
            continue
        at = named.start if named is not None else next(
            e.key.start for d in documents for e in [d.root.entry("kv_connector_config")] if e is not None)
        if "PYTHONHASHSEED" not in launch.settings and not (
                launch.container is not None and launch.container.settings_open):
            judge.tell("trtllm-hash-seed", at, launch)
        if view.family is GEMMA:
            judge.tell("trtllm-windows", at, launch, model=GEMMA.name)
        for document in documents:
            _options(judge, document, launch)
    for document in judge.paste.documents:
        if document.kind == "trtllm-options" and document not in seen:
            _options(judge, document, None)


def _connects(document: Document) -> bool:
    return document.kind == "trtllm-options" and document.root.entry("kv_connector_config") is not None


def _options(judge: Judge, document: Document, launch: Launch | None) -> None:
    root = document.root
    connection = root.entry("kv_connector_config")
    if document.kind != "trtllm-options" or connection is None:
        return
    if isinstance(connection.value, Map):
        preset = connection.value.get("connector")
        name = string(preset)
        if name and preset is not None:
            _preset(judge, launch, name, preset.start)
    cache = root.get("kv_cache_config")
    reuse = cache.get("enable_block_reuse") if isinstance(cache, Map) else None
    if isinstance(reuse, Scalar):
        if reuse.value is False:
            judge.tell("trtllm-reuse-off", reuse.start, launch, edits=mend.replace(judge.source, reuse.text, "true"))
    elif launch is None or launch.flag("kv-connector") is None:
        judge.tell("trtllm-reuse-missing", connection.key.start, None)


def _preset(judge: Judge, launch: Launch | None, name: str, at: int) -> None:
    if name in _PRESETS or "$" in name or "." in name:
        return
    right = near.match(name, _PRESETS)
    judge.tell("trtllm-preset", at, launch, seen=name, near=near.sentence(name, right, _PRESETS),
               right=right or "lmcache-mp")


RULES = (sglang, trtllm)
