"""Exports before the tools that will read them: each takes every text, and refuses a broken one."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

import slurm
from kvproof.export import FORMS, export
from kvproof.loading import load_recipe, recipe_paths

pytestmark = pytest.mark.process
RECIPES = {name: load_recipe(path) for name, path in recipe_paths().items()}
KUBERNETES = ("1.29", kubernetes_validate.latest_version())
"""The oldest that a manifest says it needs, and the newest that is known."""
PLUGIN = "/usr/libexec/docker/cli-plugins/docker-compose"
"""Where Debian's package has it; it runs without the docker command too."""


def texts(form: str) -> Iterator[tuple[str, str]]:
    """Every recipe in one form, and on twice its GPUs."""
    for name, recipe in RECIPES.items():
        yield name, export(recipe, form)
        if recipe.hardware.gpus:
            yield f"{name}-wide", export(recipe, form, gpus=recipe.hardware.gpus * 2)


def written(folder: Path, form: str, suffix: str) -> list[str]:
    paths = []
    for name, text in texts(form):
        path = folder / f"{name}-{form}{suffix}"
        path.write_text(text)
        paths.append(str(path))
    assert len(paths) >= len(RECIPES) > 7
    return paths


def run(words: list[str], environment: dict[str, str] | None = None) -> tuple[int, str]:
    done = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=300, check=False)
    return done.returncode, done.stdout + done.stderr


# --- shell ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["shell", "docker", "slurm"])
def test_shellcheck_has_nothing_to_say(form: str, tmp_path: Path, require_tool: Callable[[str], str]) -> None:
    tool = require_tool("shellcheck")
    paths = written(tmp_path, form, ".sh")
    assert not [path for path in paths if "shellcheck disable" in Path(path).read_text()]
    assert run([tool, *paths]) == (0, "")


@pytest.mark.parametrize("change", [("}\n\nanswers() {", "\n\nanswers() {"), ('"$PORT"', "$PORT"),
                                    ("done\n", "\n")])
def test_shellcheck_refuses_a_broken_script(change: tuple[str, str], tmp_path: Path,
                                            require_tool: Callable[[str], str]) -> None:
    text = export(RECIPES["gemma4-nano-31b"], "shell")
    assert change[0] in text
    (tmp_path / "broken.sh").write_text(text.replace(*change))
    assert run([require_tool("shellcheck"), str(tmp_path / "broken.sh")])[0] == 1


# --- compose -------------------------------------------------------------------------------------


@pytest.fixture
def compose(require_tool: Callable[[str], str]) -> list[str]:
    plugin = PLUGIN if os.access(PLUGIN, os.X_OK) else require_tool("docker-compose")
    code, said = run([plugin, "version", "--short"])
    if code or said.startswith("1."):
        pytest.fail(f"{plugin} is not Compose 2: {said}")
    return [plugin]


def test_compose_takes_every_file(tmp_path: Path, compose: list[str]) -> None:
    clean = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME")}
    for path in written(tmp_path, "compose", ".yaml"):
        assert run([*compose, "-f", path, "config", "--quiet"], clean) == (0, ""), path
        assert nothing_is_null({**yaml.safe_load(Path(path).read_text()), "volumes": {}}), path


def test_compose_sees_the_variables(tmp_path: Path, compose: list[str]) -> None:
    recipe = next(r for r in RECIPES.values() if r.hardware.gpus and r.connector.second_tier)
    (tmp_path / "a.yaml").write_text(export(recipe, "compose"))
    chosen = {"PORT": "8111", "HOST": "0.0.0.0", "HF_TOKEN": "hf_fixture", "HF_HOME": "/fixture", "HOME": "/home/x"}
    code, text = run([*compose, "-f", str(tmp_path / "a.yaml"), "config"], chosen)
    assert code == 0, text
    services = yaml.safe_load(text)["services"]
    engine = services["engine"]
    assert "8111" in engine["command"]
    assert "0.0.0.0" in engine["command"]
    assert "0.0.0.0" not in services["cache-server"]["command"]
    assert "8111" in engine["healthcheck"]["test"]
    assert engine["environment"]["HF_TOKEN"] == "hf_fixture"
    assert engine["depends_on"]["cache-server"]["condition"] == "service_healthy"
    assert engine["volumes"][0]["source"] == "/fixture"
    assert [s["deploy"]["resources"]["reservations"]["devices"][0]["count"] for s in services.values()] == [
        -1, recipe.hardware.gpus]


@pytest.mark.parametrize("change", [("services:", "service:"), ("service_healthy", "service_happy"),
                                    ("    command:", "   command:"), ("shm_size:", "shm_sise:"),
                                    ("${PORT:-8000}", "${PORT:-8000")])
def test_compose_refuses_a_broken_file(change: tuple[str, str], tmp_path: Path, compose: list[str]) -> None:
    text = export(RECIPES["gemma4-nano-31b"], "compose")
    assert change[0] in text
    (tmp_path / "broken.yaml").write_text(text.replace(*change))
    assert run([*compose, "-f", str(tmp_path / "broken.yaml"), "config", "--quiet"])[0] != 0


# --- k8s -----------------------------------------------------------------------------------------


def validate(documents: list[dict], version: str) -> None:
    for document in documents:
        kubernetes_validate.validate(document, version, strict=True)


def nothing_is_null(value: object) -> bool:
    """A key whose lines a template left out would be null, which the validator takes."""
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return value is not None and all(map(nothing_is_null, inside))


@pytest.mark.parametrize("version", KUBERNETES)
def test_kubernetes_takes_every_manifest(version: str) -> None:
    for name, text in texts("k8s"):
        documents = list(yaml.safe_load_all(text))
        assert [d["kind"] for d in documents][-2:] == ["Deployment", "Service"], name
        validate(documents, version)
        assert nothing_is_null(documents), name
        pod = documents[-2]["spec"]["template"]["spec"]
        volumes = {volume["name"] for volume in pod["volumes"]}
        for container in [*pod.get("initContainers", []), *pod["containers"]]:
            assert {mount["name"] for mount in container.get("volumeMounts", [])} <= volumes, name


@pytest.mark.parametrize("change", [("replicas: 1", "replicas: one"), ("containerPort: 8000", "containerPort: null"),
                                    ("startupProbe:", "startUpProbe:"), ("      containers:", "      container:"),
                                    ("type: Directory}", "kind: Directory}")])
def test_kubernetes_refuses_a_broken_manifest(change: tuple[str, str]) -> None:
    text = export(RECIPES["gemma4-nano-31b"], "k8s")
    assert change[0] in text
    documents = list(yaml.safe_load_all(text.replace(*change)))
    with pytest.raises(kubernetes_validate.ValidationError):
        validate(documents, KUBERNETES[0])


# --- slurm ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def start_slurm() -> Iterator[Callable[[], dict[str, str]]]:
    """Starts it when it is first asked for, by a test that has made sure of its programs."""
    with ExitStack() as stack:
        started: list[dict[str, str]] = []

        def start() -> dict[str, str]:
            if not started:
                started.append(stack.enter_context(slurm.running()))
            return started[0]

        yield start


@pytest.fixture
def sbatch(start_slurm: Callable[[], dict[str, str]],
           require_tool: Callable[[str], str]) -> Callable[..., tuple[int, str]]:
    for program in slurm.PROGRAMS:
        require_tool(program)
    environment = start_slurm()
    return lambda *words: run(["sbatch", "--test-only", *words], environment)


def test_slurm_would_start_every_script(tmp_path: Path, sbatch: Callable[..., tuple[int, str]]) -> None:
    for path in written(tmp_path, "slurm", ".sh"):
        code, said = sbatch(path)
        assert code == 0, (path, said)
        assert f"on nodes {slurm.NODE} in partition main" in said


@pytest.mark.parametrize("change", [("--gres=gpu:2", "--gres=gpu:9"), ("--gres=gpu:2", "--gres=fpga:2"),
                                    ("--mem=", "--memory="), ("--time=08:00:00", "--time=soon"),
                                    ("--signal=B:TERM@60", "--signal=B:NONE@60")])
def test_slurm_refuses_a_broken_script(change: tuple[str, str], tmp_path: Path,
                                       sbatch: Callable[..., tuple[int, str]]) -> None:
    recipe = next(r for r in RECIPES.values() if r.hardware.gpus == 2)
    text = export(recipe, "slurm")
    assert change[0] in text
    (tmp_path / "broken.sh").write_text(text.replace(*change))
    assert sbatch(str(tmp_path / "broken.sh"))[0] != 0


def test_slurm_asks_for_what_the_recipe_needs(tmp_path: Path) -> None:
    recipe = next(r for r in RECIPES.values() if r.hardware.gpus == 2)
    asked = [line.removeprefix("#SBATCH --") for line in export(recipe, "slurm").splitlines() if "#SBATCH" in line]
    assert "gres=gpu:2" in asked
    assert f"mem={recipe.hardware.memory_gib:g}G" in asked
    cpu = export(RECIPES["gemma4-nano-31b"], "slurm")
    assert "--gres" not in cpu
    first_command = next(n for n, line in enumerate(cpu.splitlines()) if line and not line.startswith("#"))
    assert all(n < first_command for n, line in enumerate(cpu.splitlines()) if line.startswith("#SBATCH"))


def test_every_form_has_its_validator() -> None:
    assert set(FORMS) == {"shell", "docker", "compose", "k8s", "slurm"}
