"""Quotes and expansions of a shell text: what they hide, and what only a running shell would know."""

from __future__ import annotations

import re

from .jsonish import SMART_DOUBLE, SMART_SINGLE
from .model import Slip
from .shell_words import Words
from .source import Text

_CONTRACTION = re.compile(r"['’](?:s|t|re|ll|ve|d|m)\b")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_RAW_JSON = re.compile(r"\{\s*[\"“]")
_STRIPPED = re.compile(r"\"\{\s*\"[A-Za-z_]")
_INLINE = re.compile(r"`(?:sudo )?(?:docker|podman|vllm|python3?|trtllm-serve|sglang|lmcache)\s")
_DEFAULT = re.compile(r":?[-=]")
_MAX_BRACES = 20_000
_MAX_ODD_QUOTE = 4000


class Parts(Words):
    # --- quotes ----------------------------------------------------------------------------------

    def _quote(self, c: str) -> None:
        if c in SMART_SINGLE + SMART_DOUBLE:
            self._odd_quote(c)
        elif c == "'":
            self._single()
        elif _STRIPPED.match(self.s, self.i) and self._raw_json(self.i + 1):
            pass
        else:
            self._double()

    def _single(self) -> None:
        letter_before = self.i > 0 and self.s[self.i - 1].isalpha() and self._begun is not None
        if letter_before and not self.argv and _CONTRACTION.match(self.s, self.i):
            return self._literal()
        close = self._find("'")
        ends_a_word = letter_before and self.s[self.i + 1:self.i + 2] in (" ", "\n", "")
        if close < 0 or (ends_a_word and not self.argv and "\n" in self.s[self.i:close]):
            return self._literal() if letter_before or self.argv else self._unclosed("'")
        self._take_quoted("'", self.i + 1, close)
        return None

    def _unclosed(self, quote: str) -> None:
        """A quote that would swallow all that follows is taken to end with its line."""
        self.slips.append(Slip("quote-unclosed", self.text.start(self.i), {"seen": quote}))
        self._take_quoted(quote, self.i + 1, self._line_end())
        self.i -= 1

    def _find(self, quote: str) -> int:
        if self._no_close.get(quote, self.n) <= self.i:
            return -1
        close = self.s.find(quote, self.i + 1)
        if close < 0:
            self._no_close[quote] = self.i
        return close

    def _take_quoted(self, quote: str, begin: int, close: int) -> None:
        opened = self.i
        if self._begun is None:
            self._begun = opened
        self._add(begin, close)
        self.i = close + 1
        self._quotes.append((quote, opened, self.i))

    def _odd_quote(self, c: str) -> None:
        """A typographic quote where a shell wants a straight one; inside of a word it is just a character."""
        closing = SMART_DOUBLE + '"' if c in SMART_DOUBLE else SMART_SINGLE + "'"
        at_word = self._begun is None or (self._chars and self._chars[-1].endswith("="))
        stop = self._line_end() if at_word else self.i
        if at_word and c in SMART_SINGLE:  # JSON in it may span lines
            stop = min(self.n, self.i + _MAX_ODD_QUOTE)
        close = -1 if self.i < self._no_odd_before or not at_word else next(
            (n for n in range(self.i + 1, stop) if self.s[n] in closing
             and (n + 1 >= self.n or self.s[n + 1].isspace())), -1)
        if close < 0:
            self._no_odd_before = max(self._no_odd_before, stop if at_word else 0)
            return self._literal()
        straight = '"' if c in SMART_DOUBLE else "'"
        places = [(self.text.start(n), self.text.end(n + 1), straight)
                  for n in (self.i, close) if self.s[n] != straight]
        self.slips.append(Slip("odd-quotes", self.text.start(self.i), {"seen": c, "right": straight}, tuple(places)))
        self._take_quoted(straight, self.i + 1, close)
        return None

    def _double(self) -> None:
        quote = '"'
        if self._no_close.get(quote, self.n + 1) <= self.i:
            return self._literal() if self.argv else self._unclosed(quote)
        opened, saved = self.i, (len(self._chars), len(self._starts), self._begun, self._is_open)
        if self._begun is None:
            self._begun = opened
        self.i += 1
        while self.i < self.n:
            c = self.s[self.i]
            if c == quote:
                self.i += 1
                self._quotes.append((quote, opened, self.i))
                return None
            following = self.s[self.i + 1:self.i + 2]
            if c == "\\" and following == "\n" and not self.argv:
                self.i += 2
            elif c == "\\" and following and following in '"\\$`':
                self._add_escaped()
            elif c == "$":
                self._expansion(quoted=True)
            elif c == "`" and not self.argv:
                self._backtick(quoted=True)
            else:
                self._add(self.i, self.i + 1)
                self.i += 1
        self._no_close[quote] = opened
        del self._chars[saved[0]:], self._starts[saved[1]:], self._ends[saved[1]:]
        self._begun, self._is_open = saved[2:]
        self.i = opened
        return self._literal() if self.argv else self._unclosed(quote)

    def _add_escaped(self) -> None:
        self._add(self.i, self.i + 2, self.s[self.i + 1])
        self.i += 2

    def _raw_json(self, begin: int | None = None) -> bool:
        """JSON without the quotes around it that would keep the shell from taking its own away."""
        at = self.i if begin is None else begin
        if at < self._no_json_before or not _RAW_JSON.match(self.s, at) or (
                begin is None and self._begun is not None and not "".join(self._chars[-1:]).endswith("=")):
            return False
        depth, quoted, stop = 0, False, self._logical_line_end(at)
        for n in range(at, stop):
            c = self.s[n]
            if c == '"' and self.s[n - 1] != "\\":
                quoted = not quoted
            elif not quoted:
                depth += (c in "{[") - (c in "}]")
                if depth == 0 and c in "}]":
                    break
        else:
            self._no_json_before = stop
            return False
        if begin is not None and self.s[n + 1:n + 2] != '"':
            return False
        opened = self.i
        if self._begun is None:
            self._begun = opened
        self._add(at, n + 1)
        self._stripped = True
        self.i = n + 1 if begin is None else n + 2
        return True

    def _logical_line_end(self, at: int) -> int:
        stop = self.s.find("\n", at)
        while stop > 0 and self.s[stop - 1] == "\\":
            stop = self.s.find("\n", stop + 1)
        return self.n if stop < 0 else stop

    # --- expansions ------------------------------------------------------------------------------

    def _expansion(self, quoted: bool = False) -> None:
        following = self.s[self.i + 1:self.i + 2]
        name = _NAME.match(self.s, self.i + 1)
        if self.argv:
            self._compose_variable(name)
        elif name:
            self._variable(name.group(), name.end(), quoted=quoted)
        elif following == "{":
            self._braces(quoted)
        elif following == "(":
            self._opaque(self._behind(self.i + 1, "(", ")"))
        elif following == "'" and not quoted:
            self.i += 1
            self._single()
        elif following and following in "@*#?$!-0123456789":
            self._opaque(self.i + 2)
        else:
            self._add(self.i, self.i + 1)
            self.i += 1

    def _compose_variable(self, name: re.Match | None) -> None:
        if self.s[self.i + 1:self.i + 2] == "$":
            self._add_escaped()
        elif self.s[self.i + 1:self.i + 2] == "{":
            self._braces()
        elif name:
            self._variable(name.group(), name.end())
        else:
            self._add(self.i, self.i + 1)
            self.i += 1

    def _variable(self, name: str, end: int, default: Text | None = None, quoted: bool = True) -> None:
        value = self.variables.get(name)
        if value is not None and not quoted and not self._is_assignment() and len(value.value.split()) > 1:
            begin, parts = self.i, value.value.split()
            self.i = end
            for n, part in enumerate(parts):  # without quotes around it, it becomes several words
                self._add(begin, end, part)
                if n < len(parts) - 1:
                    self._end_word()
        elif value is not None:
            self._add(self.i, end, value.value)
            self.i = end
        elif default is not None:
            if self._begun is None:
                self._begun = self.i
            self._chars.append(default.value)
            self._starts += default.starts
            self._ends += default.ends
            self.i = end
        else:
            self._opaque(end)

    def _opaque(self, end: int) -> None:
        """Something that only the shell knows, kept as it is written."""
        end = min(end, self.n)
        self._add(self.i, end)
        self._is_open = True
        self.i = end

    def _braces(self, quoted: bool = True) -> None:
        end = self._behind(self.i + 1, "{", "}")
        inner = self.s[self.i + 2:end - 1]
        name = _NAME.match(inner)
        if name is None:
            return self._opaque(end)
        rest = inner[name.end():]
        default = _DEFAULT.match(rest)
        if not rest:
            return self._variable(name.group(), end, quoted=quoted)
        if default is None or "$" in rest or "`" in rest:
            known = self.variables.get(name.group()) if default else None
            return self._variable(name.group(), end) if known is not None else self._opaque(end)
        begin = self.i + 2 + name.end() + default.end()
        part = self.text[begin:end - 1]
        if len(part) >= 2 and part.value[0] == part.value[-1] and part.value[0] in "'\"":
            part = part[1:-1]
        return self._variable(name.group(), end, part, quoted)

    def _behind(self, at: int, opening: str, closing: str) -> int:
        """Behind the bracket that closes the one at a place; the end of the line when none does."""
        depth, stop = 0, min(self.n, at + _MAX_BRACES)
        for n in range(at, stop):
            depth += (self.s[n] == opening) - (self.s[n] == closing)
            if depth == 0:
                return n + 1
        return max(self._line_end(), at + 1)

    def _backtick(self, quoted: bool = False) -> None:
        if not quoted and self._rest_is_blank(self.i + 1) and self._begun is None:
            return self._continue(self.i + 1)  # PowerShell's way to go on in the next line
        if self._inline and not quoted:
            self._end_statement()
            self.i += 1
            self._inline = False
            return None
        stop = self._line_end()
        close = self.s.find("`", self.i + 1, stop)
        if close < 0:
            return self._literal()
        if not quoted and self._begun is None and (not self.now.words or _INLINE.match(self.s, self.i)):
            self._end_statement()  # prose that sets a command in backticks: the command is what counts
            self.i += 1
            self._inline = True
            return None
        return self._opaque(close + 1)
