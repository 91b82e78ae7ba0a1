"""Metrics pages, as far as they can be read: a page may be cut, lack its TYPE lines, or stand between log lines."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ..connectors import CONNECTORS
from ..engines import ENGINES
from ..metrics import Counter

_STORE = (Counter("vllm:kv_offload_store_bytes_total"),
          Counter("vllm:kv_offload_total_bytes_total", {"transfer_type": "GPU_to_CPU"}))
_LOAD = (Counter("vllm:kv_offload_load_bytes_total"),
         Counter("vllm:kv_offload_total_bytes_total", {"transfer_type": "CPU_to_GPU"}))
_NO_ROOM = (Counter("vllm:kv_offload_allocation_failure_total"),)
_ENGINE_WORDS = ("prompt_tokens", "local_hit_tokens", "external_hit_tokens", "external_query_tokens")
_CACHE_WORDS = ("requested_tokens", "hit_tokens", "stores_submitted", "stores_finished", "retrieves_finished",
                "l2_stores_submitted", "l2_stores_completed")


def _named(tables: Iterable[Mapping[str, Counter]], words: Iterable[str]) -> dict[str, tuple[Counter, ...]]:
    tables = list(tables)
    return {word: tuple(table[word] for table in tables if word in table) for word in words}


_CACHE = _named((c.COUNTERS for c in CONNECTORS.values()), _CACHE_WORDS)
COUNTERS: dict[str, tuple[Counter, ...]] = {
    **_named((e.COUNTERS for e in ENGINES.values()), _ENGINE_WORDS),
    **{f"cache_{word}": counters for word, counters in _CACHE.items()},
    "stored_bytes": _STORE, "loaded_bytes": _LOAD, "no_room": _NO_ROOM,
}
"""What a page is asked for, by kvproof's words; the engines' and cache servers' counters together."""
_NAMES = sorted({c.name for found in COUNTERS.values() for c in found})
SAMPLES = r"(?:" + "|".join(map(re.escape, _NAMES)) + r")(?:\{[^}\n]*\})?[ \t]+[-+0-9NnIi]"
"""Regular expression of a line that matters."""
_SAMPLE = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{([^}]*)\})?\s+(\S+)(?:\s+-?\d+)?\s*")
_LABEL = re.compile(r'(\w+)\s*=\s*"((?:[^"\\]|\\.)*)"')


@dataclass
class Samples:
    """Last value of every sample that matters; None where it was not a finite number."""

    values: dict[tuple[str, frozenset[tuple[str, str]]], float | None] = field(default_factory=dict)

    def take(self, line: str) -> bool:
        """Keep a line's sample. Returns whether it was one."""
        found = _SAMPLE.fullmatch(line)
        if found is None or found[1] not in _NAMES:
            return False
        try:
            value = float(found[3])
        except ValueError:
            return False
        labels = frozenset(_LABEL.findall(found[2] or ""))
        self.values[found[1], labels] = value if math.isfinite(value) else None
        return True

    def total(self, word: str) -> float | None:
        """Sum of one of COUNTERS over all labels that it does not name; None when the page has none that is a number.

        Where two counters have the same meaning, as an old name and a new one, the first that is there counts.
        """
        for counter in COUNTERS[word]:
            wanted = set(counter.labels.items())
            found = [value for (name, labels), value in self.values.items()
                     if name == counter.name and wanted <= labels and value is not None]
            if found:
                return sum(found)
        return None
