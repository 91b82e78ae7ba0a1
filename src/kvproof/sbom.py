"""What is in a Python environment (CycloneDX 1.6), and what an image was built from (in-toto, SLSA provenance).

The same input gives the same bytes: no time, no random number, everything sorted. The few fields are written by hand;
the library for them would bring six packages along, and is used where it is of use, in the tests, to check them against
CycloneDX's schema.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from .errors import CannotRunError, UsageError

_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "https://kvproof.invalid/sbom")
BUILD_TYPE = "https://kvproof.invalid/build/dockerfile/v1"
_INSPECT_LIMIT_S = 120


@dataclass(frozen=True)
class Package:
    """One distribution.

    Attributes:
        name: normalized, as package indexes write it.
        hashes: sha256 of the files that may be installed for it, sorted; empty when that is not known.
        license: SPDX expression; None when its metadata has none.
    """

    name: str
    version: str
    hashes: tuple[str, ...] = ()
    license: str | None = None

    @property
    def purl(self) -> str:
        """Name in all tools that compare SBOMs."""
        return f"pkg:pypi/{self.name}@{self.version.replace('+', '%2B')}"


def of_lock(text: str) -> list[Package]:
    """Packages of a requirements.lock.

    Raises:
        UsageError: a line is neither a pin nor a hash, or there is no pin at all.
    """
    found: list[Package] = []
    for line in re.sub(r"\\\n", " ", text).splitlines():
        line = re.sub(r"(^|\s)#.*", "", line).strip()
        if not line:
            continue
        pin = re.fullmatch(r"([A-Za-z0-9][\w.-]*)==(\S+?)(?:\s*;[^-]*?)?((?:\s+--hash=sha256:[0-9a-f]{64})*)", line)
        if pin is None:
            raise UsageError(f"a lock has {line[:80]!r}, expected NAME==VERSION and --hash=sha256:…",
                             tip="./inv lock NAME writes one")
        hashes = tuple(sorted(re.findall(r"sha256:([0-9a-f]{64})", pin[3])))
        found.append(Package(canonicalize_name(pin[1]), _version(pin[2]), hashes))
    if not found:
        raise UsageError("a lock has no package in it, expected NAME==VERSION", tip="./inv lock NAME writes one")
    return _sorted(found)


def of_inspection(report: Mapping[str, Any]) -> list[Package]:
    """Packages that `pip inspect` reports, from wherever it was run, such as in a container.

    Raises:
        UsageError: it is no such report.
    """
    try:
        found = []
        for entry in report["installed"]:
            about = entry["metadata"]
            expression = about.get("license_expression")
            found.append(Package(canonicalize_name(about["name"]), _version(about["version"]),
                                 license=str(expression) if expression else None))
    except (KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"what pip inspect reports has no {error}, expected installed packages with metadata",
                         tip="pip 23.1 or later writes it") from None
    return _sorted(found)


def of_interpreter(python: Path) -> list[Package]:
    """Packages that an interpreter sees, as its own pip reports them.

    Raises:
        CannotRunError: it cannot be asked.
    """
    words = [str(python), "-m", "pip", "--disable-pip-version-check", "inspect"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=_INSPECT_LIMIT_S, check=True)
        return of_inspection(json.loads(done.stdout))
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        said = (getattr(error, "stderr", None) or str(error)).strip().splitlines()[-3:]
        raise CannotRunError(f"{python} does not say what is installed", log_tail=said,
                             tip="it needs pip 23.1 or later") from None


def _version(text: str) -> str:
    try:
        return str(Version(text))
    except InvalidVersion:
        return text


def _sorted(packages: Iterable[Package]) -> list[Package]:
    """By name; what is listed twice, as where one environment lies over another, counts once."""
    return sorted({(p.name, p.version): p for p in packages}.values(), key=lambda p: (p.name, p.version))


def cyclonedx(packages: Iterable[Package], name: str, version: str) -> str:
    """The SBOM of an environment.

    Args:
        name: of what contains it, such as an image.
        version: of that; a digest, where there is no other.
    """
    whole = {"type": "container", "bom-ref": f"{name}@{version}", "name": name, "version": version}
    components = [_component(package) for package in _sorted(packages)]
    identity = json.dumps([whole, components], sort_keys=True)
    return _json({
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(_NAMESPACE, identity)}",
        "version": 1,
        "metadata": {"component": whole, "tools": {"components": [{"type": "application", "name": "kvproof"}]}},
        "components": components,
        "dependencies": [{"ref": whole["bom-ref"], "dependsOn": [c["bom-ref"] for c in components]}],
    })


def _component(package: Package) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "library", "bom-ref": package.purl, "name": package.name,
                             "version": package.version, "purl": package.purl}
    if package.license:
        found["licenses"] = [{"expression": package.license}]
    if package.hashes:
        # Of the files that the index offers, one of which was installed, so they are no hashes of the component.
        found["externalReferences"] = [{
            "type": "distribution", "url": f"https://pypi.org/simple/{package.name}/",
            "hashes": [{"alg": "SHA-256", "content": content} for content in package.hashes]}]
    return found


def differences(before: Iterable[Package], after: Iterable[Package]) -> list[str]:
    """What of the package set is not the same, a line each; files and licences are not compared."""
    old, new = ({package.name: package.version for package in packages} for packages in (before, after))
    return [f"{name}: {old.get(name, 'absent')} → {new.get(name, 'absent')}"
            for name in sorted(old.keys() | new.keys()) if old.get(name) != new.get(name)]


@dataclass(frozen=True)
class Inputs:
    """Everything that decides what a build makes.

    Attributes:
        image: folder under images/.
        base: reference with digest that the build starts from.
        files: of the build, by name in its context; the Dockerfile and the lock among them.
        commit: of this repository; None outside a git checkout.
        arguments: of the build, that are no secrets.
    """

    image: str
    base: str
    files: Mapping[str, bytes]
    commit: str | None
    arguments: Mapping[str, str]


def read_inputs(image: str, base: str, images: Path, *, commit: str | None = None,
                arguments: Mapping[str, str] | None = None) -> Inputs:
    """The inputs of an image's build, as they lie on the disk: its Dockerfile, and what that copies.

    Raises:
        UsageError: the base has no digest, or a file is not there.
    """
    if not re.fullmatch(r"[^@\s]+@sha256:[0-9a-f]{64}", base):
        raise UsageError(f"base {base!r} has no digest, expected REPOSITORY:TAG@sha256:…")
    try:
        dockerfile = (images / image / "Dockerfile").read_bytes()
        text = re.sub(r"\\\n", " ", dockerfile.decode())
        copied = [word for line in re.findall(r"(?m)^COPY\s+(.*)$", text) for word in line.split()[:-1]
                  if not word.startswith("--")]
        files = {f"{image}/Dockerfile": dockerfile, **{name: (images / name).read_bytes() for name in copied}}
    except OSError as error:
        raise UsageError(f"{error.filename}: {error.strerror}", tip="restore it from version control") from None
    return Inputs(image, base, files, commit, dict(arguments or {}))


def provenance(inputs: Inputs, digest: str | None = None) -> str:
    """A statement (in-toto v1, SLSA provenance v1) of what an image was built from.

    Args:
        digest: of the image; None before it is built.
    """
    name, _, base = inputs.base.partition("@")
    dependencies = [
        {"name": "base", "uri": f"pkg:docker/{name}@{base.replace(':', '%3A')}",
         "digest": {"sha256": base.removeprefix("sha256:")}},
        *({"name": path, "digest": {"sha256": hashlib.sha256(content).hexdigest()}}
          for path, content in sorted(inputs.files.items())),
        *([{"name": "kvproof", "digest": {"gitCommit": inputs.commit}}] if inputs.commit else []),
    ]
    subject = {"name": f"kvproof/{inputs.image}",
               "digest": {"sha256": digest.removeprefix("sha256:")} if digest else {"sha256": _inputs_digest(inputs)}}
    return _json({
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [subject | ({} if digest else {"annotations": {"digest": "of the inputs, before the build"}})],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {"image": inputs.image, "arguments": dict(sorted(inputs.arguments.items()))},
                "resolvedDependencies": dependencies,
            },
            "runDetails": {"builder": {"id": "https://kvproof.invalid/inv-build"}},
        },
    })


def _inputs_digest(inputs: Inputs) -> str:
    parts = [inputs.image, inputs.base, *(f"{k}={v}" for k, v in sorted(inputs.arguments.items())),
             *(f"{path} {hashlib.sha256(content).hexdigest()}" for path, content in sorted(inputs.files.items()))]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _json(content: Any) -> str:
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"
