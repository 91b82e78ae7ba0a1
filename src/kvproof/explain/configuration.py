"""What a server was told, as its own log repeats it, and the settings among that which silently do nothing."""

from __future__ import annotations

import re

from ..signatures.model import holds
from .cleaning import Line, excerpt
from .evidence import Evidence, Kind
from .scanning import Log, Start

GUIDE = "docs/guides/is-my-offload-working.md"
_CONNECTOR = re.compile(r"kv_connector=(?:'(\w+)'|(None))")
_KV_SETTING = re.compile(r"kv_transfer_config|kv_offloading|--kv-transfer-config|--kv-offloading|kv_connector|"
                         r"enable_lmcache=True")
_HYBRID_SINCE = ">=0.21"


def read(log: Log, start: Start, versions: dict[str, str]) -> list[Evidence]:
    """Settings that keep this start of a server from offloading."""
    found = []
    arguments = start.found.get("arguments")
    none = start.found.get("no_transfer_config")
    if none is not None:
        found.append(_silent("kv_transfer_config=None: this engine has no KV connector; whatever was meant to set one "
                             "did not reach it", none,
                             "compare the container's real command line with the intended one; quote the JSON with "
                             "straight single quotes around it"))
    if arguments is None:
        return [*found, *_too_old(start, versions, None)]
    text = arguments.text
    found += _native(text, arguments, versions)
    connector = _CONNECTOR.search(text)
    if connector is not None and connector[2]:
        found.append(_silent("kv_transfer_config without kv_connector: it is parsed as no connector at all", arguments,
                             'name one: "kv_connector": "LMCacheMPConnector" or "OffloadingConnector"'))
    made = start.found.get("connector")
    if connector is not None and connector[1] and made is None and "ready" in start.found:
        found.append(_silent(f"{connector[1]} was asked for, and the engine came up without the line that says it made "
                             "one (Creating v1 connector with name)", arguments, f"see {GUIDE}, step 2"))
    if _KV_SETTING.search(text):
        return [*found, *_too_old(start, versions, connector[1] if connector else None)]
    moved = re.search(r"'(cpu_offload_gb|swap_space)': [1-9]", text)
    beside = f"; {moved[1]} is set, which does not offload the KV cache" if moved else ""
    return [*found, Evidence(Kind.NOTE, f"no setting for KV offloading reached this engine{beside}", _short(arguments),
                             f"if there should be one, see {GUIDE}, step 2")]


def _native(text: str, line: Line, versions: dict[str, str]) -> list[Evidence]:
    """Settings of vLLM's own offloading."""
    found = []
    if "'kv_offloading_backend'" in text and "'kv_offloading_size'" not in text and "kv_transfer_config" not in text:
        found.append(_silent("kv_offloading_backend without kv_offloading_size: no connector is made, and nothing is "
                             "said", line, "add --kv-offloading-size GIB"))
    dead = [name for name, bounds in (("num_cpu_blocks", ">=0.14"), ("blocks_per_chunk", "<0.26"))
            if f"'{name}'" in text and holds(bounds, versions.get("vllm", "")) is True]
    found += [Evidence(Kind.NOTE, f"{name} does nothing in vLLM {versions['vllm']}: keys under "
                       "kv_connector_extra_config are not checked", _short(line),
                       "num_cpu_blocks became cpu_bytes_to_use in 0.14; blocks_per_chunk is new in 0.26")
              for name in dead]
    return found


def _too_old(start: Start, versions: dict[str, str], connector: str | None) -> list[Evidence]:
    """A Gemma 4 on a vLLM whose own offloading has no path for hybrid caches."""
    gemma, version = start.found.get("gemma"), versions.get("vllm", "")
    if gemma is None or holds(_HYBRID_SINCE, version) is not False or connector not in (None, "OffloadingConnector"):
        return []
    return [_silent(f"vLLM {version} is older than 0.21, and its OffloadingConnector has no path for hybrid caches, "
                    "as Gemma 4's is", gemma, "0.23 or later; with MTP 0.31 or later. The line that lists the engine's "
                    "config never names the connector: that it is missing there says nothing")]


def _silent(text: str, line: Line, then: str) -> Evidence:
    return Evidence(Kind.SILENT, text, _short(line), then)


def _short(line: Line) -> Line:
    return Line(line.log, line.number, excerpt(line.text, _KV_SETTING))
