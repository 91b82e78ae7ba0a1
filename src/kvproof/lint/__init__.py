"""Lint: what is wrong with a command, a manifest or a configuration that somebody pasted.

`source` reads bytes into text that knows its places; `recognise` finds out what it is and reads it into a
`model.Paste`; `rules` judge that by `facts`, which are data with version bounds and links; `judgement` joins them, and
`report` says it. Nothing in a paste is ever run or looked up.
"""

from __future__ import annotations

import sys
from pathlib import Path

from .judgement import Mended, Report, examine, fix
from .report import data, text
from .source import MAX_BYTES, Source, Unreadable, decode

__all__ = ["Mended", "Report", "Unreadable", "data", "examine", "fix", "lint", "read", "text"]


def lint(file: str, engine_version: str | None = None) -> Report:
    """Judge a file, or what comes on stdin for "-".

    Raises:
        Unreadable: it cannot be read, or is of no kind that lint understands.
    """
    return examine(read(file), "stdin" if file == "-" else file, engine_version)


def read(file: str) -> Source:
    """The text of a file, or of stdin for "-".

    Raises:
        Unreadable: there is no such file, or it is no text.
    """
    if file == "-":
        return decode(sys.stdin.buffer.read(MAX_BYTES + 1), "stdin")
    path = Path(file)
    try:
        if path.exists() and not path.is_file():
            raise Unreadable(f"{file}: not a regular file", "give a file, or - to read what is piped in")
        with path.open("rb") as stream:
            return decode(stream.read(MAX_BYTES + 1), file)
    except FileNotFoundError:
        raise Unreadable(f"{file}: no such file", "give a file, or - to read what is piped in") from None
    except (OSError, ValueError) as error:
        raise Unreadable(f"{file}: cannot be read: {getattr(error, 'strerror', None) or error}",
                         "check that it is a file you may read") from None
