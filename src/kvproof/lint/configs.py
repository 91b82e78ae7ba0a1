"""Recognises configuration files by what is in them: LMCache's, TensorRT-LLM's, vLLM's, and kv-transfer-config."""

from __future__ import annotations

from .commands import Reader
from .facts.lmcache_names import SETTINGS
from .model import Document, Flag, Launch
from .tree import Map, Scalar, string

_TRTLLM = {"kv_cache_config", "kv_connector_config", "cuda_graph_config", "speculative_config", "moe_config",
           "enable_chunked_prefill", "build_config", "scheduler_config", "attention_dp_config", "print_iter_log",
           "return_perf_metrics", "enable_attention_dp", "torch_compile_config", "cache_transceiver_config",
           "max_seq_len", "max_num_tokens", "backend", "disable_overlap_scheduler"}
_TRTLLM_OWN = {"kv_cache_config", "kv_connector_config", "cuda_graph_config", "moe_config", "cache_transceiver_config",
               "torch_compile_config"}
_KV = {"kv_connector", "kv_role", "kv_connector_extra_config"}
_KV_LIKE = {"cpu_bytes_to_use", "num_cpu_blocks", "kv_connector_module_path", "kv_load_failure_policy", "extra_config"}
_VLLM = {"model", "kv-transfer-config", "kv-offloading-size", "kv-offloading-backend", "tensor-parallel-size",
         "max-model-len", "gpu-memory-utilization", "speculative-config", "attention-backend", "served-model-name",
         "enforce-eager", "cpu-offload-gb", "swap-space"}
_VLLM_OWN = {"kv-transfer-config", "kv-offloading-size", "kv-offloading-backend", "cpu-offload-gb", "swap-space",
             "attention-backend"}


def read(root: Map, reader: Reader, name: str = "") -> str | None:
    """Add what a configuration file holds, and say of which kind it is; None when it is of none.

    Args:
        name: base name of the file, when the paste gives one.
    """
    names = {e.name for e in root.all()}
    inner = root.get("kv_transfer_config", "kv-transfer-config", "kvTransferConfig")
    if isinstance(inner, Map) and len(names) == 1:
        return _kv(inner, reader)
    if names & _KV or (names & _KV_LIKE and not names & SETTINGS - {"extra_config"}):
        return _kv(root, reader)
    if names & _TRTLLM_OWN or len(names & _TRTLLM) >= 2:
        reader.paste.documents.append(Document("trtllm-options", root, name))
        return "extra_llm_api_options of TensorRT-LLM"
    flags = {n.replace("_", "-") for n in names}
    if flags & _VLLM_OWN or len(flags & _VLLM) >= 2:
        return _vllm(root, reader)
    known = names & SETTINGS
    if known and len(known) * 2 >= len(names):
        reader.paste.documents.append(Document("lmcache", root, name))
        return "LMCache configuration"
    return None


def _kv(root: Map, reader: Reader) -> str:
    launch = Launch("vllm", root.start, root.end, open=True)
    launch.flags.append(Flag("kv-transfer-config", None, root.start, root.start, node=root))
    reader.paste.launches.append(launch)
    return "kv-transfer-config of vLLM"


def _vllm(root: Map, reader: Reader) -> str:
    """A file for --config: keys are flags."""
    launch = Launch("vllm", root.start, root.end, open=root.entry("model") is None)
    for entry in root.all():
        flag = Flag(entry.name.replace("_", "-"), None, entry.key.start, entry.key.end)
        if isinstance(entry.value, Scalar):
            if entry.value.value is False:
                flag.name = f"no-{flag.name}"
            elif entry.value.value is not True:
                flag.value = entry.value.text
        else:
            flag.node = entry.value
        launch.flags.append(flag)
    model = root.get("model")
    if string(model) and isinstance(model, Scalar):
        launch.model = model.text
    reader.paste.launches.append(launch)
    return "configuration file of vLLM (--config)"
