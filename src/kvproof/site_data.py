"""What the site's page "Find a recipe" shows, as data and as scripts that a browser loads, also from a disk.

Nothing is judged here: the matrix says where a recipe stands, the run that decides says what was measured, and `export`
says what to type. `docs/assets/matrix.js` draws it; `site_hooks` adds the scripts to the site.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, get_args
from urllib.parse import quote

from . import matrix as matrices
from .errors import RecipeError, UsageError
from .evidence import CheckResult, Measurement, read
from .export import FORMS, export
from .loading import load_recipe, recipe_paths
from .paths import EVIDENCE, IMAGES, RECIPES
from .recipe import FEATURES, Model, Recipe
from .standing import Cell, Standing

PAGE = "matrix.md"
FOLDER = "assets/matrix-data"
"""Folder of the scripts in the site."""
CELLS = "cells.js"
_MEANS = {
    Standing.PROVEN: "a run on record passed everything, with the recipe and the lock that are here now",
    Standing.FAILING: "a run on record failed",
    Standing.STALE: "it was run before the recipe or its lock changed",
    Standing.UNSUPPORTED: "a run on record met a known limit upstream",
    Standing.CLAIMED: "an upstream page says something, and nothing was run here",
    Standing.NOT_RUN: "neither evidence nor a claim",
}
"""In the order in which standings and the rows of the table are shown."""
_FACETS = {"standing": "Standing", "model": "Model", "feature": "Feature", "engine": "Engine",
           "connector": "Connector", "weights": "Weights"}
_ORDERS: dict[str, tuple[str, ...]] = {"standing": tuple(_MEANS), "feature": FEATURES,
                                       "weights": get_args(Model.model_fields["weights"].annotation)}
_COLD = re.compile(r"ttft_cold_([0-9]+)_tokens_s")
_GPU_COUNTS = (1, 2, 4, 8)


def data(recipes_folder: Path = RECIPES, evidence_folder: Path = EVIDENCE, images_folder: Path = IMAGES
         ) -> dict[str, Any]:
    """Everything but the texts of `commands`: facets to filter by, and a cell per recipe, the best standing first.

    Raises:
        KvproofError: as `matrix.collect`, or the evidence of a cell cannot be read any more.
    """
    matrix = matrices.collect(recipes_folder, evidence_folder, images_folder)
    paths = recipe_paths(recipes_folder)
    rank = list(_MEANS)
    cells = sorted(matrix.cells, key=lambda cell: (rank.index(cell.standing), cell.recipe))
    return {
        "facets": [{"key": key, "label": label, "values": _values(key, cells)} for key, label in _FACETS.items()],
        "forms": list(FORMS),
        "cells": [_cell(cell, load_recipe(paths[cell.recipe]), evidence_folder) for cell in cells],
        "left_out": len(matrix.problems) + len(matrix.orphans),
    }


def commands(recipe: Recipe, images_folder: Path = IMAGES) -> dict[str, Any]:
    """A recipe's export in every form, for each number of GPUs that is offered.

    Returns:
        gpus, the numbers of GPUs, the recipe's own first; and forms, by form and then by number as text: the command
        line, and its text, or error and tip where it cannot be had.
    """
    counts = gpu_counts(recipe)
    return {"gpus": counts,
            "forms": {form: {str(count): _command(recipe, form, count, images_folder) for count in counts}
                      for form in FORMS}}


def gpu_counts(recipe: Recipe) -> list[int]:
    """Numbers of GPUs to choose from, the recipe's own first: powers of two up to 8 that it can be spread over."""
    own = recipe.hardware.gpus
    return [own, *(count for count in _GPU_COUNTS if count > own and _is_accepted(recipe, count))]


def _is_accepted(recipe: Recipe, gpus: int) -> bool:
    try:
        export(recipe, FORMS[0], gpus=gpus)
    except RecipeError:  # says why there is no text, whatever the number of GPUs
        return True
    except UsageError:
        return False
    return True


def as_script(content: dict[str, Any] | None = None, name: str = "cells") -> str:
    """Data as a script, since a page that is read from a disk may not fetch JSON.

    Args:
        content: what `data` or `commands` returned; None for the project's own `data`.
        name: what it is kept under in `kvproofMatrix`.
    """
    text = json.dumps(data() if content is None else content, separators=(",", ":"), allow_nan=False)
    # ASCII, and without a tag's beginning, so that it is the same text wherever it is put.
    text = text.replace("<", r"\u003c")
    return f"(window.kvproofMatrix ??= {{}})[{json.dumps(name)}] = {text};\n"


def scripts(recipes_folder: Path = RECIPES, evidence_folder: Path = EVIDENCE, images_folder: Path = IMAGES
            ) -> dict[str, str]:
    """Every script by file name: the cells, and the commands of each recipe.

    Raises:
        KvproofError: as `data`.
    """
    made = data(recipes_folder, evidence_folder, images_folder)
    paths = recipe_paths(recipes_folder)
    names = [cell["recipe"] for cell in made["cells"]]
    return {CELLS: as_script(made)} | {
        f"recipe-{name}.js": as_script(commands(load_recipe(paths[name]), images_folder), f"recipe-{name}")
        for name in names
    }


def _values(key: str, cells: Iterable[Cell]) -> list[dict[str, str | None]]:
    """What a facet offers: every standing, since they are explained there; of all else what there is."""
    seen = {str(getattr(cell, key)) for cell in cells}
    if key == "standing":
        return [{"name": standing.value, "means": means} for standing, means in _MEANS.items()]
    order = _ORDERS.get(key)
    names = [name for name in order if name in seen] if order else sorted(seen, key=str.lower)
    return [{"name": name, "means": None} for name in names]


def _cell(cell: Cell, recipe: Recipe, evidence_folder: Path) -> dict[str, Any]:
    """A cell as the matrix has it, with what the run that decides measured, and what the recipe needs."""
    checks = read(evidence_folder.parent / cell.evidence).checks if cell.evidence else ()
    units = {m.name: m.unit for check in checks for m in check.measurements}
    needs = recipe.resolved().hardware
    kept = cell.model_dump(mode="json", exclude={"checks", "highlights", "evidence"})
    return kept | {
        "revision": recipe.model.revision,
        "page": f"recipes/{quote(cell.recipe)}.html",
        "evidence": quote(cell.evidence) if cell.evidence else None,
        "needs": needs.model_dump(mode="json"),
        "numbers": [{"name": name, "value": value, "unit": units.get(name, "")}
                    for name, value in cell.highlights.items()],
        "ttft": _ttft(cell.highlights),
        "checks": [_check(check) for check in checks],
    }


def _check(check: CheckResult) -> dict[str, Any]:
    return check.model_dump(mode="json", exclude={"measurements"}) | {
        "measurements": [_measurement(m) for m in check.measurements]}


def _measurement(measured: Measurement) -> dict[str, Any]:
    return measured.model_dump(mode="json") | {"holds": measured.holds()}


def _ttft(highlights: dict[str, float | int | str | None]) -> list[dict[str, float | int | None]]:
    """Time to first token by prompt length, seconds; lengths of which either time is missing are left out."""
    points = []
    for name, cold in highlights.items():
        found = _COLD.fullmatch(name)
        warm = highlights.get(f"ttft_warm_{found[1]}_tokens_s") if found else None
        if isinstance(cold, int | float) and isinstance(warm, int | float):
            points.append({"tokens": int(found[1]), "cold_s": cold, "warm_s": warm,
                           "speedup_ratio": highlights.get(f"ttft_speedup_{found[1]}_tokens_ratio")})
    return sorted(points, key=lambda point: point["tokens"])


def _command(recipe: Recipe, form: str, gpus: int, images_folder: Path) -> dict[str, Any]:
    own = recipe.hardware.gpus
    command = f"./inv export {recipe.name} --to {form}" + (f" --gpus {gpus}" if gpus != own else "")
    try:
        text = export(recipe, form, gpus=None if gpus == own else gpus, images=images_folder)
        return {"command": command, "text": text}
    except RecipeError as error:
        return {"command": command, "error": error.message, "tip": error.tip}
