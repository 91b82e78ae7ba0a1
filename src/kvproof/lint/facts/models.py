"""Models: which versions know them, hybrid KV caches, and drafting."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..finding import Fact
from . import links


@dataclass(frozen=True)
class Family:
    """Attributes:
        pattern: of the names of its models.
        name: as people call it.
        since: first version of vLLM that knows it; None when that does not matter here.
        uneven: whether its KV cache has groups of different block sizes, which no other shape stands for.
        wide_heads: whether some of its heads are wider than FlashAttention 2 and 3 take.
    """

    pattern: re.Pattern
    name: str
    since: str | None
    uneven: bool
    wide_heads: bool


FAMILIES = (
    Family(re.compile(r"gemma-?4(?![0-9bB])|gemma4", re.I), "Gemma 4", "0.19", uneven=True, wide_heads=True),
    Family(re.compile(r"qwen-?3[-._]?next|qwen-?3\.5|jamba|bamba|nemotron-?h|falcon-?h1|granite-?4\.0-h|kimi-linear|"
                      r"zamba", re.I), "this hybrid model", None, uneven=True, wide_heads=False),
)
GEMMA = FAMILIES[0]
_SIZE = re.compile(r"(?<![a-z0-9.])(e\d+b|\d{1,3}b(?:-a\d+b)?)(?![a-z0-9])", re.I)
UNIFIED = "12b"
"""The size whose architecture, Gemma4UnifiedForConditionalGeneration, came later."""
HOPPER = re.compile(r"\b(?:GH200|H200|H100|H800|H20|hopper|sm_?90)\b|NVIDIA-H[12]00", re.I)


def family(*names: str | None) -> Family | None:
    """The family of a model, by its name, its path or its architecture; None when none of them tells."""
    return next((f for f in FAMILIES for n in names if n and f.pattern.search(n)), None)


def size(name: str | None) -> str | None:
    """The size in the name of a Gemma 4 model or assistant, such as 31b or e4b; None when it has none."""
    found = _SIZE.findall(name.replace("_", "-")) if name else []
    return found[-1].lower() if found else None


_LATER = "use vLLM 0.23 or later"
FACTS = {
    "model-too-new": Fact(
        "error", "this version of vLLM does not know {model}", "Gemma 4 came with 0.19.", "use vLLM 0.19 or later, "
        "with KV offload 0.23", versions="<0.19", link="https://github.com/vllm-project/vllm/pull/38826"),
    "model-12b-too-new": Fact(
        "error", "this version of vLLM does not know Gemma 4 12B", "Gemma4UnifiedForConditionalGeneration is not "
        "supported before 0.23.", _LATER, versions="<0.23",
        link="https://github.com/vllm-project/recipes/issues/511"),
    "hybrid-no-path": Fact(
        "error", "this version of vLLM has no KV offload for {model}, whose KV cache is hybrid",
        "With a KV connector it loses the hybrid manager or crashes.", _LATER, versions="<0.21",
        link=links.VLLM + "42348"),
    "hybrid-manager-off": Fact(
        "error", "this version of vLLM turns the hybrid KV cache manager off when a KV connector is set, and {model} "
        "needs it", "Without it every layer gets the cache of a full-attention layer: the memory does not suffice, or "
        "the engine stops.", "add --no-disable-hybrid-kv-cache-manager, or " + _LATER, versions=">=0.21,<0.23",
        link=links.VLLM + "41830", absence=True),
    "hybrid-manager-disabled": Fact(
        "warning", "--disable-hybrid-kv-cache-manager with {model}, whose KV cache is hybrid",
        "Every layer gets the cache of a full-attention layer: the memory does not suffice, or the engine stops.",
        "leave it out", link=links.VLLM + "41830"),
    "hybrid-inprocess": Fact(
        "error", "LMCacheConnectorV1 does not support hybrid KV caches, and {model} has one",
        "The engine stops with does not support HMA but HMA is enabled, or with failed to convert the KV cache specs "
        "to one unified type.", "LMCacheMPConnector with lmcache server", link=links.VLLM + "42911"),
    "manager-inprocess": Fact(
        "error", "--no-disable-hybrid-kv-cache-manager with LMCacheConnectorV1, which does not support that manager",
        "The engine stops: the hybrid KV cache manager was explicitly enabled but is not supported.",
        "leave it out, or use LMCacheMPConnector", link=links.LMCACHE + "2845"),
    "hybrid-block-size": Fact(
        "error", "block_size does not work with {model}, whose KV cache is hybrid",
        "The engine stops: all groups must have the same block size.", "blocks_per_chunk, from vLLM 0.26 on",
        link=links.VLLM + "48878"),
    "assistant-too-new": Fact(
        "error", "this version of vLLM does not serve Gemma 4's assistants",
        "It stops: draft models or parallel drafting does not support multimodal.",
        'vLLM 0.21 or later, with "method": "mtp"', versions="<0.21", link=links.VLLM + "42005"),
    "assistant-method": Fact(
        "warning", "the method is {seen}, but Gemma 4's assistants are for mtp", "As an ordinary draft model they are "
        "refused: draft models or parallel drafting does not support multimodal.", '"method": "mtp"',
        link=links.VLLM + "42005"),
    "assistant-mismatch": Fact(
        "error", "the assistant is for {draft}, the model is {target}", "Answers stay right, and almost no draft is "
        "accepted: it only costs time.", "{right}", link=links.VLLM + "41789"),
    "assistant-12b-eager": Fact(
        "error", "the 12B assistant needs --enforce-eager in this version of vLLM", "Its head applies a list that lies "
        "in unpinned host memory, which aborts the capture of CUDA graphs: Cannot copy between CPU and CUDA tensors.",
        "add --enforce-eager, or use vLLM 0.29 or later (#53884)", versions="<0.29", link=links.VLLM + "48503",
        absence=True),
    "mtp-backend": Fact(
        "error", "MTP with Gemma 4 needs a pinned attention backend", "The target alone selects Triton, but its "
        "assistant's selection picks FlashAttention, which stops at heads of 256.",
        "add --attention-backend TRITON_ATTN", versions="<0.24", link=links.GEMMA, absence=True, maybe=None),
    "mtp-backend-gpu": Fact(
        "warning", "MTP with Gemma 4 needs a pinned attention backend on every GPU but Hopper",
        "The assistant's selection picks FlashAttention, which stops at heads of 256; only from vLLM 0.24 on, and only "
        "on Hopper, FlashAttention 4 takes 512.", "add --attention-backend TRITON_ATTN", versions=">=0.24",
        link=links.GEMMA, absence=True, maybe="warning"),
    "backend-env-dead": Fact(
        "warning", "VLLM_ATTENTION_BACKEND is not read any more", "vLLM 0.32 does not know the variable; the option "
        "took its place.", "--attention-backend {seen}", versions=">=0.32", link=links.ENGINE_ARGUMENTS),
    "native-mtp": Fact(
        "error", "native offloading with MTP stores and never loads in this version of vLLM",
        "Stores grow, loads stay 0, and nothing is reported.", "use vLLM 0.31 or later (#52771), or LMCacheMPConnector",
        versions="<0.30", link=links.VLLM + "52735"),
    "native-mtp-sliding": Fact(
        "error", "native offloading with MTP fails on models with sliding windows in vLLM 0.30",
        "Loading what was stored ends in an assertion.", "use vLLM 0.31 or later (#56709)", versions=">=0.30,<0.31",
        link=links.VLLM + "56709"),
    "batch-invariant-backend": Fact(
        "warning", "VLLM_BATCH_INVARIANT with {model} needs a pinned attention backend",
        "FlashAttention 4 is given up for 2, which stops at heads of 256, and {model} has heads of 512.",
        "add --attention-backend TRITON_ATTN", versions=">=0.24", link=links.GEMMA, absence=True, maybe="warning"),
    "allocator": Fact(
        "error", "{name}=expandable_segments:True clashes with KV connectors", "The allocator moves the memory that a "
        "connector has registered; the engine stops with incompatible with "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.", "leave the variable out", versions=">=0.21",
        link=links.VLLM + "42404"),
    "sglang-speculative": Fact(
        "error", "SGLang has no speculative decoding together with LMCache", "It stops: LMCacheUnifiedRadixCache does "
        "not yet support speculative decoding.", "leave one of the two out, or use vLLM", link=links.SGLANG_LMCACHE),
    "sglang-hierarchical": Fact(
        "error", "SGLang's hierarchical cache does not take {model}", "It stops: HiRadixCache only supports MHA, MLA.",
        "--enable-lmcache", link="https://github.com/sgl-project/sglang/issues/23659"),
    "sglang-settings": Fact(
        "error", "--enable-lmcache without a configuration: LMCache's connector for SGLang needs mp_host",
        "It stops: LMCache MP config must define mp_host.", "--lmcache-config-file FILE, with mp_host and mp_port",
        link=links.SGLANG_LMCACHE, absence=True),
    "sglang-groups": Fact(
        "warning", "the cache server for SGLang and {model} is started without --separate-object-groups",
        "LMCache's sliding-window groups require it; without it they are not stored apart.",
        "add --separate-object-groups", link=links.SGLANG_LMCACHE, absence=True),
    "trtllm-reuse-off": Fact(
        "error", "enable_block_reuse is false, and a KV connector needs it", "Without it blocks have no hashes to be "
        "stored under, and TensorRT-LLM refuses the connector.", "kv_cache_config: {{enable_block_reuse: true}}",
        link=links.TRTLLM_LMCACHE),
    "trtllm-reuse-missing": Fact(
        "warning", "a KV connector without enable_block_reuse", "The connector needs it, and not every version and "
        "way to start has it on by default.", "kv_cache_config: {{enable_block_reuse: true}}",
        link=links.TRTLLM_LMCACHE),
    "trtllm-hash-seed": Fact(
        "warning", "TensorRT-LLM with LMCache needs PYTHONHASHSEED", "Its processes hash tokens with Python's own "
        "hash, which differs in each: what one stores the others do not find.", "PYTHONHASHSEED=0 for the engine",
        link=links.TRTLLM_LMCACHE, absence=True),
    "trtllm-preset": Fact(
        "error", "TensorRT-LLM has no connector preset {seen}; {near}", "The registry knows presets by name, and all "
        "others by connector_module with its classes.", "{right}",
        link="https://github.com/NVIDIA/TensorRT-LLM/pull/12626"),
    "trtllm-windows": Fact(
        "error", "this version of TensorRT-LLM takes no KV connector with {model}",
        "It stops: KV connector is not supported with VSWA (variable sliding windows).",
        "use a later version, or vLLM", versions="<=1.3.0rc20",
        link="https://github.com/NVIDIA/TensorRT-LLM/pull/18762"),
}
