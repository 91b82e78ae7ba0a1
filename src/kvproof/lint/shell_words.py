"""The words and statements that a shell text is taken apart into, while it is read."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from .model import Slip, Word
from .source import Text

_MAX_VARIABLE = 16_384
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=")
_CONTINUED_PROMPT = re.compile(r"[ \t]*>[ \t]")
_KEYWORDS = {"if", "then", "else", "elif", "fi", "do", "done", "while", "until", "{", "}", "!", "exec", "time", "nohup",
             "sudo", "command", "builtin"}
_EXPORTING = ("export", "declare", "local", "readonly")


@dataclass(eq=False)
class Heredoc:
    body: Text
    file: str
    """Name of the file that it is written to; empty when it is not."""


@dataclass(eq=False)
class Statement:
    words: list[Word] = field(default_factory=list)
    assignments: dict[str, Word] = field(default_factory=dict)
    heredocs: list[Heredoc] = field(default_factory=list)
    target: str = ""
    start: int = 0


class Words:
    """Where a text has been read to, and the word and the statement that are not finished."""

    def __init__(self, text: Text, argv: bool, variables: dict[str, Text], slips: list[Slip]):
        self.text, self.s, self.n, self.i = text, text.value, len(text), 0
        self.argv, self.variables, self.slips = argv, variables, slips
        self.statements: list[Statement] = []
        self.now = Statement()
        self._no_close: dict[str, int] = {}
        self._inline = False
        self._no_json_before = self._no_odd_before = 0
        self._pending: list[tuple[str, bool, str, Statement]] = []
        self._clear()

    def _clear(self) -> None:
        self._chars: list[str] = []
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._begun: int | None = None
        self._quotes: list[tuple[str, int, int]] = []
        self._is_open = self._stripped = self._bare = False
        self._into: str | None = None

    def _add(self, begin: int, end: int, value: str | None = None) -> None:
        """Take characters of the text into the word: as written, or all standing for others."""
        if self._begun is None:
            self._begun = begin
        if value is None:
            part = self.text[begin:end]
            self._chars.append(part.value)
            self._starts += part.starts
            self._ends += part.ends
        else:
            self._chars.append(value)
            self._starts += [self.text.start(begin)] * len(value)
            self._ends += [self.text.end(end)] * len(value)

    def _end_word(self) -> None:
        if self._begun is None:
            return
        value = "".join(self._chars)
        start, end = self.text.start(self._begun), self.text.end(self.i)
        whole = len(self._quotes) == 1 and self._quotes[0][1:] == (self._begun, self.i)
        word = Word(Text(value, self._starts, self._ends, start), start, end, self._quotes[0][0] if whole else "",
                    self._is_open, self._stripped)
        into = self._into
        self._clear()
        if into is not None:
            if into in (">", ">>"):
                self.now.target = value
            return
        self._keep(word)

    def _keep(self, word: Word) -> None:
        words = self.now.words
        found = _ASSIGNMENT.match(word.value) if not words else None
        if not words and not self.now.assignments:
            self.now.start = word.start
        if found and not self.argv:
            value = word.text[found.end():]
            kept = Word(value, value.start(), word.end, word.quote, word.open)
            self.now.assignments[found[1]] = kept
        elif not words and not self.argv and word.value in _KEYWORDS and not word.quote:
            return
        else:
            if words and words[0].value in _EXPORTING:
                exported = _ASSIGNMENT.match(word.value)
                if exported:
                    self._assign(exported[1], word.text[exported.end():])
            words.append(word)

    def _assign(self, name: str, value: Text) -> None:
        if len(value) <= _MAX_VARIABLE:
            self.variables[name] = value
        else:
            self.variables.pop(name, None)

    def _end_statement(self) -> None:
        self._end_word()
        now = self.now
        if not now.words:
            for name, word in now.assignments.items():
                if not word.open:
                    self._assign(name, word.text)
                else:
                    self.variables.pop(name, None)
        if now.words or now.heredocs or now.assignments:
            self.statements.append(now)
        self.now = Statement()

    def _is_assignment(self) -> bool:
        return not self.now.words and bool(self._chars) and bool(_ASSIGNMENT.match("".join(self._chars)))

    def _literal(self) -> None:
        self._add(self.i, self.i + 1)
        self.i += 1

    def _line_end(self) -> int:
        at = self.s.find("\n", self.i)
        return self.n if at < 0 else at

    def _rest_is_blank(self, at: int) -> bool:
        stop = self.s.find("\n", at)
        return stop >= 0 and not self.s[at:stop].strip()

    def _continue(self, at: int) -> None:
        """The statement goes on in the next line."""
        self.i = self.s.find("\n", at) + 1
        if not self.argv and _CONTINUED_PROMPT.match(self.s, self.i):
            self.i = self.s.find(">", self.i) + 1
