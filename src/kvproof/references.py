"""What an image reference says: registry, repository, tag and digest; and who may log in where."""

from __future__ import annotations

import base64
import json
import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from .errors import UsageError

DOCKER_HUB = "docker.io"
_HUB_NAMES = frozenset({"docker.io", "index.docker.io", "registry-1.docker.io"})
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
_HOST = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9a-fA-F:]+\])(?::(?P<port>[0-9]{1,5}))?")
_PATH = re.compile(r"[a-z0-9]+(?:(?:\.|__?|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|__?|-+)[a-z0-9]+)*)*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True)
class Reference:
    """One image, as its registry knows it.

    Attributes:
        host: registry with its port; docker.io for Docker Hub.
        path: repository there; library/NAME for Docker Hub's official images.
        tag: None when a digest alone is given.
        digest: None when a tag alone is given.
    """

    host: str
    path: str
    tag: str | None = None
    digest: str | None = None

    def __str__(self) -> str:
        return (f"{self.host}/{self.path}" + (f":{self.tag}" if self.tag else "")
                + (f"@{self.digest}" if self.digest else ""))

    @property
    def is_loopback(self) -> bool:
        return self.host.rpartition(":")[0] in _LOOPBACK or self.host in _LOOPBACK

    @property
    def url(self) -> str:
        """Address of the registry's API; unencrypted only on this machine."""
        if self.host == DOCKER_HUB:
            return "https://registry-1.docker.io"
        return f"{'http' if self.is_loopback else 'https'}://{self.host}"


def parse(text: str) -> Reference:
    """A reference such as vllm/vllm-openai:v0.29.0, with what people leave out filled in.

    Raises:
        UsageError: it is none.
    """
    name, at, digest = text.partition("@")
    first, slash, rest = name.partition("/")
    has_host = bool(slash) and ("." in first or ":" in first or first == "localhost" or first != first.lower())
    host, name = (first, rest) if has_host else (DOCKER_HUB, name)
    path, colon, tag = name.partition(":")
    fault, known = None, _HOST.fullmatch(host)
    if known is None or int(known["port"] or 0) > 65535:
        fault = f"{host!r} is no registry"
    elif not _PATH.fullmatch(path):
        fault = f"{path!r} is no repository (lower case letters, digits and . _ - / between them)"
    elif colon and not _TAG.fullmatch(tag):
        fault = f"{tag!r} is no tag"
    elif at and not DIGEST.fullmatch(digest):
        fault = f"{digest!r} is no digest (sha256: and 64 hexadecimal digits)"
    if fault:
        raise UsageError(f"image {text!r}: {fault}; expected [REGISTRY/]REPOSITORY[:TAG][@sha256:…]")
    if host.lower() in _HUB_NAMES:
        host, path = DOCKER_HUB, path if "/" in path else f"library/{path}"
    return Reference(host, path, (tag if colon else None if at else "latest"), digest if at else None)


@dataclass(frozen=True)
class Login:
    """User and password of one registry."""

    user: str
    password: str = field(repr=False)


@dataclass(frozen=True)
class Logins:
    """What `docker login` left.

    Attributes:
        path: the file.
        helped: registries whose passwords a helper program keeps, which is not asked; "*" for all.
    """

    path: Path
    known: dict[str, Login] = field(default_factory=dict, repr=False)
    helped: frozenset[str] = frozenset()

    def of(self, host: str) -> Login | None:
        return self.known.get(host)

    def hint(self, host: str) -> str:
        """What to do when a registry wants to know who asks."""
        if host in self.helped or ("*" in self.helped and host not in self.known):
            return (f"the password is kept by a credential helper, which kvproof does not ask: put user and password "
                    f"under auths into {self.path}")
        return f"docker login {'' if host == DOCKER_HUB else host}".rstrip()


def read_logins() -> Logins:
    """Logins of ~/.docker/config.json, or of the folder that DOCKER_CONFIG names; none when there is no such file.

    Raises:
        UsageError: the file is damaged.
    """
    folder = os.environ.get("DOCKER_CONFIG")
    path = (Path(folder).expanduser() if folder else Path.home() / ".docker") / "config.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        known, helped = {}, {_host_of(name) for name in found.get("credHelpers") or ()}
        for name, entry in (found.get("auths") or {}).items():
            login = _login(entry)
            if login is not None:
                known[_host_of(name)] = login
        return Logins(path, known, frozenset(helped | ({"*"} if found.get("credsStore") else set())))
    except FileNotFoundError:
        return Logins(path)
    except (OSError, ValueError, AttributeError, TypeError) as error:
        # What a decoder says of a damaged password may quote it
        reason = error.strerror if isinstance(error, OSError) else "not the JSON that docker login writes"
        raise UsageError(f"{path}: {reason}", tip="log in again with docker login, or remove it") from None


def _login(entry: dict) -> Login | None:
    """None for an entry without a password, such as one that only says that a helper keeps it."""
    if entry.get("username") and entry.get("password"):
        return Login(str(entry["username"]), str(entry["password"]))
    if not entry.get("auth"):
        return None
    user, colon, password = base64.b64decode(entry["auth"], validate=True).decode().partition(":")
    if not colon:
        raise ValueError
    return Login(user, password.rstrip("\0"))


def _host_of(name: str) -> str:
    """Registry that an entry is for; docker login writes Docker Hub's with scheme and path."""
    host = re.sub(r"^https?://", "", name).partition("/")[0]
    return DOCKER_HUB if host in _HUB_NAMES else host
