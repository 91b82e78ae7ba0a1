"""Whether a recipe can be run at all, judged before anything is installed: everything that it names is there, and it
sets nothing that kvproof sets."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from .checks import CHECKS
from .connectors import CONNECTORS
from .engines import ENGINES
from .errors import nearest
from .loading import error_at
from .paths import IMAGES
from .recipe import Recipe


def require_runnable(recipe: Recipe, path: Path, images: Path = IMAGES) -> None:
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
    folders = [folder.name for folder in images.iterdir() if folder.is_dir()] if images.is_dir() else []
    for key in ("environment", "image"):
        if getattr(recipe, key) is not None:
            require(key, getattr(recipe, key), folders, key)
    for key in ("required", "reported"):
        for number, name in enumerate(getattr(recipe.checks, key)):
            require("check", name, CHECKS, "checks", key, number)
    connector = CONNECTORS[recipe.connector.name]
    for part, given, reserved in (("engine", recipe.engine.arguments, ENGINES[recipe.engine.name].RESERVED),
                                  ("connector", recipe.connector.arguments, connector.RESERVED)):
        for flag in given:
            if flag.replace("_", "-") in reserved:
                raise error_at(path, (part, "arguments", flag), "kvproof sets this flag itself",
                               tip="leave it out; what it says stands elsewhere in the recipe")
    unfit = connector.unfit(recipe)
    if unfit is not None:
        raise error_at(path, ("connector",), unfit)
