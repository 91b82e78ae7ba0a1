"""From a recipe's name to the logs of its newest run."""

from __future__ import annotations

import re
from pathlib import Path

from .. import evidence
from ..errors import KvproofError, UsageError
from ..loading import find_recipe
from ..paths import EVIDENCE, runs_folder
from . import inputs

_RUN_ID = r"\d{8}T\d{6}Z-[0-9a-f]+"


def sources(name: str, runs: Path | None = None, evidence_dir: Path = EVIDENCE) -> list[inputs.Source]:
    """Logs of a recipe's newest run: its folder where it still is, otherwise the last lines that evidence keeps.

    Raises:
        UsageError: there is neither a file nor a recipe of that name, or it was never run.
    """
    try:
        recipe = find_recipe(name).stem
    except UsageError as error:
        raise UsageError(f"{name}: neither a file nor a recipe; {error.message}",
                         tip="name a log file, - for standard input, or a recipe of ./inv recipes") from None
    runs = runs_folder() if runs is None else runs
    folders = {found[1]: path for path in (runs.iterdir() if runs.is_dir() else ())
               if (found := re.fullmatch(rf"{re.escape(recipe)}-({_RUN_ID})", path.name)) and any(path.glob("*.log"))}
    records = {path.stem: path for path in (evidence_dir / recipe).glob("*.json") if re.fullmatch(_RUN_ID, path.stem)}
    if not folders and not records:
        raise UsageError(f"{recipe} has no run yet, neither a folder under {runs} nor evidence",
                         tip=f"./inv recipe {recipe}, or name a log file")
    newest = max({*folders, *records})
    if newest in folders:
        return [inputs.from_file(path) for path in sorted(folders[newest].glob("*.log"))]
    path = records[newest]
    try:
        logs = evidence.read(path).logs
    except KvproofError as error:
        raise UsageError(error.message, tip=error.tip) from None
    return [inputs.from_lines(f"{path.name} {role}", lines) for role, lines in logs.items()]
