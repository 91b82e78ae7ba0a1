"""Builds an image through the daemon's API, with BuildKit.

What the build installs comes from this host: the locked wheels are fetched here, by pip as this host has it set up,
and handed out on the loopback for as long as the build lasts. So no credential, proxy or certificate of the host is
needed inside, and none can end up in the image.
"""

from __future__ import annotations

import base64
import io
import json
import shutil
import sys
import tarfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from packaging.utils import canonicalize_name

from ..console import Console
from ..errors import EnvironmentBuildError
from ..paths import cache_folder
from ..process import plain, run_step, tail
from . import venv
from .docker_errors import explain, told_apart

if TYPE_CHECKING:
    from docker import DockerClient

_KEPT_LINES = 12
_FIRST_PORT = 18_000
_PYPI = "https://pypi.org/simple"
_FILE = "Dockerfile.kvproof"
"""The Dockerfile's name in the context, where no other file has it."""


@dataclass(frozen=True)
class Order:
    """What to build.

    Attributes:
        files: of the context, by name in it.
        lock: whose wheels are handed out; None when the build fetches for itself.
        again: use nothing of earlier builds.
    """

    name: str
    tag: str
    dockerfile: str
    labels: Mapping[str, str]
    arguments: Mapping[str, str]
    files: Mapping[str, Path]
    lock: venv.Lock | None
    again: bool = False


def build(client: DockerClient, order: Order, console: Console) -> None:
    """Build and tag an image.

    Raises:
        EnvironmentBuildError: a step failed; the end of its output is shown.
        HostError: the disk is full, or the daemon was lost.
    """
    log = cache_folder() / "builds" / f"{order.name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with console.step(f"building image {order.tag}"), _wheels(order.lock, console) as given, \
            log.open("w", encoding="utf-8") as output:
        for line in _steps(client, order, {**order.arguments, **given}):
            output.write(f"{line}\n")
            output.flush()
            if isinstance(line, _Failure):
                raise _failed(order, str(line), log)
            console.now(line[:160])


class _Failure(str):
    """What a daemon says of a build that failed."""


def _failed(order: Order, said: str, log: Path) -> EnvironmentBuildError:
    told = explain(f"building {order.tag}", said)
    if type(told).__name__ != "CannotRunError" and "did not complete successfully" not in said:
        told.log_tail = tuple(tail(log, _KEPT_LINES))
        return told  # type: ignore[return-value]
    full = any("no space left on device" in line.lower() for line in tail(log, 40))
    error = explain(f"building {order.tag}", "no space left on device") if full else \
        EnvironmentBuildError(f"image {order.tag} could not be built: {said}", tip=f"the whole output is in {log}")
    error.log_tail = tuple(tail(log, _KEPT_LINES))
    return error  # type: ignore[return-value]


def _steps(client: DockerClient, order: Order, arguments: Mapping[str, str]) -> Iterator[str]:
    """Lines of a build's progress; a `_Failure` comes last."""
    api, doing = client.api, f"building {order.tag}"
    # The SDK's own build() knows the builder before BuildKit only, which has no cache and no bind mounts.
    parameters = {
        "version": "2", "t": order.tag, "dockerfile": _FILE, "networkmode": "host", "rm": "1",
        "forcerm": "1", "nocache": "1" if order.again else "0", "buildargs": json.dumps(dict(arguments)),
        "labels": json.dumps(dict(order.labels)),
    }
    with told_apart(doing):
        answer = api._post(api._url("/build"), data=_context(order), params=parameters, stream=True, timeout=None,
                           headers={"Content-Type": "application/x-tar"})
        if answer.status_code >= 400:
            yield _Failure(answer.json().get("message", answer.text))
            return
        names: dict[str, str] = {}
        for line in answer.iter_lines():
            said = json.loads(line)
            if "error" in said:
                yield _Failure(str(said["error"]))
            elif said.get("id") == "moby.buildkit.trace":
                yield from _told(base64.b64decode(said["aux"]), names)
            elif said.get("stream", "").strip():
                yield said["stream"].strip()


def _context(order: Order) -> io.BytesIO:
    """The folder that the build sees, always the same bytes for the same files."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        contents = {name: (path.read_bytes(), path.stat().st_mode & 0o100) for name, path in order.files.items()}
        for name, (data, executable) in sorted({**contents, _FILE: (order.dockerfile.encode(), 0)}.items()):
            about = tarfile.TarInfo(name)
            about.size, about.mode = len(data), 0o755 if executable else 0o644
            tar.addfile(about, io.BytesIO(data))
    made.seek(0)
    return made


def _told(message: bytes, names: dict[str, str]) -> Iterator[str]:
    """Lines of a BuildKit status (moby.buildkit.v1.StatusResponse): steps as they begin, and their output.

    Args:
        names: of the steps that have begun, by digest; grows.
    """
    for field, content in _fields(message):
        if not isinstance(content, bytes):
            continue
        part = dict(_fields(content))
        if field == 1 and 5 in part and _text(part.get(1)) not in names:  # a vertex with a start
            names[_text(part.get(1))] = _text(part.get(3))
            yield _text(part.get(3))
        elif field == 3:  # output of a step
            yield from (plain(line) for line in _text(part.get(4)).splitlines() if line.strip())


def _text(value: Any) -> str:
    return value.decode("utf-8", errors="replace") if isinstance(value, bytes) else ""


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Fields of a protobuf message, by number."""
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    while at < len(message):
        key = varint()
        kind = key & 7
        if kind == 0:
            yield key >> 3, varint()
            continue
        size = {1: 8, 5: 4}.get(kind) or varint()
        yield key >> 3, message[at:at + size]
        at += size


@contextmanager
def _wheels(lock: venv.Lock | None, console: Console) -> Iterator[dict[str, str]]:
    """Build arguments by which pip finds the wheels of a lock, handed out by this process while inside."""
    folder = fetch(lock, console) if lock is not None else None
    if lock is None or folder is None:
        yield {}
        return
    # Arguments count where the daemon looks for an earlier build's steps, so the port is the same where it is free.
    try:
        server = ThreadingHTTPServer(("127.0.0.1", _FIRST_PORT + int(lock.digest[:4], 16) % 1000), _index(folder))
    except OSError:
        server = ThreadingHTTPServer(("127.0.0.1", 0), _index(folder))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, name="wheels", daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{server.server_address[1]}/simple/"
    try:
        yield {"PIP_INDEX_URL": url, "PIP_TRUSTED_HOST": "127.0.0.1"}
    finally:
        server.shutdown()
        server.server_close()


def fetch(lock: venv.Lock, console: Console) -> Path | None:
    """The wheels of a lock in the cache folder, fetched with their hashes by this host's pip.

    Returns:
        The folder; None where they cannot all be had as wheels, or kvproof's own Python has no pip: then the build
        fetches for itself.
    """
    if run_step([sys.executable, "-m", "pip", "--version"], venv.pip_environment(), cache_folder() / "builds/pip.log",
                lambda _: None):
        return None
    folder = cache_folder() / "wheels" / f"{lock.name}-{lock.digest[:16]}"
    if folder.is_dir():
        return folder
    part, log = folder.with_name(f".{folder.name}.part"), folder.with_suffix(".log")
    part.mkdir(parents=True, exist_ok=True)  # what an interrupted fetch has there is checked and kept by pip
    log.unlink(missing_ok=True)
    pip = [sys.executable, "-m", "pip", "download", "--no-input", "--progress-bar", "off", "--no-deps",
           "--require-hashes", "--only-binary", ":all:", "--python-version", lock.python, "--dest", str(part),
           *(word for tag in _platforms(lock.platform) for word in ("--platform", tag))]
    first, rest = venv.split(lock)
    console.now(f"fetching the wheels of {lock.name}")
    for number, text in enumerate((first, rest)):
        file = part / "wanted.txt"
        file.write_text(text, encoding="utf-8")
        counted = venv.Progress(console, text.count("==")) if number else lambda _: None
        ended = run_step([*pip, "-r", str(file)], venv.pip_environment(), log, counted) if text else 0
        if ended and not number:
            ended = run_step([*pip, "--index-url", lock.first_index, "-r", str(file)], venv.pip_environment(), log,
                             counted)
        if ended:
            console.say(f"not all of {lock.name} can be fetched here as wheels, so the build fetches for itself: {log}")
            return None
    (part / "wanted.txt").unlink()
    shutil.rmtree(folder, ignore_errors=True)
    part.rename(folder)
    return folder


def _platforms(platform: str) -> list[str]:
    """Tags of the wheels that a Debian 12 or later takes."""
    machine = platform.partition("-")[2]
    return [*(f"manylinux_2_{minor}_{machine}" for minor in range(36, 4, -1)), f"manylinux2014_{machine}",
            f"manylinux2010_{machine}", f"manylinux1_{machine}", f"linux_{machine}"]


def _index(folder: Path) -> type[BaseHTTPRequestHandler]:
    """A package index of the wheels in a folder, as pip reads one (PEP 503)."""
    files: dict[str, list[str]] = {}
    for path in sorted(folder.glob("*.whl")):
        files.setdefault(canonicalize_name(path.name.split("-")[0]), []).append(path.name)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            words = unquote(self.path).strip("/").split("/")
            if words[0] == "simple" and len(words) == 2 and words[1] in files:
                links = "".join(f'<a href="/files/{name}">{name}</a>\n' for name in files[words[1]])
                self._answer("text/html", links.encode())
            elif words[0] == "files" and any(words[1:] == [name] for names in files.values() for name in names):
                path = folder / words[1]
                self._head("application/zip", path.stat().st_size)
                with path.open("rb") as file:
                    shutil.copyfileobj(file, self.wfile)
            elif words[0] == "simple" and len(words) == 2:  # what a lock does not name, such as a build's own tools
                self.send_response(307)
                self.send_header("Location", f"{_PYPI}/{words[1]}/")
                self.send_header("Content-Length", "0")
                self.end_headers()
            else:
                self.send_error(404)

        def _head(self, kind: str, size: int) -> None:
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(size))
            self.end_headers()

        def _answer(self, kind: str, data: bytes) -> None:
            self._head(kind, len(data))
            self.wfile.write(data)

        def log_message(self, format: str, *words: Any) -> None:
            pass

        def handle(self) -> None:
            try:
                super().handle()
            except ConnectionError:
                self.close_connection = True

    return Handler
