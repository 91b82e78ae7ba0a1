"""Facts about the host, as the system reports them."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import psutil

from .evidence import Hardware, HostFacts

_CGROUPS = Path("/sys/fs/cgroup")
_GPU_FIELDS = "name,memory.total,driver_version,memory.free,compute_cap"
_OLD_GPU_FIELDS = "name,memory.total,driver_version"
"""What nvidia-smi has before driver 510, which does not know compute_cap."""


@dataclass(frozen=True)
class Gpu:
    """One GPU as nvidia-smi shows it.

    Attributes:
        free_bytes: memory that nobody uses; None when it does not say.
        compute_capability: such as 9.0; None when it does not say.
    """

    name: str
    memory_bytes: int
    driver: str
    free_bytes: int | None = None
    compute_capability: str | None = None


def gpus() -> list[Gpu]:
    """NVIDIA GPUs that the driver shows; empty when there is no driver."""
    return look_for_gpus()[0]


def look_for_gpus(timeout_s: float = 30.0) -> tuple[list[Gpu], str | None]:
    """NVIDIA GPUs, and why there may be more than these: None when nvidia-smi said all, or is not there."""
    if shutil.which("nvidia-smi") is None:
        return [], None
    problem = None
    for fields in (_GPU_FIELDS, _OLD_GPU_FIELDS):
        try:
            done = subprocess.run(["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"],
                                  capture_output=True, text=True, errors="replace", timeout=timeout_s, check=False)
        except subprocess.TimeoutExpired:
            return [], f"nvidia-smi gave no answer within {timeout_s:g} s"
        except OSError as error:
            return [], f"nvidia-smi cannot be started: {error.strerror}"
        if done.returncode == 0:
            return _read_gpus(done.stdout)
        said = (done.stdout + done.stderr).strip().splitlines()
        problem = f"nvidia-smi ended with exit status {done.returncode}: {said[0] if said else 'it said nothing'}"
        if "not a valid field" not in done.stdout + done.stderr:
            break
    return [], problem


def _read_gpus(text: str) -> tuple[list[Gpu], str | None]:
    found, problem = [], None
    for line in text.splitlines():
        parts = [p.strip() for p in line.split(",")]
        if len(parts) < 3 or not parts[1].isdigit():
            problem = f"nvidia-smi does not say how much memory a GPU has: {line.strip()}" if line.strip() else problem
            continue
        free, capability = (*parts[3:5], "", "")[:2]
        found.append(Gpu(parts[0], int(parts[1]) * 1024**2, parts[2], int(free) * 1024**2 if free.isdigit() else None,
                         capability if re.fullmatch(r"\d+\.\d+", capability) else None))
    return found, problem


def cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def hardware() -> Hardware:
    found = gpus()
    return Hardware(
        cpu=cpu_name(), cores=len(os.sched_getaffinity(0)), memory_bytes=psutil.virtual_memory().total,
        gpus=tuple(g.name for g in found), gpu_driver=found[0].driver if found else None,
    )


def free_bytes(path: Path) -> int:
    """Free space where a path is or would be."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return shutil.disk_usage(path).free


def memory_available_bytes() -> int:
    """Memory that programs started here can still take; less than the host's where a container is limited."""
    left = _left_in_cgroup(_CGROUPS, Path("/proc/self/cgroup"))
    return min([psutil.virtual_memory().available, *([left] if left is not None else [])])


def _left_in_cgroup(root: Path, own: Path) -> int | None:
    """Memory below the limits of our control group and those around it (version 2); None where none is set.

    Files that the kernel keeps in memory only for speed are given back when it runs short, so they count as free.
    """
    try:
        place = next(line[3:] for line in own.read_text().splitlines() if line.startswith("0::"))
    except (OSError, StopIteration):
        return None
    folder, left = root / place.strip("/"), []
    for group in (folder, *folder.parents):
        try:
            limit = (group / "memory.max").read_text().strip()
            stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
            if limit.isdigit():
                used = int((group / "memory.current").read_text()) - int(stat.get("inactive_file", 0))
                left.append(max(0, int(limit) - used))
        except (OSError, ValueError):
            pass
        if group == root:
            break
    return min(left, default=None)


def facts(cache: Path) -> HostFacts:
    shm = shutil.disk_usage("/dev/shm") if Path("/dev/shm").is_dir() else None
    return HostFacts(
        kernel=platform.release(), memory_available_bytes=memory_available_bytes(),
        shm_bytes=shm.total if shm else 0, shm_free_bytes=shm.free if shm else 0, disk_free_bytes=free_bytes(cache),
    )
