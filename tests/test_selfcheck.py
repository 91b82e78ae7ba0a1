"""The check that ends an image's build: engine and connector that do not fit together are found, by what is wrong."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from kvproof.paths import IMAGES

pytestmark = pytest.mark.process
UNDEFINED = "/x/cuda_ops.so: undefined symbol: _ZNK3c1016NotImplementedError4whatEv"


def elf(*needed: str) -> bytes:
    """A 64-bit ELF file that needs shared libraries and holds nothing else."""
    strings = b"\0" + b"".join(name.encode() + b"\0" for name in needed)
    at = {name: strings.index(name.encode() + b"\0") for name in needed}
    base, dynamic = 0x1000, 64 + 2 * 56
    tags = [(1, at[name]) for name in needed] + [(5, base + dynamic + 16 * (len(needed) + 2)), (0, 0)]
    body = b"".join(struct.pack("<qQ", *tag) for tag in tags)
    size = dynamic + len(body) + len(strings)
    header = struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 3, 62, 1, 0, 64, 0, 0, 64, 56, 2, 0, 0, 0)
    loaded = struct.pack("<IIQQQQQQ", 1, 5, 0, base, base, size, size, 0x1000)
    dynamic_part = struct.pack("<IIQQQQQQ", 2, 6, dynamic, base + dynamic, base + dynamic, len(body), len(body), 8)
    return header + loaded + dynamic_part + body + strings


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """An image's packages: torch for CUDA 13, an engine, and a connector with a compiled part."""
    folder = tmp_path / "site"
    package(folder, "torch", "2.13.0", "class version:\n    cuda = '13.0'\n")
    package(folder, "engine", "1.0")
    package(folder, "connector", "2.0", requires=["torch", "small<2,>=1.4", "absent; extra == 'more'"])
    package(folder, "small", "1.5")
    (folder / "connector" / "ops.py").write_text("import torch\n")
    (folder / "connector" / "kernels.so").write_bytes(elf("libc10.so", "libcudart.so.13", "libc.so.6"))
    (folder / "connector" / "bridge.py").write_text("import engine, connector.ops\n")
    lock = "".join(f"{pin} \\\n    --hash=sha256:00\n" for pin in ("connector==2.0", "small==1.5"))
    (tmp_path / "requirements.lock").write_text(lock)
    return folder


def package(folder: Path, name: str, version: str, text: str = "", requires: list[str] | None = None) -> None:
    (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / name / "__init__.py").write_text(text)
    for old in folder.glob(f"{name}-*.dist-info"):
        (old / "METADATA").unlink()
        old.rmdir()
    about = folder / f"{name}-{version}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("\n".join([
        "Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}",
        *(f"Requires-Dist: {requirement}" for requirement in requires or ())]) + "\n")


def check(site: Path, *more: str) -> tuple[int, str]:
    words = ["--engine", "engine==1.0", "--connector", "connector==2.0",
             "--lock", str(site.parent / "requirements.lock"), "--kernels", "engine", "connector",
             "--import", "engine", "connector.ops", "connector.bridge", *more]
    done = subprocess.run([sys.executable, str(IMAGES / "selfcheck.py"), *words], capture_output=True, text=True,
                          timeout=60, check=False, env={**os.environ, "PYTHONPATH": str(site)})
    return done.returncode, done.stdout + done.stderr


def test_what_fits_together_passes(site: Path) -> None:
    assert check(site) == (0, "selfcheck: engine==1.0 and connector==2.0 fit together, CUDA 13\n")


def test_an_abi_mismatch_fails_though_the_connector_itself_would_load(site: Path) -> None:
    (site / "connector" / "ops.py").write_text(f"raise ImportError({UNDEFINED!r})\n")
    (site / "connector" / "bridge.py").write_text(
        "try:\n    import connector.ops\nexcept ImportError:\n    pass  # falls back\n")
    code, said = check(site)
    assert code == 1
    assert said.count("\n") == 1
    assert f"connector.ops was built against another torch (ABI mismatch): {UNDEFINED}" in said


@pytest.mark.parametrize("built", ["12.9", "13.0"])
def test_kernels_for_another_cuda_fail(built: str, site: Path) -> None:
    other = {"12.9": 13, "13.0": 12}[built]
    package(site, "torch", "2.13.0", f"class version:\n    cuda = {built!r}\n")
    (site / "connector" / "kernels.so").write_bytes(elf("libc10.so", f"libcudart.so.{other}"))
    code, said = check(site)
    assert code == 1
    assert f"kernels.so needs CUDA {other}, torch was built with CUDA {built[:2]}: take the package's build" in said


def test_beside_a_cpu_torch_cuda_kernels_are_dead_weight(site: Path) -> None:
    package(site, "torch", "2.13.0+cpu", "class version:\n    cuda = None\n")
    assert check(site) == (0, "selfcheck: engine==1.0 and connector==2.0 fit together, CUDA none\n")


@pytest.mark.parametrize(
    ("break_it", "said"),
    [
        (lambda s: package(s, "engine", "1.1"), "engine is 1.1, expected 1.0"),
        (lambda s: package(s, "small", "1.4"), "small is 1.4, expected 1.5"),
        (lambda s: package(s, "connector", "2.0", requires=["small>=2"]),
         "connector requires small>=2, the image has 1.5"),
        (lambda s: package(s, "connector", "2.0", requires=["nowhere"]),
         "connector requires nowhere, the image has none"),
        (lambda s: (s / "connector" / "bridge.py").write_text("from engine import gone\n"),
         "connector.bridge does not load: ImportError: cannot import name 'gone' from 'engine'"),
        (lambda s: (s / "engine" / "__init__.py").write_text("raise RuntimeError('no\\nGPU')\n"),
         "engine does not load: RuntimeError: no GPU"),
        (lambda s: (s / "engine" / "__init__.py").write_text(
            "raise ImportError('libcuda.so.1: cannot open shared object file')\n"),
         "engine cannot be judged without a driver library"),
        (lambda s: package(s, "torch", "2.13.0", "raise OSError('libcudart.so.13: not found')\n"),
         "torch does not load: libcudart.so.13: not found"),
        (lambda s: (s.parent / "requirements.lock").write_text("\n"), "it is no lock"),
    ],
)
def test_everything_else_that_is_wrong_is_named(break_it, said: str, site: Path) -> None:
    break_it(site)
    code, text = check(site)
    assert (code, said in text) == (1, True), text


def test_a_requirement_that_does_no_harm_can_be_named(site: Path) -> None:
    package(site, "connector", "2.0", requires=["No_Where", "small>=2"])
    assert check(site)[0] == 1
    assert check(site, "--unmet", "no-where", "small")[0] == 0


def test_a_package_without_files_cannot_be_checked(site: Path) -> None:
    assert "nothing is not an installed package" in check(site, "--kernels", "nothing")[1]


def test_needed_libraries_are_read_from_real_files_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(IMAGES))
    import _ssl

    import selfcheck

    assert any(name.startswith("libssl.so") for name in selfcheck.needed(Path(_ssl.__file__)))
    (tmp_path / "made.so").write_bytes(elf("a", "libcudart.so.13"))
    assert selfcheck.needed(tmp_path / "made.so") == ["a", "libcudart.so.13"]
    for content in (b"", b"\x7fELF", b"#!/bin/sh\n", b"\x7fELF\x01\x01" + b"\0" * 60):
        (tmp_path / "other.so").write_bytes(content)
        assert selfcheck.needed(tmp_path / "other.so") == []


# --- health.py -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("status", "code"), [(200, 0), (503, 1), (None, 1)])
def test_health(status: int | None, code: int) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()

        def log_message(self, *words: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        port = server.server_port if status else 9
        done = subprocess.run([sys.executable, str(IMAGES / "health.py")], capture_output=True, text=True, timeout=30,
                              check=False, env={**os.environ, "KVPROOF_HEALTH_URL": f"http://127.0.0.1:{port}/health",
                                                "http_proxy": "http://127.0.0.1:1"})
        server.shutdown()
        thread.join()
    assert (done.returncode, bool(done.stderr)) == (code, bool(code))
