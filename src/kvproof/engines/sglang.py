"""SGLang: command, LMCache's configuration file, readiness, counters and resets.

As in SGLang 0.5.21 (sglang/srt: arg_groups/fields, arg_groups/kv_cache_hook.py, entrypoints/http_server.py,
observability/metrics_collector.py, mem_cache/storage/lmcache) and LMCache 0.5.6
(lmcache/integration/sglang/unified_lmcache_mp_connector.py).
"""

from __future__ import annotations

from collections.abc import Mapping

import yaml

from ..client import EngineClient
from ..errors import RecipeError, ServerError
from ..metrics import Counter
from ..plan import Connection, Layout, Server, flags
from ..recipe import Recipe
from . import vllm

NAME = "sglang"
CONNECTORS = {"lmcache-mp": "UnifiedLMCacheMPConnector"}
RESERVED = frozenset({
    "model-path", "model", "served-model-name", "host", "port", "revision", "tokenizer-path", "load-format", "config",
    "enable-metrics", "enable-cache-report", "enable-lmcache", "lmcache-config-file", "api-key", "admin-api-key",
    "speculative-algorithm", "speculative-draft-model-path", "speculative-draft-model-revision",
    "speculative-num-steps", "speculative-eagle-topk", "speculative-num-draft-tokens",
})
RESERVED_VARIABLES: frozenset[str] = frozenset()
PARALLEL_FLAG = "tp-size"
METRICS_PATH = "/metrics"
_PROMPTS = "sglang:prompt_tokens_total"
_CACHED = "sglang:cached_tokens_total"
_PREFILLED = "sglang:prefill_effective_tokens_total"
COUNTERS = {
    # Counted by the HTTP process when a request has finished; what LMCache brought back has the source "storage".
    "prompt_tokens": Counter(_PROMPTS),
    "local_hit_tokens": Counter(_CACHED, {"cache_source": "device"}, witness=_PROMPTS),
    "external_hit_tokens": Counter(_CACHED, {"cache_source": "storage"}, witness=_PROMPTS),
    # Counted by the scheduler's process at every prefill batch.
    "source_computed_tokens": Counter(_PREFILLED, {"mode": "input"}),
    "source_local_tokens": Counter(_PREFILLED, {"mode": "device_hit"}),
    "source_external_tokens": Counter(_PREFILLED, {"mode": "storage_hit"}),
    "preemptions": Counter("sglang:num_retracted_requests_total", witness="sglang:num_retracted_reqs"),
    "drafts": Counter("sglang:spec_verify_calls_total"),
}
_PAGE = "https://docs.sglang.io/docs/references/production_metrics"
_GAUGES_ONLY = ("it reports acceptance as gauges (spec_accept_rate, spec_accept_length), of which no difference over a "
                "pass can be taken", _PAGE)
UNMEASURED: Mapping[str, tuple[str, str]] = {
    "external_query_tokens": ("it does not count for how many tokens it asks LMCache", _PAGE),
    "draft_tokens": _GAUGES_ONLY,
    "accepted_tokens": _GAUGES_ONLY,
    **{f"accepted_tokens_{i}": _GAUGES_ONLY for i in range(8)},
}
_MADE = "UnifiedLMCacheMPConnector initialized"
_FLUSH_TIMEOUT_S = 60


def server(recipe: Recipe, layout: Layout, role: str, connection: Connection | None) -> Server:
    # A recipe always has a connector, and a baseline that drafts would be compared with an engine that cannot.
    if recipe.speculative is not None:
        raise RecipeError("speculative: SGLang does not start with LMCache and a draft model "
                          "(LMCacheUnifiedRadixCache does not yet support speculative decoding)",
                          tip="leave speculative out, or use the engine vllm")
    port = layout.ports[role]
    ours = recipe.model.build or recipe.model.folder
    settings = f"{role}-lmcache.yaml"
    argv = [
        layout.python, "-m", "sglang.launch_server",
        "--model-path", layout.model, *([] if ours else ["--revision", recipe.model.revision]),
        "--served-model-name", recipe.model.served_name,
        "--host", layout.listen or layout.host, "--port", str(port),
        "--enable-metrics", "--enable-cache-report",
        *flags(recipe.engine.arguments),
        *(["--enable-lmcache", "--lmcache-config-file", str(layout.folder / settings)] if connection else []),
    ]
    return Server(
        role=role,
        argv=tuple(argv),
        environment={
            **({"HF_HUB_OFFLINE": "1"} if ours else {}),
            **recipe.engine.environment, **(connection.environment if connection else {}),
        },
        url=f"http://{layout.host}:{port}",
        # It generates one token, so it answers only once the model does.
        health_path="/health",
        ready_timeout_s=recipe.engine.ready_timeout_s,
        log=f"{role}.log",
        files={settings: _lmcache(recipe, connection)} if connection else {},
    )


def _lmcache(recipe: Recipe, connection: Connection) -> str:
    """LMCache's own configuration file; mp_host gets its tcp:// from LMCache."""
    extra = dict(recipe.connector.extra_config)
    return yaml.safe_dump({"mp_host": connection.host, "mp_port": connection.port,
                           **({"extra_config": extra} if extra else {})}, sort_keys=False)


def requirements(recipe: Recipe) -> tuple[str, ...]:
    return (f"sglang=={recipe.engine.version}",)


def max_tokens(recipe: Recipe) -> int | None:
    value = recipe.engine.arguments.get("context-length")
    return value if isinstance(value, int) else None


def version(client: EngineClient) -> str | None:
    try:
        found = client.get_json("/server_info").get("version")
    except (ServerError, AttributeError):
        return None
    return str(found) if found else None


tokenize = vllm.tokenize
"""Its /tokenize takes and gives what vLLM's does."""


def empty_cache(client: EngineClient) -> None:
    """Flush the radix cache. LMCache keeps what it stored: /hicache/storage-backend/clear is what empties that.

    The engine flushes only when it is idle, and stores to LMCache count as work: the timeout lets it wait for them.
    """
    client.get_text(f"/flush_cache?timeout={_FLUSH_TIMEOUT_S}")


def active_connector(log: str) -> str | None:
    return "lmcache-mp" if _MADE in log else None
