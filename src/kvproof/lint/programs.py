"""Finds engines and cache servers in the words of a command line, and reads their options."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from .model import Flag, Launch, Word

_MODULES = {
    "vllm.entrypoints.openai.api_server": "vllm", "vllm.entrypoints.api_server": "vllm",
    "vllm.entrypoints.launchers.api_server": "vllm",
    "sglang.launch_server": "sglang",
    "tensorrt_llm.commands.serve": "trtllm",
    "lmcache.v1.multiprocess.server": "lmcache-server", "lmcache.v1.multiprocess.http_server": "lmcache-server",
    "lmcache.v1.server": "lmcache-remote", "lmcache.v1.server.__main__": "lmcache-remote",
}
_COMMANDS = {("vllm", "serve"): "vllm", ("sglang", "serve"): "sglang", ("lmcache", "server"): "lmcache-server",
             ("trtllm-serve",): "trtllm", ("lmcache_server",): "lmcache-remote",
             ("api_server.py",): "vllm", ("launch_server.py",): "sglang"}
_RUN_AS_MODULES = {"vllm.entrypoints.cli.main": "vllm", "vllm": "vllm", "lmcache": "lmcache", "sglang": "sglang",
                   "lmcache.cli.main": "lmcache"}
_SHORT = {"-tp": "tensor-parallel-size", "-pp": "pipeline-parallel-size", "-dp": "data-parallel-size",
          "-sc": "speculative-config", "-cc": "compilation-config", "-ac": "attention-config", "-q": "quantization",
          "-n": "nnodes", "-r": "node-rank", "-dcp": "decode-context-parallel-size", "-ep": "enable-expert-parallel",
          "-O": "optimization-level"}
# Options that take no value, where a positional word may follow them; all others take the next word unless it is an
# option too.
_BARE = re.compile(r"(?:no|enable|disable)-.+|enforce-eager|trust-remote-code|async-scheduling|language-model-only|"
                   r"skip-.+|separate-object-groups|isolated-ipc|l1-use-lazy|l1-use-hugepages|ray-workers-use-nsight|"
                   r"fully-sharded-loras|return-tokens-as-token-ids|headless|grpc|kv-sharing-fast-prefill|numa-bind|"
                   r"mm-encoder-only|interleave-mm-strings|kv-cache-metrics|use-tqdm-on-load|help|version")
_TAKES_VALUE = {"enable-auto-tool-choice": False, "disable-log-stats": False, "enable": True}
_FLAG = re.compile(r"--?[A-Za-z]")
_NEGATIVE = re.compile(r"-\d")
_MODEL_FLAGS = {"vllm": ("model",), "sglang": ("model-path", "model"), "trtllm": ("model",)}


@dataclass(frozen=True)
class Found:
    """Attributes:
        program: as in model.Launch.
        first: index of the first word of the program.
        rest: index of the first word behind it.
    """

    program: str
    first: int
    rest: int


def find(words: Sequence[Word], begin: int = 0) -> Found | None:
    """The first engine or cache server that a command line starts."""
    for n in range(begin, len(words)):
        value = words[n].value
        base = value.rsplit("/", 1)[-1]
        following = words[n + 1].value if n + 1 < len(words) else ""
        if value == "-m" and following:
            first = n - 1 if n > begin and "python" in words[n - 1].value.lower() else n
            if following in _MODULES:
                return Found(_MODULES[following], first, n + 2)
            verb = words[n + 2].value if n + 2 < len(words) else ""
            program = _COMMANDS.get((_RUN_AS_MODULES.get(following, ""), verb))
            if program:
                return Found(program, first, n + 3)
        if (base, following) in _COMMANDS:
            return Found(_COMMANDS[base, following], n, n + 2)
        if (base,) in _COMMANDS and (not base.endswith(".py") or "/" in value):
            skip = 1 if base == "trtllm-serve" and following == "serve" else 0
            return Found(_COMMANDS[base,], n, n + 1 + skip)
    return None


def read(program: str, words: Sequence[Word], start: int, *, shell: bool = True) -> Launch:
    """The launch that the words behind a program's name make."""
    launch = Launch(program, start, words[-1].end if words else start, shell=shell)
    n = 0
    while n < len(words):
        word = words[n]
        n += 1
        if not _FLAG.match(word.value):
            if word.open and word.value.startswith(("$", "<")) and not _names_one(word):
                launch.open = True
            launch.positionals.append(word)
            continue
        flag, took = _flag(word, words[n] if n < len(words) else None)
        if took:
            n += 1
        launch.flags.append(flag)
    if program in _MODEL_FLAGS:
        given = launch.flag(*_MODEL_FLAGS[program])
        if given is not None and given.value is not None:
            launch.model = given.value
        elif launch.positionals:
            launch.model = launch.positionals[0].text
    return launch


def _names_one(word: Word) -> bool:
    """Whether a variable looks like one value (MODEL) rather than like several options (ARGS)."""
    return re.search(r"arg|opt|flag|extra|param|@|\*", word.value, re.I) is None


def _flag(word: Word, following: Word | None) -> tuple[Flag, bool]:
    """The option that a word is, and whether the next word is its value."""
    name, equals, _ = word.value.partition("=")
    if not name.startswith("--"):
        short = next((s for s in sorted(_SHORT, key=len, reverse=True) if name == s), None)
        spelled = _SHORT[short] if short else name.lstrip("-")
    else:
        head, dot, tail = name[2:].partition(".")
        spelled = head.replace("_", "-") + dot + tail
    end = word.text.end(len(name)) if equals else word.end
    if equals:
        value = word.text[len(name) + 1:]
        return Flag(spelled, value, word.start, end, Word(value, value.start(), word.end, word.quote, word.open,
                                                          word.stripped)), False
    takes = following is not None and (not _FLAG.match(following.value) or bool(_NEGATIVE.match(following.value)))
    if takes and _TAKES_VALUE.get(spelled, not _BARE.fullmatch(spelled)):
        assert following is not None
        return Flag(spelled, following.text, word.start, end, following), True
    return Flag(spelled, None, word.start, end, word), False
