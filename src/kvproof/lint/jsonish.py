"""Reads JSON as people paste it: what is wrong is noted with its place and its remedy, and the rest is still read.

Whether a text is right is decided by Python's own reader; the tolerant one only says what is wrong and where.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from .source import Text
from .tree import MAX_DEPTH, Entry, Map, Node, Scalar, Seq

SMART_DOUBLE = "“”„‟″＂«»"
SMART_SINGLE = "‘’‚‛′＇´"
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_HUMAN = re.compile(r"(\d+(?:\.\d+)?)([kKmMgGtT])\b")
_BARE = re.compile(r"[^\s{}\[\],:\"'“”]+")
_LITERALS = {"true": True, "false": False, "null": None}
_PYTHON = {"True": "true", "False": "false", "None": "null"}
_DECIMAL = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with a JSON text.

    Attributes:
        kind: smart-quotes, single-quotes, trailing-comma, unquoted, python-literal, literal-quotes or broken.
        index: of the character in the text.
        detail: what a reader says of it.
        edits: index, index behind, and what belongs there instead.
    """

    kind: str
    index: int
    detail: str = ""
    edits: tuple[tuple[int, int, str], ...] = ()


@dataclass(frozen=True)
class Parsed:
    root: Node | None
    problems: tuple[Problem, ...]


class _Stop(Exception):
    def __init__(self, index: int, detail: str):
        self.index, self.detail = index, detail


def parse(text: Text, *, human_numbers: bool = True) -> Parsed:
    """What a JSON text holds, and what is wrong with it.

    Args:
        human_numbers: whether 2g without quotes is a number, as on vLLM's command line.
    """
    value = _expanded(text.value) if human_numbers else text.value
    error = _error(value)
    reader = _Reader(text, human_numbers, valid=error is None)
    root = reader.document()
    if error is None:
        return Parsed(root, ())
    noted = reader.noted()
    if any(p.kind == "broken" for p in noted):  # words out of their place are what it broke on
        noted = tuple(p for p in noted if p.kind != "unquoted")
    return Parsed(root, noted or (Problem("broken", min(error[0], len(text)), error[1]),))


def _error(value: str) -> tuple[int, str] | None:
    """Where and why Python's own reader does not take a text; None when it does."""
    try:
        json.loads(value)
    except json.JSONDecodeError as error:
        return error.pos, error.msg
    except (RecursionError, ValueError) as error:
        return 0, str(error).splitlines()[0]
    depth = deepest = 0
    for c in _STRING.sub("", value):
        depth += (c in "{[") - (c in "}]")
        deepest = max(deepest, depth)
    return (0, f"nested more than {MAX_DEPTH} levels deep") if deepest > MAX_DEPTH else None


def _expanded(value: str) -> str:
    """Human numbers outside of strings as zeros of the same length, so that places stay."""
    parts, last = [], 0
    for found in _STRING.finditer(value):
        parts += [_HUMAN.sub(_nines, value[last:found.start()]), found.group()]
        last = found.end()
    return "".join([*parts, _HUMAN.sub(_nines, value[last:])])


def _nines(found: re.Match) -> str:
    return "9" * len(found.group())


class _Reader:
    def __init__(self, text: Text, human_numbers: bool, valid: bool):
        self.text, self.s, self.i = text, text.value, 0
        self.human_numbers, self.valid = human_numbers, valid
        self._found: dict[str, tuple[Problem, list[tuple[int, int, str]]]] = {}
        self._partial: Node | None = None

    def noted(self) -> tuple[Problem, ...]:
        return tuple(Problem(p.kind, p.index, p.detail, tuple(edits)) for p, edits in self._found.values())

    def document(self) -> Node | None:
        self._space()
        quote = self.s[self.i:self.i + 1]
        if quote and quote in "'" + SMART_SINGLE and self.s[self.i + 1:].lstrip()[:1] in ("{", "["):
            self._literal_quotes(quote)
        try:
            root = self._value(0)
            self._space()
            if self.i < len(self.s):
                raise _Stop(self.i, "something follows the end")
        except _Stop as stop:
            self._note(Problem("broken", min(stop.index, len(self.s)), stop.detail))
            return self._partial
        return root

    def _literal_quotes(self, quote: str) -> None:
        """Quotes of a shell that no shell will take away."""
        close = self.s.rstrip()
        edits = [(self.i, self.i + 1, "")]
        if len(close) - 1 > self.i and close[-1] in "'" + SMART_SINGLE:
            edits.append((len(close) - 1, len(close), ""))
            self.s = close[:-1]
        self._note(Problem("literal-quotes", self.i, "", tuple(edits)))
        self.i += 1

    def _space(self) -> None:
        while self.i < len(self.s) and (self.s[self.i].isspace() or self.s[self.i] == "\u200b"):
            if self.s[self.i] not in " \t\n\r":
                self._note(Problem("smart-space", self.i, "", ((self.i, self.i + 1, " "),)))
            self.i += 1

    def _value(self, depth: int) -> Node:
        if depth > MAX_DEPTH:
            raise _Stop(self.i, f"nested more than {MAX_DEPTH} levels deep")
        self._space()
        c = self.s[self.i:self.i + 1]
        if c == "{":
            return self._map(depth)
        if c == "[":
            return self._list(depth)
        if not c or c in "}],:":
            raise _Stop(self.i, "a value is missing")
        return self._scalar()

    def _map(self, depth: int) -> Map:
        node = Map(self.text.start(self.i), self.text.end())
        self._partial = self._partial or node
        self.i += 1
        before = None  # index of the comma before the entry
        while True:
            self._space()
            c = self.s[self.i:self.i + 1]
            if c == "}":
                self._trailing(before)
                break
            if not c:
                raise _Stop(self.i, "the closing } is missing")
            began = self.i
            key = self._scalar()
            if not key.quoted and not isinstance(key.value, str):
                key = Scalar(key.start, key.end, key.text.value, key.text)
            self._space()
            if self.s[self.i:self.i + 1] != ":":
                raise _Stop(self.i, f"a colon is missing after {key.text.value[:40]!r}")
            self.i += 1
            entry = Entry(key, Scalar(key.end, key.end, None, self.text[self.i:self.i]))
            node.entries.append(entry)
            entry.value = self._value(depth + 1)
            behind, before = self.i, self._comma("}", before)
            entry.cut = self._cut(node, began, behind, before)
            if before is None:
                break
        self.i += 1
        node.end = self.text.end(self.i)
        return node

    def _cut(self, node: Map, began: int, behind: int, comma: int | None) -> tuple[int, int]:
        if comma is not None:
            stop = comma + 1
            while stop < len(self.s) and self.s[stop] in " \t":
                stop += 1
            return self.text.start(began), self.text.end(stop)
        if len(node.entries) > 1:
            back = self.s.rfind(",", 0, began)
            return self.text.start(back), self.text.end(behind)
        return self.text.start(began), self.text.end(behind)

    def _list(self, depth: int) -> Seq:
        node = Seq(self.text.start(self.i), self.text.end())
        self._partial = self._partial or node
        self.i += 1
        before = None
        while True:
            self._space()
            c = self.s[self.i:self.i + 1]
            if c == "]":
                self._trailing(before)
                break
            if not c:
                raise _Stop(self.i, "the closing ] is missing")
            node.items.append(self._value(depth + 1))
            before = self._comma("]", before)
            if before is None:
                break
        self.i += 1
        node.end = self.text.end(self.i)
        return node

    def _comma(self, close: str, before: int | None) -> int | None:
        """The comma after an entry; None when the map or list ends here."""
        self._space()
        c = self.s[self.i:self.i + 1]
        if c == ",":
            self.i += 1
            return self.i - 1
        if c == close:
            return None
        raise _Stop(self.i, f"a comma or {close} is missing" if c else f"the closing {close} is missing")

    def _trailing(self, comma: int | None) -> None:
        if comma is not None:
            self._note(Problem("trailing-comma", comma, "", ((comma, comma + 1, ""),)))

    def _scalar(self) -> Scalar:
        c = self.s[self.i]
        if c == '"':
            return self._string()
        if c in SMART_DOUBLE:
            return self._odd_string("smart-quotes", SMART_DOUBLE + '"')
        if c in SMART_SINGLE:
            return self._odd_string("smart-quotes", SMART_SINGLE + "'")
        if c == "'":
            return self._odd_string("single-quotes", "'" + SMART_SINGLE)
        human = _HUMAN.match(self.s, self.i) if self.human_numbers else None
        if human:
            number, unit = human.groups()
            factor = _DECIMAL.get(unit) or _BINARY[unit]
            return self._bare(human.end(), int(float(number) * factor))
        number = _NUMBER.match(self.s, self.i)
        bare = _BARE.match(self.s, self.i)
        if number and (bare is None or number.end() >= bare.end()):
            return self._bare(number.end(), _number(number.group()))
        if bare is None:
            raise _Stop(self.i, f"{c!r} does not belong here")
        word = bare.group()
        if word in _LITERALS:
            return self._bare(bare.end(), _LITERALS[word])
        if word in _PYTHON:
            right = _PYTHON[word]
            self._note(Problem("python-literal", self.i, word, ((self.i, bare.end(), right),)))
            return self._bare(bare.end(), _LITERALS[right])
        self._note(Problem("unquoted", self.i, word, ((self.i, self.i, '"'), (bare.end(), bare.end(), '"'))))
        return self._bare(bare.end(), word)

    def _bare(self, stop: int, value: object) -> Scalar:
        part = self.text[self.i:stop]
        self.i = stop
        return Scalar(part.start(), part.end(), value, part)

    def _string(self) -> Scalar:
        found = _STRING.match(self.s, self.i)
        if found is None:
            odd = next((n for n in range(self.i + 1, len(self.s)) if self.s[n] in SMART_DOUBLE), None)
            if odd is None:
                raise _Stop(self.i, "a string without its closing quote")
            return self._odd_string("smart-quotes", SMART_DOUBLE)
        inner = self.text[self.i + 1:found.end() - 1]
        if "\\" in inner.value:
            try:
                decoded = json.loads(found.group(), strict=False)
            except ValueError:
                decoded = inner.value
            if len(decoded) != len(inner):  # places within it are lost
                inner = Text(decoded, [inner.start()] * len(decoded), [inner.end()] * len(decoded), inner.at)
        smart = next((n for n, c in enumerate(inner.value) if c in SMART_DOUBLE), None)
        if not self.valid and smart is not None and re.search(r"[,:{}]", inner.value):
            # The string began with a straight quote and ran on to that of another string.
            return self._odd_string("smart-quotes", SMART_DOUBLE)
        start, end = self.text.start(self.i), self.text.end(found.end())
        self.i = found.end()
        return Scalar(start, end, inner.value, inner, quoted=True)

    def _odd_string(self, kind: str, closing: str) -> Scalar:
        began = self.i
        stop = next((n for n in range(began + 1, len(self.s)) if self.s[n] in closing), None)
        if stop is None:
            raise _Stop(began, "a string without its closing quote")
        quotes = [(n, n + 1, '"') for n in (began, stop) if self.s[n] != '"']
        self._note(Problem(kind, began, self.s[began], tuple(quotes)))
        inner = self.text[began + 1:stop]
        self.i = stop + 1
        return Scalar(self.text.start(began), self.text.end(stop + 1), inner.value, inner, quoted=True)

    def _note(self, problem: Problem) -> None:
        """Of one kind the first is told, with the remedy for all of them."""
        _, edits = self._found.setdefault(problem.kind, (problem, []))
        edits += problem.edits


def _number(text: str) -> int | float:
    try:
        return int(text) if re.fullmatch(r"-?\d{1,400}", text) else float(text)
    except (ValueError, OverflowError):
        return float("inf")
