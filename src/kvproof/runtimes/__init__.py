"""Runtimes: where a plan runs. One file each, named in this table and nowhere else."""

from __future__ import annotations

from . import venv

RUNTIMES = {module.NAME: module for module in (venv,)}
