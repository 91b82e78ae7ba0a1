"""Checks: one file each, in the order in which a proof runs them.

A check gets a live session and gives a judgement. What it needs from earlier checks is in NEEDS: when one
of them is not a pass, the check is not measured, so that one lie turns one check red.
"""

from __future__ import annotations

from typing import Protocol

from ..session import Session
from . import (
    comparison,
    control_damage,
    control_drop,
    latency,
    noise_floor,
    overhead,
    retrieval,
    smoke,
    speculative,
    store,
)
from .judgement import Judgement


class Check(Protocol):
    NAME: str
    CONTROL: bool
    """A negative control: it passes when another check turns red."""
    NEEDS: tuple[str, ...]
    """Checks that must have passed for this one to mean anything."""

    def run(self, session: Session) -> Judgement: ...


CHECKS: dict[str, Check] = {
    module.NAME: module
    for module in (smoke, noise_floor, store, retrieval, comparison, speculative, latency, overhead, control_drop,
                   control_damage)
}
CONTROLS = frozenset(name for name, check in CHECKS.items() if check.CONTROL)


def chosen(required: list[str]) -> list[Check]:
    """The checks that a recipe requires and those that they need, in running order."""
    wanted = set(required)
    for check in reversed(CHECKS.values()):
        if check.NAME in wanted:
            wanted.update(check.NEEDS)
    return [check for name, check in CHECKS.items() if name in wanted]
