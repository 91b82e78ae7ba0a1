"""Fails the build of an image whose engine and connector do not fit together.

Runs inside the image, with nothing but Python's own library:

    selfcheck.py --engine vllm==0.29.0 --connector lmcache==0.5.5 --lock requirements.lock
                 --import vllm lmcache.cuda_ops … --kernels vllm lmcache [--unmet NAME …]

A connector that cannot load its compiled part falls back to slow code and says so in one line of a log, so the compiled
modules are imported here by name. No GPU is needed: symbols are resolved when a module is loaded, not when it is used.
"""

from __future__ import annotations

import argparse
import ctypes
import glob
import importlib
import importlib.metadata
import importlib.util
import os
import re
import struct
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

_CUDA_LIBRARY = re.compile(r"lib(?:cudart|cublas|cublasLt|cufft|cusparse|cusolver|curand|nvrtc)\.so\.(\d+)")
_LIBCUDA = ("/usr/local/cuda*/compat/lib.real/libcuda.so.1", "/usr/local/cuda*/compat/libcuda.so.1",
            "/usr/local/cuda*/lib64/stubs/libcuda.so", "/usr/local/cuda*/targets/*/lib/stubs/libcuda.so")
_LOADED, _DYNAMIC, _NEEDED, _STRING_TABLE = 1, 2, 1, 5


def main(argv: list[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    faults = [*versions((options.engine, options.connector)), *locked(options.lock, options.unmet)]
    major, more = cuda_major()
    faults += more
    if major is not None:
        preload_driver()
    faults += [fault for module in options.modules for fault in imported(module)]
    if not more:
        faults += kernels(options.kernels, major)
    for fault in faults:
        print(f"selfcheck: {fault}", file=sys.stderr)
    if faults:
        return 1
    print(f"selfcheck: {options.engine} and {options.connector} fit together, CUDA {major or 'none'}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="checks that engine and connector fit together")
    parser.add_argument("--engine", required=True, metavar="NAME[==VERSION]", help="its distribution")
    parser.add_argument("--connector", required=True, metavar="NAME[==VERSION]", help="its distribution")
    parser.add_argument("--lock", type=Path, help="requirements with hashes that were installed on top of the base")
    parser.add_argument("--import", nargs="+", default=[], dest="modules", metavar="MODULE", help="imported in turn")
    parser.add_argument("--kernels", nargs="+", default=[], metavar="PACKAGE", help="whose compiled files are read")
    parser.add_argument("--unmet", nargs="+", default=[], metavar="NAME",
                        help="requirements that are known to be missing or of another version, and do no harm")
    return parser


def versions(wanted: Iterable[str]) -> Iterator[str]:
    """Distributions that are not there, or in another version."""
    for pin in wanted:
        name, _, version = pin.partition("==")
        try:
            found = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            yield f"{name} is not installed: the base image or requirements.lock is not what the Dockerfile expects"
            continue
        if version and found != version:
            yield f"{name} is {found}, expected {version}: pin the base image or requirements.lock to that version"


def locked(lock: Path | None, unmet: Iterable[str]) -> Iterator[str]:
    """Packages of the lock in another version, and what they require that the image does not have."""
    if lock is None:
        return
    pins = re.findall(r"(?m)^([A-Za-z0-9][\w.-]*==\S+)", lock.read_text(encoding="utf-8"))
    if not pins:
        yield f"{lock} holds no NAME==VERSION: it is no lock"
    missing = list(versions(pins))
    yield from missing
    if not missing:
        known = {_normal(name) for name in unmet}
        for pin in pins:
            yield from _requirements(pin.partition("==")[0], known)


def _requirements(name: str, known: set[str]) -> Iterator[str]:
    for text in importlib.metadata.requires(name) or ():
        wanted = _requirement(text)
        if _normal(wanted.name) in known or (wanted.marker and not wanted.marker.evaluate({"extra": ""})):
            continue
        try:
            found = importlib.metadata.version(wanted.name)
        except importlib.metadata.PackageNotFoundError:
            found = None
        if found is None or not wanted.specifier.contains(found, prereleases=True):
            yield (f"{name} requires {wanted.name}{wanted.specifier}, the image has {found or 'none'}: take it out of "
                   "overrides.txt and lock again, or name it after --unmet when it does no harm")


def _requirement(text: str):  # Requirement, of whichever packaging there is
    try:
        from packaging.requirements import Requirement
    except ImportError:
        from pip._vendor.packaging.requirements import Requirement
    return Requirement(text)


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def cuda_major() -> tuple[int | None, list[str]]:
    """Major version of the CUDA that torch was built with, None for a CPU build; and what is wrong."""
    try:
        built = importlib.import_module("torch").version.cuda
    except Exception as error:
        return None, [f"torch does not load: {_one_line(error)}"]
    return (int(str(built).partition(".")[0]), []) if built else (None, [])


def preload_driver() -> None:
    """Load a libcuda where a build has no driver, so that only real faults are left. Not finding one is no fault by
    itself: what needs it then fails to load, and says so."""
    for path in ("libcuda.so.1", *(found for pattern in _LIBCUDA for found in sorted(glob.glob(pattern)))):
        try:
            ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
        except OSError:
            continue
        return


def imported(module: str) -> list[str]:
    """Why a module does not load; empty when it does."""
    try:
        importlib.import_module(module)
    except Exception as error:
        said = _one_line(error)
        if "undefined symbol" in said:
            return [f"{module} was built against another torch (ABI mismatch): {said}; take the connector's version "
                    "that was built for the image's torch, or compile it against that"]
        if re.search(r"lib(cuda|nvidia-ml)\.so", said):
            return [f"{module} cannot be judged without a driver library: {said}; none was found below "
                    "/usr/local/cuda (compat, stubs)"]
        return [f"{module} does not load: {type(error).__name__}: {said}"]
    return []


def kernels(packages: Iterable[str], major: int | None) -> list[str]:
    """Compiled files that need another major version of CUDA than torch has.

    Args:
        major: torch's; None for a CPU build, beside which CUDA kernels are dead weight and no fault.
    """
    faults = []
    for package in packages:
        found = importlib.util.find_spec(package)
        if found is None or not found.submodule_search_locations:
            faults.append(f"{package} is not an installed package, so its kernels cannot be checked")
            continue
        for path in sorted(p for place in found.submodule_search_locations for p in Path(place).rglob("*.so*")):
            wrong = sorted({int(m[1]) for name in needed(path) if (m := _CUDA_LIBRARY.fullmatch(name))} - {major})
            if wrong and major is not None:
                faults.append(f"{path} needs CUDA {wrong[0]}, torch was built with CUDA {major}: take the package's "
                              f"build for CUDA {major}")
    return faults


def needed(path: Path) -> list[str]:
    """Names of the shared libraries that a 64-bit ELF file needs; empty for any other file."""
    with path.open("rb") as file:
        if file.read(6) != b"\x7fELF\x02\x01":
            return []
        file.seek(0)
        header = struct.unpack_from("<16sHHIQQQIHHHHHH", file.read(64))
        start, size, count = header[5], header[9], header[10]
        file.seek(start)
        table = file.read(size * count)
        segments = [struct.unpack_from("<IIQQQQQQ", table, size * number) for number in range(count)]
        entries: list[tuple[int, int]] = []
        for kind, _, offset, _, _, length, _, _ in segments:
            if kind == _DYNAMIC:
                file.seek(offset)
                data = file.read(length)
                entries = [struct.unpack_from("<qQ", data, at) for at in range(0, len(data) - 15, 16)]
        address = next((value for tag, value in entries if tag == _STRING_TABLE), None)
        strings = next((offset + address - base for kind, _, offset, base, _, length, _, _ in segments
                        if kind == _LOADED and address is not None and base <= address < base + length), None)
        return [] if strings is None else [_string(file, strings + value) for tag, value in entries if tag == _NEEDED]


def _string(file, at: int) -> str:
    file.seek(at)
    return os.fsdecode(file.read(256).partition(b"\0")[0])


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


if __name__ == "__main__":
    sys.exit(main())
