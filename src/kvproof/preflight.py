"""Whether this host fits a recipe, asked before anything is installed or started."""

from __future__ import annotations

from collections.abc import Sequence

from . import host
from .errors import HostError
from .paths import cache_folder
from .recipe import GIB, Recipe


def require(recipe: Recipe, missing_install_bytes: int, lacking: Sequence[str] = (), otherwise: str = "") -> None:
    """Refuse a host with too little of anything.

    Args:
        recipe: with what its engine's version needs taken in.
        missing_install_bytes: what an environment that still has to be installed will take.
        lacking: what else is missing.
        otherwise: what to do where no space that is freed would help.

    Raises:
        HostError: every shortage, with what was seen and what is needed.
    """
    needs, seen = recipe.hardware, host.facts(cache_folder())
    unfit = [*_gpus(needs.gpus, needs.gpu_memory_gib), *lacking]
    problems = [*unfit, *(
        f"{name}: {need / GIB:.1f} GiB needed, {have / GIB:.1f} GiB free"
        for name, need, have in (
            ("memory", needs.memory_gib * GIB, seen.memory_available_bytes),
            ("/dev/shm", needs.shm_gib * GIB, seen.shm_free_bytes),
            (f"disk at {cache_folder()}", needs.disk_gib * GIB + missing_install_bytes, seen.disk_free_bytes),
        ) if have < need
    )]
    if problems:
        freeing = ("free what is missing (KVPROOF_CACHE moves the cache folder; a container needs --shm-size or "
                   "--ipc=host), or run it on a host that fits")
        raise HostError(f"this host does not fit recipe {recipe.name}: " + "; ".join(problems),
                        tip="; ".join(filter(None, ["" if unfit else freeing, otherwise])) or freeing)


def _gpus(needed: int, memory_gib: float | None) -> list[str]:
    if not needed:
        return []
    found = host.gpus()
    if len(found) < needed:
        return [f"GPUs: {needed} needed, {len(found)} found"]
    small = [g for g in found if memory_gib is not None and g.memory_bytes < memory_gib * GIB]
    if len(found) - len(small) < needed:
        return [f"GPU memory: {memory_gib:g} GiB needed, {small[0].name} has {small[0].memory_bytes / GIB:.1f} GiB"]
    return []
