"""Who may import whom. A new module goes into LEVELS, on the lowest level that its imports allow."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvproof.paths import PROJECT

PACKAGE = PROJECT / "src" / "kvproof"

# Low to high. A module imports from lower levels only; on its own level, only from its own package.
LEVELS = (
    ("errors", "redact", "paths"),
    ("strict_yaml", "files", "references"),
    ("recipe", "console", "interrupts", "ports", "image_lock", "registry", "sbom"),
    ("loading", "evidence", "nano", "signatures", "pinning"),
    ("metrics", "client", "prompts", "process", "host"),
    ("plan",),
    ("engines",),
    ("connectors",),
    ("runtimes", "builders", "weights", "session", "remote", "explain"),
    ("checks", "locking", "live"),
    ("preflight", "runstate", "runnable", "planning", "probing"),
    ("launching", "recording", "building", "cleaning", "hub", "leftovers"),
    ("starting",),
    ("run", "serving", "doctor", "probe"),
    ("standing", "report"),
    ("matrix_page",),
    ("matrix", "export", "lint", "site"),
    ("pages", "site_data"),
    ("site_hooks",),
    ("cli",),
    ("tasks",),
)
# What a part must not reach, not even through others.
UNREACHABLE = {
    "matrix": {"runtimes"},
}
# Builders run inside the locked environment, which has no kvproof.
BUILDERS_MAY_IMPORT = sys.stdlib_module_names | {"torch", "transformers", "tokenizers", "safetensors"}
# The command line starts within the blink of an eye, so it imports what is heavy only when it is used.
CLI_MAY_IMPORT = sys.stdlib_module_names | {"invoke", "kvproof"}

LEVEL_OF = {part: number for number, parts in enumerate(LEVELS) for part in parts}


def modules() -> dict[str, Path]:
    """Dotted name to file, of the package and of tasks.py (as if it were kvproof.tasks)."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = ["kvproof", *path.relative_to(PACKAGE).with_suffix("").parts]
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    if (PROJECT / "tasks.py").is_file():
        found["kvproof.tasks"] = PROJECT / "tasks.py"
    return found


def imports(name: str, source: str, *, package: bool = False) -> Iterator[tuple[int, str]]:
    """Line and dotted name of everything that a module imports, at any depth and also by a constant string.

    Args:
        name: the module's own dotted name, from which relative imports count.
        source: its text.
        package: whether it is a package's __init__.py.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = name.split(".")
                parents = parents[: len(parents) - node.level + package]
                base = ".".join([*parents, base] if base else parents)
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            target = getattr(node.args[0], "value", None) if node.args else None
            if isinstance(target, str):
                yield node.lineno, "kvproof" + target if target.startswith(".") else target


def part_of(name: str, known: set[str]) -> str | None:
    """The part (first name below kvproof) that a dotted name lies in; None when it is not ours.

    `from kvproof import __version__` names no part, and yields an empty one.
    """
    root, _, rest = name.partition(".")
    if root == "tasks":
        return "tasks"
    if root != "kvproof":
        return None
    part = rest.partition(".")[0]
    return part if part in known else ""


def violations(sources: dict[str, tuple[str, bool]]) -> list[str]:
    """Everything that breaks the table.

    Args:
        sources: dotted name to text, and whether it is a package's __init__.py.
    """
    known = {name.split(".")[1] for name in sources if "." in name} | set(LEVEL_OF)
    wrong, reaches = [], {}
    for name, (text, package) in sources.items():
        part = name.partition(".")[2].partition(".")[0]
        if part and part not in LEVEL_OF:
            wrong.append(f"{name}: {part!r} has no place in LEVELS of tests/test_imports.py: give it one")
            continue
        for line, target in imports(name, text, package=package):
            target_part = part_of(target, known)
            if not target_part or target_part == part:
                continue
            reaches.setdefault(part, set()).add(target_part)
            if target_part not in LEVEL_OF:
                continue  # named above
            if not part:
                wrong.append(f"{name}:{line}: kvproof itself imports {target}, but must import nothing of ours")
            elif LEVEL_OF[target_part] == LEVEL_OF[part]:
                wrong.append(f"{name}:{line}: {part} imports {target} from its own level")
            elif LEVEL_OF[target_part] > LEVEL_OF[part]:
                wrong.append(f"{name}:{line}: {part} imports {target}, which lies above it")
    for part, forbidden in UNREACHABLE.items():
        seen, todo = set(), {part}
        while todo:
            seen |= todo
            todo = {further for step in todo for further in reaches.get(step, ())} - seen
        wrong += [f"{part} reaches {far}, which it must not" for far in sorted(seen & forbidden)]
    return wrong


def test_imports_go_down_only() -> None:
    sources = {name: (path.read_text(), path.name == "__init__.py") for name, path in modules().items()}
    assert not (found := violations(sources)), "\n" + "\n".join(found)


@pytest.mark.parametrize("path", sorted((PACKAGE / "builders").glob("*.py")), ids=lambda path: path.stem)
def test_builders_need_only_the_locked_environment(path: Path) -> None:
    name = f"kvproof.builders.{path.stem}"
    foreign = [f"{path.name}:{line}: {target}" for line, target in imports(name, path.read_text())
               if target.partition(".")[0] not in BUILDERS_MAY_IMPORT]
    assert not foreign


@pytest.mark.parametrize("name", ["__init__", "cli", "errors", "paths", "redact"])
def test_the_command_line_starts_light(name: str) -> None:
    tree = ast.parse((PACKAGE / f"{name}.py").read_text())
    tree.body = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    roots = {target.partition(".")[0] for _, target in imports(f"kvproof.{name}", ast.unparse(tree))}
    assert roots <= CLI_MAY_IMPORT | {"platformdirs"}


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("kvproof.plan", "from .recipe import Recipe", None),
        ("kvproof.plan", "from . import recipe, __version__", None),
        ("kvproof.engines.vllm", "from ..plan import Plan\nfrom .common import x\nfrom . import y", None),
        ("kvproof.engines", "from . import vllm", None),
        ("kvproof.plan", "from .engines import vllm", "plan imports kvproof.engines.vllm, which lies above"),
        ("kvproof.plan", "def f():\n    import kvproof.run", "kvproof.plan:2: plan imports kvproof.run,"),
        ("kvproof.plan", "importlib.import_module('kvproof.run')", "plan imports kvproof.run"),
        ("kvproof.plan", "importlib.import_module('.run', 'kvproof')", "plan imports kvproof.run"),
        ("kvproof.cli", "import tasks", "cli imports tasks"),
        ("kvproof.metrics", "from .client import get", "metrics imports kvproof.client.get from its own"),
        ("kvproof.engines.vllm", "from ..connectors import none", "engines imports kvproof.connectors.none"),
        ("kvproof.new", "", "kvproof.new: 'new' has no place in LEVELS of tests/test_imports.py"),
        ("kvproof", "from .errors import KvproofError", "kvproof itself imports kvproof.errors.KvproofError"),
    ],
)
def test_the_rules_themselves(name: str, text: str, said: str | None) -> None:
    found = violations({name: (text, name in ("kvproof", "kvproof.engines"))})
    assert len(found) == (said is not None), found
    assert said is None or said in found[0]


def test_the_matrix_does_not_reach_a_runtime_through_others() -> None:
    texts = {"kvproof.matrix": "from .run import go", "kvproof.run": "from .runtimes import venv"}
    found = violations({name: (text, False) for name, text in texts.items()})
    assert found == ["matrix reaches runtimes, which it must not"]


def test_every_part_is_named_once() -> None:
    parts = [part for level in LEVELS for part in level]
    assert len(parts) == len(set(parts))
