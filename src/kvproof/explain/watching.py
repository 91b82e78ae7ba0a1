"""What is looked for besides known failures: signs that KV came back or did not, versions, and lines that tell."""

from __future__ import annotations

import re
from dataclasses import dataclass

from . import pages

_RATE = "External prefix cache hit rate: "
_ABOVE_ZERO = r"(?:[1-9]|0\.\d*[1-9])"


@dataclass(frozen=True)
class Watch:
    """One thing to look for.

    Attributes:
        regex: what is searched for, in ASCII.
        line: what the line, fit to be shown, must contain to count; regex where None.
        every: every place counts, not only the first of a block.
    """

    regex: str
    line: re.Pattern[str] | None = None
    every: bool = False

    @property
    def counted(self) -> re.Pattern[str]:
        """What the line must contain."""
        return self.line or re.compile(self.regex)


WATCHES: dict[str, Watch] = {
    # KV came back.
    "external_rate": Watch(_RATE + _ABOVE_ZERO),
    "retrieved": Watch(r"Retrieved [1-9]\d* (?:tokens in|out of)"),
    "hit_tokens": Watch(r"LMCache hit tokens: [1-9]"),
    "native_load": Watch(r"(?:kv_offload_load_bytes|CPU_to_GPU_total_bytes)=" + _ABOVE_ZERO),
    # KV was kept.
    "stored": Watch(r"Stored [1-9]\d* (?:tokens in|out of)"),
    "native_store": Watch(r"(?:kv_offload_store_bytes|GPU_to_CPU_total_bytes)=" + _ABOVE_ZERO),
    # Nothing came back so far, which is what a cold start looks like too.
    "external_zero": Watch(_RATE + r"0\.0%"),
    "external_zero_busy": Watch(r"prompt throughput: " + _ABOVE_ZERO + r".*" + _RATE + r"0\.0%"),
    "external_zero_local_hits": Watch(
        r"Prefix cache hit rate: " + _ABOVE_ZERO + r".*" + _RATE + r"0\.0%",
        re.compile(r"(?<!External )Prefix cache hit rate: " + _ABOVE_ZERO + r".{0,80}" + _RATE + r"0\.0%"),
    ),
    # What the server was told to do.
    "arguments": Watch(r"non-default args: ", every=True),
    "server_arguments": Watch(r"server_args=ServerArgs\(", every=True),
    "no_transfer_config": Watch(r"kv_transfer_config['\"]?[=:] ?None"),
    "connector": Watch(r"Creating v1 connector with name: \w+"),
    "ready": Watch(r"Application startup complete|The server is fired up and ready to roll"),
    "gemma": Watch(r"(?i)gemma-?_?4"),
    # Metrics pages.
    "sample": Watch(pages.SAMPLES, every=True),
    # Lines that tell what went wrong, when no signature does.
    "error": Watch(r"\b(?:ERROR|CRITICAL|FATAL)\b"),
    "traceback": Watch(r"Traceback \(most recent call last"),
    "exception": Watch(r"[A-Za-z](?:Error|Exception|Interrupt): "),
    "crash": Watch(r"Segfault encountered|Segmentation fault|Out of memory: Killed|exit code: -|core dumped"),
}
ZERO_LINES = 3
"""So many lines of a busy engine, ten seconds apart, without one hit, are no longer the beginning."""
ENOUGH = {"external_zero_busy": ZERO_LINES}
"""Of which watches more than the first line is counted, and up to how many."""
WORKING = ("external_rate", "retrieved", "hit_tokens", "native_load")
STARTS = ("arguments", "server_arguments")
TELLING = ("error", "traceback", "exception", "crash")


@dataclass(frozen=True)
class VersionLine:
    """A line that says which version of something ran.

    Attributes:
        component: as signatures name it.
        regex: what is searched for, in ASCII.
        line: what the line must contain; its group is the version.
        belief: the more, the rather it is the version that ran.
    """

    component: str
    regex: str
    line: re.Pattern[str]
    belief: int



_NUMBER = r"\d+(?:\.\d+)+(?:\.?(?:a|b|rc|dev|post)\d+)*(?:\+[a-z0-9.]+)?"


def _installed(component: str, name: str) -> VersionLine:
    """A package, a wheel or an image by its name."""
    start = name + r"(?:-|==|:v?)"
    return VersionLine(component, start + r"\d+\.\d", re.compile(rf"\b{start}({_NUMBER})"), 1)


VERSIONS: tuple[VersionLine, ...] = (
    VersionLine("vllm", r"LLM engine \(v\d", re.compile(r"LLM engine \(v(\d[^)\s]*)\)"), 3),
    VersionLine("vllm", r"vLLM (?:API )?server version \d", re.compile(r"vLLM (?:API )?server version (\d[^,\s]*)"), 3),
    VersionLine("vllm", r"  version \d+\.\d", re.compile(r"█\s+version (\d\S*)"), 3),
    VersionLine("vllm", r"vllm version \d", re.compile(r"vllm version (\d[^,\s]*)"), 2),
    VersionLine("vllm", r"vLLM Version *: \d", re.compile(r"vLLM Version *: (\d\S*)"), 2),
    _installed("vllm", r"vllm(?:-openai|-cpu)*"),
    VersionLine("lmcache", r"Role\.\w+ with version \d", re.compile(r"Role\.\w+ with version (\d[^,\s]*)"), 3),
    _installed("lmcache", r"lmcache(?:/standalone)?"),
    _installed("sglang", "sglang"),
    VersionLine("tensorrt-llm", r"TensorRT[- ]LLM version: \d", re.compile(r"TensorRT[- ]LLM version: (\d\S*)"), 3),
    _installed("tensorrt-llm", "tensorrt[-_]llm"),
    _installed("transformers", "transformers"),
)
