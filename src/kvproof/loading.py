"""Reads recipe files, and says exactly where one is wrong."""

from __future__ import annotations

import json
import re
import stat
from functools import cache
from pathlib import Path

import yaml
from pydantic import BaseModel, ValidationError

from .errors import RecipeError, UsageError, nearest
from .paths import RECIPES
from .recipe import Recipe

MAX_RECIPE_BYTES = 1024 * 1024
MAX_DEPTH = 32
_EXPONENT_TEXT = re.compile(r"([-+]?[0-9]+)(\.[0-9]+)?[eE]([-+]?)([0-9]+)")
_YAML_TIP = "compare with recipes/gemma4-nano.yaml, which is a complete example"


class _Loader(yaml.SafeLoader):
    """Safe YAML that refuses what would silently lose or multiply content."""

    depth = 0

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        seen: dict[object, int] = {}
        for key_node, _ in node.value:
            mark = key_node.start_mark
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str | int | float | bool | None):
                raise yaml.MarkedYAMLError(problem="a key must be a plain word", problem_mark=mark)
            if key in seen:
                problem = f"key {key!r} appears twice, first at line {seen[key]}"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=mark)
            seen[key] = mark.line + 1
        return super().construct_mapping(node, deep)

    def compose_node(self, parent: yaml.Node | None, index: object) -> yaml.Node:
        mark = self.peek_event().start_mark
        if self.check_event(yaml.AliasEvent):
            problem = "anchors and aliases are not allowed in a recipe"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=mark)
        self.depth += 1
        if self.depth > MAX_DEPTH:
            problem = f"nested more than {MAX_DEPTH} levels deep"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=mark)
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


# A date stays the text that was written: a recipe has no dates, and an impossible one (month 13) would
# otherwise be refused without its line.
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _read_text(path: Path) -> str:
    try:
        # Reading a pipe waits for ever, and a device never ends; a folder is left to open, which says so.
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            raise RecipeError(f"{path}: not a regular file", tip="check that this file is a recipe")
        with path.open("rb") as file:
            data = file.read(MAX_RECIPE_BYTES + 1)
        if len(data) > MAX_RECIPE_BYTES:
            raise RecipeError(
                f"{path}: too large, but a recipe has at most {MAX_RECIPE_BYTES} bytes",
                tip="check that this file is a recipe",
            )
    except FileNotFoundError:
        raise RecipeError(f"{path}: no such file", tip="see ./inv recipes for what there is") from None
    except OSError as error:
        raise RecipeError(
            f"{path}: cannot be read: {error.strerror or error}", tip="check that it is a file you may read"
        ) from None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise RecipeError(
            f"{path}:{line}: byte {data[error.start]:#04x} is not UTF-8", tip="save the file as UTF-8"
        ) from None
    if not text.strip():
        raise RecipeError(f"{path}: the file is empty", tip="start from a copy of recipes/gemma4-nano.yaml")
    return text


def _line_of(root: yaml.Node | None, location: tuple) -> int | None:
    """Line of the deepest part of a validation location that the file really has."""
    node, line = root, None
    for part in location:
        if isinstance(node, yaml.MappingNode):
            found = next(((k, v) for k, v in node.value if k.value == str(part)), None)
            if found is None:
                break
            line, node = found[0].start_mark.line + 1, found[1]
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
            line = node.start_mark.line + 1
        else:
            break
    return line


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


def _describe(path: Path, root: yaml.Node | None, error: ValidationError) -> str:
    lines = []
    for problem in error.errors(include_url=False):
        location = problem["loc"]
        where = f"{path}:{_line_of(root, location) or 1}"
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


def _parse(path: Path, text: str) -> tuple[yaml.Node | None, object]:
    """The YAML nodes, which know their lines, and the content made of them."""
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
        return root, loader.construct_document(root) if root else None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else str(path)
        raise RecipeError(f"{where}: not readable as YAML: {error.problem}", tip=_YAML_TIP) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise RecipeError(
            f"{path}:{line}: character {error.character:#04x} is not allowed in YAML", tip="remove it"
        ) from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        first = str(error).splitlines()[0]
        raise RecipeError(f"{path}: not readable as YAML: {first}", tip=_YAML_TIP) from None


def load_recipe(path: Path) -> Recipe:
    """Read one recipe.

    Raises:
        RecipeError: with file, line, what was seen and what was expected.
    """
    root, content = _parse(path, _read_text(path))
    if not isinstance(content, dict):
        line = root.start_mark.line + 1 if root else 1
        raise RecipeError(
            f"{path}:{line}: expected keys such as name, model and engine, seen: {type(content).__name__}",
            tip=_YAML_TIP,
        )
    try:
        recipe = Recipe.model_validate(content)
    except ValidationError as error:
        raise RecipeError(_describe(path, root, error), tip="recipes/schema.json lists every key") from None
    if recipe.name != path.stem:
        line = _line_of(root, ("name",)) or 1
        raise RecipeError(
            f"{path}:{line}: name is {recipe.name!r}, but the file is called {path.stem!r}",
            tip=f"rename the file to {recipe.name}.yaml, or the recipe to {path.stem}",
        )
    for key in ("required", "reported"):
        names = getattr(recipe.checks, key)
        for number, name in enumerate(names):
            if name in names[:number]:
                line = _line_of(root, ("checks", key, number)) or 1
                raise RecipeError(f"{path}:{line}: checks.{key}: {name!r} appears twice", tip="remove one of them")
    return recipe


def line_of(path: Path, location: tuple[str | int, ...]) -> int:
    """The line of a key or list item in a recipe file; of the deepest part of it that the file has, else 1.

    Args:
        location: keys and list positions from the top, such as ("checks", "required", 2).
    """
    root, _ = _parse(path, _read_text(path))
    return _line_of(root, location) or 1


def error_at(path: Path, location: tuple[str | int, ...], said: str, tip: str | None = None) -> RecipeError:
    """The error to raise when a recipe that could be loaded cannot be used, with its file and line."""
    dotted = ".".join(str(part) for part in location if isinstance(part, str))
    return RecipeError(f"{path}:{line_of(path, location)}: {dotted}: {said}", tip=tip)


def recipe_text(path: Path) -> str:
    """The file as it is, for evidence."""
    return _read_text(path)


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
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    return json.dumps(schema, indent=2, sort_keys=True) + "\n"
