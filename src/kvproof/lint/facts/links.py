"""Pages that facts refer to."""

from __future__ import annotations

VLLM = "https://github.com/vllm-project/vllm/issues/"
LMCACHE = "https://github.com/LMCache/LMCache/issues/"
GEMMA = "https://docs.lmcache.ai/recipes/gemma4.html"
QUICKSTART = "https://docs.lmcache.ai/mp/quickstart.html"
TRANSFER_CONFIG = "https://docs.vllm.ai/en/latest/api/vllm/config/kv_transfer/"
ENGINE_ARGUMENTS = "https://docs.vllm.ai/en/latest/configuration/engine_args/"
FACTORY = "https://docs.vllm.ai/api/vllm/distributed/kv_transfer/kv_connector/factory.html"
COPIED_ADVICE = "https://discuss.vllm.ai/t/1682"
KUBERNETES_SHM = "https://kubernetes.io/docs/concepts/storage/volumes/#emptydir"
DOCKER_SHM = "https://docs.docker.com/reference/cli/docker/container/run/"
TRTLLM_LMCACHE = "https://nvidia.github.io/TensorRT-LLM/examples/llm_lmcache_connector.html"
SGLANG_LMCACHE = "https://docs.lmcache.ai/getting_started/quickstart.html"
