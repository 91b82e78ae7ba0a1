"""Edits that are certain: a finding gets one only where the paste has the very characters in question."""

from __future__ import annotations

import re
from collections.abc import Sequence

from .finding import Edit
from .jsonish import SMART_DOUBLE, SMART_SINGLE, Problem
from .model import Flag, Launch
from .source import Source, Text
from .tree import Entry, Map, Scalar


def replace(source: Source, text: Text, new: str) -> tuple[Edit, ...]:
    """New content for a part of the paste, between the quotes that are there."""
    if not text.is_written_out(source.text):
        return ()
    return (Edit(text.start(), text.end(), new),)


def value(source: Source, node: Scalar, new: str) -> tuple[Edit, ...]:
    """A new value, quotes of the old one included."""
    if not node.text.is_written_out(source.text):
        return ()
    start, end = (node.start, node.end) if node.quoted else (node.text.start(), node.text.end())
    return (Edit(start, end, new),)


def json(source: Source, flag: Flag, problem: Problem, *, shell: bool) -> tuple[Edit, ...]:
    """What mends a JSON text that is the value of an option, in whatever quotes it stands.

    Args:
        shell: whether a shell reads it first.
    """
    text = flag.value
    if text is None or not len(text):
        return ()
    around = source.text[max(text.start() - 1, 0):text.start()] + source.text[text.end():text.end() + 1]
    if len(around) == 2 and around[0] in SMART_SINGLE + SMART_DOUBLE:  # which become straight ones
        around = '""' if around[0] in SMART_DOUBLE else "''"
    quote, wrap = '\\"' if around == '""' else '"', ()
    if flag.word is not None and flag.word.stripped:
        quote = '"'  # and what is around it becomes single quotes, which is a finding of its own
    elif around not in ("''", '""') and shell and any('"' in new for _, _, new in problem.edits):
        wrap = stripped(source, flag)
        if not wrap:
            return ()
    edits = []
    for start, end, new in problem.edits:
        if end > start and not _is_one(source, text, start, end):
            return ()
        place = (text.start(start), text.end(end)) if end > start else (_before(text, start),) * 2
        edits.append(Edit(*place, new.replace('"', quote)))
    return (*edits, *wrap)


def _before(text: Text, index: int) -> int:
    return text.start(index) if index < len(text) else text.end()


def _is_one(source: Source, text: Text, start: int, end: int) -> bool:
    return source.text[text.start(start):text.end(end)].replace("\\", "") == text.value[start:end]


def stripped(source: Source, flag: Flag) -> tuple[Edit, ...]:
    """Single quotes around a JSON text that had none, or double ones that its own end."""
    word = flag.word
    if word is None or "'" in source.text[word.start:word.end]:
        return ()
    start, end = word.text.start(), word.text.end()
    around = source.text[start - 1:start] + source.text[end:end + 1]
    if around == '""' and start - 1 >= word.start and end < word.end:
        return (Edit(start - 1, start, "'"), Edit(end, end + 1, "'"))
    return (Edit(start, start, "'"), Edit(end, end, "'"))


def remove(entry: Entry) -> tuple[Edit, ...]:
    """An entry of a map is gone, its comma too."""
    return (Edit(*entry.cut, ""),) if entry.cut is not None else ()


def rename(source: Source, entry: Entry, new: str) -> tuple[Edit, ...]:
    return replace(source, entry.key.text, new)


def move(source: Source, root: Map, entries: Sequence[Entry], into: str) -> tuple[Edit, ...]:
    """Entries of a JSON map go into a map below it, which is made when there is none."""
    texts = []
    for entry in entries:
        if entry.cut is None or entry.key.start < root.start or not root.end:
            return ()
        texts.append(source.text[entry.key.start:entry.value.end])
    inside = ", ".join(texts)
    opening = source.text[entries[0].key.start:entries[0].key.text.start()]
    if opening not in ('"', '\\"'):
        return ()
    target = root.get(into)
    if target is None:
        made = f"{opening}{into}{opening}: {{{inside}}}"
        first, rest = entries[0], entries[1:]
        return (Edit(first.key.start, first.value.end, made), *(e for r in rest for e in remove(r)))
    if not isinstance(target, Map) or source.text[target.start:target.start + 1] != "{":
        return ()
    joint = ", " if target.entries else ""
    return (Edit(target.start + 1, target.start + 1, inside + joint), *(e for x in entries for e in remove(x)))


def option(source: Source, launch: Launch, words: str) -> tuple[Edit, ...]:
    """One more option at the end of a command line."""
    last = max((f.word.end for f in launch.flags if f.word is not None), default=None)
    if not launch.shell or last is None or launch.quote == '"':
        return ()
    following = source.text[last:last + 1]
    if following and not re.match(r"[\s;&|)'\\]", following):
        return ()
    return (Edit(last, last, f" {words}"),)


def apply(text: str, edits: Sequence[Edit]) -> str:
    """The text with edits made; one that overlaps with an earlier one is left out."""
    parts, at = [], 0
    for edit in sorted(set(edits), key=lambda e: (e.start, e.end)):
        if edit.start < at:
            continue
        parts += [text[at:edit.start], edit.text]
        at = edit.end
    return "".join([*parts, text[at:]])
