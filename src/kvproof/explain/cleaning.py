"""Log lines as they are shown: without colours, escapes, wrappers and prefixes."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

SHOWN_CHARACTERS = 400
_ANSI = re.compile(rb"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)?|[@-Z\\^_])")
_ESCAPED_ANSI = re.compile(rb"\\(?:u001[bB]|x1[bB]|033)\[[0-9;?]*[A-Za-z]")
# Go's JSON encoder, which Docker uses, writes these characters as escapes.
_ESCAPED = re.compile(rb"\\u00(3[cCeE]|2[267])")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_MESSAGE_KEYS = ("log", "message", "msg", "MESSAGE", "text", "body")
_CONTAINER = re.compile(
    r"\[pod/[^\]\s]+\]\s+"  # kubectl logs --prefix
    r"|[A-Za-z][\w.-]{0,79}\s*\|\s"  # docker compose logs
    r"|\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)\s+"  # docker logs -t, kubectl --timestamps
    r"|(?:stdout|stderr)\s[FP]\s"  # the files of containerd and CRI-O
    r"|[A-Z][a-z]{2}\s+\d{1,2}\s\d\d:\d\d:\d\d\s\S+\s[\w./@-]+(?:\[\d+\])?:\s"  # syslog, journalctl
)
_PROGRAM = re.compile(
    r"\([A-Za-z][\w .-]{0,60}\s?pid=\d+(?:,[^)]{0,60})?\)\s*"
    r"|(?:DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL)\s+\d\d-\d\d \d\d:\d\d:\d\d \[[^\]]{1,80}\] ?"
    r"|\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[^\]]{0,40}\]\s*(?:LMCache )?(?:DEBUG|INFO|WARNING|ERROR|CRITICAL):\s*"
    r"|\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[^\]]{0,40}\]\s*"
    r"|\[\d\d/\d\d/\d{4}-\d\d:\d\d:\d\d\]\s(?:\[[\w -]{1,40}\]\s?){1,5}"
)


@dataclass(frozen=True)
class Line:
    """A line of a log, masked and fit to be shown.

    Attributes:
        log: name of its log.
        number: from 1.
    """

    log: str
    number: int
    text: str

    def __str__(self) -> str:
        return f"{self.log}:{self.number}: {self.text}"


def normalised(block: bytes) -> bytes:
    """A block as it is searched: without colours and NUL bytes, and with JSON's commonest escapes undone.

    Lines stay lines, so that they can be counted in either.
    """
    if b"\x1b" in block:
        block = _ANSI.sub(b"", block)
    if b"\\" in block:
        if b"\\u001" in block or b"\\x1" in block or b"\\033" in block:
            block = _ESCAPED_ANSI.sub(b"", block)
        if b"\\u003" in block or b"\\u002" in block:
            block = _ESCAPED.sub(lambda found: bytes([int(found[1], 16)]), block)
        block = block.replace(b'\\"', b'"')
    return block.replace(b"\0", b"") if b"\0" in block else block


def entries(raw: bytes) -> list[str]:
    """What one line of a log says: itself, or the message in it when it is JSON, which may have several lines.

    Nothing in it can steer a terminal.
    """
    text = stripped(_plain(raw))
    if text.startswith("{"):
        message = _message_of(text)
        if message is not None:
            text = _plain(message.encode("utf-8", "replace"))
    # A progress bar ends its lines with a carriage return alone.
    return [stripped(_CONTROL.sub("", part)) for part in re.split(r"[\r\n]+", text) if part.strip()] or [""]


def stripped(text: str) -> str:
    """Without what container tools and log collectors put before a line."""
    for _ in range(6):
        found = _CONTAINER.match(text)
        if found is None:
            break
        text = text[found.end():]
    return text.rstrip()


def bare(text: str) -> str:
    """Without the process, level, time and place in the code that the program itself puts before a message."""
    for _ in range(6):
        found = _PROGRAM.match(text)
        if found is None:
            break
        text = text[found.end():]
    return text


def excerpt(text: str, around: re.Pattern[str] | None = None) -> str:
    """At most SHOWN_CHARACTERS of a line, with the part that matters."""
    if len(text) <= SHOWN_CHARACTERS:
        return text
    found = around.search(text) if around is not None else None
    at = found.start() if found else 0
    start = max(0, min(at - SHOWN_CHARACTERS // 4, len(text) - SHOWN_CHARACTERS))
    end = start + SHOWN_CHARACTERS
    return ("… " if start else "") + text[start:end] + (" …" if end < len(text) else "")


def _plain(raw: bytes) -> str:
    return _ANSI.sub(b"", raw).decode("utf-8", "replace")


def _message_of(text: str) -> str | None:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return None
    for key in _MESSAGE_KEYS:
        if isinstance(content, dict) and isinstance(content.get(key), str):
            return content[key]
    return None
