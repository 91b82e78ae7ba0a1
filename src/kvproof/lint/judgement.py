"""Reads a paste, gives every engine in it a version, runs the rules; and mends what is certain."""

from __future__ import annotations

import re
from dataclasses import dataclass

from . import docker, images, mend, recognise, rules, secrets, versions
from .facts.models import GEMMA, UNIFIED
from .finding import Finding
from .model import ENGINES, Launch, Paste
from .source import Source, Unreadable
from .versions import Known
from .view import View

_LINES = {"vllm": versions.VLLM, "sglang": versions.SGLANG, "trtllm": versions.TRTLLM}
_PINS = {
    "vllm": re.compile(r"(?<![\w-])vllm(?:-cpu)?(?:\[[\w,-]+\])?==\s*([\w.+!-]+)"),
    "sglang": re.compile(r"(?<![\w-])sglang(?:\[[\w,-]+\])?==\s*([\w.+!-]+)"),
    "trtllm": re.compile(r"(?<![\w-])tensorrt[-_]llm==\s*([\w.+!-]+)"),
}
_LOGGED = re.compile(r"(?:LLM engine \(|vLLM API server version |vLLM version )v?(\d+\.\d+[\w.+-]*)")
_NAMED = {"vllm": re.compile(r"\bvllm[ =]+v?(\d+\.\d+\.\d+(?:\.?(?:rc|post|dev)\d+)?)(?![\w.])", re.I),
          "sglang": re.compile(r"\bsglang[ =]+v?(\d+\.\d+\.\d+)(?![\w.])", re.I),
          "trtllm": re.compile(r"\b(?:trtllm|tensorrt[-_ ]llm)[ =]+v?(\d+\.\d+\.\d+(?:rc\d+)?)(?![\w.])", re.I)}
_SINCE_UNIFIED, _SINCE_MTP = "0.23", "0.21"
_MAX_PASSES = 6


@dataclass(frozen=True)
class Report:
    """Attributes:
        name: of the file, as the user gave it.
        kinds: what the paste was read as.
        engines: what was found in it, for --json.
        versions: of the engines, as sentence parts.
        more: number of further findings of kinds that were told often enough.
    """

    name: str
    source: Source
    kinds: tuple[str, ...]
    engines: tuple[dict, ...]
    versions: tuple[str, ...]
    findings: tuple[Finding, ...]
    more: int = 0

    @property
    def exit_code(self) -> int:
        """1 when there is an error or a warning; notes alone are no findings."""
        return int(any(f.severity != "note" for f in self.findings))

    @property
    def fixable(self) -> int:
        return sum(bool(f.edits) for f in self.findings)


def examine(source: Source, name: str, engine_version: str | None = None) -> Report:
    """Everything that is wrong or worth knowing in a paste.

    Args:
        name: of the file, for texts.
        engine_version: of the engines in it; None to take what the paste says.

    Raises:
        Unreadable: it is of no kind that lint understands.
    """
    given = _given(engine_version)
    paste = recognise.read(source, name)
    for launch in paste.launches:
        launch.version = _version(paste, launch, given)
    findings, more = rules.run(paste)
    engines = tuple(_described(source, launch) for launch in paste.launches)
    said = tuple(launch.version.text() for launch in paste.engines() if launch.version is not None)
    return Report(name, source, tuple(dict.fromkeys(paste.kinds)), engines, said, tuple(findings), more)


def _given(text: str | None) -> str | None:
    if text is not None and versions.parse(text) is None:
        raise Unreadable(f"--engine-version is {text!r}, expected a version such as 0.31 or 0.19.1",
                         "vllm --version says it")
    return text


def _version(paste: Paste, launch: Launch, given: str | None) -> Known | None:
    if launch.program not in ENGINES:
        return Known(versions.LMCACHE, source="not said")
    line = _LINES[launch.program]
    if given is not None:
        return Known(line, versions.parse(given), source="--engine-version")
    image = docker.image_of(launch.container) if launch.container is not None else None
    found = images.version(image, launch.program) if image is not None else None
    if found is not None:
        return found
    text = paste.source.text
    pin = _PINS[launch.program].search(text)
    exact = versions.parse(pin[1]) if pin else None
    if exact is not None:
        return Known(line, exact, source="from a pin in the paste")
    logged = _LOGGED.search(text) if launch.program == "vllm" else None
    exact = versions.parse(logged[1]) if logged else None
    if exact is not None:
        return Known(line, exact, source="from a log line in the paste")
    named = {versions.parse(n) for n in _NAMED[launch.program].findall(text)}
    if len(named) == 1:
        return Known(line, named.pop(), source="named in the paste")
    return Known(line, at_least=_at_least(launch) if launch.program == "vllm" else None)


def _at_least(launch: Launch) -> str | None:
    """What a model that is served says of the engine's version."""
    view = View(launch)
    if view.family is GEMMA and view.size == UNIFIED and view.map("hf-overrides") is None:
        return _SINCE_UNIFIED
    return _SINCE_MTP if view.drafts_with_mtp else None


def _described(source: Source, launch: Launch) -> dict:
    line, _ = source.place(launch.start)
    version = launch.version
    return {
        "program": launch.program, "line": line,
        "model": launch.model.value if launch.model is not None else None,
        "version": str(version.exact) if version is not None and version.exact is not None else None,
        "version_source": version.source if version is not None else None,
    }


@dataclass(frozen=True)
class Mended:
    """Attributes:
        text: the paste with every certain fix made, and without secrets.
        mended: findings that are gone.
        left: the report on what remains.
    """

    text: str
    mended: tuple[Finding, ...]
    left: Report


def fix(report: Report, engine_version: str | None = None) -> Mended:
    """The paste as it should be, as far as that is certain."""
    now, gone = report, []
    for _ in range(_MAX_PASSES):
        edits = [edit for finding in now.findings for edit in finding.edits]
        if not edits:
            break
        gone += [f for f in now.findings if f.edits]
        text = mend.apply(now.source.text, edits)
        if text == now.source.text:
            break
        try:
            now = examine(Source(text, now.source.newline), report.name, engine_version)
        except Unreadable:  # what was mended made it something else: leave it as it was
            break
    text = secrets.scrub(now.source.text)
    if now.source.newline != "\n":
        text = text.replace("\n", now.source.newline)
    return Mended(text, tuple(gone), now)
