"""The support matrix: every recipe and every piece of evidence, read into one value, written as one page.

`standing` judges a recipe, `matrix_page` makes the Markdown; here files are found, read, written and
compared. Of a run that can decide only its time and path are kept while reading, so memory hardly grows with
the number of evidence files.
"""

from __future__ import annotations

import hashlib
import os
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath

from . import files
from .errors import EvidenceError, RecipeError, UsageError
from .evidence import require_regular
from .image_lock import read_images
from .loading import load_recipe
from .matrix_page import render
from .paths import DOCS, EVIDENCE, IMAGES, RECIPES
from .recipe import Recipe
from .runnable import require_known
from .standing import (
    Cell,
    Current,
    Matrix,
    Newest,
    Orphan,
    Problem,
    Run,
    Standing,
    beside,
    cell,
    kind,
    read_run,
)

__all__ = [
    "PAGE",
    "Cell",
    "Matrix",
    "Orphan",
    "Problem",
    "Standing",
    "check",
    "collect",
    "render",
    "standings",
    "standings_table",
    "write",
]

PAGE = DOCS / "support-matrix.md"
_MAX_DRIFT_LINES = 3


def collect(recipes_folder: Path = RECIPES, evidence_folder: Path = EVIDENCE, images_folder: Path = IMAGES) -> Matrix:
    """Read every recipe, the header of every evidence file, and the whole of each file that decides.

    A file that cannot be read becomes a problem of the matrix and stops nothing. A missing evidence folder
    holds no evidence.

    Raises:
        UsageError: there is no recipes folder.
    """
    problems: list[Problem] = []
    current, unreadable = _recipes(recipes_folder, images_folder, problems)
    newest: dict[str, Newest] = defaultdict(Newest)
    orphans: dict[str, tuple[int, Run]] = {}
    now = datetime.now(UTC)
    for path, shown in _evidence_files(evidence_folder, problems):
        try:
            run = read_run(path, shown, now)
            known = current.get(run.header.recipe)
            if known:
                newest[known.recipe.name].add(kind(run.header, known), run, path)
        except EvidenceError as error:
            problems.append(_evidence_problem(path, shown, error))
            continue
        if known is None:
            count, last = orphans.get(run.header.recipe, (0, run))
            orphans[run.header.recipe] = (count + 1, max(run, last, key=lambda r: r[:3]))
    for name in sorted(current):
        problems += [_evidence_problem(*found) for found in newest[name].settle(current[name])]
    return Matrix(
        cells=beside(tuple(cell(current[name], newest[name]) for name in sorted(current))),
        orphans=tuple(
            Orphan(
                recipe=name,
                reason="its recipe cannot be read" if name in unreadable else "no recipe has this name",
                runs=runs,
                evidence=last.evidence,
                verdict=last.header.verdict,
                date=last.date,
            )
            for name, (runs, last) in sorted(orphans.items())
        ),
        problems=tuple(problems),
    )


def standings(
    recipes_folder: Path = RECIPES, evidence_folder: Path = EVIDENCE, images_folder: Path = IMAGES
) -> list[dict[str, str | None]]:
    """The short list of recipes, by name, as plain data.

    Returns:
        name, title, standing, weights, engine, connector and error of each. A recipe file that cannot be read
        has its error, and None for all but its name; error is None for all others.
    """
    matrix = collect(recipes_folder, evidence_folder, images_folder)
    rows: list[dict[str, str | None]] = [
        {
            "name": known.recipe,
            "title": known.title,
            "standing": known.standing.value,
            "weights": known.weights,
            "engine": f"{known.engine} {known.engine_pin}",
            "connector": " ".join(filter(None, (known.connector, known.connector_pin))),
            "error": None,
        }
        for known in matrix.cells
    ]
    for problem in matrix.problems:
        if problem.kind == "recipe":
            unknown = dict.fromkeys(("name", "title", "standing", "weights", "engine", "connector"))
            rows.append(unknown | {"name": PurePosixPath(problem.path).stem, "error": problem.reason})
    return sorted(rows, key=lambda row: row["name"] or "")


def standings_table(rows: list[dict[str, str | None]]) -> str:
    """The rows of `standings` in columns, for a terminal; the errors below them."""
    if not rows:
        return "there are no recipes"
    columns = ("name", "standing", "weights", "engine", "connector", "title")
    lines = [[column.upper() for column in columns]]
    lines += [["unreadable" if row["error"] and c == "standing" else row[c] or "-" for c in columns] for row in rows]
    widths = [max(len(line[number]) for line in lines) for number in range(len(columns))]
    table = ["  ".join(word.ljust(width) for word, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    return "\n".join(table + [f"{row['name']}: {row['error']}" for row in rows if row["error"]])


def _recipes(folder: Path, images: Path, problems: list[Problem]) -> tuple[dict[str, Current], frozenset[str]]:
    """Recipes that load, by name, and the names of those that do not."""
    if not folder.is_dir():
        raise UsageError(f"{folder}: no such folder, so no recipes", tip="run it inside the project")
    by_name: dict[str, list[Path]] = defaultdict(list)
    for path in sorted([*folder.glob("*.yaml"), *folder.glob("*.yml")]):
        by_name[path.stem].append(path)
    current: dict[str, Current] = {}
    locks: dict[str, str | None] = {}
    for name, paths in sorted(by_name.items()):
        shown = f"{folder.name}/{paths[0].name}"
        if len(paths) > 1:
            reason = f"two recipes are called {name!r}: {' and '.join(p.name for p in paths)}"
            problems.append(Problem(kind="recipe", path=shown, reason=reason))
            continue
        try:
            recipe = load_recipe(paths[0])
            require_known(recipe, paths[0], images)
        except RecipeError as error:
            reason = _by_line(error.message, paths[0])
            problems.append(Problem(kind="recipe", path=shown, reason=reason))
            continue
        if recipe.environment and recipe.environment not in locks:
            locks[recipe.environment] = _lock_digest(images, recipe.environment, problems)
        current[name] = Current(recipe, recipe.digest(), locks.get(recipe.environment or ""), *_image(recipe, images))
    return current, frozenset(by_name) - frozenset(current)


def _by_line(message: str, path: Path) -> str:
    """What is wrong with a recipe, on one line, with the line numbers but without the path before them."""
    where = re.compile(rf"{re.escape(str(path))}(?::([0-9]+))?(?::[0-9]+)?: ")
    text = "; ".join(where.sub(lambda m: f"line {m[1]}: " if m[1] else "", message).splitlines())
    return text.replace(f"{path.parent}{os.sep}", "")  # what it extends is named by its file alone


def _image(recipe: Recipe, images: Path) -> tuple[frozenset[str], str | None]:
    """Digests of the pinned image that a recipe's containers run in, and of the lock of what is added to it."""
    try:
        name = recipe.image
        if name is None and recipe.environment is not None:
            about = tomllib.loads((images / recipe.environment / "environment.toml").read_text(encoding="utf-8"))
            name = about.get("image")
        image = read_images(images).get(str(name))
        layer = images / (recipe.image or "") / "requirements.lock"
        added = hashlib.sha256(layer.read_bytes()).hexdigest() if recipe.image and layer.is_file() else None
    except (OSError, ValueError, RecipeError):
        return frozenset(), None  # nothing is known to be pinned, so no run in a container matches
    return frozenset({image.index, *image.platforms.values()} - {None}) if image else frozenset(), added


def _lock_digest(images: Path, environment: str, problems: list[Problem]) -> str | None:
    path = images / environment / "requirements.lock"
    try:
        require_regular(path)
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        reason = f"cannot be read, so that no evidence can match it: {error.strerror or error}"
        shown = f"{images.name}/{environment}/{path.name}"
        problems.append(Problem(kind="lock", path=shown, reason=reason))
        return None


def _evidence_problem(path: Path, shown: str, error: EvidenceError) -> Problem:
    reason = error.message.removeprefix(f"{path}: ").replace(str(path), shown)
    return Problem(kind="evidence", path=shown, reason=reason)


def _evidence_files(folder: Path, problems: list[Problem]) -> Iterator[tuple[Path, str]]:
    """Evidence files in a fixed order, each with the path under which it is shown."""

    def shown(path: Path) -> str:
        text = Path(folder.name, path.relative_to(folder)).as_posix()
        return text.encode(errors="replace").decode()  # a file's name need not be UTF-8

    def unreadable(error: OSError) -> None:
        path = Path(error.filename)
        if path != folder or not isinstance(error, FileNotFoundError):
            reason = f"cannot be read: {error.strerror or error}"
            problems.append(Problem(kind="evidence", path=shown(path), reason=reason))

    for parent, folders, names in os.walk(folder, onerror=unreadable):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            if name.endswith(".json") and not name.startswith("."):
                path = Path(parent, name)
                yield path, shown(path)


def write(matrix: Matrix | None = None, path: Path = PAGE) -> Path:
    """Write the page, whole or not at all; the file is left alone when it already says the same.

    Args:
        matrix: what to write; None to collect the project's own.
        path: the page, in a folder beside the evidence folder.

    Raises:
        KvproofError: it cannot be written.
    """
    files.replace(path, render(collect() if matrix is None else matrix))
    return path


def check(matrix: Matrix | None = None, path: Path = PAGE) -> list[str]:
    """What keeps the page from being up to date; empty when nothing does.

    Args:
        matrix: what the page should say; None to collect the project's own.
        path: the page.

    Returns:
        One line per recipe or lock that cannot be read, then the first lines in which the page differs from
        what `write` would write.
    """
    matrix = collect() if matrix is None else matrix
    drift = [f"{problem.path}: {problem.reason}" for problem in matrix.problems if problem.blocking]
    try:
        seen = path.read_bytes()
    except OSError as error:
        return [*drift, f"{path}: cannot be read: {error.strerror or error}"]
    expected = render(matrix).encode()
    if seen == expected:
        return drift
    old = seen.decode(errors="replace").split("\n")
    new = expected.decode().split("\n")
    differing = []
    for number in range(max(len(old), len(new))):
        there, wanted = (lines[number] if number < len(lines) else None for lines in (old, new))
        if there != wanted:
            differing.append(f"{path}:{number + 1}: {_line(there)}, expected: {_line(wanted)}")
        if len(differing) == _MAX_DRIFT_LINES:
            break
    return [*drift, *differing]


def _line(text: str | None) -> str:
    return "no such line" if text is None else repr(text if len(text) <= 200 else text[:199] + "…")
