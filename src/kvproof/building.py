"""Builds the image of a folder under images/ for the docker runtime."""

from __future__ import annotations

from typing import Any

from .console import Console
from .runtimes import docker_containers, docker_images, docker_profile


def build(name: str, console: Console, *, again: bool = False) -> dict[str, Any]:
    """Build images/NAME, unless the daemon has an image of the same inputs.

    Args:
        again: build it anyway, and use nothing of earlier builds.

    Returns:
        Its tag, id, base and labels.

    Raises:
        UsageError: there is no such image.
        CannotRunError: there is no daemon, or the build failed.
    """
    source = docker_images.source_named(name, docker_profile.read())
    client = docker_containers.connect()
    try:
        if again:
            docker_images.build(client, source, console, again=True)
        image = docker_images.ensure(client, source, console)
        return {"image": source.tag, "id": image.id, "base": source.base, "labels": dict(sorted(image.labels.items()))}
    finally:
        client.close()
