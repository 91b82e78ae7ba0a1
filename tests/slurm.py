"""A Slurm of its own on this host: controller, one node with made-up resources, and their authentication.

Everything lies in one short-named folder (a socket's path has at most 107 characters) and listens on free ports, so
that it neither finds nor disturbs a Slurm that is installed here.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "sinfo")
NODE = "big"
_START_S = 20

_SETTINGS = """\
ClusterName=kvproof
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmdPort={node_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
# The node has what is said here, not what the host has
SlurmdParameters=config_overrides
ReturnToService=2
MailProg=/bin/true
GresTypes=gpu
NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 CPUs=128 RealMemory=2000000 Gres=gpu:8 State=UNKNOWN
PartitionName=main Nodes={node} Default=YES MaxTime=INFINITE State=UP
"""


@contextmanager
def running() -> Iterator[dict[str, str]]:
    """Start it, and stop it in the end.

    Yields:
        Environment in which Slurm's commands find it.

    Raises:
        RuntimeError: it did not start; with the ends of its logs.
    """
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="kvproof-slurm-", dir="/tmp"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        _write(folder)
        environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
        munge = [f"--{name}={folder}/munge.{suffix}" for name, suffix in (
            ("socket", "socket"), ("key-file", "key"), ("pid-file", "pid"), ("log-file", "log"), ("seed-file", "seed"))]
        for name, words in (("munged", ["--foreground", "--force", *munge]), ("slurmctld", ["-D", "-i"]),
                            ("slurmd", ["-D", "-N", NODE])):
            output = stack.enter_context((folder / f"{name}.out").open("wb"))
            process = subprocess.Popen([name, *words], env=environment, stdin=subprocess.DEVNULL, stdout=output,
                                       stderr=subprocess.STDOUT)
            stack.callback(_end, process)
        _wait(environment, folder)
        yield environment


def _write(folder: Path) -> None:
    for name in ("state", "spool"):
        (folder / name).mkdir()
    for number in range(8):
        (folder / f"gpu{number}").touch()
    (folder / "munge.key").write_bytes(os.urandom(1024))
    (folder / "munge.key").chmod(0o600)
    ports = _free_ports(2)
    (folder / "slurm.conf").write_text(_SETTINGS.format(
        folder=folder, host=socket.gethostname().partition(".")[0], node=NODE, controller_port=ports[0],
        node_port=ports[1], user=os.environ.get("USER") or "root"))
    (folder / "gres.conf").write_text(f"NodeName={NODE} Name=gpu Count=8 File={folder}/gpu[0-7]\n")
    (folder / "cgroup.conf").write_text("CgroupAutomount=no\n")


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        found = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in found:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in found]


def _wait(environment: dict[str, str], folder: Path) -> None:
    """Until the node takes jobs."""
    deadline = time.monotonic() + _START_S
    while True:
        done = subprocess.run(["sinfo", "--noheader", "--format=%T"], env=environment, capture_output=True, text=True,
                              check=False)
        if done.stdout.split() == ["idle"]:
            return
        if time.monotonic() > deadline:
            ends = [f"{path.name}: {line}" for path in sorted(folder.glob("*.[lo][ou][gt]"))
                    for line in path.read_text(errors="replace").splitlines()[-5:]]
            raise RuntimeError("\n".join(["Slurm did not start", done.stdout + done.stderr, *ends]))
        time.sleep(0.1)


def _end(process: subprocess.Popen) -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
