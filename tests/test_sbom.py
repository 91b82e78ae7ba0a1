"""SBOM and provenance: the same bytes for the same inputs, other bytes for others, and valid by CycloneDX's schema."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from kvproof import sbom
from kvproof.errors import CannotRunError, UsageError
from kvproof.image_lock import read_image
from kvproof.paths import IMAGES
from kvproof.sbom import Package

HASH = "a" * 64
LOCK = f"""\
# a comment
Some_Package==1.0+cpu \\
    --hash=sha256:{'b' * 64} \\
    --hash=sha256:{HASH}
other==2.0rc1 ; sys_platform == 'linux' \\
    --hash=sha256:{HASH}
third==3
"""
BASE = "python:3.11@sha256:" + "c" * 64
LOCKS = sorted(path.parent.name for path in IMAGES.glob("*/requirements.lock"))
BUILT = sorted(path.parent.name for path in IMAGES.glob("*/Dockerfile"))


def faults(text: str) -> object:
    return JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)


def test_a_lock_is_read() -> None:
    assert sbom.of_lock(LOCK) == [Package("other", "2.0rc1", (HASH,)),
                                  Package("some-package", "1.0+cpu", (HASH, "b" * 64)), Package("third", "3")]


@pytest.mark.parametrize("text", ["", "# nothing\n", "name>=1\n", "--index-url https://x\n", "a==1 --hash=md5:1\n",
                                  "-e .\n", "a==1\nb @ https://x/y.whl\n"])
def test_what_is_no_lock(text: str) -> None:
    with pytest.raises(UsageError, match="a lock has"):
        sbom.of_lock(text)


@pytest.mark.parametrize("name", LOCKS)
def test_every_lock_here_gives_a_valid_sbom_and_the_same_again(name: str) -> None:
    text = (IMAGES / name / "requirements.lock").read_text()
    made = sbom.cyclonedx(sbom.of_lock(text), name, "1")
    assert faults(made) is None
    assert sbom.cyclonedx(sbom.of_lock(text), name, "1") == made
    assert len(json.loads(made)["components"]) == text.count("==") - text.count("== '")
    assert "timestamp" not in made


def test_the_order_of_packages_does_not_count() -> None:
    packages = sbom.of_lock(LOCK)
    assert sbom.cyclonedx(reversed(packages), "x", "1") == sbom.cyclonedx(packages, "x", "1")
    assert sbom.cyclonedx([*packages, packages[0]], "x", "1") == sbom.cyclonedx(packages, "x", "1")


@pytest.mark.parametrize(("old", "new"), [("third==3", "third==4"), (f"{HASH}\nother", f"{'d' * 64}\nother"),
                                          ("third==3\n", "")])
def test_another_lock_gives_another_sbom(old: str, new: str) -> None:
    assert old in LOCK
    before, after = (sbom.cyclonedx(sbom.of_lock(text), "x", "1") for text in (LOCK, LOCK.replace(old, new)))
    assert before != after
    assert json.loads(before)["serialNumber"] != json.loads(after)["serialNumber"]


def test_a_component_says_where_it_comes_from() -> None:
    component = json.loads(sbom.cyclonedx(sbom.of_lock(LOCK), "x", "1"))["components"][1]
    assert component["purl"] == "pkg:pypi/some-package@1.0%2Bcpu"
    assert component["externalReferences"] == [{
        "type": "distribution", "url": "https://pypi.org/simple/some-package/",
        "hashes": [{"alg": "SHA-256", "content": HASH}, {"alg": "SHA-256", "content": "b" * 64}]}]


def test_the_schema_refuses_what_is_wrong() -> None:
    made = json.loads(sbom.cyclonedx(sbom.of_lock(LOCK), "x", "1"))
    made["components"][0]["type"] = "snake"
    assert faults(json.dumps(made)) is not None


REPORT = {"version": "1", "pip_version": "23.2", "installed": [
    {"metadata": {"name": "Some_Package", "version": "1.0.0+cpu", "license_expression": "MIT OR Apache-2.0"}},
    {"metadata": {"name": "other", "version": "2.0"}},
    {"metadata": {"name": "other", "version": "2.0"}}]}


def test_what_is_installed_is_read() -> None:
    found = sbom.of_inspection(REPORT)
    assert found == [Package("other", "2.0"), Package("some-package", "1.0.0+cpu", license="MIT OR Apache-2.0")]
    made = sbom.cyclonedx(found, "kvproof/x", "sha256:1")
    assert faults(made) is None
    assert json.loads(made)["components"][1]["licenses"] == [{"expression": "MIT OR Apache-2.0"}]


@pytest.mark.parametrize("report", [{}, [], {"installed": [{}]}, {"installed": [{"metadata": {"name": "a"}}]},
                                    {"installed": None}, {"installed": [1]}])
def test_what_is_no_report(report: object) -> None:
    with pytest.raises(UsageError, match="pip inspect"):
        sbom.of_inspection(report)


@pytest.mark.process
def test_this_interpreter_gives_the_same_twice() -> None:
    found = sbom.of_interpreter(Path(sys.executable))
    assert {"kvproof", "pytest", "httpx"} <= {package.name for package in found}
    made = sbom.cyclonedx(found, "harness", "1")
    assert faults(made) is None
    assert sbom.cyclonedx(sbom.of_interpreter(Path(sys.executable)), "harness", "1") == made


@pytest.mark.process
@pytest.mark.parametrize("text", ["#!/bin/sh\necho broken >&2; exit 3\n", "#!/bin/sh\necho '{'\n"])
def test_an_interpreter_that_cannot_be_asked(text: str, tmp_path: Path) -> None:
    program = tmp_path / "python"
    program.write_text(text)
    program.chmod(0o755)
    for path in (program, tmp_path / "none"):
        with pytest.raises(CannotRunError, match="does not say what is installed"):
            sbom.of_interpreter(path)


def test_two_environments_are_compared_by_package() -> None:
    old, new = [Package("a", "1"), Package("b", "1"), Package("c", "1", (HASH,))], [
        Package("a", "2"), Package("c", "1"), Package("d", "1")]
    assert sbom.differences(old, old) == []
    assert sbom.differences(old, new) == ["a: 1 → 2", "b: 1 → absent", "d: absent → 1"]


# --- provenance ----------------------------------------------------------------------------------


@pytest.fixture
def images(tmp_path: Path) -> Path:
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "Dockerfile").write_text("FROM y\nCOPY --chmod=755 x/requirements.lock \\\n  a.py /opt/\n")
    (tmp_path / "x" / "requirements.lock").write_text(LOCK)
    (tmp_path / "a.py").write_text("pass\n")
    return tmp_path


def statement(images: Path, **more: object) -> dict:
    return json.loads(sbom.provenance(sbom.read_inputs("x", BASE, images, **more)))


def test_a_statement_names_every_input(images: Path) -> None:
    made = statement(images, commit="1" * 40, arguments={"RECIPE": "r"})
    definition = made["predicate"]["buildDefinition"]
    assert [entry["name"] for entry in definition["resolvedDependencies"]] == [
        "base", "a.py", "x/Dockerfile", "x/requirements.lock", "kvproof"]
    assert definition["resolvedDependencies"][0]["digest"] == {"sha256": "c" * 64}
    assert definition["resolvedDependencies"][-1]["digest"] == {"gitCommit": "1" * 40}
    assert definition["externalParameters"] == {"image": "x", "arguments": {"RECIPE": "r"}}
    assert made["predicateType"] == "https://slsa.dev/provenance/v1"


def test_the_same_inputs_give_the_same_statement(images: Path) -> None:
    first = sbom.provenance(sbom.read_inputs("x", BASE, images, commit="1" * 40), "sha256:" + "e" * 64)
    assert sbom.provenance(sbom.read_inputs("x", BASE, images, commit="1" * 40), "sha256:" + "e" * 64) == first
    assert json.loads(first)["subject"] == [{"name": "kvproof/x", "digest": {"sha256": "e" * 64}}]


@pytest.mark.parametrize("name", ["x/Dockerfile", "x/requirements.lock", "a.py"])
def test_a_changed_file_changes_the_statement(name: str, images: Path) -> None:
    before = statement(images)
    with (images / name).open("a") as file:
        file.write("# changed\n")
    after = statement(images)
    assert before["subject"] != after["subject"]
    changed = [new["name"] for old, new in zip(*(s["predicate"]["buildDefinition"]["resolvedDependencies"]
                                                 for s in (before, after)), strict=True) if old != new]
    assert changed == [name]


def test_another_base_changes_the_statement(images: Path) -> None:
    other = sbom.provenance(sbom.read_inputs("x", BASE.replace("c" * 64, "d" * 64), images))
    assert json.loads(other)["subject"] != statement(images)["subject"]


def test_without_a_digest_or_a_file_there_is_no_statement(images: Path) -> None:
    with pytest.raises(UsageError, match=r"base 'python:3\.11' has no digest"):
        sbom.read_inputs("x", "python:3.11", images)
    (images / "a.py").unlink()
    with pytest.raises(UsageError, match=r"a\.py: No such file"):
        sbom.read_inputs("x", BASE, images)


@pytest.mark.parametrize("name", BUILT)
def test_every_image_here_has_a_statement(name: str) -> None:
    base = read_image(tomllib.loads((IMAGES / name / "environment.toml").read_text())["image"]).reference
    inputs = sbom.read_inputs(name, base, IMAGES)
    assert sorted(inputs.files) == sorted([f"{name}/Dockerfile", f"{name}/requirements.lock", "health.py",
                                           "selfcheck.py"])
    assert base.partition("@sha256:")[2] in sbom.provenance(inputs)


@pytest.mark.process
def test_importing_it_is_quick() -> None:
    done = subprocess.run([sys.executable, "-c", "import kvproof.sbom, sys; print('cyclonedx' in sys.modules)"],
                          capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout == "False\n"
