"""Whether a recipe can be run at all, judged before anything is installed: everything that it names is there, it sets
nothing that kvproof sets, and kvproof has all that its proof takes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from .checks import CHECKS
from .connectors import CONNECTORS
from .engines import ENGINES
from .errors import nearest
from .image_lock import read_images
from .loading import error_at, recipe_paths
from .paths import IMAGES
from .recipe import Recipe

_SECRET = re.compile(r"(^|_)(TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY|ACCESS_KEY|CREDENTIALS?)$")

TAKES_IMAGES = frozenset({"docker"})
"""Runtimes that need no locked environment. The table of runtimes is out of reach here: the matrix reads this."""


def require_known(recipe: Recipe, path: Path, images: Path = IMAGES) -> None:
    """Refuse a recipe that names what kvproof does not have, or that would not run what its evidence says.

    Raises:
        RecipeError: with file and line.
    """
    def require(what: str, name: str, known: Iterable[str], *location: str | int) -> None:
        if name not in known:
            raise error_at(path, location, f"no {what} is called {name!r}; {nearest(name, known)}")

    require("engine", recipe.engine.name, ENGINES, "engine", "name")
    attached = CONNECTORS.keys() & ENGINES[recipe.engine.name].CONNECTORS.keys()
    require(f"connector of {recipe.engine.name}", recipe.connector.name, attached, "connector", "name")
    if recipe.environment is not None:
        folders = [folder.name for folder in images.iterdir() if folder.is_dir()] if images.is_dir() else []
        require("environment", recipe.environment, folders, "environment")
    if recipe.image is not None:
        require("image", recipe.image, read_images(images), "image")
    for key in ("required", "reported"):
        for number, name in enumerate(getattr(recipe.checks, key)):
            require("check", name, CHECKS, "checks", key, number)
    if recipe.stands_for is not None:
        require("recipe", recipe.stands_for, recipe_paths(path.parent), "stands_for")
    connector, engine = CONNECTORS[recipe.connector.name], ENGINES[recipe.engine.name]
    for location, given, reserved in (
        (("engine", "arguments"), recipe.engine.arguments, engine.RESERVED),
        (("engine", "environment"), recipe.engine.environment, engine.RESERVED_VARIABLES),
        (("connector", "arguments"), recipe.connector.arguments, connector.RESERVED),
        (("connector", "environment"), recipe.connector.environment, frozenset()),
        (("connector", "extra_config"), recipe.connector.extra_config, connector.RESERVED_CONFIG),
        *((("versioned", number, "engine_arguments"), part.engine_arguments, engine.RESERVED)
          for number, part in enumerate(recipe.versioned or ())),
        *((("versioned", number, "extra_config"), part.extra_config, connector.RESERVED_CONFIG)
          for number, part in enumerate(recipe.versioned or ())),
    ):
        for name in given:
            # --kv-transfer-config.kv_role is a part of --kv-transfer-config
            flag = name.replace("_", "-").partition(".")[0] if location[-1].endswith("arguments") else name
            if flag in reserved:
                what = "this flag" if location[-1].endswith("arguments") else "this"
                raise error_at(path, (*location, name), f"kvproof sets {what} itself",
                               tip="leave it out; what it says stands elsewhere in the recipe")
            if _SECRET.search(name.replace("-", "_").upper()):
                raise error_at(path, (*location, name), "a recipe holds no secrets",
                               tip="leave it out, and set it in the environment of the command")
    unfit = connector.unfit(recipe)
    if unfit is not None:
        raise error_at(path, ("connector",), unfit)


def lacking_to_run(recipe: Recipe, runtime: str) -> list[str]:
    """What kvproof itself lacks to start a recipe's servers, which no host can make up for."""
    if recipe.environment is not None or runtime in TAKES_IMAGES:
        return []
    return [f"runtime: it needs the image {recipe.image}, and the runtime {runtime} takes locked environments"]


def lacking(recipe: Recipe, runtime: str) -> list[str]:
    """What kvproof itself lacks to prove a recipe; empty when nothing is."""
    not_yet = CONNECTORS[recipe.connector.name].NOT_YET
    return [*lacking_to_run(recipe, runtime), *([f"proof: {not_yet}"] if not_yet is not None else [])]
