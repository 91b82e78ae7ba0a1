"""Facts about the host, as the system reports them."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import psutil

from .evidence import Hardware, HostFacts


@dataclass(frozen=True)
class Gpu:
    name: str
    memory_bytes: int
    driver: str


def gpus() -> list[Gpu]:
    """NVIDIA GPUs that the driver shows; empty when there is no driver."""
    if shutil.which("nvidia-smi") is None:
        return []
    try:
        done = subprocess.run(
            ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader,nounits"],
            capture_output=True, text=True, timeout=30, check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return []
    found = []
    for line in done.stdout.splitlines():
        parts = [p.strip() for p in line.split(",")]
        if len(parts) == 3 and parts[1].isdigit():
            found.append(Gpu(parts[0], int(parts[1]) * 1024**2, parts[2]))
    return found


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


def facts(cache: Path) -> HostFacts:
    shm = shutil.disk_usage("/dev/shm") if Path("/dev/shm").is_dir() else None
    return HostFacts(
        kernel=platform.release(), memory_available_bytes=psutil.virtual_memory().available,
        shm_bytes=shm.total if shm else 0, shm_free_bytes=shm.free if shm else 0, disk_free_bytes=free_bytes(cache),
    )
