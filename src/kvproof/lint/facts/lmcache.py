"""LMCache: its server, its settings, its hashes."""

from __future__ import annotations

from ..finding import Fact
from . import links

FACTS = {
    "chunk-size": Fact(
        "error", "the chunk size {seen} is no multiple of the engine's block of {block} tokens",
        "The engine stops: chunk size must be a multiple of the block size.", "{right}, or another multiple of {block}",
        link=links.LMCACHE + "5217"),
    "hash-seed": Fact(
        "warning", "LMCacheConnectorV1 {why} without PYTHONHASHSEED", "Its builtin hash starts from a number that "
        "differs in each process: what one stores the others do not find, and hits stay 0.",
        "PYTHONHASHSEED=0 for every process, or pre_caching_hash_algorithm: sha256_cbor",
        link=links.LMCACHE + "1139", absence=True),
    "hash-seed-server": Fact(
        "warning", "the builtin hash needs PYTHONHASHSEED", "It differs between processes and restarts.",
        "leave --hash-algorithm out (blake3), or set PYTHONHASHSEED=0", link=links.LMCACHE + "1139", absence=True),
    "setting-unknown": Fact(
        "warning", "LMCache has no setting {seen}; {near}", "It ignores settings that it does not know.", "{right}",
        link="https://docs.lmcache.ai/api_reference/configurations.html"),
    "setting-in-bytes": Fact(
        "error", "{name} is in GB, and {seen} of them are more than any host has", "It looks like a number of bytes.",
        "{fix}", link="https://docs.lmcache.ai/api_reference/configurations.html"),
    "setting-as-text": Fact(
        "error", "{name} is {seen}, expected a number of GB without a unit", "LMCache takes a bare number.", "{fix}",
        link="https://docs.lmcache.ai/api_reference/configurations.html"),
    "blend-never": Fact(
        "warning", "--engine-type blend never blends with vLLM", "vLLM's connector does not send the registration that "
        "blending needs; /status shows registered_cb_rope_instances empty, and the server is a plain prefix cache.",
        "leave it out", link=links.LMCACHE + "5101"),
    "serde-unknown": Fact(
        "error", "the MP server has no serde {seen}; {near}", "It answers Unknown serde type; CacheGen is a codec of "
        "the in-process connector only.", "{right}", link=links.LMCACHE + "717"),
    "serde-fp8-hybrid": Fact(
        "error", "the serde fp8 fails on {model}, whose KV cache is hybrid", "Every chunk fails to serialize while the "
        "server stays healthy and memory hits go on: the second tier stays empty.", "aesgcm, or no serde",
        link=links.LMCACHE + "4358"),
    "key-mp-unknown": Fact(
        "warning", "LMCacheMPConnector does not read {seen}; {near}", "It reads keys that begin with lmcache.mp. and "
        "ignores all others.", "{right}", link=links.QUICKSTART),
}
