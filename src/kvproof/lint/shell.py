"""Splits shell text into statements and words as a shell would, and runs nothing.

It reads what people paste, not only what a shell takes: prompts, typographic quotes and dashes, prose around the
commands, a backslash with a space behind it. What a shell would trip over is noted as a slip, and read as it was meant.
"""

from __future__ import annotations

import re

from .jsonish import SMART_DOUBLE, SMART_SINGLE
from .model import Slip
from .shell_parts import Parts
from .shell_words import Heredoc, Statement
from .source import Text

_PLAIN = re.compile(r"[A-Za-z0-9_./:=,@%+~*?\-]+")
_PROMPT = re.compile(r"[ \t]*(?:\([\w.-]+\)[ \t]*)?(?:[\w.-]+@[\w.-]+[^\n$#%>]{0,80}[$#%>]|PS [^\n>]{0,80}>|[$%❯➜>!]|"
                     r"root#)[ \t]+|[ \t]*!(?=[a-z])|[ \t]*ExecStart=[-@+!:]*")
_PLACEHOLDER = re.compile(r"<[A-Za-z][\w .\-/]{0,60}>")
_DASHES = re.compile(r"[–—―−‐‑]+-?(?=[A-Za-z])")
_LETTERS = re.compile(r"[A-Za-z]+")
_HEREDOC = re.compile(r"<<(-?)[ \t]*(\\?['\"]?)([A-Za-z_][\w.-]*)['\"]?")
_REDIRECTION = re.compile(r"<<<|>>|[<>]&|>\||<>|[<>]")

__all__ = ["Heredoc", "Statement", "split", "straight_dashes"]


def split(text: Text, *, argv: bool = False, variables: dict[str, Text] | None = None,
          slips: list[Slip] | None = None) -> list[Statement]:
    """The statements of a shell text.

    Args:
        argv: whether it is one command line that is only split into words, as a compose file's command.
        variables: what earlier text has set; what this one sets is added.
        slips: takes what a shell would trip over.
    """
    return _Lexer(text, argv, {} if variables is None else variables, [] if slips is None else slips).run()


def straight_dashes(text: Text) -> tuple[Text, Slip | None]:
    """A word with the dashes that an option begins with, where it has typographic ones, and the slip that it was."""
    found = _DASHES.match(text.value)
    if found is None:
        return text, None
    name = _LETTERS.match(text.value, found.end())
    right = "-" if name and len(name.group()) == 1 else "--"
    start, end = text.start(), text.end(found.end())
    slip = Slip("odd-dash", start, {"seen": found.group(), "right": right}, ((start, end, right),))
    rest = text[found.end():]
    return Text(right + rest.value, [*([start] * len(right)), *rest.starts], [*([end] * len(right)), *rest.ends],
                start), slip


class _Lexer(Parts):
    def run(self) -> list[Statement]:
        self._prompt()
        while self.i < self.n:
            self._step()
        self._end_statement()
        return self.statements

    def _step(self) -> None:
        plain = _PLAIN.match(self.s, self.i)
        if plain:
            self._add(self.i, plain.end())
            self.i = plain.end()
            return
        c = self.s[self.i]
        if c in " \t":
            self._end_word()
            self.i += 1
        elif c == "\n":
            self._newline()
        elif c == "\\":
            self._backslash()
        elif c in "'\"" or c in SMART_SINGLE + SMART_DOUBLE:
            self._quote(c)
        elif c == "$":
            self._expansion()
        elif c == "`" and not self.argv:
            self._backtick()
        elif c == "#" and self._begun is None and not self.argv:
            self.i = self._line_end()
        elif c == "{" and self._raw_json():
            pass
        elif c in ";&|()" and not self.argv:
            self._operator(c)
        elif c in "<>" and not self.argv:
            self._redirection(c)
        elif c in "\u00a0\u2007\u202f\u3000":
            self._end_word()
            self.slips.append(Slip("odd-space", self.text.start(self.i),
                                   edits=((self.text.start(self.i), self.text.end(self.i + 1), " "),)))
            self.i += 1
        elif c in "–—―−‐‑" and self._begun is None:
            self._dash()
        elif c == "^" and self._rest_is_blank(self.i + 1):
            self._continue(self.i + 1)
        else:
            self._add(self.i, self.i + 1)
            self.i += 1

    def _newline(self) -> None:
        self.i += 1
        if self.argv:
            self._end_word()
            return
        self.i -= 1
        self._end_word()
        self.i += 1
        self._heredocs()
        self._end_statement()
        self._inline = False
        self._prompt()

    def _prompt(self) -> None:
        found = None if self.argv else _PROMPT.match(self.s, self.i)
        if found:
            self.i = found.end()

    def _backslash(self) -> None:
        if self.s[self.i + 1:self.i + 2] == "\n":
            self._continue(self.i + 1)
        elif self.argv and self.s[self.i + 1:self.i + 2] in (" ", ""):  # lines that YAML has joined
            self._end_word()
            self.i += 1
        elif self._rest_is_blank(self.i + 1):
            self._end_word()
            stop = self.s.find("\n", self.i)
            self.slips.append(Slip("continuation-space", self.text.start(self.i), edits=(
                (self.text.start(self.i + 1), self.text.start(stop), ""),)))
            self._continue(self.i + 1)
        elif self.i + 1 < self.n:
            self._add(self.i + 1, self.i + 2)
            self.i += 2
        else:
            self.i += 1

    def _dash(self) -> None:
        found = _DASHES.match(self.s, self.i)
        stop = _LETTERS.match(self.s, found.end()) if found else None
        if found is None or stop is None:
            self._add(self.i, self.i + 1)
            self.i += 1
            return
        straight, slip = straight_dashes(self.text[self.i:stop.end()])
        assert slip is not None
        self.slips.append(slip)
        self._add(self.i, found.end(), straight.value[:len(straight) - len(stop.group())])
        self.i = found.end()

    def _operator(self, c: str) -> None:
        if c == "&" and self.s[self.i + 1:self.i + 2] == ">":
            self._end_word()
            self.i += 1
            return
        self._end_statement()
        self.i += 1

    def _redirection(self, c: str) -> None:
        here = _HEREDOC.match(self.s, self.i) if c == "<" else None
        if here and self.s[self.i:self.i + 3] != "<<<":
            self._end_word()
            self._pending.append((here[3], bool(here[1]), here[2], self.now))
            self.i = here.end()
            return
        placeholder = _PLACEHOLDER.match(self.s, self.i) if c == "<" else None
        if placeholder:
            self._add(self.i, placeholder.end())
            self._is_open = True
            self.i = placeholder.end()
            return
        if self._begun is not None and "".join(self._chars).isdigit():
            self._clear()  # the number of a file descriptor
        self._end_word()
        operator = _REDIRECTION.match(self.s, self.i)
        assert operator is not None
        self.i = operator.end()
        if operator.group() == "<" and self.s[self.i:self.i + 1] == "(":
            return
        while self.s[self.i:self.i + 1] in (" ", "\t"):
            self.i += 1
        self._into = operator.group()

    def _heredocs(self) -> None:
        for word, tabs, _, statement in self._pending:
            body = self.i
            while True:
                stop = self._line_end()
                line = self.s[self.i:stop]
                if (line.lstrip("\t") if tabs else line).rstrip() == word or self.i >= self.n:
                    break
                self.i = stop + 1
            statement.heredocs.append(Heredoc(self.text[body:min(self.i, self.n)], statement.target))
            self.i = min(stop + 1, self.n)
        self._pending.clear()
