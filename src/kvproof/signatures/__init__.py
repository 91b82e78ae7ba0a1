"""Known failures by what they leave in a log: one YAML file per failure in this folder, and how they are searched for.

A new failure is one new file; its examples are its tests (tests/test_signatures.py). `model` says what a file holds,
`matching` searches for the patterns of all files at once.
"""

from __future__ import annotations

from .loading import FOLDER, load
from .matching import Expression, Matcher
from .model import Pattern, Signature

__all__ = ["FOLDER", "Expression", "Matcher", "Pattern", "Signature", "load"]
