"""Processes that a run starts, and the certainty that they and their shared memory are gone afterwards."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import psutil

from .errors import HostError
from .interrupts import deferred

SHM = Path("/dev/shm")
RunStep = Callable[[list[str], Mapping[str, str], Path, Callable[[str], None]], int]
"""Runs a command to its end, as `run_step` does on this host: argv, environment, log, a callback for each line."""
_PR_SET_PDEATHSIG = 1
GRACE_S = 8.0
"""How long servers may take to end when asked."""
_FAREWELL_S = 3.0
"""How long the rest of a session may take to end by itself once its leader is gone."""


def _end_with_parent() -> None:
    """In the child: be asked to end when kvproof dies, even by SIGKILL. Linux only; elsewhere it does nothing."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


class Launched:
    """One running server, in a session of its own, with its output in a log file."""

    def __init__(self, role: str, argv: Iterable[str], environment: Mapping[str, str], log: Path):
        self.role = role
        self.argv = list(argv)
        self.log = log
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with deferred(), log.open("ab") as output:
            try:
                self._popen = subprocess.Popen(
                    self.argv, env=dict(environment), stdin=subprocess.DEVNULL, stdout=output,
                    stderr=subprocess.STDOUT, start_new_session=True, preexec_fn=_end_with_parent,
                )
            except OSError as error:
                raise HostError(f"{role}: cannot start {self.argv[0]}: {error.strerror}") from None
            except ValueError as error:  # a NUL in a word, or a name with = in it
                raise HostError(f"{role}: the system takes no such command line or environment: {error}") from None
        self.pid = self._popen.pid

    def exit_code(self) -> int | None:
        """None while it runs; negative for the signal that ended it."""
        return self._popen.poll()

    @property
    def identity(self) -> str:
        return f"process {self.pid}"

    def ending(self) -> tuple[str, str | None]:
        """How it ended, in words; the next step is in its log."""
        code = self.exit_code() or 0
        return f"was ended by signal {-code}" if code < 0 else f"exited with code {code}", None

    def wait(self, seconds: float) -> bool:
        """Whether it ended within so many seconds."""
        try:
            self._popen.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def tail(self, lines: int = 10) -> list[str]:
        return tail(self.log, lines)


def tail(path: Path, lines: int = 10, limit_bytes: int = 256 * 1024) -> list[str]:
    """Last lines of a log, without terminal colours; empty when there is no such file."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - limit_bytes))
            text = file.read().decode("utf-8", errors="replace")
    except OSError:
        return []
    return [plain(line) for line in text.splitlines() if line.strip()][-lines:]


def plain(line: str) -> str:
    """A log line without ANSI colours and with a bounded length."""
    line = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line).rstrip()
    return line if len(line) <= 2000 else line[:2000] + " …"


class Processes:
    """All processes of one run.

    What belongs to the run is everything in the sessions it started and every descendant seen on the way.
    Shared memory belongs to the run when one of those processes had it mapped; it is removed at the end
    unless a process outside the run maps it. The lists are also kept in the run folder, so that a later
    run can clean up after this one was killed.
    """

    def __init__(self, folder: Path):
        self._folder = folder
        self._launched: list[Launched] = []
        self._members: dict[int, float] = {}
        self._segments: set[str] = set()

    def start(self, role: str, argv: Iterable[str], environment: Mapping[str, str], log: Path) -> Launched:
        with deferred():
            launched = Launched(role, argv, environment, log)
            self._launched.append(launched)
            self.observe()
        return launched

    def observe(self) -> None:
        """Note which processes and shared memory belong to the run right now."""
        sessions = {p.pid for p in self._launched}
        for pid in psutil.pids():
            try:
                if os.getsid(pid) in sessions or pid in self._members:
                    self._note(psutil.Process(pid))
            except (psutil.Error, OSError):
                continue
        for launched in self._launched:
            with contextlib.suppress(psutil.Error):
                for child in psutil.Process(launched.pid).children(recursive=True):
                    self._note(child)
        for pid in list(self._members):
            self._segments |= mapped_segments(pid)
        self._save()

    def _note(self, process: psutil.Process) -> None:
        with contextlib.suppress(psutil.Error):
            self._members.setdefault(process.pid, process.create_time())

    def _save(self) -> None:
        owner = psutil.Process()
        text = json.dumps({
            "owner": [owner.pid, owner.create_time()],
            "members": sorted(self._members.items()),
            "segments": sorted(self._segments),
        })
        with contextlib.suppress(OSError):
            temporary = self._folder / "processes.json.part"
            temporary.write_text(text)
            temporary.replace(self._folder / "processes.json")

    def stop(self, launched: Launched, grace_s: float = GRACE_S) -> None:
        """End one server and all that it started."""
        self.observe()
        _end_sessions([launched], grace_s)
        if launched in self._launched:
            self._launched.remove(launched)
        self._remove_segments()

    def stop_all(self, grace_s: float = GRACE_S, say: Callable[[str], None] = lambda _: None) -> None:
        """End everything and remove the shared memory it leaves."""
        self.observe()
        if self._launched:
            say("stopping " + ", ".join(p.role.replace("_", " ") for p in self._launched))
        _end_sessions(self._launched, grace_s)
        _kill_members(self._members)
        self._launched.clear()
        self._remove_segments()
        with contextlib.suppress(OSError):
            (self._folder / "processes.json").unlink(missing_ok=True)

    def _remove_segments(self) -> None:
        self._segments = remove_unmapped(self._segments)


def _end_sessions(launched: list[Launched], grace_s: float) -> None:
    """End the leaders, then everything else in their sessions, Python's resource trackers last.

    A resource tracker unlinks the semaphores and shared memory of its processes once these are gone; killed with
    them, it would leave their names in /dev/shm.

    Args:
        grace_s: how long all leaders together may take to end when asked.
    """
    running = [p for p in launched if p.exit_code() is None]
    for number in (signal.SIGTERM, signal.SIGKILL):
        for leader in running:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(leader.pid, number)
        deadline = time.monotonic() + grace_s
        running = [p for p in running if not p.wait(max(0.0, deadline - time.monotonic()))]
    sessions = {p.pid for p in launched}
    _kill_trackers_last(_wait_gone(_session_members(sessions), _FAREWELL_S))


def _kill_trackers_last(processes: list[psutil.Process]) -> None:
    trackers = [p for p in processes if _is_tracker(p)]
    _kill([p for p in processes if p not in trackers])
    _kill(_wait_gone(trackers, _FAREWELL_S))


def _session_members(leaders: set[int]) -> list[psutil.Process]:
    """Processes in the leaders' sessions, the leaders themselves left out."""
    found = []
    for pid in psutil.pids():
        with contextlib.suppress(psutil.Error, OSError):
            if pid not in leaders and os.getsid(pid) in leaders:
                found.append(psutil.Process(pid))
    return found


def _is_tracker(process: psutil.Process) -> bool:
    try:
        return any("multiprocessing.resource_tracker" in word for word in process.cmdline())
    except psutil.Error:
        return False


def _kill(processes: list[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.kill()
    _wait_gone(processes, 10)


def _wait_gone(processes: list[psutil.Process], timeout_s: float) -> list[psutil.Process]:
    """Those that still live after so many seconds.

    One that ended counts as gone though its parent has not asked for its exit code yet: orphans wait for that
    until process 1 comes round to it, and in many containers it never does.
    """
    deadline = time.monotonic() + timeout_s
    while alive := [p for p in processes if _is_living(p)]:
        if time.monotonic() >= deadline:
            break
        time.sleep(0.02)
    return alive


def _is_living(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _kill_members(members: Mapping[int, float]) -> None:
    alive = []
    for pid, created in members.items():
        if is_alive(pid, created):
            with contextlib.suppress(psutil.Error):
                alive.append(psutil.Process(pid))
    _kill_trackers_last(alive)


def mapped_segments(pid: int) -> set[str]:
    """Names under /dev/shm that a process has mapped; empty when it is gone or not ours to see."""
    found = set()
    try:
        with open(f"/proc/{pid}/maps", errors="replace") as maps:
            for line in maps:
                at = line.find("/dev/shm/")
                if at >= 0:
                    found.add(line[at + len("/dev/shm/"):].rstrip("\n").removesuffix(" (deleted)"))
    except OSError:
        pass
    return found


def remove_unmapped(segments: Iterable[str]) -> set[str]:
    """Remove the named segments that no living process maps.

    Returns:
        Those that are still in use.
    """
    wanted = {s for s in segments if (SHM / s).exists()}
    if not wanted:
        return set()
    in_use: set[str] = set()
    for pid in psutil.pids():
        in_use |= mapped_segments(pid) & wanted
    for name in wanted - in_use:
        with contextlib.suppress(OSError):
            (SHM / name).unlink()
    return wanted & in_use


def dead_runs(runs: Path) -> Iterator[tuple[Path, dict[int, float], list[str]]]:
    """Notes of runs whose kvproof is gone without having stopped what it started, with its processes by id and
    start time, and its shared memory."""
    for note in sorted(runs.glob("*/processes.json")):
        try:
            content = json.loads(note.read_text())
            (owner, created), members = content["owner"], {int(p): float(c) for p, c in content["members"]}
            segments = [str(s) for s in content["segments"]]
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if not is_alive(owner, created):
            yield note, members, segments


def sweep(runs: Path, say: Callable[[str], None]) -> None:
    """Clean up after runs whose kvproof is gone without having stopped what it started."""
    for note, members, segments in dead_runs(runs):
        say(f"cleaning up after a run that was killed: {note.parent.name}")
        remove_run(note, members, segments)


def remove_run(note: Path, members: Mapping[int, float], segments: Iterable[str]) -> None:
    """End and remove what a dead run has left, as `dead_runs` gives it."""
    _kill_members(members)
    remove_unmapped(segments)
    shutil.rmtree(note.parent / "second-tier", ignore_errors=True)
    with contextlib.suppress(OSError):
        note.unlink()


def is_alive(pid: int, created: float) -> bool:
    """Whether the process with this id and start time (seconds since the epoch) still runs."""
    try:
        process = psutil.Process(pid)
        return abs(process.create_time() - created) < 1 and _is_living(process)
    except psutil.Error:
        return False


def run_step(argv: list[str], environment: Mapping[str, str], log: Path, on_line: Callable[[str], None]) -> int:
    """Run a command to its end, its output going to a log and, line by line, to a callback.

    The command and all it started are killed when the caller is interrupted.

    Returns:
        The exit code.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with deferred():
        process = subprocess.Popen(
            argv, env=dict(environment), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True,
            preexec_fn=_end_with_parent,
        )
    try:
        with log.open("a", encoding="utf-8") as output:
            for line in process.stdout or ():
                output.write(line)
                on_line(line.rstrip("\n"))
        return process.wait()
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdout:
            process.stdout.close()
