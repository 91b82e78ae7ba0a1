"""vLLM's kv-transfer-config and its native offloading, by version."""

from __future__ import annotations

from dataclasses import dataclass

from ..finding import Fact
from . import links

NATIVE, SIMPLE = "OffloadingConnector", "SimpleCPUOffloadConnector"
MP, INPROCESS = "LMCacheMPConnector", "LMCacheConnectorV1"
ROLES = ("kv_both", "kv_producer", "kv_consumer")
EXTRA = "kv_connector_extra_config"


@dataclass(frozen=True)
class Name:
    """When a name can be used.

    Attributes:
        versions: of vLLM; None for all that lint knows.
        instead: what took its place.
        link: where that is said.
    """

    versions: str | None = None
    instead: str = ""
    link: str | None = None


CONNECTORS = {
    NATIVE: Name(), SIMPLE: Name(">=0.19"), MP: Name(), INPROCESS: Name(),
    "NixlConnector": Name(), "NixlPullConnector": Name(), "NixlPushConnector": Name(), "MultiConnector": Name(),
    "ExampleConnector": Name(), "ExampleHiddenStatesConnector": Name(), "HiSparseConnector": Name(),
    "MoRIIOConnector": Name(), "DecodeBenchConnector": Name(), "MooncakeConnector": Name(),
    "MooncakeStoreConnector": Name(), "FlexKVConnectorV1": Name(), "HF3FSKVConnector": Name(),
    "P2pNcclConnector": Name("<0.32"), "SharedStorageConnector": Name("<0.32", "ExampleConnector"),
    "LMCacheConnector": Name("<0.11", MP), "PyNcclConnector": Name("<0.11"), "MooncakeStoreConnectorV1": Name("<0.32"),
}
"""Built into vLLM. Others come with kv_connector_module_path."""
FIELDS = {
    "kv_connector": Name(), "kv_role": Name(), EXTRA: Name(), "kv_connector_module_path": Name(), "engine_id": Name(),
    "kv_buffer_device": Name(), "kv_port": Name(), "enable_permute_local_kv": Name(), "kv_load_failure_policy": Name(),
    "kv_buffer_size": Name("<0.32"), "kv_rank": Name("<0.32"), "kv_parallel_size": Name("<0.32"),
    "kv_ip": Name("<0.32"),
}
"""Of kv-transfer-config; others are refused."""
_OLD_DOCS = links.VLLM + "24498"
KEYS: dict[str, dict[str, Name]] = {
    NATIVE: {
        "num_cpu_blocks": Name("<0.14", "cpu_bytes_to_use", _OLD_DOCS),
        "block_size": Name(), "spec_name": Name(), "spec_module_path": Name(),
        "eviction_policy": Name(">=0.12"), "cpu_bytes_to_use": Name(">=0.14", link=_OLD_DOCS),
        "store_threshold": Name(">=0.18"), "max_tracker_size": Name(">=0.18"), "secondary_tiers": Name(">=0.22"),
        "offload_prompt_only": Name(">=0.23"), "blocks_per_chunk": Name(">=0.26", link=links.VLLM + "48878"),
        "canonical_layout": Name(">=0.28"), "backpressure": Name(">=0.31"),
        "self_describing_kv_events": Name(), "cache_policy_module_path": Name(),
    },
    SIMPLE: {
        "cpu_bytes_to_use": Name(), "cpu_bytes_to_use_per_rank": Name(), "lazy_offload": Name(),
        "kv_offload_backend": Name(">=0.28"), "disk_path": Name(">=0.28"), "disk_capacity_bytes": Name(">=0.28"),
        "disk_buffer_slots": Name(">=0.28"), "use_page_cache": Name(">=0.28"),
    },
}
"""Of kv_connector_extra_config, by connector. Nothing checks them: what is not read is ignored."""
KV_FLAGS = ("kv-transfer-config", "kv-offloading-size", "kv-offloading-backend", "speculative-config",
            "attention-backend", "enforce-eager", "no-disable-hybrid-kv-cache-manager",
            "disable-hybrid-kv-cache-manager")
"""Options that are worth a correction when they are misspelled."""
NEAR_BUT_RIGHT = frozenset({
    "kv-events-config", "kv-cache-dtype", "kv-cache-memory-bytes", "kv-cache-metrics", "kv-cache-metrics-sample",
    "kv-cache-dtype-skip-layers", "kv-sharing-fast-prefill", "ec-transfer-config", "weight-transfer-config",
    "offload-backend", "offload-group-size", "offload-params", "attention-config", "enforce-eager", "no-enforce-eager",
    "quantization-config", "reasoning-config", "moe-backend", "linear-backend", "mamba-backend", "profiler-config",
    "compilation-config", "kernel-config", "watermark-config", "diffusion-config",
})
"""Options that look like one of them and are something else."""
MIN_POOL_BYTES = 1024**2
"""Less than that is not one block of any model that is served."""
MAX_GIB = 4096
"""More than that is no number of GiB that a host has."""

FACTS = {
    "connector-missing": Fact(
        "error", "{flag} names no kv_connector", "It parses as no connector at all, without a warning: the server "
        "starts and offloads nothing.", '"kv_connector": "OffloadingConnector" or "LMCacheMPConnector"',
        link=links.TRANSFER_CONFIG),
    "connector-unknown": Fact(
        "error", "vLLM has no connector {seen}; {near}", "The engine stops with Unsupported connector type, after it "
        "has loaded the model's configuration.", "{right}", link=links.FACTORY),
    "connector-by-version": Fact(
        "error", "the connector {seen} is not in this version of vLLM", "The engine stops with Unsupported connector "
        "type.", "{right}", link=links.FACTORY),
    "role-missing": Fact(
        "error", "{flag} names no kv_role", "It is refused: please specify kv_role when kv_connector is set.",
        '"kv_role": "kv_both"', link=links.TRANSFER_CONFIG),
    "role-unknown": Fact(
        "error", "kv_role is {seen}; {near}", "It is refused at the command line.", "kv_both for offloading",
        link=links.TRANSFER_CONFIG),
    "role-one-way": Fact(
        "warning", "kv_role is {seen}, with which {connector} only {half}", "Offloading stores and loads in the same "
        "engine.", "kv_both", link=links.TRANSFER_CONFIG),
    "field-unknown": Fact(
        "error", "kv-transfer-config has no field {seen}; {near}", "It is refused at the command line.", "{right}",
        link=links.TRANSFER_CONFIG),
    "field-misplaced": Fact(
        "error", "{seen} belongs into kv_connector_extra_config", "At the top it is no field, and refused at the "
        "command line.", '"kv_connector_extra_config": {{"{seen}": ...}}', link=links.TRANSFER_CONFIG),
    "field-by-version": Fact(
        "error", "the field {seen} is not in this version of vLLM", "Fields that are not known are refused at the "
        "command line.", "leave it out", versions=">=0.32", link=links.TRANSFER_CONFIG),
    "key-dead": Fact(
        "error", "{seen} is dead since vLLM 0.14: {instead} took its place", "Keys of kv_connector_extra_config are "
        "never checked, so it is ignored{consequence}.", "{fix}", versions=">=0.14", link=_OLD_DOCS),
    "key-by-version": Fact(
        "warning", "{seen} does nothing in this version of vLLM: it is read in {readers} only",
        "Keys of kv_connector_extra_config are never checked: what is not known is ignored.",
        "leave it out, or use a version that reads it"),
    "key-unknown": Fact(
        "warning", "{connector} does not read {seen}; {near}", "Keys of kv_connector_extra_config are never checked: "
        "what is not known is ignored.", "{right}"),
    "key-of-another": Fact(
        "warning", "{seen} is a key of {owner}, and {connector} does not read it", "Keys of kv_connector_extra_config "
        "are never checked: what is not known is ignored.", "{fix}"),
    "extra-not-map": Fact(
        "error", "kv_connector_extra_config is {seen}, expected a map", "It is refused at the command line.",
        'a JSON object, without quotes around it', link=links.TRANSFER_CONFIG),
    "chunk-given-twice": Fact(
        "error", "block_size and blocks_per_chunk exclude each other", "The engine stops: specify only one of "
        "'block_size' or 'blocks_per_chunk'.", "keep blocks_per_chunk", versions=">=0.26",
        link=links.VLLM + "48878"),
    "bytes-missing": Fact(
        "error", "{connector} has no cpu_bytes_to_use", "The engine stops: cpu_bytes_to_use must be specified in "
        "kv_connector_extra_config.", '"cpu_bytes_to_use": BYTES, in total over all GPUs', versions=">=0.14",
        link=_OLD_DOCS),
    "bytes-too-few": Fact(
        "error", "cpu_bytes_to_use is in bytes, and {seen} is a pool of zero blocks", "No error is reported: the "
        "server starts and offloads nothing.", "{fix}", link=links.VLLM + "42348"),
    "bytes-as-text": Fact(
        "error", "cpu_bytes_to_use is the text {seen}, expected a number of bytes", "It passes the command line and "
        "fails when the connector is made.", "{fix}", link=links.VLLM + "24498"),
    "size-as-text": Fact(
        "error", "--{flag} is {seen}, expected a number of {unit} without one", "It is refused at the command line.",
        "{fix}", link=links.ENGINE_ARGUMENTS),
    "size-in-bytes": Fact(
        "error", "--{flag} is in {unit}, and {seen} of them are more than any host has", "It looks like a number of "
        "bytes.", "{fix}", link=links.ENGINE_ARGUMENTS),
    "backend-without-size": Fact(
        "error", "--kv-offloading-backend does nothing without --kv-offloading-size", "The size alone turns offloading "
        "on: without it there is no connector and no warning.", "add --kv-offloading-size GIB, in total over all GPUs",
        link=links.ENGINE_ARGUMENTS, absence=True),
    "backend-unknown": Fact(
        "error", "--kv-offloading-backend is {seen}; {near}", "It is refused at the command line.", "{right}",
        link=links.ENGINE_ARGUMENTS),
    "backend-lmcache": Fact(
        "warning", "--kv-offloading-backend lmcache now means LMCacheMPConnector, and --kv-offloading-size is not "
        "passed on", "The memory is that of a separate lmcache server (its --l1-size-gb), which must run at "
        "tcp://localhost:5555; the size only turns it on.",
        "start lmcache server --l1-size-gb GB, and name the connector: --kv-transfer-config "
        "'{{\"kv_connector\":\"LMCacheMPConnector\",\"kv_role\":\"kv_both\"}}'", versions=">=0.23",
        link=links.ENGINE_ARGUMENTS),
    "size-overrides-connector": Fact(
        "warning", "--kv-offloading-size puts {right} in the place of {seen} from kv-transfer-config",
        "vLLM sets the connector after it has read both.", "keep one of the two", link=links.ENGINE_ARGUMENTS),
    "offloading-unusable": Fact(
        "error", "--kv-offloading-size does not work yet in this version of vLLM", "In 0.12 and 0.13 the native "
        "path writes num_cpu_blocks: 0; before, the option is not known.", "use vLLM 0.14 or later, better 0.23",
        versions="<0.14", link=links.ENGINE_ARGUMENTS),
    "swap-space": Fact(
        "error", "--swap-space does not offload KV, and vLLM has no such option since 0.18",
        "It was room for swapped-out requests of the old engine; --cpu-offload-gb does not offload KV either, but "
        "weights.", "{fix}", versions=">=0.18", link="https://github.com/vllm-project/vllm/pull/36216"),
    "cpu-offload-gb": Fact(
        "warning", "--cpu-offload-gb offloads weights, not KV", "It makes room on the GPU by reading weights from the "
        "host at every step, which is slow; nothing of the KV cache leaves the GPU.",
        "for KV: --kv-offloading-size GIB, or a connector", link=links.COPIED_ADVICE),
    "native-on-cpu": Fact(
        "error", "native offloading does not run on a CPU build of vLLM", "The engine stops: CPU Offloading is "
        "currently only supported on CUDA-alike and XPU GPUs.", "use a GPU, or LMCacheMPConnector",
        link=links.FACTORY),
}
