"""From a recipe's name to servers that run: what proving and serving have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from . import launching, loading, planning, weights
from .errors import CannotRunError, RecipeError, UsageError, nearest
from .paths import cache_folder, runs_folder
from .plan import Layout, Plan
from .recipe import Recipe
from .runnable import require_known
from .runstate import Options, RunState
from .runtimes import RUNTIMES, Runtime

PORTS = ("engine", "baseline", "cache", "cache_http")


def load(name: str, options: Options) -> tuple[Recipe, Path]:
    """A recipe and its file, once the options and all that it names are known to be right.

    Raises:
        UsageError: a name or option is wrong.
    """
    if options.runtime not in RUNTIMES:
        raise UsageError(f"no runtime is called {options.runtime!r}; {nearest(options.runtime, RUNTIMES)}")
    if options.samples is not None and options.samples < 1:
        raise UsageError(f"--samples is {options.samples}, expected 1 or more")
    path = loading.find_recipe(name)
    recipe = loading.load_recipe(path)
    require_known(recipe, path)
    return recipe, path


def elsewhere(recipe: Recipe) -> str:
    """Where to turn with a recipe that this host does not fit: what proves its path here, and how to take it away."""
    others = []
    for path in loading.recipe_paths().values():
        with suppress(RecipeError):  # one that cannot be read stands for nothing
            others.append(loading.load_recipe(path))
    exact = [other.name for other in others if other.stands_for == recipe.name]
    like = sorted((not recipe.name.startswith(other.stands_for), other.name) for other in others
                  if other.stands_for is not None and other.feature == recipe.feature)
    nearest_name = like[0][1] if like else "gemma4-nano"
    here = f"./inv recipe {exact[0]} proves the same path on this host" if exact else \
        f"no recipe proves this path without its hardware; the nearest is ./inv recipe {nearest_name}"
    return "" if not recipe.hardware.gpus else \
        f"{here}; for a host that fits: ./inv export {recipe.name} --to docker (or shell, compose, k8s, slurm)"


def make_folder(folder: Path) -> None:
    """The run folder.

    Raises:
        CannotRunError: it cannot be made.
    """
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise CannotRunError(f"the run folder {folder} cannot be made: {error.strerror}",
                             tip="free space, or set KVPROOF_CACHE to a folder you may write to") from None


def sweep(run: RunState) -> None:
    """Remove what runs that were killed have left: as processes, and in the runtime that this run uses."""
    for name in dict.fromkeys(("venv", run.options.runtime)):
        RUNTIMES[name].sweep(runs_folder(), run.console.say)


def start(run: RunState, recipe: Recipe, runtime: Runtime, port: Callable[[str], int], *,
          proving: bool = True) -> tuple[Plan, Layout]:
    """Prepare environment or image, and model; start the servers and wait until they are ready.

    Args:
        port: TCP port for each name in PORTS.
        proving: as in `planning.compose`.

    Raises:
        CannotRunError: something cannot be had here, or a server never became ready.
    """
    place = runtime.place
    with run.step("environment" if place.image is None else "image"), run.stopwatch.waiting(), _disk_problems():
        prepared = runtime.prepare(run.console)
        run.versions, run.container = prepared.versions, prepared.container
    with run.step("model"), run.stopwatch.waiting(), _disk_problems():
        made, drafting = (
            weights.ensure(c, recipe.model.weights, place.digest, place.python, run.console, prepared.run_step)
            if c is not None else None for c in (recipe.model, recipe.speculative and recipe.speculative.assistant))
        assert made is not None
        run.model, run.assistant = made.facts, drafting.facts if drafting else None
    with _disk_problems():
        numbers = {name: port(name) for name in PORTS}
        (run.folder / "second-tier").mkdir()
    layout = Layout(python=place.python, model=made.location, folder=run.folder, host="127.0.0.1", ports=numbers,
                    assistant=drafting.location if drafting else None)
    run.plan = plan = planning.compose(recipe, layout, runtime=run.options.runtime, environment_name=place.environment,
                                       lock_digest=place.lock_digest, image=place.image, proving=proving)
    for group in launching.start_groups(plan):
        with run.step("start " + " and ".join(s.role.replace("_", " ") for s in group)), run.stopwatch.waiting():
            for server in group:
                launching.start(run, runtime, server)
            for server in group:
                launching.wait_ready(run, runtime, server)
    return plan, layout


@contextmanager
def _disk_problems() -> Iterator[None]:
    """A file that cannot be made or read while a run is prepared means that it cannot run here."""
    try:
        yield
    except OSError as error:
        where = error.filename or cache_folder()
        raise CannotRunError(f"{where}: {error.strerror or error}",
                             tip="free space there or mend it; KVPROOF_CACHE moves the cache folder") from None
