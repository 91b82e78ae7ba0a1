"""The model that an engine loads: made here and cached, or named at the hub."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from .console import Console
from .errors import EnvironmentBuildError, RecipeError, nearest
from .evidence import ModelFacts
from .paths import PROJECT, cache_folder
from .process import RunStep, run_step, tail
from .recipe import Checkpoint

_BUILDERS = Path(__file__).parent / "builders"
_SUMS = "kvproof-sha256.json"


@dataclass(frozen=True)
class Weights:
    """Where the engine finds the model, and what it is."""

    location: str
    facts: ModelFacts


def builder_path(name: str) -> Path:
    """The file of a builder.

    Raises:
        RecipeError: there is none of that name.
    """
    known = {p.stem: p for p in _BUILDERS.glob("*.py") if p.stem != "__init__"}
    if name not in known:
        raise RecipeError(f"model.build.builder: no builder is called {name!r}; {nearest(name, known)}")
    return known[name]


def location(checkpoint: Checkpoint, lock_digest: str | None) -> str:
    """Path or repository that the engine will load, known before it is built."""
    if checkpoint.folder is not None:
        return str(PROJECT / checkpoint.folder)
    if checkpoint.build is None:
        return checkpoint.repository
    source = builder_path(checkpoint.build.builder).read_bytes()
    key = json.dumps([checkpoint.repository, checkpoint.revision, checkpoint.build.model_dump(mode="json"), lock_digest,
                      hashlib.sha256(source).hexdigest()], sort_keys=True)
    digest = hashlib.sha256(key.encode()).hexdigest()
    return str(cache_folder() / "models" / f"{checkpoint.repository.replace('/', '--')}-{digest[:16]}")


def ensure(checkpoint: Checkpoint, weights: str, lock_digest: str | None, python: str | Path, console: Console,
           run: RunStep | None = None) -> Weights:
    """Build the checkpoint when it is one of ours and the cache does not have it, and check its files.

    The cache key is everything that decides the weights: what the recipe says of it, the builder's code, the lock.

    Args:
        weights: kind of weights, for the record.
        python: interpreter that makes it, where `run` runs commands.

    Raises:
        EnvironmentBuildError: the builder failed, or a file is not what its checksum says.
    """
    where = location(checkpoint, lock_digest)
    if checkpoint.folder is not None:
        sums = _read_sums(Path(where))
        _verify(Path(where), sums, "restore it from version control")
    elif checkpoint.build is not None:
        if not (Path(where) / _SUMS).exists():
            _build(checkpoint, Path(where), python, console, run or run_step)
        sums = _built_sums(Path(where))
        _verify(Path(where), sums, f"remove {where}; the next run makes it again")
    else:
        sums = {}
    return Weights(where, _facts(checkpoint, weights, sums))


def _built_sums(folder: Path) -> dict[str, str]:
    """Checksums of a checkpoint that was made here, as they were when it was complete."""
    try:
        sums = json.loads((folder / _SUMS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        sums = None
    if not isinstance(sums, dict) or "config.json" not in sums:
        raise EnvironmentBuildError(f"checkpoint {folder}: {_SUMS} is damaged, so its files cannot be trusted",
                                    tip=f"remove {folder}; the next run makes it again")
    return sums


def _read_sums(folder: Path) -> dict[str, str]:
    """Checksums of a checkpoint kept here, from models/SHA256SUMS (as sha256sum writes it)."""
    file = PROJECT / "models" / "SHA256SUMS"
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
        recorded = {name: digest for digest, name in (line.split(maxsplit=1) for line in lines if line.strip())}
    except (OSError, ValueError) as error:
        raise EnvironmentBuildError(f"{file} cannot be read: {error}", tip="restore it from version control") from None
    inside = folder.relative_to(PROJECT / "models").as_posix() + "/"
    sums = {name.removeprefix(inside): digest for name, digest in recorded.items() if name.startswith(inside)}
    if not sums:
        raise EnvironmentBuildError(f"{file} has no entry for {folder.name}, so its files cannot be trusted",
                                    tip="python models/checksums.py --write, after a training run")
    return sums


def _verify(folder: Path, sums: dict[str, str], tip: str) -> None:
    for name, expected in sums.items():
        seen = _sha256(folder / name) if (folder / name).is_file() else "missing"
        if seen != expected:
            raise EnvironmentBuildError(f"checkpoint {folder}: {name}: sha256 is {seen}, expected {expected}", tip=tip)


def unknown(checkpoint: Checkpoint, weights: str) -> ModelFacts:
    """Facts of a checkpoint that was not looked at yet."""
    return _facts(checkpoint, weights, {})


def _facts(checkpoint: Checkpoint, weights: str, sums: dict[str, str]) -> ModelFacts:
    return ModelFacts(repository=checkpoint.repository, revision=checkpoint.revision, weights=weights,
                      files_sha256=sums)


def _build(model: Checkpoint, folder: Path, python: str | Path, console: Console, run: RunStep) -> None:
    assert model.build is not None
    folder.parent.mkdir(parents=True, exist_ok=True)
    part = folder.with_name(f".{folder.name}.{os.getpid()}.building")
    log = folder.with_name(f"{folder.name}.build.log")
    spec = json.dumps({"seed": model.build.seed, "config": model.build.config})
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        with console.step(f"building model {model.repository}"):
            argv = [str(python), str(builder_path(model.build.builder)), str(part), spec]
            if run(argv, environment, log, lambda _: None):
                raise EnvironmentBuildError(f"builder {model.build.builder} failed", log_tail=tail(log),
                                            tip=f"the whole output is in {log}")
        sums = {p.name: _sha256(p) for p in sorted(part.iterdir())}
        (part / _SUMS).write_text(json.dumps(sums, indent=1))
        try:
            part.rename(folder)
        except OSError:
            if (folder / _SUMS).exists():
                return  # another run was faster, and may already be loading it
            shutil.rmtree(folder, ignore_errors=True)
            part.rename(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
