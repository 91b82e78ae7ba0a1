"""Where things are: the project's folders and the user's cache."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import platformdirs

PROJECT = Path(__file__).resolve().parents[2]
RECIPES = PROJECT / "recipes"
EVIDENCE = PROJECT / "evidence"
IMAGES = PROJECT / "images"
DOCS = PROJECT / "docs"


def cache_folder() -> Path:
    """The user's cache for environments, models and datasets; KVPROOF_CACHE moves it."""
    chosen = os.environ.get("KVPROOF_CACHE")
    return Path(chosen).expanduser().resolve() if chosen else Path(platformdirs.user_cache_dir("kvproof"))


def runs_folder() -> Path:
    """Where each run keeps its logs and stored KV while it lives."""
    return cache_folder() / "runs"


def places() -> dict[str, str]:
    """This host's folders and the words that stand for them in what is kept."""
    found = {str(cache_folder()): "$CACHE", str(PROJECT): "$PROJECT"}
    with contextlib.suppress(RuntimeError):  # no home: nothing to name
        found[str(Path.home())] = "~"
    return found
