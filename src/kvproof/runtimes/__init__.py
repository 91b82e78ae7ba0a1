"""Runtimes: where a plan runs. One file each, named in this table and nowhere else.

A runtime is a module: `place` decides, `open` gives a run its own `Runtime`, `sweep` and `leftovers` look after runs
that were killed. What a run does with it is in `starting`, `launching`, `run` and `serving`, the same for all.
"""

from __future__ import annotations

from types import ModuleType

from . import docker, venv
from .protocol import Leftover, Place, Prepared, Running, Runtime

RUNTIMES: dict[str, ModuleType] = {module.NAME: module for module in (venv, docker)}

__all__ = ["RUNTIMES", "Leftover", "Place", "Prepared", "Running", "Runtime"]
