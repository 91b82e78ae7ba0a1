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
from .paths import cache_folder
from .process import run_step, tail
from .recipe import Model

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


def location(model: Model, lock_digest: str | None) -> str:
    """Path or repository that the engine will load, known before it is built."""
    if model.build is None:
        return model.repository
    key = json.dumps([model.model_dump(mode="json"), lock_digest,
                      hashlib.sha256(builder_path(model.build.builder).read_bytes()).hexdigest()], sort_keys=True)
    digest = hashlib.sha256(key.encode()).hexdigest()
    return str(cache_folder() / "models" / f"{model.repository.replace('/', '--')}-{digest[:16]}")


def ensure(model: Model, lock_digest: str | None, python: Path, console: Console) -> Weights:
    """Build the model when the cache does not have it, and check it when it does.

    The cache key is everything that decides the weights: the recipe's model, the builder's code and the lock.

    Raises:
        EnvironmentBuildError: the builder failed, or a cached file was changed since it was made.
    """
    where = location(model, lock_digest)
    if model.build is None:
        return Weights(where, _facts(model, {}))
    folder = Path(where)
    if not (folder / _SUMS).exists():
        _build(model, folder, python, console)
    sums = json.loads((folder / _SUMS).read_text())
    seen = {name: _sha256(folder / name) for name in sums if (folder / name).exists()}
    if seen != sums:
        wrong = sorted(n for n in sums if seen.get(n) != sums[n])
        raise EnvironmentBuildError(
            f"model {folder}: {wrong[0]} has sha256 {seen.get(wrong[0], '(missing)')}, expected {sums[wrong[0]]}",
            tip=f"remove {folder}; the next run makes it again",
        )
    return Weights(where, _facts(model, sums))


def unknown(model: Model) -> ModelFacts:
    """Facts of a model that was not looked at yet."""
    return _facts(model, {})


def _facts(model: Model, sums: dict[str, str]) -> ModelFacts:
    return ModelFacts(repository=model.repository, revision=model.revision, weights=model.weights, files_sha256=sums)


def _build(model: Model, folder: Path, python: Path, console: Console) -> None:
    assert model.build is not None
    folder.parent.mkdir(parents=True, exist_ok=True)
    part = folder.with_name(f".{folder.name}.{os.getpid()}.building")
    log = folder.with_name(f"{folder.name}.build.log")
    spec = json.dumps({"seed": model.build.seed, "config": model.build.config})
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        with console.step(f"building model {model.repository}"):
            argv = [str(python), str(builder_path(model.build.builder)), str(part), spec]
            if run_step(argv, environment, log, lambda _: None):
                raise EnvironmentBuildError(f"builder {model.build.builder} failed", log_tail=tail(log),
                                            tip=f"the whole output is in {log}")
        sums = {p.name: _sha256(p) for p in sorted(part.iterdir())}
        (part / _SUMS).write_text(json.dumps(sums, indent=1))
        if (folder / _SUMS).exists():
            return  # another run was faster, and may already be loading it
        shutil.rmtree(folder, ignore_errors=True)
        part.rename(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
