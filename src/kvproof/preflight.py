"""Whether this host fits a recipe, asked before anything is installed or started."""

from __future__ import annotations

from . import host
from .errors import HostError
from .paths import cache_folder
from .recipe import GIB, Recipe


def require(recipe: Recipe, missing_install_bytes: int) -> None:
    """Refuse a host with too little of anything.

    Args:
        missing_install_bytes: what an environment that still has to be installed will take.

    Raises:
        HostError: every shortage, with what was seen and what is needed.
    """
    needs, seen = recipe.hardware, host.facts(cache_folder())
    problems = []
    if needs.gpus:
        found = host.gpus()
        if len(found) < needs.gpus:
            problems.append(f"{needs.gpus} GPUs needed, {len(found)} found")
        elif needs.gpu_memory_gib is not None:
            small = [g for g in found if g.memory_bytes < needs.gpu_memory_gib * GIB]
            if len(found) - len(small) < needs.gpus:
                problems.append(f"{needs.gpu_memory_gib:g} GiB of GPU memory needed, {small[0].name} has "
                                f"{small[0].memory_bytes / GIB:.1f} GiB")
    problems += [
        f"{name}: {need / GIB:.1f} GiB needed, {have / GIB:.1f} GiB free"
        for name, need, have in (
            ("memory", needs.memory_gib * GIB, seen.memory_available_bytes),
            ("/dev/shm", needs.shm_gib * GIB, seen.shm_free_bytes),
            (f"disk at {cache_folder()}", needs.disk_gib * GIB + missing_install_bytes, seen.disk_free_bytes),
        ) if have < need
    ]
    if problems:
        raise HostError(
            f"this host does not fit recipe {recipe.name}: " + "; ".join(problems),
            tip="free what is missing (KVPROOF_CACHE moves the cache folder; a container needs --shm-size or "
                "--ipc=host), or run it on a host that fits",
        )
