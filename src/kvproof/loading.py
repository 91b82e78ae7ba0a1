"""Reads recipe files, puts together those that extend others, and says exactly where one is wrong."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from pydantic import BaseModel, ValidationError

from .errors import RecipeError, UsageError, nearest
from .paths import RECIPES
from .recipe import Recipe
from .strict_yaml import YAML_TIP, parse, place_of, read_text

_EXPONENT_TEXT = re.compile(r"([-+]?[0-9]+)(\.[0-9]+)?[eE]([-+]?)([0-9]+)")
_EXTENDS = "extends"
_OWN = frozenset({"name", "aliases", "title", "claims", "stands_for", _EXTENDS})
"""What a recipe never takes from the one that it extends: it says of that one alone what it says."""
_ADDED = frozenset({"caveats", "versioned"})
"""Lists to which an extending recipe adds; every other list replaces."""


class _Part(NamedTuple):
    """One file of a recipe, of which the first is its own and each further one is what the one before extends."""

    path: Path
    root: yaml.Node | None
    content: dict[str, Any]


def _read(path: Path) -> _Part:
    root, content = parse(path, read_text(path))
    if not isinstance(content, dict):
        line = root.start_mark.line + 1 if root else 1
        raise RecipeError(
            f"{path}:{line}: expected keys such as name, model and engine, seen: {type(content).__name__}",
            tip=YAML_TIP,
        )
    return _Part(path, root, content)


def _parts(path: Path) -> list[_Part]:
    """A recipe's own file and all that it builds on.

    Raises:
        RecipeError: one cannot be read, is not there, or they go in a circle.
    """
    parts = [_read(path)]
    while _EXTENDS in parts[-1].content:
        last = parts[-1]
        where = f"{last.path}:{place_of(last.root, (_EXTENDS,))[1]}: {_EXTENDS}"
        parent = last.content[_EXTENDS]
        if not isinstance(parent, str):
            raise RecipeError(f"{where}: expected the name of a recipe, seen: {parent!r}", tip=YAML_TIP)
        known = recipe_paths(path.parent)
        if parent not in known:
            raise RecipeError(f"{where}: no recipe is called {parent!r}; {nearest(parent, known)}",
                              tip="extend a recipe of the same folder, by its name")
        names = [part.path.stem for part in parts]
        if parent in names:
            circle = " extends ".join([*names[names.index(parent):], parent])
            raise RecipeError(f"{where}: the recipes go in a circle: {circle}", tip="let one of them stand alone")
        parts.append(_read(known[parent]))
    return parts


def _merged(parts: list[_Part]) -> dict[str, Any]:
    content = parts[-1].content
    for part in reversed(parts[:-1]):
        base = {key: value for key, value in content.items() if key not in _OWN}
        own = {key: value for key, value in part.content.items() if key != _EXTENDS}
        added = {key: [*own[key], *base[key]] for key in _ADDED
                 if isinstance(own.get(key), list) and isinstance(base.get(key), list)}
        content = _overlaid(base, own) | added
    return content


def _overlaid(base: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """Mappings are merged, key by key; null takes a key away; all else replaces what was there."""
    result = dict(base)
    for key, value in own.items():
        if value is None and key in result:
            del result[key]
        elif isinstance(value, dict) and isinstance(result.get(key), dict):
            result[key] = _overlaid(result[key], value)
        else:  # also a null that takes nothing away: a misspelled key must not be ignored
            result[key] = value
    return result


def _where(parts: list[_Part], location: tuple) -> tuple[Path, int]:
    """File and line of what a recipe says at a location: of the file that has most of it, its own file first."""
    if location and location[0] in _OWN:
        parts = parts[:1]
    at = next((number for number, part in enumerate(location) if isinstance(part, int)), None)
    if at is not None:  # items of a list come from one file, or from one after the other
        key, item = location[:at], location[at]
        for part in parts:
            if place_of(part.root, key)[0] < at:
                continue
            items = _length(part.content, key)
            if item < items or key[0] not in _ADDED:
                return part.path, place_of(part.root, (*key, item, *location[at + 1:]))[1]
            item -= items
    places = [place_of(part.root, location) for part in parts]
    best = max(range(len(parts)), key=lambda number: (places[number][0], -number))
    return parts[best].path, places[best][1]


def _length(content: Any, keys: tuple) -> int:
    for key in keys:
        content = content.get(key) if isinstance(content, dict) else None
    return len(content) if isinstance(content, list) else 0


def _keys_at(location: tuple) -> list[str]:
    """Keys that the model has where a validation error was found."""
    model: type[BaseModel] | None = Recipe
    for part in location:
        if isinstance(part, int):
            continue
        field = model.model_fields.get(part) if model else None
        model = _model_in(field.annotation) if field else None
    return list(model.model_fields) if model else []


def _model_in(annotation: object) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for inner in getattr(annotation, "__args__", ()):
        found = _model_in(inner)
        if found:
            return found
    return None


def _describe(parts: list[_Part], error: ValidationError) -> str:
    lines = []
    for problem in error.errors(include_url=False):
        location = problem["loc"]
        path, line = _where(parts, location)
        where = f"{path}:{line}"
        dotted = ".".join(str(p) for p in location) or "recipe"
        if problem["type"] == "extra_forbidden":
            said = f"unknown key; {nearest(str(location[-1]), _keys_at(location[:-1]))}"
        elif problem["type"] == "missing":
            said = "missing, but every recipe needs it"
        else:
            said = problem["msg"].removeprefix("Value error, ")
            if not isinstance(problem["input"], dict | list | BaseModel):
                said += f"; seen: {problem['input']!r}"
                said += "; put it in quotes" if problem["type"] == "string_type" else ""
                said += _as_number(problem["input"]) if problem["type"] == "float_type" else ""
        lines.append(f"{where}: {dotted}: {said}")
    return "\n".join(dict.fromkeys(lines))


def _as_number(seen: object) -> str:
    """How to write a number that YAML 1.1 takes for a text: its exponent needs a sign, and a point before it."""
    found = _EXPONENT_TEXT.fullmatch(seen) if isinstance(seen, str) else None
    return f"; write {found[1]}{found[2] or '.0'}e{found[3] or '+'}{found[4]}" if found else ""


def load_recipe(path: Path) -> Recipe:
    """Read one recipe, with what it takes from those that it extends.

    Raises:
        RecipeError: with file, line, what was seen and what was expected.
    """
    parts = _parts(path)
    try:
        recipe = Recipe.model_validate(_merged(parts))
    except ValidationError as error:
        raise RecipeError(_describe(parts, error), tip="recipes/schema.json lists every key") from None
    if recipe.name != path.stem:
        raise RecipeError(
            f"{path}:{_where(parts[:1], ('name',))[1]}: name is {recipe.name!r}, but the file is called {path.stem!r}",
            tip=f"rename the file to {recipe.name}.yaml, or the recipe to {path.stem}",
        )
    for key in ("required", "reported"):
        names = getattr(recipe.checks, key)
        for number, name in enumerate(names):
            if name in names[:number]:
                at, line = _where(parts, ("checks", key, number))
                raise RecipeError(f"{at}:{line}: checks.{key}: {name!r} appears twice", tip="remove one of them")
    return recipe


def error_at(path: Path, location: tuple[str | int, ...], said: str, tip: str | None = None) -> RecipeError:
    """The error to raise when a recipe that could be loaded cannot be used, with its file and line.

    Args:
        path: the recipe's own file; the error names the one that really says it.
        location: keys and list positions from the top, such as ("checks", "required", 2).
    """
    dotted = ".".join(str(part) for part in location if isinstance(part, str))
    at, line = _where(_parts(path), location)
    return RecipeError(f"{at}:{line}: {dotted}: {said}", tip=tip)


def recipe_text(path: Path) -> str:
    """For evidence: the file as it is, then those that it extends, each as it is and under its own heading."""
    own, *others = _parts(path)
    texts = [read_text(own.path)]
    texts += [f"--- # {part.path.name}\n{read_text(part.path)}"
              for part in others]
    return "".join(text if text.endswith("\n") else text + "\n" for text in texts) if others else texts[0]


def parents(path: Path) -> list[str]:
    """Names of the recipes that a recipe builds on, the nearest first.

    Raises:
        RecipeError: as `load_recipe`.
    """
    return [part.path.stem for part in _parts(path)[1:]]


def recipe_paths(folder: Path = RECIPES) -> dict[str, Path]:
    """Recipe files by name (the stem), sorted.

    Raises:
        RecipeError: two files have one name, such as a.yaml and a.yml.
    """
    paths: dict[str, Path] = {}
    for path in sorted([*folder.glob("*.yaml"), *folder.glob("*.yml")]):
        if path.stem in paths:
            raise RecipeError(
                f"two recipes are called {path.stem!r}: {paths[path.stem]} and {path}",
                tip="rename or remove one of them",
            )
        paths[path.stem] = path
    return paths


def find_recipe(name: str, folder: Path = RECIPES) -> Path:
    """The file of a recipe by name.

    Raises:
        UsageError: no such recipe, with the nearest names.
    """
    paths = recipe_paths(folder)
    if name in paths:
        return paths[name]
    aliases = _aliases(paths)
    if name in aliases:
        return aliases[name]
    known = nearest(name, [*paths, *aliases])
    raise UsageError(f"no recipe is called {name!r}; {known}", tip="./inv recipes lists them")


def _aliases(paths: dict[str, Path]) -> dict[str, Path]:
    """Recipe files by the other names they have. Recipes that cannot be read have none.

    Raises:
        RecipeError: two recipes claim one name.
    """
    found: dict[str, Path] = {}
    for path in paths.values():
        try:
            aliases = load_recipe(path).aliases
        except RecipeError:
            continue
        for alias in aliases:
            if alias in paths or alias in found:
                other = paths.get(alias) or found[alias]
                raise error_at(path, ("aliases",), f"{alias!r} is also the name of {other.name}",
                               tip="leave one of them out")
            found[alias] = path
    return found


@cache
def schema_text() -> str:
    """JSON Schema of a recipe, for editors: the content of recipes/schema.json."""
    schema = Recipe.model_json_schema()
    whole = schema.pop("required")
    # What a recipe that extends another may leave out is known only once they are put together.
    for part in schema["$defs"].values():
        part.pop("required", None)
    schema["properties"][_EXTENDS] = {
        "description": "recipe of this folder from which all is taken that is not said here; mappings are merged, "
                       "caveats added, null takes a key away, and name, aliases, title, claims and stands_for are "
                       "never taken", "type": "string"}
    schema["anyOf"] = [{"required": whole}, {"required": [_EXTENDS, "name", "title"]}]
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    return json.dumps(schema, indent=2, sort_keys=True) + "\n"
