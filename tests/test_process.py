"""Processes and shared memory: what a run started is gone afterwards, and nothing else is."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from kvproof import process
from kvproof.errors import HostError, Interrupted
from kvproof.interrupts import interruptible
from kvproof.process import Processes, plain, remove_unmapped, run_step, sweep, tail

pytestmark = pytest.mark.process
QUICK = {"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"}
# A server with a child in its session that does not listen to SIGTERM, and a mapped segment.
SERVER = """
import mmap, os, signal, subprocess, sys, time
name = sys.argv[1]
with open("/dev/shm/" + name, "w+b") as file:
    file.truncate(4096)
    kept = mmap.mmap(file.fileno(), 4096)
    child = subprocess.Popen(["sh", "-c", "trap '' TERM; while :; do sleep 0.2; done"])
print("child", child.pid, flush=True)
time.sleep(60)
"""


def until(condition: Callable[[], object], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "never came true"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    """Whether it still runs; an orphan whose exit code nobody asked for yet does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


@pytest.fixture(autouse=True)
def _short_farewell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_FAREWELL_S", 0.2)


@pytest.fixture
def segment() -> Iterator[str]:
    name = f"kvproof-test-{os.getpid()}-{time.monotonic_ns()}"
    yield name
    (process.SHM / name).unlink(missing_ok=True)


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    made = Processes(tmp_path)
    yield made
    made.stop_all(grace_s=0.2)


def start(processes: Processes, tmp_path: Path, segment: str) -> tuple[process.Launched, int]:
    """A server and the process id of its stubborn child."""
    launched = processes.start("engine", [sys.executable, "-c", SERVER, segment], QUICK, tmp_path / "engine.log")
    until(lambda: launched.tail(1))
    processes.observe()
    return launched, int(launched.tail(1)[0].split()[1])


def test_stopping_ends_the_whole_session_and_removes_its_segments(processes, tmp_path, segment) -> None:
    launched, child = start(processes, tmp_path, segment)
    assert launched.exit_code() is None
    assert (process.SHM / segment).exists()
    processes.stop(launched)
    assert launched.exit_code() == -signal.SIGTERM
    assert not alive(child)
    assert not (process.SHM / segment).exists()


def test_stop_all_says_what_it_stops_and_forgets_its_note(processes, tmp_path, segment) -> None:
    _, child = start(processes, tmp_path, segment)
    note = json.loads((tmp_path / "processes.json").read_text())
    assert note["owner"][0] == os.getpid()
    assert child in [pid for pid, _ in note["members"]]
    assert note["segments"] == [segment]
    said: list[str] = []
    processes.stop_all(say=said.append)
    assert said == ["stopping engine"]
    assert not alive(child)
    assert not (tmp_path / "processes.json").exists()


def test_one_that_ignores_the_request_is_killed(processes, tmp_path) -> None:
    argv = ["sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.1; done"]
    launched = processes.start("engine", argv, QUICK, tmp_path / "log")
    until(lambda: launched.tail(1))
    processes.stop(launched, grace_s=0.2)
    assert launched.exit_code() == -signal.SIGKILL


def test_a_child_that_left_the_session_is_found(processes, tmp_path) -> None:
    code = "import subprocess,time;p=subprocess.Popen(['sleep','60'],start_new_session=True);print(p.pid,flush=True);" \
           "time.sleep(60)"
    launched = processes.start("engine", [sys.executable, "-c", code], QUICK, tmp_path / "log")
    until(lambda: launched.tail(1))
    child = int(launched.tail(1)[0])
    processes.observe()
    processes.stop_all()
    assert not alive(child)


def test_a_segment_that_another_process_maps_stays(segment: str) -> None:
    with open(process.SHM / segment, "w+b") as file:
        file.truncate(4096)
        with contextlib.closing(mmap.mmap(file.fileno(), 4096)):
            assert remove_unmapped([segment, "no-such-segment"]) == {segment}
            assert (process.SHM / segment).exists()
    assert remove_unmapped([segment]) == set()
    assert not (process.SHM / segment).exists()


def test_a_program_that_is_not_there(processes, tmp_path) -> None:
    with pytest.raises(HostError, match="engine: cannot start /no/such/program: No such file or directory"):
        processes.start("engine", ["/no/such/program"], QUICK, tmp_path / "log")


def test_sweep_after_a_killed_owner(tmp_path, segment) -> None:
    with subprocess.Popen(["sleep", "60"]) as left:
        (process.SHM / segment).touch()
        folder = tmp_path / "run-1"
        folder.mkdir()
        created = psutil.Process(left.pid).create_time()
        note = {"owner": [2**22 + 1, 0.0], "members": [[left.pid, created]], "segments": [segment]}
        (folder / "processes.json").write_text(json.dumps(note))
        said: list[str] = []
        sweep(tmp_path, said.append)
        assert said == ["cleaning up after a run that was killed: run-1"]
        assert not process.is_alive(left.pid, created)
    assert not (process.SHM / segment).exists()
    assert not (folder / "processes.json").exists()


def test_sweep_leaves_alone_what_is_not_its_own(tmp_path) -> None:
    """A living owner, a process id that was given to another program since, and notes that say nothing."""
    mine = psutil.Process()
    notes = {
        "alive": {"owner": [mine.pid, mine.create_time()], "members": [[mine.pid, mine.create_time()]], "segments": []},
        "reused": {"owner": [mine.pid, 1.0], "members": [[mine.pid, 1.0]], "segments": []},
        "cut": '{"owner": [1',
        "other": {"members": []},
        "list": [],
    }
    for name, note in notes.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "processes.json").write_text(note if isinstance(note, str) else json.dumps(note))
    sweep(tmp_path, lambda _: None)
    left = [name for name in notes if (tmp_path / name / "processes.json").exists()]
    assert left == ["alive", "cut", "other", "list"]


def test_a_step_runs_to_its_end(tmp_path) -> None:
    lines: list[str] = []
    code = run_step(["sh", "-c", "echo one; echo two >&2; exit 3"], QUICK, tmp_path / "logs" / "log", lines.append)
    assert code == 3
    assert sorted(lines) == ["one", "two"]
    assert sorted((tmp_path / "logs" / "log").read_text().split()) == ["one", "two"]


def test_an_interrupted_step_leaves_nothing(tmp_path) -> None:
    pids: list[int] = []

    def seen(line: str) -> None:
        pids.append(int(line))
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()

    with pytest.raises(Interrupted), interruptible():
        run_step(["sh", "-c", "sleep 60 & echo $!; wait"], QUICK, tmp_path / "log", seen)
    until(lambda: not alive(pids[0]))


def test_the_end_of_a_log(tmp_path) -> None:
    log = tmp_path / "log"
    assert tail(log) == []
    log.write_bytes(b"first\n\x1b[31mred\x1b[0m line  \n\n   \nbad \xff byte\n")
    assert tail(log, 2) == ["red line", "bad \N{REPLACEMENT CHARACTER} byte"]
    log.write_text("x" * 5000 + "\nlast\n")
    assert tail(log, limit_bytes=100) == ["x" * 94, "last"]


def test_a_line_has_a_bounded_length() -> None:
    assert plain("x" * 3000) == "x" * 2000 + " …"


def test_a_process_is_told_by_its_start_time() -> None:
    mine = psutil.Process()
    assert process.is_alive(mine.pid, mine.create_time())
    assert not process.is_alive(mine.pid, mine.create_time() - 100)
    assert not process.is_alive(2**22 + 1, 0)
