"""What an image reference says: the engine in it, its version, and whether it is pinned."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from ..errors import RecipeError
from ..image_lock import read_images
from . import versions
from .versions import Known

_REFERENCE = re.compile(r"(?P<repository>[^@\s]+?)(?::(?P<tag>[\w][\w.-]{0,127}))?"
                        r"(?:@(?P<digest>sha256:[0-9a-f]{64}))?")
_NIGHTLY = re.compile(r"(?:^|[-_.])(?:nightly|latest|main|master|edge|dev|head)(?:$|[-_.])", re.I)
_FIXED = re.compile(r"\d+\.\d+|[0-9a-f]{7,40}$|\d{8}|\d{2}\.\d{2}")
_IN_TAG = re.compile(r"(?:vllm|sglang)[_-]?v?(\d+\.\d+(?:\.\d+)?)", re.I)


@dataclass(frozen=True)
class Image:
    """Attributes:
        repository: with registry, without tag.
        tag, digest: empty when not given.
        program: engine that it starts by itself or has inside; empty when that is not known.
        entry: whether its arguments are the engine's options, because it starts the engine itself.
        cpu: whether it is a build for CPUs.
    """

    repository: str
    tag: str
    digest: str
    program: str
    entry: bool
    cpu: bool

    @property
    def lmcache(self) -> bool:
        """Whether it is LMCache's own, without an engine."""
        return not self.program and _short(self.repository).startswith("lmcache/")

    @property
    def moves(self) -> bool:
        """Whether its tag is given to another image from time to time."""
        if self.digest:
            return False
        named = _NIGHTLY.search(self.tag) and not re.search(r"[0-9a-f]{12,40}", self.tag)
        return bool(not self.tag or named or not _FIXED.search(self.tag))


def read(reference: str) -> Image | None:
    """The image that a reference names; None when it is none, such as one that a variable holds."""
    found = _REFERENCE.fullmatch(reference)
    if not found or "$" in reference or "{" in reference or "<" in reference:
        return None
    repository, name = found["repository"], found["repository"].rsplit("/", 1)[-1].lower()
    whole = repository.lower()
    program, entry = "", False
    if "tensorrt-llm" in whole or "tensorrt_llm" in whole or "trtllm" in name or "tritonserver" in name:
        program = "trtllm"
    elif "sglang" in whole:
        program = "sglang"
    elif "vllm" in whole:
        program, entry = "vllm", "openai" in name or name.startswith(("vllm-cpu", "vllm-rocm"))
    return Image(repository, found["tag"] or "", found["digest"] or "", program, entry, "cpu" in name)


def version(image: Image, program: str) -> Known | None:
    """The engine's version inside an image; None when its name does not say."""
    line = {"vllm": versions.VLLM, "sglang": versions.SGLANG, "trtllm": versions.TRTLLM}.get(program)
    if line is None:
        return None
    contained = _locked().get((_short(image.repository), image.tag), {})
    name = {"trtllm": "tensorrt-llm"}.get(program, program)
    if name in contained:
        exact = versions.parse(contained[name])
        return Known(line, exact, source="in the image, by images/lock.toml") if exact else None
    if image.program != program:
        return None
    inside = _IN_TAG.search(image.tag)
    owner = image.repository.lower()
    # These carry another program's version, or a date, in their tag.
    foreign = owner.startswith(("lmcache/", "docker.io/lmcache/", "nvcr.io/nvidia/vllm", "nvcr.io/nvidia/sglang",
                                "nvcr.io/nvidia/ai-dynamo")) or "tritonserver" in owner
    exact = versions.parse(inside[1]) if inside else None if foreign else versions.parse(image.tag)
    if exact is not None and (program == "trtllm" or exact.major < 10):  # others count by date
        return Known(line, exact, source="from the image's tag")
    if image.moves and _NIGHTLY.search(image.tag or "latest") and not foreign:
        newest = line.releases[-2]  # the last one stands for what comes later
        return Known(line, at_least=newest, source=f"of the tag {image.tag or 'latest'}")
    return None


def _short(repository: str) -> str:
    return repository.removeprefix("docker.io/").removeprefix("library/")


@cache
def _locked() -> dict[tuple[str, str], dict[str, str]]:
    try:
        return {(image.repository, image.tag): image.contains for image in read_images().values()}
    except RecipeError:  # the lock has its own command to say so
        return {}
