"""An explanation as a person reads it, and as data."""

from __future__ import annotations

from typing import Any

from ..redact import Redactor
from .evidence import Evidence, Explanation, Match, Status

_SAID = {
    Status.FAILURE: "known failure",
    Status.NOT_OFFLOADING: "configured but not offloading, as far as this shows",
    Status.WORKING: "working: KV came back from outside the engine's own cache",
    Status.UNKNOWN: "unknown: nothing here shows whether KV comes back",
}
_NEXT = ("next: send a few long prompts and explain the metrics page too (curl -s URL/metrics | ./inv explain -), or "
         "follow docs/guides/is-my-offload-working.md")
_MOST = 6
"""Failures, and pieces of evidence."""
_COMPONENTS = {"vllm": "vLLM", "lmcache": "LMCache", "sglang": "SGLang", "tensorrt-llm": "TensorRT-LLM"}


def lines(explanation: Explanation) -> list[str]:
    """What to print, secrets masked."""
    versions = ", ".join(f"{_COMPONENTS.get(name, name)} {version}" for name, version in explanation.versions)
    found = [_SAID[explanation.status] + (f" ({versions})" if versions else "")]
    failures = [line for match in explanation.matches[:_MOST] for line in _match(match)]
    evidence = [line for e in explanation.evidence[:_MOST] for line in _evidence(e)]
    found += [*evidence, *failures] if explanation.status is Status.WORKING else [*failures, *evidence]
    more = len(explanation.matches[_MOST:]) + len(explanation.evidence[_MOST:])
    if more:
        found += ["", f"and {more} more; --json has all"]
    if explanation.telling:
        found += ["", "the lines that tell most:", *(f"  {line}" for line in explanation.telling)]
    for match in explanation.doubtful:
        found += _doubtful(match)
    remarks = [f"{i.name}: {i.remark}" if i.lines else f"not read: {i.remark}"
               for i in explanation.inputs if i.remark]
    if explanation.status is Status.UNKNOWN:
        remarks.append(_NEXT)
    if remarks:
        found += ["", *remarks]
    redact = Redactor()
    return [redact(line) for line in found]


def as_data(explanation: Explanation) -> dict[str, Any]:
    """For --json."""
    data = {
        "status": explanation.status.value,
        "exit_code": explanation.exit_code,
        "versions": dict(explanation.versions),
        "failures": [_match_data(m) for m in explanation.matches],
        "doubtful": [_match_data(m) for m in explanation.doubtful],
        "evidence": [{"kind": e.kind.value, "text": e.text, "next": e.then or None,
                      "line": _line_data(e.line)} for e in explanation.evidence],
        "telling": [_line_data(line) for line in explanation.telling],
        "inputs": [{"name": i.name, "bytes": i.size_bytes, "lines": i.lines, "remark": i.remark or None}
                   for i in explanation.inputs],
    }
    return Redactor().tree(data)  # type: ignore[return-value]


def _match(match: Match) -> list[str]:
    s = match.signature
    bounds = ", ".join(f"{_COMPONENTS.get(name, name)} {bounds}" for name, bounds in s.versions.items())
    return [
        "",
        f"{s.severity}: {s.title} [{s.id}]",
        f"  line      {match.line}",
        f"  cause     {s.cause}",
        f"  fix       {s.fix}",
        f"  versions  {bounds or 'not tied to a version'}",
        f"  link      {s.link}",
    ]


def _doubtful(match: Match) -> list[str]:
    s = match.signature
    if match.earlier:
        why = "in an earlier start of this server; a later one worked"
    else:
        why = f"its line is here, but it is {match.excluded}: another cause, or one that came back"
    return ["", f"not claimed: {s.title} [{s.id}], {why}", f"  line      {match.line}", f"  link      {s.link}"]


def _evidence(evidence: Evidence) -> list[str]:
    found = ["", f"{evidence.kind.value}: {evidence.text}"]
    found += [f"  line      {evidence.line}"] if evidence.line else []
    return found + ([f"  next      {evidence.then}"] if evidence.then else [])


def _match_data(match: Match) -> dict[str, Any]:
    s = match.signature
    return {"id": s.id, "title": s.title, "severity": s.severity, "means": s.means, "log": s.log, "cause": s.cause,
            "fix": s.fix, "versions": dict(s.versions), "link": s.link, "line": _line_data(match.line),
            "excluded": match.excluded, "earlier": match.earlier}


def _line_data(line: Any) -> dict[str, Any] | None:
    return None if line is None else {"log": line.log, "number": line.number, "text": line.text}
