"""What runs and engines that were killed left on this host: named here, and never removed."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path

import psutil

from . import process
from .preflight import Finding

# LMCache names its segments by process; vLLM's native pool and Python's shared memory carry no process id.
_NAMES = re.compile(r"lmcache_kv_(?P<pid>\d+)_.+|vllm_offload_.+\.mmap|psm_.+")
_YOUNG_S = 60
"""A segment is made a moment before it is mapped, so the newest are left alone."""
_SHOWN = 3


def findings(runs: Path) -> list[Finding]:
    return [_dead_runs(runs), _dead_segments(process.SHM)]


def _dead_runs(runs: Path) -> Finding:
    """Run folders whose kvproof is gone without having stopped what it started."""
    name = "killed runs"
    unreadable = [note for note in sorted(runs.glob("*/processes.json")) if not _is_json(note)]
    if unreadable:
        return Finding(name, "unknown", f"{unreadable[0]} cannot be read",
                       "look whether its servers still run, then remove that folder")
    dead = list(process.dead_runs(runs))
    if not dead:
        return Finding(name, "ok", "none")
    alive = sum(process.is_alive(pid, created) for _, members, _ in dead for pid, created in members.items())
    return Finding(name, "warning", f"{_some([note.parent.name for note, _, _ in dead])} in {runs}; {alive} of their "
                                    "processes still run", "./inv clean ends and removes what they left")


def _is_json(path: Path) -> bool:
    try:
        json.loads(path.read_text())
    except FileNotFoundError:
        pass  # that run has just ended
    except (OSError, ValueError):
        return False
    return True


def _dead_segments(shm: Path) -> Finding:
    """Shared memory of engines and cache servers that no living process has."""
    name = f"leftovers in {shm}"
    if not shm.is_dir():
        return Finding(name, "unknown", "there is no such folder")
    candidates = _candidates(shm)
    mapped: set[str] = set()
    for pid in psutil.pids() if candidates else ():
        mapped |= process.mapped_segments(pid)
    dead = [path for path in candidates if path.name not in mapped]
    hidden = [path for path in dead if not _is_ours_to_see(path)]
    if hidden:
        return Finding(name, "unknown", f"{_some([p.name for p in hidden])}: of another user, whose processes cannot "
                                        "be looked into", "look again as that user, or as root")
    if not dead:
        return Finding(name, "ok", "none")
    return Finding(name, "warning",
                   f"{_some([p.name for p in dead])}: {sum(map(_size_bytes, dead)) / 1024**3:.1f} GiB, and no process "
                   "of this host has them", "if no container uses them either: rm " + " ".join(map(str, dead[:_SHOWN]))
                   + (" …" if len(dead) > _SHOWN else ""))


def _candidates(shm: Path) -> list[Path]:
    """Segments of the known names, without those that are new or whose process lives."""
    found = []
    for path in sorted(shm.iterdir()):
        matched = _NAMES.fullmatch(path.name)
        try:
            young = matched and time.time() - path.stat().st_mtime < _YOUNG_S
        except OSError:
            continue  # gone in this moment
        if matched and not young and not (matched["pid"] and psutil.pid_exists(int(matched["pid"]))):
            found.append(path)
    return found


def _is_ours_to_see(path: Path) -> bool:
    try:
        return os.geteuid() in (0, path.stat().st_uid)
    except OSError:
        return True


def _size_bytes(path: Path) -> int:
    """What a segment takes in memory, which for one with holes is less than its length."""
    try:
        return path.stat().st_blocks * 512
    except OSError:
        return 0


def _some(names: list[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
