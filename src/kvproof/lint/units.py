"""Sizes as people and programs write them."""

from __future__ import annotations

import re

KIB, MIB, GIB, TIB = 1024, 1024**2, 1024**3, 1024**4
_DOCKER = {"": 1, "b": 1, "k": KIB, "m": MIB, "g": GIB, "t": TIB}
_KUBERNETES = {"": 1, "Ki": KIB, "Mi": MIB, "Gi": GIB, "Ti": TIB, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_WRITTEN = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12, "kib": KIB, "mib": MIB, "gib": GIB,
            "tib": TIB, "k": KIB, "m": MIB, "g": GIB, "t": TIB, "ki": KIB, "mi": MIB, "gi": GIB, "ti": TIB}
_SIZE = re.compile(r"\s*(\d{1,18}(?:\.\d{1,9})?)\s*([A-Za-z]*)\s*")


def docker(text: str | None) -> int | None:
    """Bytes of a size as docker and compose take it, where g and gb are GiB; None when it is none."""
    number, unit = _split(text)
    factor = None if number is None else _DOCKER.get(unit.lower().removesuffix("b").removesuffix("i"))
    return None if factor is None or number is None else int(number * factor)


def kubernetes(text: str | None) -> int | None:
    """Bytes of a Kubernetes quantity; None when it is none."""
    number, unit = _split(text)
    factor = None if number is None else _KUBERNETES.get(unit)
    return None if factor is None or number is None else int(number * factor)


def written(text: str | None) -> int | None:
    """Bytes of a size as a person writes it, where GB is 10^9 and GiB is 2^30; None when it is none."""
    number, unit = _split(text)
    factor = None if number is None else _WRITTEN.get(unit.lower())
    return None if factor is None or number is None else int(number * factor)


def shown(size: float) -> str:
    """A size in the unit that reads best."""
    for unit, factor in (("TiB", TIB), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if size >= factor:
            return f"{size / factor:.4g} {unit}"
    return f"{size:.0f} bytes"


def _split(text: str | None) -> tuple[float | None, str]:
    found = _SIZE.fullmatch(text) if text is not None and len(text) < 100 else None
    return (float(found[1]), found[2]) if found else (None, "")
