"""Free TCP ports that two runs on one host never share."""

from __future__ import annotations

import fcntl
import os
import random
import socket
from pathlib import Path

from .errors import HostError

# Below the range from which systems take client ports, so that no outgoing connection sits on one.
_FIRST, _LAST = 20_000, 32_000


class Ports:
    """Ports held for one run: a file lock each, given up when the run ends or its process dies.

    Args:
        folder: where the lock files are; shared by all runs of a user.
    """

    def __init__(self, folder: Path):
        self._folder = folder
        self._held: list[int] = []

    def take(self) -> int:
        self._folder.mkdir(parents=True, exist_ok=True)
        candidates = random.Random(os.urandom(8)).sample(range(_FIRST, _LAST), 200)
        for port in candidates:
            handle = os.open(self._folder / f"{port}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(handle)
                continue
            if _is_free(port):
                self._held.append(handle)
                return port
            os.close(handle)
        raise HostError(f"no free TCP port found between {_FIRST} and {_LAST} in {len(candidates)} tries",
                        tip="look at what listens there: ss -ltn")

    def release(self) -> None:
        while self._held:
            os.close(self._held.pop())


def _is_free(port: int) -> bool:
    for address in ("127.0.0.1", "0.0.0.0"):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((address, port))
            except OSError:
                return False
    return True
