"""A page per recipe, made from the recipe and its evidence alone: the same input gives the same bytes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import jinja2

from . import files
from . import matrix as matrices
from .connectors import connector
from .engines import engine
from .errors import EvidenceError, KvproofError, RecipeError
from .evidence import Header, read, read_header
from .export import FORMS, export
from .image_lock import read_image
from .loading import load_recipe, parents, recipe_paths
from .matrix_page import code, escape, fenced, hardware_text, source, value
from .paths import DOCS, EVIDENCE, RECIPES
from .recipe import Recipe, Versioned
from .report import check_lines, headline
from .standing import Cell, Matrix, Standing

FOLDER = DOCS / "recipes"
INDEX = "index.md"
_LANGUAGES = {"shell": "bash", "docker": "bash", "compose": "yaml", "k8s": "yaml", "slurm": "bash"}
_RUNS_SHOWN = 10
_ENGINE_COUNTERS = ("external_hit_tokens", "external_query_tokens", "local_hit_tokens")
_CACHE_COUNTERS = ("hit_tokens", "stores_finished", "retrieves_finished")


class _Run(NamedTuple):
    started: str
    path: str
    header: Header


def render_all(matrix: Matrix, recipes_folder: Path = RECIPES, evidence_folder: Path = EVIDENCE) -> dict[str, str]:
    """Every page by file name, the index among them.

    Raises:
        KvproofError: a page could not be made; it names the recipe. A page is never left empty instead.
    """
    environment = _environment()
    paths = recipe_paths(recipes_folder)
    cells = {cell.recipe: cell for cell in matrix.cells}
    pages = {}
    for cell in matrix.cells:
        try:
            pages[f"{cell.recipe}.md"] = _render(environment, paths[cell.recipe], cell, cells, evidence_folder)
        except KvproofError as error:
            raise KvproofError(f"the page of {cell.recipe} could not be made: {error.message}",
                               tip=error.tip) from None
        except (jinja2.TemplateError, ArithmeticError, LookupError, TypeError, ValueError) as error:
            raise KvproofError(f"the page of {cell.recipe} could not be made: {type(error).__name__}: {error}",
                               tip="this is a defect in kvproof's template; no page was written") from error
    pages[INDEX] = environment.get_template("recipes.md.j2").render(cells=matrix.cells)
    return pages


def write(matrix: Matrix | None = None, folder: Path = FOLDER) -> list[Path]:
    """Write every page that differs, each whole or not at all, once all could be made.

    Returns:
        The files that were written.

    Raises:
        KvproofError: a page could not be made or written.
    """
    matrix = matrices.collect() if matrix is None else matrix
    broken = _broken(matrix)
    if broken:
        raise KvproofError("\n".join(["no page is written while a recipe cannot be read:", *broken]),
                           tip="mend what it names")
    pages = render_all(matrix)
    written = []
    for name, text in pages.items():
        if files.replace(folder / name, text):
            written.append(folder / name)
    return written


def check(matrix: Matrix | None = None, folder: Path = FOLDER) -> list[str]:
    """What keeps the pages from being up to date: one line per page that is missing, differs, or has no recipe."""
    matrix = matrices.collect() if matrix is None else matrix
    pages = render_all(matrix)
    drift = _broken(matrix)
    for name, text in pages.items():
        path = folder / name
        try:
            seen = path.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            drift.append(f"{path}: cannot be read: {error.strerror or error}")
            continue
        if seen != text:
            old, new = seen.split("\n"), text.split("\n")
            number = next((n for n, (a, b) in enumerate(zip(old, new, strict=False)) if a != b),
                          min(len(old), len(new)))
            drift.append(f"{path}:{number + 1}: differs from what ./inv docs would write")
    return [*drift, *orphans(matrix, folder)]


def orphans(matrix: Matrix, folder: Path = FOLDER) -> list[str]:
    """Pages that belong to no recipe; those of recipes that cannot be read are not among them."""
    known = {INDEX, *(f"{cell.recipe}.md" for cell in matrix.cells),
             *(f"{Path(problem.path).stem}.md" for problem in matrix.problems)}
    here = {path.name for path in folder.glob("*.md")} if folder.is_dir() else set()
    return [f"{folder / name}: no recipe is called {Path(name).stem!r}, so this page is an orphan; remove it"
            for name in sorted(here - known)]


def _broken(matrix: Matrix) -> list[str]:
    return [f"{problem.path}: {problem.reason}" for problem in matrix.problems if problem.blocking]


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("kvproof"), undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        keep_trailing_newline=True, autoescape=False,
    )
    environment.filters |= {"md": escape, "url": quote, "value": value, "hardware": hardware_text, "code": code,
                            "fenced": fenced}
    return environment


def _render(environment: jinja2.Environment, path: Path, cell: Cell, cells: dict[str, Cell],
            evidence_folder: Path) -> str:
    recipe = load_recipe(path)
    adapter, attached = engine(recipe.engine.name), connector(recipe.connector.name)
    record = read(evidence_folder.parent / cell.evidence) if cell.evidence else None
    return environment.get_template("recipe.md.j2").render(
        recipe=recipe, cell=cell, parents=parents(path)[:1], digest=recipe.digest()[:16],
        because=cell.reason if cell.standing is not Standing.CLAIMED else None,
        image=read_image(recipe.image).reference if recipe.image else None,
        exports={form: _exported(recipe, form) for form in FORMS}, languages=_LANGUAGES,
        output=[headline(record.header), "", *check_lines(record.checks)] if record else [],
        named=[*recipe.checks.required, *recipe.checks.reported],
        engine_url="http://127.0.0.1:8000", metrics_path=adapter.METRICS_PATH,
        engine_counters=_names(adapter.COUNTERS, _ENGINE_COUNTERS),
        cache_url="http://127.0.0.1:8080" if _has(attached.COUNTERS, _CACHE_COUNTERS) else None,
        cache_counters=_names(attached.COUNTERS, _CACHE_COUNTERS), unmeasured=_grouped(adapter.UNMEASURED),
        settings=_settings, source=lambda claim: source(claim.source, claim.source),
        of_stand_ins={s.recipe: cells[s.recipe].highlights for s in cell.stand_ins},
        runs=_runs(recipe, evidence_folder),
    )


def _exported(recipe: Recipe, form: str) -> str:
    """The recipe in a form; why it cannot be had in it, as a comment, where it cannot."""
    try:
        return export(recipe, form)
    except RecipeError as error:
        return "".join(f"# {line}\n" for line in (f"not to be had as {form}: {error.message}", f"next: {error.tip}"))


def _has(counters: Any, names: Iterable[str]) -> bool:
    return any(name in counters for name in names)


def _names(counters: Any, names: Iterable[str]) -> str:
    return "|".join(dict.fromkeys(counters[name].name for name in names if name in counters))


def _grouped(unmeasured: Mapping[str, tuple[str, str]]) -> dict[tuple[str, str], list[str]]:
    """Counters that an engine does not offer, by reason and link."""
    found: dict[tuple[str, str], list[str]] = {}
    for name, why in unmeasured.items():
        found.setdefault(why, []).append(name)
    return found


def _settings(part: Versioned) -> str:
    words = [code(f"--{flag}" if setting is True else f"--{flag} {setting}")
             for flag, setting in part.engine_arguments.items()]
    words += [code(f"{key}: {setting}") for key, setting in part.extra_config.items()]
    if part.shm_gib is not None:
        words.append(f"{part.shm_gib:g} GiB of `/dev/shm`")
    return ", ".join(words)


def _runs(recipe: Recipe, folder: Path) -> list[_Run]:
    """The newest runs of a recipe, newest first; files that cannot be read are the matrix's to name."""
    found = []
    for path in (folder / recipe.name).glob("*.json"):
        with contextlib.suppress(EvidenceError):
            header = read_header(path)
            found.append(_Run(header.started_at, Path(folder.name, recipe.name, path.name).as_posix(), header))
    return sorted(found, reverse=True, key=lambda run: run[:2])[:_RUNS_SHOWN]
