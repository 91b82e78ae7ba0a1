"""The support matrix as Markdown: the same matrix gives the same bytes, and nothing is decided here.

Links to evidence assume that the page lies in a folder beside the evidence folder (docs/, evidence/).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from urllib.parse import quote

from .evidence import Hardware
from .recipe import GIB
from .standing import Cell, Matrix, Standing

_INTRODUCTION = """\
# Support matrix

Made by `./inv matrix` from the recipes, their locks and the evidence alone; do not edit it.

A cell is **proven** only if a run on record launched the real engine, stored KV, got it back from outside \
the GPU, and the answers were right, with the recipe and the lock that are here now. **failing** and \
**unsupported** were run too; **stale** was run before the recipe or its lock changed; **claimed** is what \
an upstream page says, without a run here; **not run** is neither. Weights: *real* are published ones, \
*nano* a small trained model of our own, *dummy* random numbers in real shapes.
"""
_MARKUP = re.compile(r"([\\|<>\[\]*`~#&])")
_OUTER_UNDERSCORE = re.compile(r"(?<!\w)_|_(?!\w)")
_MAX_CELL_CHARACTERS = 200


def render(matrix: Matrix) -> str:
    """The whole page, ending in a line break."""
    notes = _Footnotes()
    parts = [_INTRODUCTION]
    if matrix.cells:
        parts += [_overview(matrix.cells, notes), _runs(matrix.cells), notes.text()]
        parts += [_recipe(cell) for cell in matrix.cells]
    else:
        parts.append("There are no recipes that can be read.\n")
    if matrix.orphans:
        rows = (
            (
                _escape(orphan.recipe),
                _escape(orphan.reason),
                str(orphan.runs),
                f"{_link(orphan.verdict, orphan.evidence)}, {orphan.date}",
            )
            for orphan in matrix.orphans
        )
        parts.append("## Evidence without a recipe\n\n" + _table(("Recipe", "Why", "Runs", "Newest"), rows))
    if matrix.problems:
        lines = (f"- `{problem.path}`: {_escape(problem.reason)}\n" for problem in matrix.problems)
        parts.append("## Files that could not be used\n\n" + "".join(lines))
    return "\n".join(part for part in parts if part)


class _Footnotes:
    """Collects what a cell cannot hold, numbered in the order of the cells."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def mark(self, texts: Iterable[str]) -> str:
        marks = ""
        for text in texts:
            self._lines.append(f"[^{len(self._lines) + 1}]: {_escape(text)}\n")
            marks += f"[^{len(self._lines)}]"
        return marks

    def text(self) -> str:
        return "\n".join(self._lines)


def _overview(cells: tuple[Cell, ...], notes: _Footnotes) -> str:
    """Model and feature down, engine and connector across; recipes that share a place share its cell."""
    columns = sorted({(c.engine, c.connector) for c in cells})
    rows = []
    for model, feature in sorted({(c.model, c.feature) for c in cells}):
        here = [c for c in cells if (c.model, c.feature) == (model, feature)]
        texts = [
            "<br>".join(_place(c, notes) for c in here if (c.engine, c.connector) == column) or "-"
            for column in columns
        ]
        rows.append((_escape(model), feature, *texts))
    return _table(("Model", "Feature", *(f"{e} + {c}" for e, c in columns)), rows)


def _place(cell: Cell, notes: _Footnotes) -> str:
    flags = [f"contradiction: {text}" for text in cell.contradictions]
    reason = [cell.reason] if cell.reason else []
    marks = notes.mark(reason + flags + list(cell.notes))
    text = f"{_standing(cell)} ({cell.weights}, [{cell.recipe}](#{_anchor(cell)}))"
    return text + (" **contradicts a claim**" if flags else "") + marks


def _standing(cell: Cell) -> str:
    strong = f"**{cell.standing}**"
    if cell.evidence:
        return _link(strong, cell.evidence)
    if cell.standing is Standing.CLAIMED:
        return f"{strong}: {', '.join(_source(c.says, c.source) for c in cell.claims)}"
    return strong


def _runs(cells: tuple[Cell, ...]) -> str:
    head = ("Recipe", "Standing", "Weights", "Hardware", "Engine", "Connector", "Date", "Numbers")
    rows = (
        (
            f"[{cell.recipe}](#{_anchor(cell)})",
            _standing(cell),
            cell.weights,
            hardware_text(cell.hardware),
            _version(cell, cell.engine, cell.engine_version, cell.engine_pin),
            _version(cell, cell.connector, cell.connector_version, cell.connector_pin),
            cell.date or "-",
            "<br>".join(f"{_escape(n)} {_value(v)}" for n, v in cell.highlights.items()) or "-",
        )
        for cell in cells
    )
    return "## Runs on record\n\n" + _table(head, rows)


def _recipe(cell: Cell) -> str:
    """A section on one recipe: why it stands where it stands, and its checks."""
    lines = [f"## {cell.recipe}\n", f"{_escape(cell.title.rstrip('.'))}. {_standing(cell)}{_because(cell)}\n"]
    if cell.checks:
        rows = (
            (
                check.name,
                str(check.verdict),
                "yes" if check.required else "no",
                _short(check.reason or "") + (f" {_source('link', check.link)}" if check.link else ""),
            )
            for check in cell.checks
        )
        lines.append(_table(("Check", "Verdict", "Required", "Reason"), rows))
    for claim in cell.claims:
        says = f"{claim.says} ({_source(claim.source, claim.source)}, {claim.date})"
        lines.append(f"- upstream says {says}: {_escape(claim.text)}")
    lines += [f"- contradiction: {_escape(text)}" for text in cell.contradictions]
    lines += [f"- {_escape(text)}" for text in cell.notes]
    return "\n".join(lines).rstrip("\n") + "\n"


def _because(cell: Cell) -> str:
    if cell.reason and cell.standing is not Standing.CLAIMED:
        return f": {_escape(cell.reason)}"
    return "."


def hardware_text(hardware: Hardware | None) -> str:
    """Hardware in one line: GPUs with their driver first, then the CPU; a dash for None."""
    if hardware is None:
        return "-"
    gpus = [f"{n} x {name}" for name, n in sorted(Counter(hardware.gpus).items())]
    if gpus and hardware.gpu_driver:
        gpus[-1] += f" (driver {hardware.gpu_driver})"
    cpu = f"{hardware.cpu}, {hardware.cores} cores, {hardware.memory_bytes / GIB:.0f} GiB"
    return _escape("; ".join([*gpus, cpu]))


def _version(cell: Cell, name: str, reported: str | None, pin: str | None) -> str:
    """A version as it was reported; the recipe's own, said to be one, where nothing ran."""
    if cell.evidence is None:
        return f"{name} {_escape(pin)} (pinned)" if pin else name
    if reported is None:
        return f"{name}, version not reported" if pin else name
    return f"{name} {_escape(reported)}"


def _value(value: float | int | str | None) -> str:
    if value is None:
        return "not measured"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 10_000 else f"{value:.0f}"
    return _escape(str(value))


def _anchor(cell: Cell) -> str:
    """The anchor that a heading with the recipe's name gets."""
    return cell.recipe.replace(".", "")


def _link(text: str, evidence: str) -> str:
    return f"[{text}](../{quote(evidence)})"


def _source(text: str, source: str) -> str:
    if source.startswith(("https://", "http://")):
        return f"[{_escape(text)}]({quote(source, safe=':/?#&=%+,;@~!$')})"
    return _escape(text) if text == source else f"{_escape(text)} ({_escape(source)})"


def _short(text: str) -> str:
    text = " ".join(text.split())
    if len(text) > _MAX_CELL_CHARACTERS:
        text = text[: _MAX_CELL_CHARACTERS - 1] + "…"
    return _escape(text)


def _escape(text: str) -> str:
    """Text of others on one line, shown as it is: no markup, no table border, no HTML."""
    return _OUTER_UNDERSCORE.sub(r"\\_", _MARKUP.sub(r"\\\1", " ".join(text.split())))


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = tuple(head)
    lines = [head, ("---",) * len(head), *rows]
    return "".join("| " + " | ".join(cells) + " |\n" for cells in lines)
