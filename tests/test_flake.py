"""The flake, evaluated by a real Nix against a stand-in for nixpkgs: every attribute, and the pins in it.

nixpkgs itself is not reached: what only it knows, such as whether it has a package of some name, is not tested here.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvproof.image_lock import read_images
from kvproof.paths import IMAGES, PROJECT

pytestmark = pytest.mark.process
STUB = PROJECT / "tests" / "nix-stub"
NEEDED = ("flake.nix", "flake.lock", "nix", "images", "pyproject.toml", "tasks.py", "src", "recipes")
EMPTY = ("models", "evidence")
"""Only copied by the flake, and large."""
SYSTEM = "x86_64-linux"
ATTRIBUTES = {
    f"packages.{SYSTEM}.vllm-cpu": "vllm-cpu", f"packages.{SYSTEM}.harness": "harness",
    f"packages.{SYSTEM}.default": "harness", f"packages.{SYSTEM}.vllm-cpu-environment": "kvproof-vllm-cpu-{lock}",
    f"devShells.{SYSTEM}.default": "shell", f"checks.{SYSTEM}.pins": "kvproof-pins",
    f"checks.{SYSTEM}.recipes": "kvproof-recipes",
}
LOCK = hashlib.sha256((IMAGES / "vllm-cpu" / "requirements.lock").read_bytes()).hexdigest()
SETTINGS = """\
experimental-features = nix-command flakes
build-users-group =
substituters =
sandbox = false
flake-registry =
"""


class Nix:
    """Nix with a store of its own, over a copy of what the flake reads."""

    def __init__(self, program: str, folder: Path):
        self.program, self.project, self.stub = program, folder / "project", folder / "stub"
        for name in NEEDED:
            source, target = PROJECT / name, self.project / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, target)
        for name in EMPTY:
            assert (PROJECT / name).is_dir()
            (self.project / name).mkdir()
        shutil.copytree(STUB, self.stub)
        (folder / "conf").mkdir()
        (folder / "conf" / "nix.conf").write_text(SETTINGS)
        self.environment = {**os.environ, "NIX_CONF_DIR": str(folder / "conf"), "HOME": str(folder),
                            "NIX_STORE_DIR": str(folder / "store"), "NIX_STATE_DIR": str(folder / "var"),
                            "NIX_LOG_DIR": str(folder / "log"), "XDG_CACHE_HOME": str(folder / "cache")}

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        options = ("--override-input", "nixpkgs", f"path:{self.stub}", "--no-write-lock-file", "--quiet")
        return subprocess.run([self.program, *words, *options], env=self.environment, capture_output=True, text=True,
                              timeout=120, check=False)

    def value(self, attribute: str) -> Any:
        done = self.run("eval", "--json", f"path:{self.project}#{attribute}")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return {"folder": tmp_path_factory.mktemp("nix")}


@pytest.fixture
def nix(made: dict, require_tool: Callable[[str], str]) -> Nix:
    program = require_tool("nix")
    if "nix" not in made:
        made["nix"] = Nix(program, made["folder"])
    return made["nix"]


def test_every_attribute_evaluates(nix: Nix) -> None:
    shown = json.loads(nix.run("flake", "show", "--json", f"path:{nix.project}").stdout)
    found = {f"{kind}.{SYSTEM}.{name}" for kind, systems in shown.items() if kind not in ("lib", "apps")
             for name in systems[SYSTEM]}
    assert found == set(ATTRIBUTES)
    for attribute, name in ATTRIBUTES.items():
        assert nix.value(f"{attribute}.name") == name.format(lock=LOCK[:16])
        assert nix.value(f"{attribute}.drvPath").endswith(".drv")
    assert set(shown["apps"][SYSTEM]) == {"recipe", "default"}


def test_nix_flake_check_passes_and_finds_what_is_wrong(nix: Nix, tmp_path: Path) -> None:
    done = nix.run("flake", "check", f"path:{nix.project}")
    assert done.returncode == 0, done.stderr
    shutil.copytree(nix.project, tmp_path / "project")
    file = tmp_path / "project" / "images" / "vllm" / "Dockerfile"
    file.write_text(re.sub(r"sha256:[0-9a-f]{64}", "sha256:" + "0" * 64, file.read_text(), count=1))
    done = nix.run("flake", "check", f"path:{tmp_path / 'project'}")
    assert done.returncode == 1
    assert "images/lock.toml has another base than the Dockerfile of vllm" in done.stderr


def test_references_are_those_of_the_lock(nix: Nix) -> None:
    expected = {name: image.reference for name, image in read_images().items() if image.reference}
    assert nix.value("lib.references") == expected
    assert len(expected) > 15


def test_the_cpu_image_is_made_of_the_locked_environment(nix: Nix) -> None:
    image = f"packages.{SYSTEM}.vllm-cpu"
    assert nix.value(f"{image}.imageName") == "kvproof/vllm-cpu"
    assert nix.value(f"{image}.imageTag") == LOCK[:16]
    config = json.loads(nix.value(f"{image}.config"))
    assert config["Labels"]["kvproof.image.lock"] == f"sha256:{LOCK}"
    assert config["User"] == "10001:0"
    script = nix.value(f"packages.{SYSTEM}.vllm-cpu-environment.script")
    assert "--no-index --find-links" in script
    assert "--require-hashes" in script
    dockerfile = (IMAGES / "vllm-cpu" / "Dockerfile").read_text()
    for part in ("--unmet torchvision torchaudio torchcodec cupy-cuda13x cuda-python cufile-python",
                 "--import vllm vllm._C lmcache.lmcache_native lmcache.integration.vllm.lmcache_mp_connector"):
        assert part in script, "the check is not the Dockerfile's"
        assert part in dockerfile
    python = tomllib.loads((IMAGES / "vllm-cpu" / "environment.toml").read_text())["python"]
    assert any(f"python3-{python}" in path for path in nix.value(f"{image}.contents"))


def test_the_wheels_are_held_to_one_hash_for_one_lock(nix: Nix, tmp_path: Path) -> None:
    text = (PROJECT / "nix" / "wheels.nix").read_text()
    assert f'lock = "{LOCK}";' in text, "images/vllm-cpu/requirements.lock changed: nix/wheels.nix says what to do"
    assert re.search(r'wheels = "sha256-[A-Za-z0-9+/]{43}=";', text)
    shutil.copytree(nix.project, tmp_path / "project")
    with (tmp_path / "project" / "images" / "vllm-cpu" / "requirements.lock").open("a") as file:
        file.write("# changed\n")
    done = nix.run("eval", f"path:{tmp_path / 'project'}#packages.{SYSTEM}.vllm-cpu.drvPath")
    assert done.returncode == 1
    assert f"nix/wheels.nix is for the lock {LOCK}" in done.stderr


def test_the_harness_is_this_checkout(nix: Nix) -> None:
    config = json.loads(nix.value(f"packages.{SYSTEM}.harness.config"))
    assert config["Entrypoint"] == ["python3", "-m", "kvproof.cli"]
    version = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["version"]
    assert nix.value(f"packages.{SYSTEM}.harness.imageTag") == version
    program = nix.value(f"apps.{SYSTEM}.recipe.program")
    assert program.endswith("-kvproof-recipe")


def test_the_recipe_program_wants_a_checkout(nix: Nix, tmp_path: Path) -> None:
    derivation = nix.run("eval", "--raw", f"path:{nix.project}#apps.{SYSTEM}.recipe.program").stdout
    shown = nix.run("show-derivation", f"path:{nix.project}#checks.{SYSTEM}.recipes").stdout
    assert "python3-3.12-env" in shown
    text = (PROJECT / "nix" / "harness.nix").read_text()
    script = text[text.index("writeShellScript"):].split("''\n")[1].replace("''${", "${")
    (tmp_path / "run").write_text(script.replace("${python}/bin/python", "echo"))
    done = subprocess.run(["sh", str(tmp_path / "run"), "x"], cwd=tmp_path, capture_output=True, text=True, check=False,
                          env={"PATH": os.environ["PATH"]})
    assert (done.returncode, "is no checkout of kvproof" in done.stderr) == (2, True), derivation
    (tmp_path / "tasks.py").touch()
    done = subprocess.run(["sh", str(tmp_path / "run"), "x"], cwd=tmp_path, capture_output=True, text=True, check=True,
                          env={"PATH": os.environ["PATH"]})
    assert done.stdout == "-m kvproof.cli recipe x\n"


def test_nixpkgs_is_pinned_to_a_branch_and_a_revision() -> None:
    assert re.search(r'nixpkgs\.url = "github:NixOS/nixpkgs/nixos-\d\d\.\d\d";', (PROJECT / "flake.nix").read_text())
    lock = json.loads((PROJECT / "flake.lock").read_text())
    assert lock["nodes"]["root"]["inputs"] == {"nixpkgs": "nixpkgs"}
    pin = lock["nodes"]["nixpkgs"]
    assert re.fullmatch(r"[0-9a-f]{40}", pin["locked"]["rev"])
    assert re.fullmatch(r"sha256-[A-Za-z0-9+/]{43}=", pin["locked"]["narHash"])
    assert f'nixpkgs/{pin["original"]["ref"]}"' in (PROJECT / "flake.nix").read_text()


def test_the_flake_stays_small() -> None:
    assert len((PROJECT / "flake.nix").read_text().splitlines()) <= 60
    files = [PROJECT / "flake.nix", *(PROJECT / "nix").glob("*.nix"), STUB / "flake.nix"]
    assert not [f"{path.name}: {n}" for path in files for n, line in enumerate(path.read_text().splitlines(), 1)
                if len(line) > 120]
