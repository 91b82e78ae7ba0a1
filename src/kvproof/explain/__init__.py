"""Why a server does not offload its KV cache, or that it does, from its logs and metrics pages.

The way through: inputs (bytes to blocks of lines), scanning (blocks to what was found), judging (to an answer),
printing. Known failures are data, in `kvproof/signatures`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import BinaryIO

from packaging.version import InvalidVersion, Version

from ..errors import UsageError
from ..redact import Redactor
from ..signatures import load
from . import inputs, judging, names
from .evidence import Evidence, Explanation, Input, Kind, Match, Status
from .printing import as_data, lines
from .scanning import Patterns, Scanner

__all__ = [
    "Evidence", "Explanation", "Kind", "Match", "Patterns", "Status", "as_data", "explained", "lines", "lines_of",
    "what",
]


def lines_of(paths: Iterable[Path], version: str | None = None) -> Explanation:
    """What the logs of one run say together; one that is missing or empty is passed over.

    Args:
        paths: log files of servers that belong together.
        version: of the engine, in place of what the logs say.
    """
    return explained([inputs.from_file(path) for path in paths], version)


def what(word: str, stdin: BinaryIO, version: str | None = None) -> Explanation:
    """What a file, standard input or a recipe's newest run says.

    Args:
        word: a file; - for standard input; or the name of a recipe.
        version: of the engine, in place of what the logs say.

    Raises:
        UsageError: it is none of these, or cannot be read, or the version is none.
    """
    if version is not None:
        try:
            Version(version)
        except InvalidVersion:
            raise UsageError(f"--engine-version is {version!r}, expected a version such as 0.19.1.dev6") from None
    if word == "-":
        return explained([inputs.from_stream(stdin)], version, strict=True)
    path = os.path.expanduser(word)
    if os.path.exists(path) or "/" in word:
        return explained([inputs.from_file(Path(path))], version, strict=True)
    return explained(names.sources(word), version)


@cache
def own_patterns() -> Patterns:
    """All known failures of kvproof/signatures, and the signs of offloading."""
    return Patterns(load())


def explained(sources: Sequence[inputs.Source], version: str | None = None, *, strict: bool = False,
              patterns: Patterns | None = None) -> Explanation:
    """What logs say together.

    Args:
        strict: let one that cannot be read be an error; otherwise it is named in the answer.
        patterns: what to look for; all that kvproof knows when None.
    """
    patterns = own_patterns() if patterns is None else patterns
    scanner, logs, unread = Scanner(patterns, Redactor()), [], []
    for source in sources:
        try:
            logs.append(scanner.read(source))
        except UsageError as error:
            if strict:
                raise
            unread.append(Input(source.name, 0, 0, error.message))
    return judging.judge(logs, patterns.signatures, version, unread)
