"""Native offloading: sizes and units, options that do nothing or something else."""

from __future__ import annotations

import re

from .. import mend, units
from ..facts.native import EXTRA, INPROCESS, MAX_GIB, MIN_POOL_BYTES, MP, NATIVE, SIMPLE
from ..finding import Edit
from ..model import Flag, Launch
from ..tree import Scalar
from ..view import Connector, View
from . import Judge, near

_BACKENDS = ("native", "lmcache")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_SIZES = {"kv-offloading-size": "GiB", "cpu-offload-gb": "GiB", "l1-size-gb": "GB", "cpu-buffer-size": "GB",
          "l1-init-size-gb": "GB"}


def bytes_to_use(judge: Judge) -> None:
    """Keys that are numbers of bytes, and were given something else."""
    for view in judge.engines:
        for connector in view.connectors:
            if connector.chosen != "kv-transfer-config" or connector.name not in (NATIVE, SIMPLE):
                continue
            for key in ("cpu_bytes_to_use", "cpu_bytes_to_use_per_rank"):
                given = connector.setting(key)
                if given is not None:
                    _bytes(judge, view.launch, given)
            if not view.is_broken(connector.root):
                _missing(judge, view.launch, connector)


def _bytes(judge: Judge, launch: Launch, given: Scalar) -> None:
    number = given.value
    if isinstance(number, str):
        if re.fullmatch(r"\s*\d+\s*", number):
            number = int(number)
        elif "$" in number or "{" in number:
            return
        else:
            size = units.written(number)
            judge.tell("bytes-as-text", given.start, launch, seen=repr(number[:40]),
                       edits=mend.value(judge.source, given, str(size)) if size is not None else (),
                       fix="the number of bytes, without quotes" if size is None else f"{size}")
            return
    if isinstance(number, bool) or not isinstance(number, int | float) or number >= MIN_POOL_BYTES:
        return
    whole = isinstance(number, int) and 1 <= number <= MAX_GIB
    judge.tell("bytes-too-few", given.start, launch, seen=f"{number} bytes",
               edits=mend.value(judge.source, given, str(number * units.GIB)) if whole else (),
               fix=f"{number * units.GIB}, when {number} GiB are meant" if whole else "the number of bytes")


def _missing(judge: Judge, launch: Launch, connector: Connector) -> None:
    extra = connector.extra
    if connector.root is not None and extra is None and connector.root.entry(EXTRA) is not None:
        return  # a finding of its own
    if connector.name != NATIVE or connector.setting("spec_module_path") is not None:
        return
    if extra is not None and (extra.entry("cpu_bytes_to_use") or extra.entry("num_cpu_blocks")):
        return  # the dead key is a finding of its own
    at = connector.at
    if connector.root is not None and any(e.name in ("cpu_bytes_to_use", "num_cpu_blocks", "extra_config")
                                          for e in connector.root.all()):
        return  # it is there, at the wrong place
    judge.tell("bytes-missing", at, launch, connector=connector.name)


def sizes(judge: Judge) -> None:
    """Options that are numbers of GiB, and were given text or bytes."""
    for launch in judge.paste.launches:
        for name, unit in _SIZES.items():
            flag = launch.flag(name)
            if flag is None or flag.text is None or (flag.word is not None and flag.word.open):
                continue
            _size(judge, launch, flag, name, unit)


def _size(judge: Judge, launch: Launch, flag: Flag, name: str, unit: str) -> None:
    text = (flag.text or "").strip()
    assert flag.value is not None
    if not _NUMBER.fullmatch(text):
        size = units.written(text)
        if "$" in text or "{" in text or (size is None and not re.match(r"\d", text)):
            return
        number = re.match(r"\d+(?:\.\d+)?", text)
        right = None
        if size is not None and number is not None:
            big = re.search(r"[gG]", text) is not None
            right = number.group() if big else f"{size / units.GIB:.4g}"
        judge.tell("size-as-text", flag.at, launch, flag=name, seen=repr(text[:40]), unit=unit,
                   edits=mend.replace(judge.source, flag.value, right) if right else (),
                   fix=f"--{name} {right or unit.upper()}")
    elif float(text) > MAX_GIB:
        factor = units.GIB if unit == "GiB" else 10**9
        right = f"{float(text) / factor:.4g}"
        whole = float(text) >= factor
        judge.tell("size-in-bytes", flag.at, launch, flag=name, seen=text, unit=unit,
                   edits=mend.replace(judge.source, flag.value, right) if whole else (),
                   fix=f"--{name} {right}" if whole else f"the number of {unit}")


def backend(judge: Judge) -> None:
    for view in judge.engines:
        launch = view.launch
        size, flag = launch.flag("kv-offloading-size"), launch.flag("kv-offloading-backend")
        if launch.program != "vllm" or (size is None and flag is None):
            continue
        if flag is not None and flag.text and flag.text not in _BACKENDS and not (flag.word and flag.word.open):
            right = near.match(flag.text, _BACKENDS)
            judge.tell("backend-unknown", flag.at, launch, seen=flag.text, right=right or "native or lmcache",
                       near=near.sentence(flag.text, right, _BACKENDS),
                       edits=mend.replace(judge.source, flag.value, right) if right and flag.value else ())
            continue
        if flag is not None and size is None:
            judge.tell("backend-without-size", flag.start, launch)
            continue
        assert size is not None
        judge.tell("offloading-unusable", size.start, launch)
        if flag is not None and flag.text == "lmcache" and not judge.paste.servers():
            judge.tell("backend-lmcache", flag.start, launch)
        _overridden(judge, view, size)


def _overridden(judge: Judge, view: View, size: Flag) -> None:
    root = view.map("kv-transfer-config")
    entry = root.entry("kv_connector") if root is not None else None
    if entry is None or not isinstance(entry.value, Scalar) or view.by_size is None:
        return
    named = entry.value.text.value
    if named != view.by_size and {named, view.by_size} != {NATIVE, SIMPLE} and {named, view.by_size} != {MP, INPROCESS}:
        judge.tell("size-overrides-connector", size.start, view.launch, right=view.by_size, seen=named)


def other_options(judge: Judge) -> None:
    """Options that people take for KV offloading."""
    for view in judge.engines:
        launch = view.launch
        if launch.program != "vllm":
            continue
        swap, weights = launch.flag("swap-space"), launch.flag("cpu-offload-gb")
        if swap is not None:
            edits = _removed(judge, launch, swap)
            judge.tell("swap-space", swap.start, launch, edits=edits,
                       fix="leave it out" if view.offloads else "leave it out; for KV: --kv-offloading-size GIB")
        if weights is not None and not view.offloads and weights.text not in ("0", "0.0"):
            judge.tell("cpu-offload-gb", weights.start, launch)


def _removed(judge: Judge, launch: Launch, flag: Flag) -> tuple[Edit, ...]:
    """The option and its value gone from a shell line."""
    text, word = judge.source.text, flag.word
    if not launch.shell or word is None:
        return ()
    begin, end = flag.start, word.end
    while begin > 0 and text[begin - 1] == " ":
        begin -= 1
    return (Edit(begin, end, ""),) if "\n" not in text[begin:end] and text[begin:flag.start] else ()


def on_cpu(judge: Judge) -> None:
    for view in judge.engines:
        connector = view.uses(NATIVE, SIMPLE)
        if connector is not None and view.on_cpu:
            judge.tell("native-on-cpu", connector.at, view.launch)


RULES = (bytes_to_use, sizes, backend, other_options, on_cpu)
