"""The name that was meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

SURE = 0.84


def match(seen: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The one name that is closest to another, whatever its case; None when none is close."""
    options = {name.lower(): name for name in sorted(known)}
    found = difflib.get_close_matches(seen.lower()[:80], options, n=1, cutoff=cutoff)
    return options[found[0]] if found else None


def is_sure(seen: str, right: str) -> bool:
    """Whether nothing else can have been meant."""
    return difflib.SequenceMatcher(None, seen.lower()[:80], right.lower()).ratio() >= SURE


def sentence(seen: str, right: str | None, known: Iterable[str]) -> str:
    """What was meant, or what there is, as a sentence part."""
    if right is not None:
        return f"did you mean {right}?"
    return "known: " + ", ".join(sorted(known))
