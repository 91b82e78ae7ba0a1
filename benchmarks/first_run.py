"""From a fresh clone to a verdict, then a second run: seconds, and kvproof's own share of them.

usage: python benchmarks/first_run.py [RECIPE]     (default gemma4-nano; needs a package index)

Clones this repository into a temporary folder with an empty cache, so everything is installed anew. Prints a
Markdown table; the machine matters, so compare only figures of one machine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]


def prove(clone: Path, recipe: str, environment: dict[str, str]) -> tuple[float, dict]:
    """Seconds of one run as the user sees it, and its result as data."""
    started = time.monotonic()
    done = subprocess.run([str(clone / "inv"), "recipe", recipe, "--no-matrix", "--json"], env=environment,
                          stdout=subprocess.PIPE, text=True, check=False)
    seconds = time.monotonic() - started
    if done.returncode:
        sys.exit(f"the run ended with exit code {done.returncode}, so its time means nothing")
    return seconds, json.loads(done.stdout)


def main() -> None:
    recipe = sys.argv[1] if len(sys.argv) > 1 else "gemma4-nano"
    with tempfile.TemporaryDirectory(prefix="kvproof-first-run-") as folder:
        clone = Path(folder) / "kvproof"
        subprocess.run(["git", "clone", "-q", str(PROJECT), str(clone)], check=True)
        environment = {**os.environ, "KVPROOF_CACHE": str(Path(folder) / "cache")}
        print("| run | seconds | kvproof's own share |")
        print("| --- | ---: | ---: |")
        for name in ("fresh clone, everything installed", "second run"):
            seconds, result = prove(clone, recipe, environment)
            print(f"| {recipe}, {name} | {seconds:.0f} | {result['own_share_ratio']:.1%} |", flush=True)


if __name__ == "__main__":
    main()
