"""Reads YAML without losing anything, and says exactly where a file is not readable."""

from __future__ import annotations

import stat
from pathlib import Path

import yaml

from .errors import RecipeError

MAX_RECIPE_BYTES = 1024 * 1024
MAX_DEPTH = 32
YAML_TIP = "compare with recipes/gemma4-nano-31b.yaml, which is a complete example"


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


def read_text(path: Path) -> str:
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
        raise RecipeError(f"{path}: the file is empty", tip="start from a copy of recipes/gemma4-nano-31b.yaml")
    return text


def parse(path: Path, text: str) -> tuple[yaml.Node | None, object]:
    """The YAML nodes, which know their lines, and the content made of them."""
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
        return root, loader.construct_document(root) if root else None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else str(path)
        raise RecipeError(f"{where}: not readable as YAML: {error.problem}", tip=YAML_TIP) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise RecipeError(
            f"{path}:{line}: character {error.character:#04x} is not allowed in YAML", tip="remove it"
        ) from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        first = str(error).splitlines()[0]
        raise RecipeError(f"{path}: not readable as YAML: {first}", tip=YAML_TIP) from None


def place_of(root: yaml.Node | None, location: tuple) -> tuple[int, int]:
    """The deepest part of a location that a file really has: how deep that is, and its line (0 and 1 for none)."""
    node, line, depth = root, 1, 0
    for part in location:
        if isinstance(node, yaml.MappingNode):
            found = next(((k, v) for k, v in node.value if k.value == str(part)), None)
            if found is None:
                break
            line, node, depth = found[0].start_mark.line + 1, found[1], depth + 1
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
            line, depth = node.start_mark.line + 1, depth + 1
        else:
            break
    return depth, line
