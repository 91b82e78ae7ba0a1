"""What every runtime gives a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from ..console import Console
from ..evidence import ContainerFacts
from ..plan import Server
from ..process import RunStep


@dataclass(frozen=True)
class Place:
    """Where the servers of a recipe run, known before anything is installed, pulled or started.

    Attributes:
        python: interpreter of the engine, as a path or as what PATH has in a container.
        environment: name of the locked environment that they run in; None when all is in an image.
        lock_digest: of that environment's lock; None without one.
        image: reference with digest of the image that they run in, or that theirs is built from; None without one.
        installing_bytes: disk in the cache folder that preparing will take.
    """

    python: str
    environment: str | None
    lock_digest: str | None
    image: str | None = None
    installing_bytes: int = 0

    @property
    def digest(self) -> str | None:
        """What decides the packages that a checkpoint is made with."""
        return self.lock_digest or (self.image.partition("@")[2] if self.image else None)


@dataclass(frozen=True)
class Prepared:
    """A place that servers can be started in.

    Attributes:
        versions: of the packages that decide a run, as the place itself reports them.
        run_step: runs a command in it.
        container: the image as the daemon has it; None where there is none.
    """

    versions: dict[str, str]
    run_step: RunStep
    container: ContainerFacts | None = None


class Running(Protocol):
    """One server that was started."""

    role: str
    log: Path

    @property
    def identity(self) -> str:
        """What it is called on the host: a process id, a container."""
        ...

    def exit_code(self) -> int | None:
        """None while it runs; negative for the signal that ended it."""
        ...

    def ending(self) -> tuple[str, str | None]:
        """Once it has ended: how, and what to do about it where that is known."""
        ...

    def tail(self, lines: int = 10) -> list[str]:
        """Last lines of its log."""
        ...


class Runtime(Protocol):
    """One run's own: what it has started, and the certainty that it is gone afterwards."""

    place: Place

    def prepare(self, console: Console) -> Prepared:
        """Install, pull or build what is missing.

        Raises:
            CannotRunError: it cannot be had here.
        """
        ...

    def start(self, server: Server) -> Running: ...

    def observe(self) -> None:
        """Note what belongs to the run right now, so that it can be removed."""
        ...

    def stop(self, running: Running) -> None: ...

    def stop_all(self, say: Callable[[str], None]) -> None:
        """End everything and remove what it leaves; never raises."""
        ...


@dataclass(frozen=True)
class Leftover:
    """Something that a run which was killed has left.

    Attributes:
        what: what it is, for people.
        remove: removes it; None where it must not be removed, with the reason in `what`.
    """

    what: str
    remove: Callable[[], None] | None = field(compare=False)
