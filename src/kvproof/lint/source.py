"""What was pasted, as text whose every character knows its place, and parts of it that keep theirs.

A part may have lost quotes, escapes and indentation on its way out of a shell line or a YAML scalar; its characters
still say where in the paste they stand, so that a finding inside of JSON inside of YAML has a line and a column.
"""

from __future__ import annotations

import bisect
import codecs
from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import UsageError

MAX_BYTES = 256 * 1024
"""More than that is no paste; whatever is within is read in a few seconds at worst."""
_MAX_CONTROL_SHARE = 0.01
_BOMS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF32_LE, "utf-32"), (codecs.BOM_UTF32_BE, "utf-32"),
         (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))
UNDERSTOOD = ("a docker run, vllm serve, python -m vllm..., trtllm-serve, sglang or lmcache server command; a compose "
              "file; a Kubernetes manifest; Helm values; kv-transfer-config JSON; an extra_llm_api_options YAML; an "
              "LMCache configuration")


class Unreadable(UsageError):
    """Nothing that can be judged: empty, binary, broken, or of no known kind (exit 2)."""

    def __init__(self, message: str, tip: str | None = None):
        super().__init__(message, tip=tip or f"lint understands {UNDERSTOOD}")


@dataclass(frozen=True)
class Source:
    """The whole paste.

    Attributes:
        text: with plain line ends.
        newline: the line end it came with.
    """

    text: str
    newline: str = "\n"

    def __post_init__(self) -> None:
        starts = [0]
        at = self.text.find("\n")
        while at >= 0:
            starts.append(at + 1)
            at = self.text.find("\n", at + 1)
        object.__setattr__(self, "_lines", starts)

    def place(self, offset: int) -> tuple[int, int]:
        """Line and column of a character, both counted from 1."""
        line = bisect.bisect_right(self._lines, offset)  # type: ignore[attr-defined]
        return line, offset - self._lines[line - 1] + 1  # type: ignore[attr-defined]

    def line(self, number: int) -> str:
        """The text of a line, counted from 1."""
        start = self._lines[number - 1]  # type: ignore[attr-defined]
        end = self.text.find("\n", start)
        return self.text[start:] if end < 0 else self.text[start:end]


@dataclass(frozen=True)
class Text:
    """A part of the paste as a program gets to see it.

    Attributes:
        value: without the quotes and escapes that it was written with.
        starts, ends: where each of its characters is written; what a variable became has the place of the variable.
        at: where it stands, also when it is empty.
    """

    value: str
    starts: Sequence[int]
    ends: Sequence[int]
    at: int

    @classmethod
    def plain(cls, value: str, at: int) -> Text:
        """A part that is written as it is."""
        return cls(value, range(at, at + len(value)), range(at + 1, at + len(value) + 1), at)

    def __len__(self) -> int:
        return len(self.value)

    def __getitem__(self, part: slice) -> Text:
        begin, end, _ = part.indices(len(self.value))
        at = self.starts[begin] if begin < len(self.value) else (self.ends[-1] if self.value else self.at)
        return Text(self.value[begin:end], self.starts[begin:end], self.ends[begin:end], at)

    def start(self, index: int = 0) -> int:
        """Where a character is written; behind the last one for an index past the end."""
        if index < len(self.starts):
            return self.starts[index]
        return self.ends[-1] if self.ends else self.at

    def end(self, index: int | None = None) -> int:
        """Behind the last character before an index; behind the whole part for None."""
        if not self.ends:
            return self.at
        index = len(self.ends) if index is None else index
        return self.ends[index - 1] if index > 0 else self.starts[0]

    def is_written_out(self, source: str) -> bool:
        """Whether the paste has just these characters in a row, with no variable, escape or quote between them."""
        start, end = self.start(), self.end()
        return end - start == len(self.value) and source[start:end] == self.value


def decode(data: bytes, name: str) -> Source:
    """The text of a paste, whatever it was saved as.

    Raises:
        Unreadable: it is empty, too long, or no text.
    """
    if len(data) > MAX_BYTES:
        raise Unreadable(f"{name}: {len(data)} bytes or more, but lint reads at most {MAX_BYTES}",
                         "give it the command or the file that matters; for logs there is ./inv explain")
    encoding = next((encoding for bom, encoding in _BOMS if data.startswith(bom)), None)
    if encoding is None and b"\0" in data:
        raise Unreadable(f"{name}: a binary file, expected text")
    try:
        text = data.decode(encoding or "utf-8", errors="kvproof-cp1252")
    except UnicodeDecodeError as error:
        raise Unreadable(f"{name}: byte {error.start} is not {encoding}", "save the file as UTF-8") from None
    newline = "\r\n" if "\r\n" in text else "\n"
    text = text.replace("\r\n", "\n").replace("\r", "\n").removeprefix("\ufeff")
    if not text.strip():
        raise Unreadable(f"{name}: the file is empty")
    control = sum(1 for c in text if c < " " and c not in "\t\n\f\x1b") + text.count("\ufffd")
    if control > max(8, len(text) * _MAX_CONTROL_SHARE):
        raise Unreadable(f"{name}: a binary file, expected text")
    return Source(text, newline)


def _as_windows_text(error: UnicodeError) -> tuple[str, int]:
    """Bytes that are not UTF-8 are most often typographic quotes in Windows' own encoding."""
    if not isinstance(error, UnicodeDecodeError) or error.encoding not in ("utf-8", "utf-8-sig"):
        raise error
    return error.object[error.start:error.end].decode("cp1252", errors="replace"), error.end


codecs.register_error("kvproof-cp1252", _as_windows_text)
