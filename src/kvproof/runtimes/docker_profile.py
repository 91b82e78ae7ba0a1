"""What the user's host adds to every container: docker.toml in the user's configuration folder.

Hosts differ in what they allow: a limit that one engine runs better with is refused by another host's daemon. So
nothing of it stands in recipes, and without the file containers get nothing of it.
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Annotated, Any

import platformdirs
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from ..errors import UsageError

Pinned = Annotated[str, StringConstraints(pattern=r"^\S+@sha256:[0-9a-f]{64}$")]


class Profile(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    ulimits: dict[str, int] = Field(default_factory=dict)
    """Soft and hard limit alike, by Docker's names; -1 for none: memlock, nofile, stack."""
    capabilities: list[str] = Field(default_factory=list)
    """To add, such as SYS_NICE."""
    memory_gib: float | None = Field(default=None, gt=0)
    """Limit of each container; null for none."""
    bases: dict[str, Pinned] = Field(default_factory=dict)
    """Stand-ins, with digest, for entries of images/lock.toml on a host that reaches no registry. What runs in one
    proves nothing of the entry: the record names the stand-in's digest."""
    environment: list[str] = Field(default_factory=list)
    """Names of variables of kvproof's own environment to hand on, such as HTTPS_PROXY or NCCL_SOCKET_IFNAME."""

    def options(self) -> dict[str, Any]:
        """For evidence: what it sets; empty when it sets nothing."""
        return self.model_dump(mode="json", exclude_defaults=True)


def path() -> Path:
    """KVPROOF_CONFIG moves the folder."""
    chosen = os.environ.get("KVPROOF_CONFIG")
    return Path(chosen).expanduser() / "docker.toml" if chosen else \
        Path(platformdirs.user_config_dir("kvproof")) / "docker.toml"


def read() -> Profile:
    """The profile; an empty one when there is no file.

    Raises:
        UsageError: the file is damaged, or has a key that is not known.
    """
    file = path()
    try:
        return Profile.model_validate(tomllib.loads(file.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return Profile()
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise UsageError(f"{file}: {'.'.join(map(str, first['loc']))}: {first['msg']}",
                         tip=f"known: {', '.join(Profile.model_fields)}") from None
    except (OSError, ValueError) as error:
        raise UsageError(f"{file}: {error}", tip="mend or remove the file") from None
