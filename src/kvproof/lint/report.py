"""What a person reads, and what a program reads. Nothing leaves here with a secret in it."""

from __future__ import annotations

from collections import Counter
from typing import Any

from ..redact import Redactor
from . import secrets
from .finding import SEVERITIES, Finding
from .judgement import Mended, Report

_WIDTH = 120


def text(report: Report) -> str:
    """One paragraph per finding, in the order of the paste, and a line that sums up."""
    lines: list[str] = []
    clean: dict[int, str] = {}
    for finding in report.findings:
        lines += [*_lines(report, finding, clean), ""]
    lines.append(_summary(report))
    return Redactor()("\n".join(lines))


def _lines(report: Report, finding: Finding, clean: dict[int, str]) -> list[str]:
    line, column = report.source.place(finding.offset)
    if line not in clean:
        clean[line] = Redactor()(secrets.scrub(report.source.line(line)))
    shown, caret = _excerpt(report.source.line(line), clean[line], column)
    made = [f"{report.name}:{line}:{column}: {finding.severity}: {finding.message} [{finding.id}]"]
    if shown.strip():
        made += [f"    | {shown}", f"    | {' ' * caret}^"]
    made += [f"    why: {finding.reason}", f"    fix: {finding.fix}" + (" (--fix does it)" if finding.edits else "")]
    if finding.versions:
        made.append(f"    holds for: {finding.versions}")
    if finding.link:
        made.append(f"    see: {finding.link}")
    return made


def _excerpt(whole: str, clean: str, column: int) -> tuple[str, int]:
    """The part of a line around a column, and where the column is in it.

    Args:
        whole, clean: the line as it is, and without secrets.
    """
    at = column - 1
    if clean != whole:  # places have moved
        same = next((n for n, (a, b) in enumerate(zip(whole, clean, strict=False)) if a != b), len(clean))
        at = at if at <= same else max(same, at + len(clean) - len(whole))
    at = min(at, len(clean))
    start = max(0, at - _WIDTH // 2) if len(clean) > _WIDTH else 0
    return _plain(clean[start:start + _WIDTH]), at - start


def _plain(shown: str) -> str:
    return "".join(c if c.isprintable() else " " for c in shown)


def _summary(report: Report) -> str:
    counts = Counter(f.severity for f in report.findings)
    told = ", ".join(f"{counts[s]} {s}{'s' if counts[s] != 1 else ''}" for s in SEVERITIES if counts[s])
    read = "; ".join(dict.fromkeys([*report.kinds, *report.versions]))
    verdict = told or "nothing found"
    if report.more:
        verdict += f", and {report.more} more of the same"
    if report.fixable:
        verdict += f"; --fix mends {report.fixable}"
    return f"{report.name}: {verdict} (read as: {read})"


def data(report: Report, mended: Mended | None = None) -> dict[str, Any]:
    """The same for --json.

    Args:
        mended: what --fix made of it; None without --fix.
    """
    found = []
    for finding in report.findings:
        line, column = report.source.place(finding.offset)
        found.append({
            "id": finding.id, "severity": finding.severity, "line": line, "column": column,
            "message": finding.message, "reason": finding.reason, "fix": finding.fix, "versions": finding.versions,
            "link": finding.link, "fixable": bool(finding.edits),
        })
    made = {"file": report.name, "read_as": report.kinds, "engines": report.engines, "findings": found,
            "counts": {s: sum(f.severity == s for f in report.findings) for s in SEVERITIES}, "more": report.more,
            "exit_code": report.exit_code}
    redacted = Redactor().tree(made)
    assert isinstance(redacted, dict)
    if mended is not None:
        left = data(mended.left)
        redacted |= {"fixed": mended.text, "left": left["findings"], "exit_code": mended.left.exit_code}
    return redacted
