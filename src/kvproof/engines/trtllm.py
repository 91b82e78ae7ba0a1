"""TensorRT-LLM: trtllm-serve with the PyTorch backend, its options file, readiness and counters.

For TensorRT-LLM 1.3.0rc20, read in what is public of its repository from around that version (tensorrt_llm/commands/
serve.py, serve/openai_server.py, llmapi/llm_args.py, metrics/collector.py; pull requests 11711, 12545, 12626, 12636),
and LMCache 0.5.6 (lmcache/integration/tensorrt_llm/tensorrt_mp_adapter.py). Nothing of it was run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from ..client import EngineClient
from ..errors import RecipeError, ServerError
from ..metrics import Counter
from ..plan import Connection, Layout, Server, flags
from ..recipe import Recipe
from . import vllm

NAME = "trtllm"
_ADAPTER = "lmcache.integration.tensorrt_llm.tensorrt_mp_adapter"
CONNECTORS = {"lmcache-mp": _ADAPTER}
RESERVED = frozenset({"served-model-name", "host", "port", "backend", "revision", "hf-revision", "tokenizer",
                      "custom-tokenizer", "config", "extra-llm-api-options", "kv-connector", "server-role", "grpc"})
RESERVED_VARIABLES = frozenset({"PYTHONHASHSEED"})
PARALLEL_FLAG = "tp_size"
METRICS_PATH = "/prometheus/metrics"
"""/metrics is JSON, about iterations."""
_DRAFTED = "trtllm_spec_decode_drafted_tokens_total"
_ACCEPTED = "trtllm_spec_decode_accepted_tokens_total"
COUNTERS = {
    "prompt_tokens": Counter("trtllm_prompt_tokens_total"),
    # Tokens are counted by their place in the draft, and every draft has a first one.
    "drafts": Counter(_DRAFTED, {"token_position": "0"}),
    "draft_tokens": Counter(_DRAFTED),
    "accepted_tokens": Counter(_ACCEPTED, witness=_DRAFTED),
    **{f"accepted_tokens_{i}": Counter(_ACCEPTED, {"token_position": str(i)}, witness=_DRAFTED) for i in range(8)},
}
_ONE_SUM = ("its only counter of cached tokens (trtllm_prompt_cached_tokens_total) adds up its own cache and what a "
            "connector brought", "https://github.com/NVIDIA/TensorRT-LLM/issues/18465")
UNMEASURED: Mapping[str, tuple[str, str]] = {
    "local_hit_tokens": _ONE_SUM,
    "external_hit_tokens": _ONE_SUM,
    "external_query_tokens": _ONE_SUM,
    "source_computed_tokens": _ONE_SUM,
    "source_local_tokens": _ONE_SUM,
    "source_external_tokens": _ONE_SUM,
    "preemptions": ("it reports paused requests as a gauge only (trtllm_num_paused_requests)",
                    "https://github.com/NVIDIA/TensorRT-LLM/pull/12545"),
}
_MADE = "LMCache MP worker: registered KV caches"
_MEMORY_SHARE = ("free_gpu_memory_fraction", "kv_cache_free_gpu_memory_fraction")
_MQ_TIMEOUT = "lmcache.mp.mq_timeout"


def server(recipe: Recipe, layout: Layout, role: str, connection: Connection | None) -> Server:
    if recipe.speculative is not None:
        raise RecipeError("speculative: kvproof starts TensorRT-LLM without a draft model, because 1.3.0rc20 has no "
                          "MTP for Gemma 4; later versions have it for E2B, E4B, 26B-A4B and 31B, and not for 12B "
                          "(https://github.com/NVIDIA/TensorRT-LLM/pull/15833)",
                          tip="leave speculative out, or use the engine vllm")
    port = layout.ports[role]
    ours = recipe.model.build or recipe.model.folder
    options = f"{role}-options.yaml"
    return Server(
        role=role,
        argv=(
            layout.tool("trtllm-serve"), layout.model, "--backend", "pytorch",
            *([] if ours else ["--revision", recipe.model.revision]),
            "--served_model_name", recipe.model.served_name,
            "--host", layout.listen or layout.host, "--port", str(port),
            *flags(recipe.engine.arguments), "--extra_llm_api_options", str(layout.folder / options),
        ),
        environment={
            "TRTLLM_NO_USAGE_STATS": "1",
            **({"HF_HUB_OFFLINE": "1"} if ours else {}),
            **recipe.engine.environment, **(_environment(recipe, connection) if connection else {}),
        },
        url=f"http://{layout.host}:{port}",
        health_path="/health",
        ready_timeout_s=recipe.engine.ready_timeout_s,
        log=f"{role}.log",
        files={options: yaml.safe_dump(_options(recipe, connection), sort_keys=False)},
    )


def _options(recipe: Recipe, connection: Connection | None) -> dict[str, Any]:
    share = next((recipe.engine.arguments[n] for n in _MEMORY_SHARE if n in recipe.engine.arguments), None)
    return {
        "kv_cache_config": {
            "enable_block_reuse": True,
            # LMCache's adapter does not look up a request of which the engine already has a part of a block.
            "enable_partial_reuse": False,
            # This mapping takes the place of the one that the flag fills.
            **({} if share is None else {"free_gpu_memory_fraction": share}),
        },
        "return_perf_metrics": True,  # without it there is no metrics page
        **({} if connection is None else {"kv_connector_config": {
            "connector_module": CONNECTORS[connection.connector],
            "connector_scheduler_class": "LMCacheMPKvConnectorScheduler",
            "connector_worker_class": "LMCacheMPKvConnectorWorker",
            "server_url": f"tcp://{connection.host}:{connection.port}",
        }}),
    }


def _environment(recipe: Recipe, connection: Connection) -> dict[str, str]:
    extra = dict(recipe.connector.extra_config)
    timeout = extra.pop(_MQ_TIMEOUT, None)
    if extra:
        raise RecipeError(f"connector.extra_config: LMCache's adapter for TensorRT-LLM has no setting {min(extra)!r}",
                          tip=f"leave it out; {_MQ_TIMEOUT} is the only one it takes")
    return {"PYTHONHASHSEED": "0", **connection.environment,
            **({} if timeout is None else {"LMCACHE_MQ_TIMEOUT": str(timeout)})}


def requirements(recipe: Recipe) -> None:
    """Only images: PyPI lacks some versions, 1.3.0rc20 among them, and for the others has a placeholder that fetches
    the wheel from NVIDIA's own index."""
    return None


def max_tokens(recipe: Recipe) -> int | None:
    value = recipe.engine.arguments.get("max_seq_len")
    return value if isinstance(value, int) else None


version = vllm.version
"""Its /version answers as vLLM's does."""


def tokenize(client: EngineClient, text: str) -> list[int]:
    raise ServerError(f"{client.name}: TensorRT-LLM 1.3.0rc20 has no endpoint that turns text into token ids",
                      tip="use a version whose /v1/completions/render gives them (1.4, with "
                          "TRTLLM_ENABLE_RENDER_ENDPOINTS=1) once kvproof can, or another engine")


def empty_cache(client: EngineClient) -> None:
    raise ServerError(f"{client.name}: TensorRT-LLM has no endpoint that empties its prefix cache; only a restart of "
                      "the engine does", tip="run with --restart-engine")


def active_connector(log: str) -> str | None:
    return "lmcache-mp" if _MADE in log else None
