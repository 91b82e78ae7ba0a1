"""How long the support matrix takes over many evidence files, and how much memory.

    python benchmarks/matrix.py [--files 1000,2500,5000,10000] [--json]

Makes evidence files of 40 to 100 KB in a temporary folder, which is removed afterwards, and measures each
number of them in a process of its own: reading the recipes and all headers, judging, and making the page.
The files were just written, so they are read from memory: the figures are kvproof's own time, not a disk's.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from kvproof.loading import load_recipe
from kvproof.recipe import Recipe

PROJECT = Path(__file__).resolve().parents[1]
EXAMPLE = PROJECT / "tests" / "fixtures" / "evidence" / "v1.json"
_CHILD = """
import json, resource, sys, time
from pathlib import Path
began = time.perf_counter()
from kvproof import matrix
imported = time.perf_counter()
found = matrix.collect(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]))
matrix.render(found)
ended = time.perf_counter()
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps({
    "import_s": imported - began, "matrix_s": ended - imported,
    "peak_mib": peak / (1024 if sys.platform == "linux" else 1024**2),
    "problems": len(found.problems), "standings": sorted({cell.standing for cell in found.cells}),
}))
"""


def bodies(example: dict, checks: list[dict]) -> list[str]:
    """Everything after the header of records of about 40, 60, 80 and 100 KB."""
    rest = {key: value for key, value in example.items() if key != "header"} | {"checks": checks}
    one = rest["passes"][0]
    sample = one["samples"][0] | {"token_ids": list(range(24)), "logprobs": [-0.123456789] * 24}
    made = []
    for kilobytes in (40, 60, 80, 100):
        passes = [one | {"samples": [sample] * 8} for _ in range(kilobytes // 10)]
        logs = {"engine": ["INFO 01-02 03:04:05 a line of a log that is as long as most are"] * 40}
        text = json.dumps(rest | {"passes": passes, "logs": logs}, indent=1)
        padding = json.dumps("x" * max(0, kilobytes * 1000 - len(text)))
        made.append(f'{text[1:].rstrip().removesuffix("}").rstrip()},\n "padding": {padding}\n}}\n')
    return made


def make(folder: Path, first: int, last: int, recipe: Recipe) -> int:
    """Write evidence files number first up to last, a third each of pass, fail and stale.

    Returns:
        Bytes written.
    """
    example = json.loads(EXAMPLE.read_text(encoding="utf-8"))
    passed = [example["header"]["checks"][0] | {"name": name} for name in recipe.checks.required]
    failed = [check | {"verdict": "fail"} if check["name"] == "retrieval" else check for check in passed]
    rests, failing = bodies(example, passed), bodies(example, failed)
    lock = (PROJECT / "images" / recipe.environment / "requirements.lock").read_bytes()
    same = example["header"] | {
        "recipe": recipe.name,
        "recipe_digest": recipe.digest(),
        "lock_digest": hashlib.sha256(lock).hexdigest(),
        "checks": passed,
    }
    size = 0
    for number in range(first, last):
        stamp = f"2026-{1 + number // 2400 % 12:02}-{1 + number % 28:02}T{number % 24:02}:00:00Z"
        head = same | {"run_id": f"run-{number:06}", "started_at": stamp}
        if number % 3 == 1:
            reason = "retrieval: external_hit_ratio 0.1, expected >= 0.9"
            head |= {"verdict": "fail", "reason": reason, "checks": failed}
        if number % 3 == 2:
            head |= {"recipe_digest": "0" * 64}
        text = '{\n "header": ' + json.dumps(head, indent=1) + ","
        text += (failing if number % 3 == 1 else rests)[number % len(rests)]
        path = folder / head["recipe"] / f"{head['run_id']}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        size += len(text)
    return size


def measure(evidence: Path) -> dict:
    """One run over a folder in a process of its own: seconds, MiB, and what it found."""
    began = time.perf_counter()
    folders = [str(PROJECT / "recipes"), str(evidence), str(PROJECT / "images")]
    done = subprocess.run([sys.executable, "-c", _CHILD, *folders], check=True, capture_output=True, text=True)
    return json.loads(done.stdout) | {"wall_s": time.perf_counter() - began}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", default="1000,2500,5000,10000", help="numbers of files, rising")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args()
    counts = sorted({int(count) for count in options.files.split(",")})

    recipe = load_recipe(PROJECT / "recipes" / "gemma4-tiny.yaml")
    rows = []
    with tempfile.TemporaryDirectory(prefix="kvproof-benchmark-") as folder:
        made = size = 0
        evidence = Path(folder) / "evidence"
        evidence.mkdir()
        for count in counts:
            size += make(evidence, made, count, recipe)
            made = count
            rows.append({"files": count, "mean_kb": size / count / 1000} | measure(evidence))
    if options.json:
        print(json.dumps(rows, indent=1))
        return
    print("| Evidence files | Mean size (KB) | Wall time (s) | Per file (ms) | Peak memory (MiB) |")
    print("| ---: | ---: | ---: | ---: | ---: |")
    for row in rows:
        each = 1000 * row["matrix_s"] / row["files"]
        print(f"| {row['files']:,} | {row['mean_kb']:.0f} | {row['wall_s']:.2f} | {each:.3f} ", end="")
        print(f"| {row['peak_mib']:.0f} |")


if __name__ == "__main__":
    main()
