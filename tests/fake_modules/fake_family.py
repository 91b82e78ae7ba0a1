"""What an engine leaves behind when nobody cleans up: child processes, shared memory and named semaphores.

FAKE_FAMILY names a folder; each engine notes there, in a JSON file, what it made.
"""

from __future__ import annotations

import json
import mmap
import multiprocessing
import os
import signal
import time
from multiprocessing import shared_memory
from pathlib import Path
from typing import Any

_kept: list[Any] = []
SIZE = 4096


def start() -> None:
    note = os.environ.get("FAKE_FAMILY")
    if not note:
        return
    context = multiprocessing.get_context("spawn")
    tracked = shared_memory.SharedMemory(create=True, size=SIZE)  # starts a resource tracker
    semaphore = context.Semaphore()
    untracked = f"fake-engine-{os.getpid()}"
    with open(f"/dev/shm/{untracked}", "w+b") as file:
        file.truncate(SIZE)
        _kept.append(mmap.mmap(file.fileno(), SIZE))
    children = [context.Process(target=_live, args=(tracked.name, semaphore, stubborn)) for stubborn in (False, True)]
    for child in children:
        child.start()
    _kept.extend([tracked, semaphore, children])
    names = [tracked.name, "sem." + semaphore._semlock.name.lstrip("/"), untracked]
    content = {"pids": [os.getpid(), *(c.pid for c in children)], "segments": names}
    (Path(note) / f"{os.getpid()}.json").write_text(json.dumps(content))


def _live(segment: str, semaphore: Any, stubborn: bool) -> None:
    if stubborn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    attached = shared_memory.SharedMemory(segment)
    while attached.size and semaphore is not None:
        time.sleep(60)
