"""The support matrix as Markdown: the same matrix gives the same bytes, and nothing is decided here.

Links to evidence assume that the page lies in a folder beside the evidence folder (docs/, evidence/).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from urllib.parse import quote

from .evidence import Hardware
from .recipe import FEATURES, GIB
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
PAGES = "recipes"
"""Folder of the recipes' pages, beside this page."""
_NOT_GREEN = (Standing.FAILING, Standing.UNSUPPORTED)
_MARKUP = re.compile(r"([\\|<>\[\]*`~#&])")
_OUTER_UNDERSCORE = re.compile(r"(?<!\w)_|_(?!\w)")


def render(matrix: Matrix) -> str:
    """The whole page, ending in a line break."""
    notes = _Footnotes()
    parts = [_INTRODUCTION]
    if matrix.cells:
        parts += [_overview(matrix.cells, notes), _runs(matrix.cells), _claims(matrix.cells), notes.text()]
    else:
        parts.append("There are no recipes that can be read.\n")
    if matrix.orphans:
        rows = (
            (
                escape(orphan.recipe),
                escape(orphan.reason),
                str(orphan.runs),
                f"{_link(orphan.verdict, orphan.evidence)}, {orphan.date}",
            )
            for orphan in matrix.orphans
        )
        parts.append("## Evidence without a recipe\n\n" + _table(("Recipe", "Why", "Runs", "Newest"), rows))
    if matrix.problems:
        lines = (f"- {code(problem.path)}: {escape(problem.reason)}\n" for problem in matrix.problems)
        parts.append("## Files that could not be used\n\n" + "".join(lines))
    return "\n".join(part for part in parts if part)


class _Footnotes:
    """Collects what a cell cannot hold, numbered in the order of the cells."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def mark(self, texts: Iterable[str]) -> str:
        marks = ""
        for text in texts:
            self._lines.append(f"[^{len(self._lines) + 1}]: {text}\n")
            marks += f"[^{len(self._lines)}]"
        return marks

    def text(self) -> str:
        return "\n".join(self._lines)


def _overview(cells: tuple[Cell, ...], notes: _Footnotes) -> str:
    """Model and feature down, engine and connector across; recipes that share a place share its cell."""
    columns = sorted({(c.engine, c.connector) for c in cells})
    rows = []
    order = {(c.model, c.feature): (c.model.lower(), FEATURES.index(c.feature)) for c in cells}
    for model, feature in sorted(order, key=order.__getitem__):
        here = [c for c in cells if (c.model, c.feature) == (model, feature)]
        texts = [
            "<br>".join(_place(c, notes) for c in here if (c.engine, c.connector) == column) or "-"
            for column in columns
        ]
        rows.append((escape(model), feature, *texts))
    return _table(("Model", "Feature", *(f"{e} + {c}" for e, c in columns)), rows)


def _place(cell: Cell, notes: _Footnotes) -> str:
    reason = [cell.reason] if cell.reason and cell.standing is not Standing.CLAIMED else []
    flags = [f"contradiction: {text}" for text in cell.contradictions]
    links = [f"{c.text} {source('upstream', c.link)}" for c in cell.caveats if c.link] if cell.standing in _NOT_GREEN \
        else []
    marks = notes.mark([*map(escape, [*reason, *flags, *cell.notes]), *_upstream(cell), *links])
    parts = [f"{_standing(cell)}: [{cell.recipe}]({_page(cell)})", f"{cell.weights} weights, {_where(cell)}"]
    if flags:
        parts.append("**contradicts a claim**")
    parts += [f"{s.standing} in small: [{s.recipe}]({PAGES}/{s.recipe}.md) ({s.weights})" for s in cell.stand_ins]
    return "<br>".join(parts) + marks


def _where(cell: Cell) -> str:
    """Hardware and versions of the run; what the recipe pins where there was none."""
    versions = ", ".join((_version(cell, cell.engine, cell.engine_version, cell.engine_pin),
                          _version(cell, cell.connector, cell.connector_version, cell.connector_pin)))
    return f"{hardware_text(cell.hardware)}, {versions}" if cell.hardware else versions


def _upstream(cell: Cell) -> list[str]:
    """Upstream issues that the checks of a run named, as links."""
    return [f"{check.name}: {source('upstream', check.link)}" for check in cell.checks if check.link]


def _standing(cell: Cell) -> str:
    strong = f"**{cell.standing}**"
    if cell.evidence:
        return _link(strong, cell.evidence)
    if cell.standing is Standing.CLAIMED:
        return f"{strong} {', '.join(source(c.says, c.source) for c in cell.claims)}"
    return strong


def _runs(cells: tuple[Cell, ...]) -> str:
    head = ("Recipe", "Standing", "Weights", "Hardware", "Engine", "Connector", "Date", "Numbers")
    rows = (
        (
            f"[{cell.recipe}]({_page(cell)})",
            _standing(cell),
            cell.weights,
            hardware_text(cell.hardware),
            _version(cell, cell.engine, cell.engine_version, cell.engine_pin),
            _version(cell, cell.connector, cell.connector_version, cell.connector_pin),
            cell.date or "-",
            "<br>".join(f"{escape(n)} {value(v)}" for n, v in cell.highlights.items()) or "-",
        )
        for cell in cells if cell.evidence
    )
    return "## Runs on record\n\n" + _table(head, rows)


def _claims(cells: tuple[Cell, ...]) -> str:
    """Every upstream statement with its figures, beside what was measured here."""
    rows = []
    for cell in cells:
        for claim in cell.claims:
            numbers = "<br>".join(f"{escape(n)} {value(v)} (here: {_measured(cell, n)})"
                                  for n, v in claim.numbers.items())
            rows.append((f"[{cell.recipe}]({_page(cell)})", claim.says, escape(claim.text), numbers or "-",
                         source(claim.source, claim.source), claim.date, f"**{cell.standing}**"))
    if not rows:
        return ""
    head = ("Recipe", "Upstream says", "Statement", "Figures claimed", "Source", "Read on", "Standing here")
    return ("## Claims\n\nWhat upstream pages say. Nothing of it is evidence, and no cell is proven by it.\n\n"
            + _table(head, rows))


def _measured(cell: Cell, name: str) -> str:
    return value(cell.highlights.get(name)) if name in cell.highlights else "not run"


def hardware_text(hardware: Hardware | None) -> str:
    """Hardware in one line: GPUs with their driver first, then the CPU; a dash for None."""
    if hardware is None:
        return "-"
    gpus = [f"{n} x {name}" for name, n in sorted(Counter(hardware.gpus).items())]
    if gpus and hardware.gpu_driver:
        gpus[-1] += f" (driver {hardware.gpu_driver})"
    cpu = f"{hardware.cpu}, {hardware.cores} cores, {hardware.memory_bytes / GIB:.0f} GiB"
    return escape("; ".join([*gpus, cpu]))


def _version(cell: Cell, name: str, reported: str | None, pin: str | None) -> str:
    """A version as it was reported; the recipe's own, said to be one, where nothing ran."""
    if cell.evidence is None:
        return f"{name} {escape(pin)} (pinned)" if pin else name
    if reported is None:
        return f"{name}, version not reported" if pin else name
    return f"{name} {escape(reported)}"


def value(value: float | int | str | None) -> str:
    if value is None:
        return "not measured"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 10_000 else f"{value:.0f}"
    return escape(str(value))


def _page(cell: Cell) -> str:
    return f"{PAGES}/{quote(cell.recipe)}.md"


def _link(text: str, evidence: str) -> str:
    return f"[{text}](../{quote(evidence)})"


def source(text: str, source: str) -> str:
    if source.startswith(("https://", "http://")):
        return f"[{escape(text)}]({quote(source, safe=':/?#&=%+,;@~!$')})"
    return escape(text) if text == source else f"{escape(text)} ({escape(source)})"


def escape(text: str) -> str:
    """Text of others on one line, shown as it is: no markup, no table border, no HTML."""
    return _OUTER_UNDERSCORE.sub(r"\\_", _MARKUP.sub(r"\\\1", " ".join(text.split())))


def code(text: str) -> str:
    """Text of others as code in a line or a table's cell."""
    text = " ".join(text.split()).replace("|", "\\|")
    ticks = "`" * (1 + max((len(run) for run in re.findall("`+", text)), default=0))
    pad = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{ticks}{pad}{text}{pad}{ticks}"


def fenced(text: str, language: str = "text") -> str:
    """Text of others as a block of code, which nothing in it can end."""
    ticks = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return f"{ticks}{language}\n{text}\n{ticks}"


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = tuple(head)
    lines = [head, ("---",) * len(head), *rows]
    return "".join("| " + " | ".join(cells) + " |\n" for cells in lines)
