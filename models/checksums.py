"""Checksums of the committed nano checkpoints (standard library only).

python models/checksums.py            # verify; exit code 1 and a reason per bad file
python models/checksums.py --write    # after a training run
"""

import argparse
import hashlib
import sys
from pathlib import Path

ROOT = Path(__file__).parent
SUMS = "SHA256SUMS"
CHECKPOINT_SUFFIXES = (".safetensors", ".json", ".jinja")
NOT_CHECKPOINT = ("scores.json",)


def digests(folder: Path) -> dict[str, str]:
    """SHA-256 of every checkpoint file below a folder, by path relative to it, in order."""
    files = sorted(
        path
        for path in folder.rglob("*")
        if path.suffix in CHECKPOINT_SUFFIXES and path.name not in NOT_CHECKPOINT and path.is_file()
    )
    return {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def recorded(root: Path = ROOT) -> dict[str, str]:
    """The digests in SHA256SUMS, by path relative to the root."""
    lines = (root / SUMS).read_text().splitlines()
    return {path: digest for digest, path in (line.split("  ", 1) for line in lines if line)}


def mismatches(name: str, root: Path = ROOT) -> list[str]:
    """What is wrong with one model's files against SHA256SUMS; empty when nothing is.

    Args:
        name: the model's folder, for example `gemma4-nano-31b`; its assistant is included.
        root: the folder of SHA256SUMS.
    """
    wanted = {path: digest for path, digest in recorded(root).items() if path.startswith(f"{name}/")}
    if not wanted:
        return [f"{root / SUMS}: no entry for {name}"]
    seen = {f"{name}/{path}": digest for path, digest in digests(root / name).items()}
    problems = []
    for path in sorted(wanted | seen):
        if path not in seen:
            problems.append(f"{root / path}: missing")
        elif path not in wanted:
            problems.append(f"{root / path}: not in {SUMS}")
        elif wanted[path] != seen[path]:
            problems.append(f"{root / path}: sha256 is {seen[path][:12]}…, {SUMS} has {wanted[path][:12]}…")
    return problems


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    names = sorted(path.name for path in ROOT.iterdir() if (path / "model.safetensors").exists())
    if args.write:
        lines = [f"{digest}  {name}/{path}\n" for name in names for path, digest in digests(ROOT / name).items()]
        (ROOT / SUMS).write_text("".join(lines))
        return 0
    problems = [problem for name in names for problem in mismatches(name)]
    print("\n".join(problems) or f"{len(recorded())} files as in {SUMS}", file=sys.stderr if problems else sys.stdout)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
