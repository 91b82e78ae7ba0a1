"""Image registries on this machine: Debian's docker-registry, and small ones that misbehave."""

from __future__ import annotations

import hashlib
import json
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import yaml

PROGRAM = "docker-registry"
USER, PASSWORD = "fixture-user", "fixture-password"
_HASHED = "$2y$05$abcdefghijklmnopqrstuuZJxRXIBX8d3JF1adWtDaKT7LNt2cwY."
OCI_INDEX = "application/vnd.oci.image.index.v1+json"
OCI_IMAGE = "application/vnd.oci.image.manifest.v1+json"
DOCKER_INDEX = "application/vnd.docker.distribution.manifest.list.v2+json"
DOCKER_IMAGE = "application/vnd.docker.distribution.manifest.v2+json"
_START_S = 20


@dataclass
class Real:
    """A docker-registry, and a way to put images into it without Docker."""

    host: str
    folder: Path
    auth: tuple[str, str] | None = None

    def __post_init__(self) -> None:
        self.http = httpx.Client(base_url=f"http://{self.host}", auth=self.auth, trust_env=False, timeout=20)

    def push_blob(self, repository: str, content: bytes) -> str:
        digest = sha256(content)
        place = self.http.post(f"/v2/{repository}/blobs/uploads/").raise_for_status().headers["location"]
        self.http.put(place, params={**httpx.URL(place).params, "digest": digest}, content=content).raise_for_status()
        return digest

    def push_image(self, repository: str, tag: str | None = None, *, platform: str = "linux/amd64", text: str = "",
                   created: str | None = "2026-01-02T03:04:05.123456789Z", kind: str = OCI_IMAGE) -> str:
        """An image with one layer; its digest.

        Args:
            text: what makes it another image.
            created: as its configuration says; None leaves it out.
        """
        system, architecture, *variant = platform.split("/")
        config = json.dumps({"os": system, "architecture": architecture, **({"variant": variant[0]} if variant else {}),
                             **({"created": created} if created else {}), "comment": text}).encode()
        layer = b"layer " + text.encode()
        manifest = {
            "schemaVersion": 2, "mediaType": kind,
            "config": {"mediaType": "application/vnd.oci.image.config.v1+json", "size": len(config),
                       "digest": self.push_blob(repository, config)},
            "layers": [{"mediaType": "application/vnd.oci.image.layer.v1.tar", "size": len(layer),
                        "digest": self.push_blob(repository, layer)}],
        }
        return self.push_manifest(repository, tag, manifest, kind)

    def push_index(self, repository: str, tag: str, children: dict[str, str], kind: str = OCI_INDEX) -> str:
        """An index over images by platform; its digest."""
        entries = []
        for platform, digest in children.items():
            size = len(self.http.get(f"/v2/{repository}/manifests/{digest}", headers={"Accept": OCI_IMAGE}).content)
            system, architecture, *variant = platform.split("/")
            entries.append({"mediaType": OCI_IMAGE, "digest": digest, "size": size,
                            "platform": {"os": system, "architecture": architecture,
                                         **({"variant": variant[0]} if variant else {})}})
        return self.push_manifest(repository, tag, {"schemaVersion": 2, "mediaType": kind, "manifests": entries}, kind)

    def push_manifest(self, repository: str, tag: str | None, manifest: dict, kind: str) -> str:
        content = json.dumps(manifest).encode()
        self.http.put(f"/v2/{repository}/manifests/{tag or sha256(content)}", content=content,
                      headers={"Content-Type": kind}).raise_for_status()
        return sha256(content)

    def delete(self, repository: str, digest: str) -> None:
        self.http.delete(f"/v2/{repository}/manifests/{digest}").raise_for_status()

    def untag(self, repository: str, tag: str) -> None:
        """Remove a tag and leave what it stood for; this registry has no request for it."""
        shutil.rmtree(self.folder / "data/docker/registry/v2/repositories" / repository / "_manifests/tags" / tag)


@contextmanager
def running(program: str, folder: Path, *, login: bool = False) -> Iterator[Real]:
    """A docker-registry of its own: free port, own folder, and users if login is wanted.

    Raises:
        RuntimeError: it did not start; with the end of its log.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder.mkdir(parents=True)
    (folder / "users").write_text(f"{USER}:{_HASHED}\n")
    settings = {
        "version": 0.1, "log": {"level": "error"},
        "storage": {"filesystem": {"rootdirectory": str(folder / "data")}, "delete": {"enabled": True}},
        "http": {"addr": f"127.0.0.1:{port}", "secret": "fixture"},
        **({"auth": {"htpasswd": {"realm": "fixture", "path": str(folder / "users")}}} if login else {}),
    }
    (folder / "config.yml").write_text(yaml.safe_dump(settings))
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([program, "serve", str(folder / "config.yml")], stdin=subprocess.DEVNULL, stdout=log,
                                   stderr=log)
        try:
            registry = Real(f"127.0.0.1:{port}", folder, (USER, PASSWORD) if login else None)
            _wait(registry, process, folder / "log")
            yield registry
            registry.http.close()
        finally:
            process.terminate()
            process.wait(10)


def _wait(registry: Real, process: subprocess.Popen, log: Path) -> None:
    deadline = time.monotonic() + _START_S
    while process.poll() is None and time.monotonic() < deadline:
        try:
            registry.http.get("/v2/").raise_for_status()
            return
        except httpx.HTTPError:
            time.sleep(0.05)
    raise RuntimeError(f"{PROGRAM} did not start:\n{log.read_text(errors='replace')[-2000:]}")


@dataclass(frozen=True)
class Reply:
    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    hang: threading.Event | None = None
    """Not answered before it is set."""
    drip_s: float = 0
    """Pause before each byte of the body."""


@dataclass(frozen=True)
class Asked:
    method: str
    path: str
    headers: dict[str, str]


@dataclass(frozen=True)
class Made:
    """A registry that answers as a test says."""

    host: str
    asked: list[Asked]


@contextmanager
def made(answer: Callable[[Asked], Reply]) -> Iterator[Made]:
    """A server whose every answer is what a function makes of the request."""
    asked: list[Asked] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            request = Asked(self.command, self.path, {k.lower(): v for k, v in self.headers.items()})
            asked.append(request)
            reply = answer(request)
            if reply.hang is not None:
                reply.hang.wait(30)
            try:
                self.send_response(reply.status)
                for name, value in {"Content-Length": str(len(reply.body)), **reply.headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command == "GET":
                    for at in range(len(reply.body)) if reply.drip_s else ():
                        time.sleep(reply.drip_s)
                        self.wfile.write(reply.body[at:at + 1])
                        self.wfile.flush()
                    if not reply.drip_s:
                        self.wfile.write(reply.body)
            except OSError:
                pass  # the client has given up

        do_HEAD = do_GET

        def log_message(self, *words: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield Made(f"127.0.0.1:{server.server_port}", asked)
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


def sha256(content: bytes) -> str:
    return "sha256:" + hashlib.sha256(content).hexdigest()
