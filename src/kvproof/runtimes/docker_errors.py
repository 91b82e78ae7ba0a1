"""What a Docker daemon refuses, told apart: each with what is wrong and the next step."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

from ..errors import CannotRunError, EnvironmentBuildError, HostError

_SOCKET = "unix:///var/run/docker.sock"
NO_NVIDIA = ("Docker has no NVIDIA runtime, so no container gets a GPU",
             "install nvidia-container-toolkit, then: sudo nvidia-ctk runtime configure --runtime=docker && "
             "sudo systemctl restart docker")
# What a daemon says: what is wrong, and what to do. The first that fits counts.
_KNOWN: tuple[tuple[str, type[CannotRunError], str, str], ...] = (
    (r"could not select device driver|unknown or invalid runtime name: nvidia|unresolvable CDI devices",
     HostError, *NO_NVIDIA),
    (r"no space left on device|disk quota exceeded", HostError, "the disk that Docker keeps its data on is full",
     "docker system df shows what takes it, docker system prune frees what nothing uses; or move the daemon's "
     "data-root to a larger disk"),
    (r"manifest verification failed|unexpected (?:commit )?digest|digest mismatch|does not match (?:the )?digest|"
     r"content digest .* does not match|failed precondition", EnvironmentBuildError,
     "the registry's content is not what the digest says",
     "do not use it; ./inv pin --check compares images/lock.toml with the registry"),
    (r"unauthorized|authentication required|no basic auth|denied: requested access", EnvironmentBuildError,
     "the registry wants a login for the image", "docker login REGISTRY, then run again"),
    (r"manifest unknown|name unknown|no such image|manifest for .* not found|repository .* not found|"
     r"pull access denied|: not found$", EnvironmentBuildError, "there is no such image",
     "./inv pin --check says whether the registry still has the digest; --update takes the one it has now"),
    (r"bind source path does not exist|invalid mount config|mounts denied", HostError,
     "the Docker daemon does not see this host's folders",
     "use a daemon of this host: DOCKER_HOST names one elsewhere, or one that shares no folders"),
    (r"error setting rlimit|rlimits?\b.*operation not permitted|unable to apply caps", HostError,
     "this host refuses a limit or capability that the host profile asks for", "take it out of docker.toml"),
    (r"executable file not found|exec format error", EnvironmentBuildError,
     "the image does not have the program, or is for another kind of processor", "./inv build NAME --again"),
    (r"address already in use|port is already allocated", HostError, "a port was taken by another program",
     "run again; other ports will be chosen"),
    (r"dial tcp|no such host|i/o timeout|tls handshake|x509|connection refused|network is unreachable|"
     r"request canceled|server misbehaving|\bEOF\b", EnvironmentBuildError,
     "the registry cannot be reached", "look at the network, proxy and certificates of the Docker daemon, then run "
     "again"),
)


def explain(doing: str, said: str) -> CannotRunError:
    """The error for what a daemon said while it was doing something."""
    said = " ".join(said.split())
    for pattern, kind, what, tip in _KNOWN:
        if re.search(pattern, said, re.IGNORECASE):
            return kind(f"{doing}: {what} (Docker says: {said[:300]})", tip=tip)
    return CannotRunError(f"{doing}: Docker says: {said[:500] or 'nothing'}",
                          tip="look at the daemon's own log: journalctl -u docker")


@contextmanager
def told_apart(doing: str) -> Iterator[None]:
    """Turn every error of the Docker SDK inside the block into one of ours.

    Raises:
        CannotRunError: with the next step.
    """
    import docker.errors
    import requests

    try:
        yield
    except docker.errors.APIError as error:
        raise explain(doing, str(error.explanation or error)) from None
    except (docker.errors.DockerException, requests.RequestException) as error:
        raise _unreachable(doing, error) from None


def _unreachable(doing: str, error: BaseException) -> CannotRunError:
    """Why a daemon did not answer: what the system said lies somewhere in the chain of errors."""
    where, causes = os.environ.get("DOCKER_HOST") or _SOCKET, list(_chain(error))
    for cause in causes:
        if isinstance(cause, PermissionError):
            return HostError(f"a Docker daemon listens at {where}, but this user may not use it (permission denied)",
                             tip="sudo usermod -aG docker $USER, then log in again")
        if isinstance(cause, FileNotFoundError | ConnectionRefusedError):
            return HostError(f"no Docker daemon answers at {where}",
                             tip="start it: sudo systemctl start docker; DOCKER_HOST names another one")
    if any("timed out" in str(cause).lower() for cause in causes):
        return HostError(f"{doing}: the Docker daemon at {where} gave no answer in time", tip="docker info")
    return HostError(f"{doing}: the Docker daemon at {where} cannot be reached or was lost: {error}",
                     tip="docker info shows whether it runs; DOCKER_HOST names another one")


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    todo: list[BaseException] = [error]
    while todo:
        one = todo.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        inner = [one.__cause__, one.__context__, getattr(one, "reason", None), *one.args]
        todo += [cause for cause in inner if isinstance(cause, BaseException)]
