"""Finds out what a paste is, and reads it: the one place that knows all kinds."""

from __future__ import annotations

import re

from . import compose, configs, jsonish, kubernetes, yamlish
from .commands import Reader
from .model import Flag, Launch, Paste, Slip
from .source import Source, Text, Unreadable
from .tree import Map, Node, Seq, string

_FENCE = re.compile(r"^[ \t]*(```|~~~)[^\n]*$", re.M)
_YAML_LIKE = re.compile(r"^(?:services|apiVersion|kind|kv_cache_config|kv_connector_config|servingEngineSpec|"
                        r"image|chunk_size|local_cpu|max_local_cpu_size|kv-transfer-config|kv_transfer_config|---)\s*:?",
                        re.M)
_JSON_LIKE = re.compile(r"^\s*[\[{]")
_KV_LIKE = re.compile(r"kv_connector\W{0,3}[:=]|kv_role|kv_connector_extra_config|cpu_bytes_to_use|num_cpu_blocks")
_OTHERS = re.compile(r"[\"'](?:services|apiVersion|kind|containers|image|kv_cache_config)[\"']\s*:")
_COMMAND_LIKE = re.compile(r"vllm|sglang|trtllm|tensorrt|lmcache|docker|podman|nerdctl|api_server|launch_server|"
                           r"--model|kv[-_](?:transfer|offload)|speculative|swap[-_]space|cpu[-_]offload|attention[-_]backend|"
                           r"tensor[-_]parallel|max[-_]model|served[-_]model|gpu[-_]memory", re.I)
_MAX_LAUNCHES = 200
_QUOTED_JSON = re.compile(r"^\s*(?:(?:--)?kv[-_]transfer[-_]config\s*[=:]?\s*)?(['\"‘“]?)\s*(?=\{)")


def read(source: Source, name: str) -> Paste:
    """Everything in a paste that lint can judge.

    Raises:
        Unreadable: it is of no kind that lint understands, or is broken where it would have to be read.
    """
    paste = Paste(source)
    reader = Reader(paste)
    blocks = _fenced(source.text)
    for start, end in blocks:
        _part(reader, start, end, name, required=False)
    if not (paste.launches or paste.documents):
        _part(reader, 0, len(source.text), name, required=True)
    _files(reader)
    if len(paste.launches) > _MAX_LAUNCHES:
        raise Unreadable(f"{name}: {len(paste.launches)} engines and cache servers, but lint judges at most "
                         f"{_MAX_LAUNCHES} at once", "give it the part that matters")
    if not (paste.launches or paste.documents):
        kinds = f" ({paste.kinds[0]} without an engine or a cache server)" if paste.kinds else ""
        raise Unreadable(f"{name}: nothing in it that lint can judge{kinds}", _template_tip(source.text))
    return paste


def _fenced(text: str) -> list[tuple[int, int]]:
    """Blocks of code in a forum post or a page in Markdown."""
    fences = list(_FENCE.finditer(text))
    return [(a.end() + 1, b.start()) for a, b in zip(fences[::2], fences[1::2], strict=False) if b.start() > a.end()]


def _part(reader: Reader, start: int, end: int, name: str, *, required: bool) -> None:
    source, text = reader.paste.source, reader.paste.source.text[start:end]
    if _QUOTED_JSON.match(text) and _KV_LIKE.search(text) and not _OTHERS.search(text):
        _json(reader, start, end)
        return
    problem: yamlish.Broken | None = None
    roots: list[Node] = []
    slips: list[Slip] = []
    if re.search(r"^\s*[\w.\-\"'/]+\s*:(?:\s|$)|^\s*-\s", text, re.M) or _JSON_LIKE.match(text):
        try:
            roots = yamlish.documents(source, start, end, slips)
        except yamlish.Broken as error:
            problem = error
    if any([_document(root, reader) for root in roots]):
        reader.paste.slips += slips
        return
    before = len(reader.paste.launches)
    if _COMMAND_LIKE.search(text):
        reader.script(Text.plain(text, start))
    if len(reader.paste.launches) > before:
        reader.paste.kinds.append("commands")
    elif required and problem is not None and _YAML_LIKE.search(text):
        line, column = source.place(min(problem.at, len(source.text)))
        raise Unreadable(f"{name}:{line}:{column}: not readable as YAML: {problem.problem}", _template_tip(text))


def _template_tip(text: str) -> str | None:
    return "this looks like a chart's template: lint what helm template prints" if "{{" in text else None


def _document(root: Node, reader: Reader) -> bool:
    """Whether a YAML document is of a kind that can hold something; what it holds is added."""
    paste = reader.paste
    if isinstance(root, Seq):
        return _list(root, reader)
    if not isinstance(root, Map):
        return False
    if compose.is_compose(root) or (not kubernetes.is_manifest(root) and compose.fragment(root) is not None):
        compose.read(root, reader)
        paste.kinds.append("compose file")
        return True
    if kubernetes.is_manifest(root):
        kubernetes.read(root, reader)
        paste.kinds.append("Kubernetes manifest")
        return True
    kind = configs.read(root, reader)
    if kind is None:
        before = len(paste.launches)
        kubernetes.values(root, reader)
        kind = "Helm values" if len(paste.launches) > before else None
    if kind is not None:
        paste.kinds.append(kind)
    return kind is not None


def _list(root: Seq, reader: Reader) -> bool:
    """A list of arguments, or of containers, without what it is a part of."""
    before = len(reader.paste.launches)
    if any((string(item) or "").startswith("--") for item in root.items):
        found = reader.argv(compose.command(root, reader)[0], default="vllm")
        for launch in found:
            launch.open = launch.open or launch.model is None
        reader.paste.kinds.append("list of arguments")
    else:
        kubernetes.values(root, reader, runtime="kubernetes")
        reader.paste.kinds.append("list of containers")
    return len(reader.paste.launches) > before


def _json(reader: Reader, start: int, end: int) -> None:
    """A bare kv-transfer-config, or one in the quotes it had on its command line."""
    text = Text.plain(reader.paste.source.text[start:end], start)
    head = _QUOTED_JSON.match(text.value)
    quote = ""
    if head is not None:
        quote = head[1]
        text = text[head.end():]
    stripped = text.value.rstrip()
    if quote and stripped and stripped[-1] in "'\"’”":
        stripped = stripped[:-1].rstrip()
    text = text[:len(stripped)]
    parsed = jsonish.parse(text)
    inner = parsed.root.get("kv_transfer_config", "kv-transfer-config") if isinstance(parsed.root, Map) else None
    launch = Launch("vllm", text.start(), text.end(), open=True)
    flag = Flag("kv-transfer-config", None if isinstance(inner, Map) else text, text.start(), text.start())
    if isinstance(inner, Map):
        flag.node = inner
    launch.flags.append(flag)
    reader.paste.launches.append(launch)
    reader.paste.kinds.append("kv-transfer-config of vLLM")


def _files(reader: Reader) -> None:
    """Files that the paste itself writes or mounts, such as a here-document or a ConfigMap."""
    for name, text in list(reader.files):
        if not re.search(r"^\s*[\w.\-\"']+\s*:", text.value, re.M):
            continue
        try:
            roots = yamlish.embedded(reader.paste.source, text)
        except yamlish.Broken:
            continue  # of no kind that is known here
        for root in roots:
            if not isinstance(root, Map):
                continue
            if compose.is_compose(root):
                compose.read(root, reader)
            elif kubernetes.is_manifest(root):
                kubernetes.read(root, reader)
            else:
                configs.read(root, reader, name)

