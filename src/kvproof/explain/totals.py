"""What the sums on metrics pages say."""

from __future__ import annotations

from .configuration import GUIDE
from .evidence import Evidence, Kind
from .pages import COUNTERS, Samples

ASKED_TOKENS = 10_000
"""Prompt tokens for which a connector was asked; fewer may all have been new to it."""
TO_BE_SURE = ("send one prompt of at least two chunks twice, with POST /reset_prefix_cache between, and read the hits "
              f"again; {GUIDE}, step 4, has the commands")
_MTP = "https://github.com/vllm-project/vllm/issues/52735"


def read(samples: Samples) -> list[Evidence]:
    """What an engine's page, a cache server's page or both together say."""
    if not samples.values:
        return []
    n = {word: samples.total(word) for word in COUNTERS}
    return _came_back(n) or [*_cannot(n), *_nothing_came_back(n)]


def _came_back(n: dict[str, float | None]) -> list[Evidence]:
    return [Evidence(Kind.WORKING, f"{n[word]:.0f} {said}") for word, said in (
        ("external_hit_tokens", "prompt tokens came back through the connector (engine's page)"),
        ("loaded_bytes", "bytes were loaded back from host memory (engine's page)"),
        ("cache_hit_tokens", "of the tokens that were asked for were there (cache server's page)"),
    ) if n[word]]


def _cannot(n: dict[str, float | None]) -> list[Evidence]:
    found = []
    if n["prompt_tokens"] and n["external_query_tokens"] == 0:
        found.append(Evidence(
            Kind.SILENT, f"{n['prompt_tokens']:.0f} prompt tokens, and the scheduler never asked a connector: there is "
            "none", then=f"see {GUIDE}, step 2"))
    if n["no_room"]:
        found.append(Evidence(
            Kind.SILENT, f"{n['no_room']:.0f} stores found no room in the pool, and nothing came back: it is too small",
            then="cpu_bytes_to_use counts bytes, not GiB"))
    if n["cache_l2_stores_submitted"] and n["cache_l2_stores_completed"] == 0:
        found.append(Evidence(
            Kind.SILENT, f"{n['cache_l2_stores_submitted']:.0f} stores to the second tier began, none was finished",
            then="read the cache server's log: a serializer that does not fit the model fails like this"))
    return found


def _nothing_came_back(n: dict[str, float | None]) -> list[Evidence]:
    """Hints, where prompts do repeat or are many; a note where that it is empty may only mean that it is new."""
    repeats = n["local_hit_tokens"]
    if n["stored_bytes"] and (repeats or (repeats is None and n["loaded_bytes"] == 0)):
        return [Evidence(Kind.HINT, f"{n['stored_bytes']:.0f} bytes were stored and none was loaded"
                         + (", though prompts do repeat" if repeats else ""),
                         then=f"with MTP, vLLM before 0.30 stores and never loads ({_MTP}); otherwise {TO_BE_SURE}")]
    kept = ", though KV is stored" if n["stored_bytes"] or n["cache_stores_finished"] else ""
    for asked, of in ((n["external_query_tokens"], "the connector"), (n["cache_requested_tokens"], "the cache server")):
        if not asked:
            continue
        if repeats or asked >= ASKED_TOKENS:
            return [Evidence(Kind.HINT, f"{asked:.0f} tokens were asked of {of} and none came back{kept}",
                             then=TO_BE_SURE)]
        return [Evidence(Kind.NOTE, f"{asked:.0f} tokens were asked of {of} and none came back so far{kept}; as long "
                         "as no prompt was repeated it must be so", then=TO_BE_SURE)]
    return []
