"""Images that are not pinned, and secrets."""

from __future__ import annotations

from .. import docker, secrets
from ..finding import Edit
from . import Judge


def tags(judge: Judge) -> None:
    seen = set()
    for container in judge.paste.images:
        image = docker.image_of(container)
        if image is None or container.image is None or image.digest or not _matters(judge, container, image.program):
            continue
        if container.image.value in seen:
            continue
        seen.add(container.image.value)
        at = container.image.start()
        if image.moves:
            judge.tell("tag-moves", at, image=container.image.value[:120], tag=image.tag or "no tag (latest)",
                       repository=image.repository)
        else:
            judge.tell("tag-without-digest", at, image=container.image.value[:120])


def _matters(judge: Judge, container: object, program: str) -> bool:
    return bool(program) or any(launch.container is container for launch in judge.paste.launches)


def leaks(judge: Judge) -> None:
    for secret in secrets.find(judge.source.text):
        reference = f"${secret.name}"
        judge.tell("secret", secret.start, what=secret.what, masked=secret.masked, reference=reference,
                   edits=(Edit(secret.start, secret.end, reference),))


RULES = (tags, leaks)
