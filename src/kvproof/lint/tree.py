"""What JSON and YAML have in common: maps, lists and values that know where they are written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from .source import Text

MAX_DEPTH = 60
_MAX_PLAIN = 100_000


@dataclass(eq=False)
class Node:
    start: int
    end: int


@dataclass(eq=False)
class Scalar(Node):
    """One value.

    Attributes:
        value: string, number, true, false or null.
        text: its characters, without quotes.
        quoted: whether it was written as a string.
        style: the quote that it is in, or YAML's | and > for a block of lines of its own; empty without.
    """

    value: object
    text: Text
    quoted: bool = False
    style: str = ""


@dataclass(eq=False)
class Entry:
    """One key of a map.

    Attributes:
        cut: what to remove so that the entry is gone and the rest stays well-formed; None when that is not known.
    """

    key: Scalar
    value: Node
    cut: tuple[int, int] | None = None

    @property
    def name(self) -> str:
        return self.key.text.value


@dataclass(eq=False)
class Map(Node):
    entries: list[Entry] = field(default_factory=list)
    merged: list[Map] = field(default_factory=list)
    """Maps that YAML's << takes in."""

    def entry(self, *names: str) -> Entry | None:
        """The entry of one of these names; the last of several, as every reader here takes it."""
        found = next((e for e in reversed(self.entries) if e.name in names), None)
        if found is None:
            found = next((e for part in self.merged if (e := part.entry(*names)) is not None), None)
        return found

    def get(self, *names: str) -> Node | None:
        found = self.entry(*names)
        return found.value if found else None

    def all(self) -> Iterator[Entry]:
        """Own entries, then those taken in that are not overridden."""
        seen = set()
        for entry in (*self.entries, *(e for part in self.merged for e in part.entries)):
            if entry.name not in seen:
                seen.add(entry.name)
                yield entry


@dataclass(eq=False)
class Seq(Node):
    items: list[Node] = field(default_factory=list)


def walk(root: Node) -> Iterator[Node]:
    """Every node once, parents first; a part that several places refer to is not repeated."""
    seen: set[int] = set()
    todo = [root]
    while todo:
        node = todo.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        yield node
        if isinstance(node, Map):
            todo += [e.value for e in reversed(node.entries)] + node.merged
        elif isinstance(node, Seq):
            todo += reversed(node.items)


def string(node: Node | None) -> str | None:
    """What a value says, as text; None for what is no value."""
    return node.text.value if isinstance(node, Scalar) else None


def dig(node: Node | None, *names: str) -> Node | None:
    """What lies under a path of names; None where the way ends early."""
    for name in names:
        node = node.get(name) if isinstance(node, Map) else None
    return node


def plain(node: Node | None) -> object:
    """The content without places; None for what would be too much."""
    left = _MAX_PLAIN

    def made(node: Node | None) -> object:
        nonlocal left
        left -= 1
        if left < 0:
            raise OverflowError
        if isinstance(node, Map):
            return {e.name: made(e.value) for e in node.all()}
        if isinstance(node, Seq):
            return [made(item) for item in node.items]
        return node.value if isinstance(node, Scalar) else None

    try:
        return made(node)
    except (OverflowError, RecursionError):
        return None
