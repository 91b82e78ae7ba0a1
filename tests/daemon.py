"""A Docker daemon and a registry of the tests' own, in a temporary folder, and images made without a download."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import io
import json
import re
import socket
import stat
import subprocess
import sys
import sysconfig
import tarfile
import time
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import docker

PROGRAMS = ("dockerd", "docker-registry")
_PARTS = ("sh", "cat", "cp", "mkdir", "sleep", "dd", "env")
"""What shells in the stand-in base can call."""
_STARTS_S = 30.0


@dataclass(frozen=True)
class Daemon:
    """A running daemon.

    Attributes:
        url: its DOCKER_HOST.
        registry: address of the registry beside it, which it also asks first for every name of Docker Hub.
    """

    url: str
    registry: str
    folder: Path

    def client(self) -> docker.DockerClient:
        return docker.DockerClient(base_url=self.url, timeout=60)


@contextmanager
def running(folder: Path, *options: str, data: Path | None = None, registry: str | None = None) -> Iterator[Daemon]:
    """A daemon that is gone at the end, with all that it ran.

    Args:
        options: of the daemon, besides those that it needs to run beside others.
        data: its data folder; one in `folder` otherwise.
        registry: address of a registry that runs already; one is started otherwise.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        address = registry or stack.enter_context(_registry(folder / "registry"))
        url = f"unix://{folder}/docker.sock"
        words = ["dockerd", "--data-root", str(data or folder / "data"), "--exec-root", str(folder / "exec"),
                 "--pidfile", str(folder / "dockerd.pid"), "--host", url, "--registry-mirror", f"http://{address}",
                 "--bridge=none", "--iptables=false", "--ip-forward=false", "--ip-masq=false", *options]
        stack.callback(_unmount, folder)
        stack.enter_context(_program(words, folder / "dockerd.log"))
        made = Daemon(url, address, folder)
        _wait(lambda: docker.DockerClient(base_url=url, version="auto").close(), folder / "dockerd.log")
        yield made
        with contextlib.closing(made.client()) as client:
            for container in client.containers.list(all=True):
                container.remove(force=True)
    forget()


def _unmount(folder: Path) -> None:
    """Give up what a daemon that has ended has left mounted below its folder."""
    for line in Path("/proc/mounts").read_text().splitlines():
        if line.split()[1].startswith(f"{folder}/"):
            subprocess.run(["umount", "--lazy", line.split()[1]], check=False)


def forget() -> None:
    """Collect the sockets that the SDK does not close itself now, when nobody takes their warning for an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@contextmanager
def _registry(folder: Path) -> Iterator[str]:
    folder.mkdir(parents=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    config = folder / "config.yml"
    config.write_text(json.dumps({
        "version": 0.1, "log": {"level": "warn"}, "storage": {"filesystem": {"rootdirectory": str(folder / "data")}},
        "http": {"addr": f"127.0.0.1:{port}", "secret": "no-secret"},
    }))
    with _program(["docker-registry", "serve", str(config)], folder / "log"):
        _wait(lambda: socket.create_connection(("127.0.0.1", port), 1).close(), folder / "log")
        yield f"127.0.0.1:{port}"


@contextmanager
def _program(words: list[str], log: Path) -> Iterator[None]:
    with log.open("ab") as output:
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                                   start_new_session=True)
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(attempt, log: Path) -> None:
    deadline = time.monotonic() + _STARTS_S
    while True:
        try:
            return attempt()
        except (OSError, docker.errors.DockerException):
            if time.monotonic() > deadline:
                raise AssertionError(f"never started:\n{log.read_text()[-3000:]}") from None
            time.sleep(0.1)


def base_tar() -> bytes:
    """A root file system with this Python and a shell, out of this host's files: the same bytes each time."""
    files: dict[str, Path | str] = {}  # name in the archive: file, or the target of a link
    python = Path(sys.executable).resolve()
    library = Path(sysconfig.get_path("stdlib"))
    shells = {f"/bin/{name}": Path(found) for name in _PARTS if (found := _which(name))}
    for path in library.rglob("*"):
        inside = path.relative_to(library).parts
        if path.is_file() and not {"site-packages", "test", "__pycache__", "idlelib", "tkinter"} & set(inside):
            files[str(path)] = path
    for program in [*shells.values(), *(p for p in files.values() if str(p).endswith(".so")), python]:
        files |= _libraries(Path(program))
    files |= {**shells, str(python): python, "/usr/local/bin/python3": str(python)}
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for folder, mode in (("tmp", 0o1777), ("etc", 0o755), ("root", 0o700), ("var/lib", 0o755)):
            about = tarfile.TarInfo(folder)
            about.type, about.mode = tarfile.DIRTYPE, mode
            tar.addfile(about)
        for name, source in sorted(files.items()):
            about = tarfile.TarInfo(name.lstrip("/"))
            if isinstance(source, str):
                about.type, about.linkname = tarfile.SYMTYPE, source
                tar.addfile(about)
                continue
            data = source.read_bytes()
            about.size, about.mode = len(data), 0o755 if source.stat().st_mode & stat.S_IXUSR else 0o644
            tar.addfile(about, io.BytesIO(data))
    return made.getvalue()


def _which(name: str) -> str | None:
    return next((str(p.resolve()) for p in (Path("/bin") / name, Path("/usr/bin") / name) if p.exists()), None)


def _libraries(program: Path) -> dict[str, Path | str]:
    done = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=False)
    return {found: Path(found).resolve() for found in re.findall(r"(/\S+) \(0x", done.stdout)}


def push_base(daemon: Daemon, name: str, tag: str) -> str:
    """Import the stand-in base and push it to the registry under an upstream name.

    Returns:
        Its digest there.
    """
    with contextlib.closing(daemon.client()) as client:
        reference = f"{daemon.registry}/{name}"
        client.api.import_image_from_data(base_tar(), repository=reference, tag=tag,
                                          changes=["ENV PATH=/usr/local/bin:/usr/bin:/bin"])
        said = list(client.api.push(reference, tag=tag, stream=True, decode=True))
        digest = next(line["aux"]["Digest"] for line in said if "Digest" in line.get("aux", {}))
        client.images.remove(f"{reference}:{tag}", force=True)
        return digest


def wheel(folder: Path, name: str, version: str) -> str:
    """An empty wheel, always the same bytes.

    Returns:
        sha256 of it.
    """
    about = f"{name.replace('-', '_')}-{version}.dist-info"
    path = folder / f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as made:
        kind = "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        for file, text in (("METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"),
                           ("WHEEL", kind), ("RECORD", "")):
            made.writestr(zipfile.ZipInfo(f"{about}/{file}"), text)
    return hashlib.sha256(path.read_bytes()).hexdigest()
