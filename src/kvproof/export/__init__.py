"""A recipe's plan as texts to run elsewhere: shell, docker, compose, k8s, slurm.

Every form is made from the plan that a run starts, and has the same bytes each time: nothing is looked up on this
host, no port is reserved, and secrets are named, never read.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import jinja2

from .. import files
from ..engines import engine
from ..errors import UsageError, nearest
from ..paths import IMAGES
from ..recipe import Recipe
from . import quoting
from .deployment import Deployment, lay_out

_TEMPLATES = {"shell": "shell.sh.j2", "docker": "docker.sh.j2", "compose": "compose.yaml.j2", "k8s": "k8s.yaml.j2",
              "slurm": "slurm.sh.j2"}
FORMS: tuple[str, ...] = tuple(_TEMPLATES)
MAX_GPUS = 1024


def export(recipe: Recipe, form: str, *, gpus: int | None = None, images: Path = IMAGES) -> str:
    """The recipe as a text of one form.

    Args:
        form: one of FORMS.
        gpus: number of GPUs that every layer is split over; None keeps the recipe's.
        images: folder of the image lock and the locked environments.

    Raises:
        UsageError: there is no such form, or the recipe does not run on so many GPUs.
        RecipeError: the recipe names something that is not there, or an image without a digest.
    """
    return render(prepare(recipe, form, gpus=gpus, images=images))


def prepare(recipe: Recipe, form: str, *, gpus: int | None = None, images: Path = IMAGES) -> Deployment:
    """What `export` writes, as data; arguments and errors are the same."""
    if form not in FORMS:
        raise UsageError(f"no form is called {form!r}; {nearest(form, FORMS)}",
                         tip=f"./inv export {recipe.name} --to docker")
    return lay_out(recipe if gpus is None else _spread(recipe, gpus), form, asked=recipe, images=images)


def render(deployment: Deployment) -> str:
    """Its text, which ends with a newline."""
    return _environment().get_template(_TEMPLATES[deployment.form]).render(d=deployment)


def write(deployment: Deployment, file: Path) -> Path:
    """Write its text whole or not at all; scripts can be executed.

    Returns:
        The file, behind any symbolic link.

    Raises:
        UsageError: the name is that of something else than a file.
        KvproofError: it cannot be written.
    """
    target = file.resolve()
    if target.is_dir():
        raise UsageError(f"--out: {file} is a folder, expected the name of a file",
                         tip=f"--out {file / deployment.recipe.name}.{_TEMPLATES[deployment.form].split('.')[1]}")
    if target.exists() and not target.is_file():
        raise UsageError(f"--out: {file} is neither a file nor a new name", tip="leave --out out to print the text")
    executable = ".sh." in _TEMPLATES[deployment.form]
    if not files.replace(target, render(deployment), executable=executable) and executable:
        target.chmod(0o755)
    return target


def _spread(recipe: Recipe, gpus: int) -> Recipe:
    """The recipe with every layer split over so many GPUs."""
    least = recipe.hardware.gpus
    if least == 0:
        raise UsageError(f"--gpus is {gpus}, but {recipe.name} runs on a CPU and takes none", tip="leave --gpus out")
    if not least <= gpus <= MAX_GPUS:
        raise UsageError(f"--gpus is {gpus}, but {recipe.name} takes {least} to {MAX_GPUS}",
                         tip="./inv recipes lists those for fewer GPUs" if gpus < least else None)
    if gpus == least:
        return recipe
    if gpus % least or (gpus // least).bit_count() != 1:
        raise UsageError(f"--gpus is {gpus}, but {recipe.name} takes {least}, {2 * least}, {4 * least} and so on",
                         tip="attention heads must divide evenly over the GPUs")
    flag = engine(recipe.engine.name).PARALLEL_FLAG
    return recipe.model_copy(update={
        "engine": recipe.engine.model_copy(update={"arguments": {**recipe.engine.arguments, flag: gpus}}),
        "hardware": recipe.hardware.model_copy(update={"gpus": gpus}),
    })


@cache
def _environment() -> jinja2.Environment:
    # Delimiters of its own: ${#x}, {{.State}} and [[ ]] mean something to shells and to docker.
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("kvproof", "templates/export"), undefined=jinja2.StrictUndefined,
        block_start_string="<%", block_end_string="%>", variable_start_string="<{", variable_end_string="}>",
        comment_start_string="<%#", comment_end_string="#%>", trim_blocks=True, lstrip_blocks=True,
        keep_trailing_newline=True, autoescape=False,
    )
    environment.filters |= {name: getattr(quoting, name)
                            for name in ("bash", "lines", "heredoc", "compose", "k8s", "yaml", "plain", "comment")}
    return environment
