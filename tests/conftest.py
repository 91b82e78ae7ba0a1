"""What holds for every test: no engines, no network, no secrets and no writing into the user's cache."""

from __future__ import annotations

import ipaddress
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

_ANYWHERE = {"sh", "git", "inv"}
_PYTHON = re.compile(r"python[\d.]*")
_HEAVY = re.compile(r"(?<![\w-])(docker|podman|vllm|lmcache|sglang|pip3?|uv)(?![\w-])")
# Where the tests were started in the background, Ctrl-C is ignored, and so it would be in all that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)

_SECRETS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")


@pytest.fixture(autouse=True)
def tmp_cache(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path | None:
    """A cache folder of the test's own; None under `engine`, whose environments take minutes to make."""
    for name in _SECRETS:
        monkeypatch.delenv(name, raising=False)
    if _marked(request, "engine"):
        return None
    folder = tmp_path / "cache"
    monkeypatch.setenv("KVPROOF_CACHE", str(folder))
    return folder


@pytest.fixture(autouse=True)
def _no_programs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that starts a program must say so with a marker: an unmarked one is quick and repeatable."""
    if _marked(request, "engine") or _marked(request, "process"):
        return
    start = subprocess.Popen.__init__

    def guarded(self: subprocess.Popen, args: Any, *rest: Any, **options: Any) -> None:
        # Popen's own __del__ looks for this on an object that was never started.
        self._child_created = False
        refusal = program_refused(args, shell=bool(options.get("shell")))
        if refusal:
            pytest.fail(refusal)
        start(self, args, *rest, **options)

    monkeypatch.setattr(subprocess.Popen, "__init__", guarded)


@pytest.fixture(autouse=True)
def _loopback_only(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if _marked(request, "engine"):
        return

    def guard(name: str, host_of: Callable[..., Any], owner: Any) -> None:
        original = getattr(owner, name)

        def guarded(*args: Any, **options: Any) -> Any:
            host = host_of(*args, **options)
            if not is_loopback(host):
                pytest.fail(f"this test reached for the network ({host!r}): use a server on 127.0.0.1")
            return original(*args, **options)

        monkeypatch.setattr(owner, name, guarded)

    guard("connect", lambda _self, address: _host(address), socket.socket)
    guard("connect_ex", lambda _self, address: _host(address), socket.socket)
    guard("sendto", lambda _self, _data, *rest: _host(rest[-1]), socket.socket)
    guard("getaddrinfo", lambda host, *_rest, **_options: host, socket)


@pytest.fixture
def require_tool() -> Callable[[str], str]:
    """`require_tool(name)`: the tool's path; without it the test is skipped, or fails where CI=true."""

    def require(name: str) -> str:
        found = shutil.which(name)
        if found is None:
            if os.environ.get("CI") == "true":
                pytest.fail(f"{name} is not installed, and CI must leave nothing out: add it to .ci/run")
            pytest.skip(f"{name} is not installed")
        return found

    return require


def program_refused(args: str | bytes | os.PathLike | Sequence, *, shell: bool = False) -> str | None:
    """Why an unmarked test may not start this program; None when it may.

    Args:
        args: what subprocess.Popen was given.
        shell: whether a shell reads it.
    """
    words = [args] if isinstance(args, str | bytes | os.PathLike) else list(args)
    words = [os.fsdecode(word) for word in words]
    shown = shlex.join(words)
    program = Path(words[0]).name if words else ""
    python = bool(_PYTHON.fullmatch(program))
    module = words[words.index("-m") + 1] if python and "-m" in words[:-1] else ""
    # Text that a shell or Python runs can start anything; a path that is only handed on starts nothing.
    text = " ".join(words) if shell or "-c" in words else f"{program} {module}"
    heavy = _HEAVY.search(text)
    if heavy:
        return f"this test starts {heavy[1]} ({shown}): mark it @pytest.mark.engine, or process for a stand-in"
    ours = module == "kvproof" or module.startswith("kvproof.")
    if not shell and (program in _ANYWHERE or ours):
        return None
    return f"this test starts a program ({shown}): mark it @pytest.mark.process"


def is_loopback(host: object) -> bool:
    """Whether an address stays on this machine; a name other than localhost would have to be looked up."""
    if host in (None, "", b"", "localhost", b"localhost"):
        return True
    try:
        address = ipaddress.ip_address(os.fsdecode(host) if isinstance(host, str | bytes) else str(host))
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified


def _host(address: object) -> object:
    """The host of a socket address; None for a Unix socket, whose address is a path."""
    return address[0] if isinstance(address, tuple) else None


def _marked(request: pytest.FixtureRequest, name: str) -> bool:
    return request.node.get_closest_marker(name) is not None
