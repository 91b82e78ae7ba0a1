"""Reads YAML into nodes that know where they are written. Nothing is constructed, and nothing is multiplied.

It works on the parser's events, so depth costs no stack, and what an alias refers to stays one node.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import yaml

from .jsonish import SMART_DOUBLE
from .model import Slip
from .source import Source, Text
from .tree import MAX_DEPTH, Entry, Map, Node, Scalar, Seq

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_MAX_EVENTS = 400_000
_MAX_ALIASES = 1000
_WORDS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False, "null": None, "~": None,
          "": None}
_INTEGER = re.compile(r"[-+]?\d{1,300}")
_FLOAT = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_PROPERTIES = re.compile(r"(?:[&!]\S*\s+)+")
_ESCAPED_LENGTH = {"x": 4, "u": 6, "U": 10}


class Broken(Exception):
    """Where and why a text is no YAML.

    Attributes:
        at: offset in the text.
    """

    def __init__(self, at: int, problem: str):
        super().__init__(problem)
        self.at, self.problem = at, problem


def documents(source: Source, start: int = 0, end: int | None = None, slips: list[Slip] | None = None) -> list[Node]:
    """The documents of a text, or of a part of it that stands for itself.

    Args:
        slips: takes the values that are in typographic quotes, which YAML does not take for quotes.

    Raises:
        Broken: it is no YAML, too deep, or refers to itself.
    """
    text = source.text[start:end]
    builder = _Builder(source, text, start)
    roots = builder.run()
    if slips is not None:
        slips += builder.slips
    return roots


def embedded(source: Source, text: Text) -> list[Node]:
    """The documents of a text inside another, such as a file in a ConfigMap; places are those of the paste.

    Raises:
        Broken: as for `documents`.
    """
    builder = _Builder(source, text.value, 0)
    roots = builder.run()
    for node in builder.made:
        node.start, node.end = text.start(node.start), text.end(min(node.end, len(text)))
        if isinstance(node, Scalar):
            node.text = _moved(node.text, text)
        elif isinstance(node, Map):
            for entry in node.entries:
                entry.cut = None
    return roots


def _moved(inner: Text, outer: Text) -> Text:
    last = max(len(outer) - 1, 0)
    if not len(outer):
        return Text(inner.value, [outer.at] * len(inner), [outer.at] * len(inner), outer.at)
    return Text(inner.value, [outer.starts[min(n, last)] for n in inner.starts],
                [outer.ends[min(max(n - 1, 0), last)] for n in inner.ends], outer.start(inner.at))


class _Builder:
    def __init__(self, source: Source, text: str, base: int):
        self.source, self.text, self.base = source, text, base
        self.made: list[Node] = []
        self.slips: list[Slip] = []
        self._anchors: dict[str, Node | None] = {}
        self._open: list[tuple[Node, list[Node], str | None]] = []
        self._aliases = 0

    def run(self) -> list[Node]:
        roots: list[Node] = []
        try:
            for count, event in enumerate(self._events()):
                if count > _MAX_EVENTS:
                    raise Broken(event.start_mark.index + self.base, "too much in one file")
                node = self._take(event)
                if node is not None:
                    self._place(node, roots)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            raise Broken((mark.index if mark else 0) + self.base, str(error.problem or error.context)) from None
        except yaml.reader.ReaderError as error:
            position = error.position if isinstance(error.position, int) else 0
            raise Broken(min(position, len(self.text)) + self.base, "a character that YAML does not allow") from None
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            raise Broken(self.base, str(error).splitlines()[0] if str(error) else type(error).__name__) from None
        return roots

    def _events(self) -> Iterator[yaml.Event]:
        return yaml.parse(self.text, Loader=_LOADER)

    def _take(self, event: yaml.Event) -> Node | None:
        """The node that an event completes; None while none is."""
        at = event.start_mark.index + self.base
        if isinstance(event, yaml.ScalarEvent):
            node: Node = self._scalar(event)
            self._name(event.anchor, node)
            return node
        if isinstance(event, yaml.AliasEvent):
            self._aliases += 1
            found = self._anchors.get(event.anchor)
            if found is None or self._aliases > _MAX_ALIASES:
                problem = ("too many aliases" if self._aliases > _MAX_ALIASES else f"the alias *{event.anchor} refers "
                           + ("to what it is part of" if event.anchor in self._anchors else "to nothing"))
                raise Broken(at, problem)
            return found
        if isinstance(event, yaml.MappingStartEvent | yaml.SequenceStartEvent):
            if len(self._open) >= MAX_DEPTH:
                raise Broken(at, f"nested more than {MAX_DEPTH} levels deep")
            made = Map(at, at) if isinstance(event, yaml.MappingStartEvent) else Seq(at, at)
            self.made.append(made)
            if event.anchor:
                self._anchors[event.anchor] = None
            self._open.append((made, [], event.anchor))
            return None
        if isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
            made, parts, anchor = self._open.pop()
            made.end = event.end_mark.index + self.base
            self._fill(made, parts)
            self._name(anchor, made)
            return made
        if isinstance(event, yaml.DocumentStartEvent):
            self._anchors.clear()
        return None

    def _name(self, anchor: str | None, node: Node) -> None:
        if anchor:
            self._anchors[anchor] = node

    def _place(self, node: Node, roots: list[Node]) -> None:
        if self._open:
            self._open[-1][1].append(node)
        else:
            roots.append(node)

    def _fill(self, made: Node, parts: list[Node]) -> None:
        if isinstance(made, Seq):
            made.items = parts
            return
        assert isinstance(made, Map)
        for key, value in zip(parts[::2], parts[1::2], strict=True):
            if not isinstance(key, Scalar):
                continue  # no reader here has such keys
            if key.text.value == "<<" and not key.quoted:
                made.merged += [m for m in (value.items if isinstance(value, Seq) else [value]) if isinstance(m, Map)]
            else:
                made.entries.append(Entry(key, value, self._lines_of(key, value)))

    def _lines_of(self, key: Scalar, value: Node) -> tuple[int, int] | None:
        """The line of an entry that has it to itself."""
        text, start, end = self.source.text, key.start, value.end
        begin = text.rfind("\n", 0, start) + 1
        stop = text.find("\n", end)
        stop = len(text) if stop < 0 else stop + 1
        alone = not text[begin:start].strip() and not text[end:stop].split("#")[0].strip()
        return (begin, stop) if alone and isinstance(value, Scalar) and value.style not in ("|", ">") else None

    def _scalar(self, event: yaml.ScalarEvent) -> Scalar:
        start, end = event.start_mark.index, event.end_mark.index
        found = _PROPERTIES.match(self.text, start, end)
        written = found.end() if found else start
        style, value = event.style or "", event.value
        text = _align(self.text, written, end, value, style, self.base)
        quoted = style in ("'", '"', "|", ">")
        if not quoted and len(value) > 1 and value[0] in SMART_DOUBLE and value[-1] in SMART_DOUBLE:
            edits = tuple((text.start(n), text.end(n + 1), '"') for n in (0, len(value) - 1))
            self.slips.append(Slip("odd-quotes", text.start(), {"seen": value[0], "right": '"'}, edits))
            text, value, quoted = text[1:-1], value[1:-1], True
        node = Scalar(start + self.base, end + self.base, value if quoted else _resolved(value), text, quoted, style)
        self.made.append(node)
        return node


def _resolved(value: str) -> object:
    if value.lower() in _WORDS:
        return _WORDS[value.lower()]
    if _INTEGER.fullmatch(value):
        return int(value)
    if _FLOAT.fullmatch(value):
        return float(value)
    return value


def _align(raw: str, start: int, end: int, value: str, style: str, base: int) -> Text:
    """Where each character of a scalar is written; all at its beginning when that cannot be told."""
    i = start + (style in ("'", '"') and bool(style))
    indent = 0
    if style in ("|", ">"):
        i = raw.find("\n", start, end) + 1 or end
        first = re.compile(r"[ ]*(?=[^\s])").search(raw, i, end)
        lead = len(value) - len(value.lstrip(" "))
        indent = max(len(first.group()) - lead, 0) if first else 0
    starts, ends = [], []
    fresh = True  # at the start of a line of a block
    for c in value:
        width = 1
        if style in ("|", ">") and fresh:
            n = i
            while n < min(i + indent, end) and raw[n] == " ":
                n += 1
            i = n
        fresh = False
        if style == '"' and raw[i:i + 1] == "\\":
            while raw[i:i + 2] == "\\\n":  # a line that goes on
                i += 2
                while raw[i:i + 1] in (" ", "\t") and i < end:
                    i += 1
            if raw[i:i + 1] == "\\":
                width = _ESCAPED_LENGTH.get(raw[i + 1:i + 2], 2)
        elif style == "'" and c == "'":
            width = 2
        elif raw[i:i + 1] != c:
            if c not in " \n" and not raw[i:i + 1].isspace():
                return _lost(value, start + base, end + base)
            begin = i
            while i < end and raw[i].isspace():
                i += 1
            if c not in " \n":
                begin, i = i, i + 1
                if raw[begin:i] != c:
                    return _lost(value, start + base, end + base)
            starts.append(begin + base)
            ends.append(max(i, begin + 1) + base)
            continue
        if i + width > end:
            return _lost(value, start + base, end + base)
        starts.append(i + base)
        ends.append(i + width + base)
        i += width
        if c == "\n":
            fresh = True
    return Text(value, starts, ends, start + base)


def _lost(value: str, start: int, end: int) -> Text:
    return Text(value, [start] * len(value), [end] * len(value), start)
