"""Resolves an environment's requirements.in into a lock with hashes."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from .errors import CannotRunError, UsageError, nearest
from .paths import IMAGES
from .runtimes.venv import read_lock


def resolve(name: str) -> Path:
    """Write images/NAME/requirements.lock from requirements.in and overrides.txt.

    Returns:
        The lock file.

    Raises:
        UsageError: there is no such environment.
        CannotRunError: uv is not installed, or finds no solution.
    """
    folder = IMAGES / name
    if not (folder / "requirements.in").is_file():
        known = [p.parent.name for p in IMAGES.glob("*/requirements.in")]
        raise UsageError(f"no environment is called {name!r}; {nearest(name, known)}")
    uv = shutil.which("uv")
    if uv is None:
        raise CannotRunError("uv is not installed, and it resolves locks", tip="pip install -e '.[lock]'")
    lock = read_lock(name)
    part = folder / "requirements.lock.part"
    words = [uv, "pip", "compile", "requirements.in", "--override", "overrides.txt", "--generate-hashes",
             "--python-version", lock.python, "--python-platform", "x86_64-manylinux_2_36", "--only-binary", ":all:",
             "--no-header", "--no-annotate", "--quiet", "--output-file", part.name]
    for place in os.environ.get("PIP_FIND_LINKS", "").split():
        words += ["--find-links", place]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        part.unlink(missing_ok=True)
        raise CannotRunError(f"uv found no lock for {folder}/requirements.in", log_tail=done.stderr.splitlines()[-10:])
    part.replace(folder / "requirements.lock")
    return folder / "requirements.lock"
