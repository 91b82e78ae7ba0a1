"""Whether this host fits a recipe: the findings that the doctor shows, and the refusal before anything is installed
or started."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from . import host
from .errors import HostError
from .evidence import HostFacts
from .host import Gpu
from .paths import cache_folder
from .recipe import GIB, Hardware, Recipe

State = Literal["ok", "warning", "missing", "unknown"]
_FREEING = ("free what is missing (KVPROOF_CACHE moves the cache folder; a container needs --shm-size or "
            "--ipc=host), or run it on a host that fits")


@dataclass(frozen=True)
class Finding:
    """One thing of this host.

    Attributes:
        state: ok: looked at, and nothing is in the way. warning: nothing is in the way yet. missing: without it the
            recipe does not run. unknown: it could not be looked at.
        seen: what was seen, and what is needed.
        advice: what to do; None when there is nothing to do.
    """

    name: str
    state: State
    seen: str
    advice: str | None = None


def require(recipe: Recipe, missing_install_bytes: int, lacking: Sequence[str] = (),
            otherwise: Callable[[], str] = str) -> None:
    """Refuse a host with too little of anything.

    Args:
        recipe: with what its engine's version needs taken in.
        missing_install_bytes: what an environment that still has to be installed will take.
        lacking: what else is missing.
        otherwise: what to do where no space that is freed would help; asked only when the host does not fit.

    Raises:
        HostError: every shortage, with what was seen and what is needed.
    """
    needs = recipe.hardware
    gpus = gpu_findings(needs, host.gpus() if needs.gpus else [])
    amounts = amount_findings(needs, missing_install_bytes, host.facts(cache_folder()))
    unfit = [*_missing(gpus), *lacking]
    problems = [*unfit, *_missing(amounts)]
    if problems:
        raise HostError(f"this host does not fit recipe {recipe.name}: " + "; ".join(problems),
                        tip="; ".join(filter(None, ["" if unfit else _FREEING, otherwise()])) or _FREEING)


def _missing(findings: list[Finding]) -> list[str]:
    return [f"{f.name}: {f.seen}" for f in findings if f.state == "missing"]


def gpu_findings(needs: Hardware, gpus: list[Gpu]) -> list[Finding]:
    """Whether there are GPUs enough, and large enough; nothing for a recipe that needs none."""
    if not needs.gpus:
        return []
    advice = f"run it on a host with {needs.gpus}"
    seen = f"{needs.gpus} needed, {len(gpus)} found"
    if len(gpus) < needs.gpus:
        return [Finding("GPUs", "missing", seen, advice)]
    count = Finding("GPUs", "ok", seen)
    if needs.gpu_memory_gib is None:
        return [count]
    small = [g for g in gpus if g.memory_bytes < needs.gpu_memory_gib * GIB]
    said = f"{needs.gpu_memory_gib:g} GiB needed, "
    if len(gpus) - len(small) < needs.gpus:
        smallest = small[0]
        return [count, Finding("GPU memory", "missing", f"{said}{smallest.name} has {smallest.memory_bytes / GIB:.1f} "
                                                        "GiB", f"{advice} that are large enough")]
    fits = next(g for g in gpus if g not in small)
    return [count, Finding("GPU memory", "ok", f"{said}{fits.name} has {fits.memory_bytes / GIB:.1f} GiB")]


def amount_findings(needs: Hardware, missing_install_bytes: int, seen: HostFacts) -> list[Finding]:
    """Whether there is enough memory, shared memory and disk.

    Args:
        missing_install_bytes: as in `require`.
    """
    amounts = (
        ("memory", needs.memory_gib * GIB, seen.memory_available_bytes, "end what else takes memory"),
        ("/dev/shm", needs.shm_gib * GIB, seen.shm_free_bytes, "a container needs --shm-size or --ipc=host; else "
                                                               "remove what lies there and nobody uses"),
        (f"disk at {cache_folder()}", needs.disk_gib * GIB + missing_install_bytes, seen.disk_free_bytes,
         "free space; KVPROOF_CACHE moves the cache folder"),
    )
    return [Finding(name, "missing" if have < need else "ok", f"{need / GIB:.1f} GiB needed, {have / GIB:.1f} GiB free",
                    advice if have < need else None) for name, need, have, advice in amounts]
