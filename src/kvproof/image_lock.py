"""Container images by digest: images/lock.toml."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Literal

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from .errors import RecipeError, nearest
from .paths import IMAGES

Digest = Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")]


class Image(BaseModel):
    """One image, as the lock has it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    repository: str
    """With its registry, where it is not Docker Hub."""
    tag: str
    """What people call it; never enough to run it."""
    index: Digest | None = None
    """Of the multi-platform index; None when none is on record."""
    platforms: dict[str, Digest] = Field(default_factory=dict)
    """Of single platforms, such as linux/amd64; never the index's."""
    contains: dict[str, str]
    """Versions inside, as published."""
    cuda: str | None = None
    """CUDA major version that it was built with; None when it is not on record."""
    commit: str | None = Field(default=None, pattern=r"^[0-9a-f]{7,40}$")
    """Source commit of a nightly, or its first digits; None for a release."""
    created: str | None = Field(default=None, pattern=r"^\d{4}-\d{2}-\d{2}$")
    """UTC day on which a nightly was built; None for a release."""
    learned: Literal["registry", "reported", "unresolved"]
    """How the digest was learned."""
    date: str
    sources: list[str]
    prepare: list[str] = Field(default_factory=list)
    """Shell commands that its containers run first."""

    @model_validator(mode="after")
    def _consistent(self) -> Image:
        if (self.index is None and not self.platforms) is not (self.learned == "unresolved"):
            raise ValueError("learned is 'unresolved' exactly when there is no digest")
        if self.index in self.platforms.values():
            raise ValueError("a platform's digest is given as the index's")
        return self

    @property
    def reference(self) -> str | None:
        """Repository, tag and digest, as every container tool takes it; None when there is no digest."""
        digest = self.index or next(iter(self.platforms.values()), None)
        return f"{self.repository}:{self.tag}@{digest}" if digest else None

    def lacks(self, requirement: str) -> bool:
        """Whether a pinned pip requirement is not inside; another version than the pinned one counts as lacking."""
        wanted = Requirement(requirement)
        has = {canonicalize_name(name): version for name, version in self.contains.items()}
        version = has.get(canonicalize_name(wanted.name))
        return version is None or not wanted.specifier.contains(version, prereleases=True)

    @property
    def tip(self) -> str:
        """How to resolve its digest."""
        return f"./inv pin {self.repository}:{self.tag} --update; or docker buildx imagetools inspect " \
               f"{self.repository}:{self.tag}, then write the digest into images/lock.toml"


def read_images(images: Path = IMAGES) -> dict[str, Image]:
    """Every image of the lock, by name; empty when there is no lock.

    Raises:
        RecipeError: the lock is damaged.
    """
    path = images / "lock.toml"
    if not path.exists():
        return {}
    try:
        entries = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RecipeError(f"{path}: not readable as TOML: {error}", tip="restore it from version control") from None
    return {name: _image(path, name, entry) for name, entry in entries.items()}


def _image(path: Path, name: str, entry: object) -> Image:
    try:
        return Image.model_validate(entry)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join([name, *map(str, first["loc"])])
        raise RecipeError(f"{path}: {where}: {first['msg'].removeprefix('Value error, ')}",
                          tip="restore it from version control") from None


def read_image(name: str, images: Path = IMAGES) -> Image:
    """One image of the lock.

    Raises:
        RecipeError: there is none of that name, or the lock is damaged.
    """
    known = read_images(images)
    if name not in known:
        raise RecipeError(f"image: images/lock.toml has no image called {name!r}; {nearest(name, known)}")
    return known[name]
