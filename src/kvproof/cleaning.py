"""What runs that were killed have left on this host, in every runtime: listed, then removed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .errors import KvproofError
from .paths import runs_folder
from .runtimes import RUNTIMES, Leftover


@dataclass(frozen=True)
class Found:
    """What there is.

    Attributes:
        leftovers: by runtime.
        unseen: by runtime that could not be looked into, why.
    """

    leftovers: dict[str, list[Leftover]]
    unseen: dict[str, str]

    def lines(self, done: str) -> list[str]:
        """For people.

        Args:
            done: what happens to what can be removed.
        """
        listed = [f"{done if left.remove else 'left'}: {left.what}" for lefts in self.leftovers.values()
                  for left in lefts]
        return [*(listed or ["nothing is left of runs that were killed"]),
                *(f"not looked into: {name}: {why}" for name, why in self.unseen.items())]

    def as_data(self, removed: bool) -> dict[str, Any]:
        return {"leftovers": [{"runtime": name, "what": left.what, "removed": removed and left.remove is not None}
                              for name, lefts in self.leftovers.items() for left in lefts],
                "not_looked_into": self.unseen}


def find() -> Found:
    """What is left; a runtime that is not there is no error, since nothing of it can be running then."""
    leftovers, unseen = {}, {}
    for name, runtime in RUNTIMES.items():
        try:
            leftovers[name] = runtime.leftovers(runs_folder())
        except KvproofError as error:
            unseen[name] = error.message
    return Found(leftovers, unseen)


def remove(found: Found) -> None:
    """Remove what `find` has found and what may be removed.

    Raises:
        CannotRunError: the daemon refused.
    """
    for lefts in found.leftovers.values():
        for left in lefts:
            if left.remove is not None:
                left.remove()
