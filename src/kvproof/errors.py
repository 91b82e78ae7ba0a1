"""Every error that a user can meet, in one tree.

    KvproofError                exit 1
    ├── UsageError              exit 2   a name, option or file the user gave is wrong
    │   ├── RecipeError                  a recipe that cannot be read as one
    │   └── DatasetError                 a dataset that is missing or is not the pinned one
    ├── CannotRunError          exit 3   this host cannot run it, or a server never became ready
    │   ├── HostError                    too little disk, memory, /dev/shm, or a wrong Python
    │   ├── EnvironmentBuildError        the locked environment could not be installed
    │   └── NotReadyError                a server died or timed out before it was ready
    ├── EvidenceError           exit 1   an evidence file that cannot be read or written
    ├── ServerError             exit 1   a server that was ready answered wrongly or not at all
    └── Interrupted             exit 130 the user (or the system) asked to stop

Each carries what is wrong and what to try next, so that the command line can print both and
nothing else; a traceback means a defect in kvproof.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class KvproofError(Exception):
    """Base of all expected errors.

    Args:
        message: what is wrong, where, and what was seen against what was expected.
        tip: the next step for the user; None when the message already says it.
        log_tail: last lines of the log that explains it, oldest first; empty when there is none.
    """

    exit_code = 1
    result_printed = False
    """Whether stdout already holds the result as data, so that nothing may follow it there."""

    def __init__(self, message: str, *, tip: str | None = None, log_tail: Iterable[str] = ()):
        super().__init__(message)
        self.message = message
        self.tip = tip
        self.log_tail = tuple(log_tail)


class UsageError(KvproofError):
    exit_code = 2


class RecipeError(UsageError):
    pass


class DatasetError(UsageError):
    pass


class CannotRunError(KvproofError):
    exit_code = 3


class HostError(CannotRunError):
    pass


class EnvironmentBuildError(CannotRunError):
    pass


class NotReadyError(CannotRunError):
    pass


class EvidenceError(KvproofError):
    pass


class ServerError(KvproofError):
    pass


class Interrupted(KvproofError):
    exit_code = 130


def nearest(name: str, known: Iterable[str]) -> str:
    """Names close to a mistyped one, as a sentence part; the whole list when none is close."""
    options = sorted(known)
    close = difflib.get_close_matches(name, options, n=3, cutoff=0.5)
    if close:
        return "did you mean " + " or ".join(close) + "?"
    return "known: " + (", ".join(options) if options else "none")
