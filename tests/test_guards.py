"""The guards of conftest.py themselves."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import is_loopback, program_refused
from kvproof.paths import cache_folder

ALLOWED = [
    [sys.executable, "-m", "kvproof.cli", "--version"],
    ["/usr/bin/python3.11", "-P", "-m", "kvproof.cli"],
    ["git", "status"],
    ["sh", "./inv", "recipe"],
    [Path("inv"), "--list"],
    "git",
]
NEEDS_PROCESS = [
    [sys.executable, "fake_server.py"],
    [sys.executable, "-m", "http.server"],
    [sys.executable, "-c", "print(1)"],
    ["/opt/tool/kvproof", "x"],
    ["nvidia-smi"],
]
NEEDS_ENGINE = [
    ["docker", "run", "image"],
    ["/usr/bin/vllm", "serve"],
    ["lmcache", "server"],
    [sys.executable, "-m", "vllm.entrypoints.openai.api_server"],
    [sys.executable, "-m", "pip", "install", "x"],
    ["uv", "pip", "compile"],
    ["sh", "-c", "sleep 1; docker run image"],
]


@pytest.mark.parametrize("args", ALLOWED, ids=str)
def test_unmarked_tests_may_start(args) -> None:
    assert program_refused(args) is None


@pytest.mark.parametrize("args", NEEDS_PROCESS, ids=str)
def test_other_programs_need_the_process_marker(args) -> None:
    assert "pytest.mark.process" in program_refused(args)


@pytest.mark.parametrize("args", NEEDS_ENGINE, ids=str)
def test_engines_and_installers_need_the_engine_marker(args) -> None:
    assert "pytest.mark.engine" in program_refused(args)


def test_a_shell_text_needs_a_marker() -> None:
    assert "pytest.mark.process" in program_refused("true", shell=True)
    assert "pytest.mark.engine" in program_refused("exec vllm serve", shell=True)


def test_the_guard_is_on() -> None:
    with pytest.raises(pytest.fail.Exception, match=r"mark it @pytest\.mark\.engine"):
        subprocess.run(["docker", "ps"], check=False)
    with pytest.raises(pytest.fail.Exception, match=r"mark it @pytest\.mark\.process"):
        subprocess.run([sys.executable, "-c", "pass"], check=False)


@pytest.mark.process
def test_the_process_marker_opens_it() -> None:
    assert subprocess.run([sys.executable, "-c", "pass"], check=False).returncode == 0


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost", b"localhost", "0.0.0.0", None])
def test_loopback(host) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["8.8.8.8", "10.0.0.1", "2001:db8::1", "example.org", "localhost.example"])
def test_not_loopback(host) -> None:
    assert not is_loopback(host)


def test_the_network_is_out_of_reach() -> None:
    with pytest.raises(pytest.fail.Exception, match="network"):
        socket.create_connection(("example.org", 80), timeout=1)
    with socket.socket() as tcp, pytest.raises(pytest.fail.Exception, match="network"):
        tcp.connect(("192.0.2.1", 80))
    with socket.socket(type=socket.SOCK_DGRAM) as udp, pytest.raises(pytest.fail.Exception, match="network"):
        udp.sendto(b"x", ("192.0.2.1", 9))


def test_loopback_is_in_reach() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()):
        pass


def test_the_cache_is_the_tests_own(tmp_cache, tmp_path) -> None:
    assert cache_folder() == tmp_cache
    assert tmp_path in tmp_cache.parents
    assert "HF_TOKEN" not in os.environ


@pytest.mark.parametrize(("ci", "outcome"), [("true", pytest.fail.Exception), ("", pytest.skip.Exception)])
def test_a_missing_tool_fails_in_ci_and_skips_elsewhere(require_tool, monkeypatch, ci, outcome) -> None:
    monkeypatch.setenv("CI", ci)
    with pytest.raises(outcome, match="no-such-tool is not installed"):
        require_tool("no-such-tool")


def test_a_tool_that_is_there(require_tool) -> None:
    assert Path(require_tool("sh")).name == "sh"
