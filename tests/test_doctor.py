"""What the doctor finds on made-up hosts; nothing that it could not look at is ever ok."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import psutil
import pytest
import yaml

from kvproof import doctor, host, hub, leftovers, preflight, process
from kvproof.cli import Inv
from kvproof.errors import HostError, UsageError
from kvproof.evidence import HostFacts
from kvproof.host import Gpu
from kvproof.paths import PROJECT
from kvproof.preflight import Finding
from kvproof.recipe import GIB, Recipe
from kvproof.runtimes import venv
from made_up import RECIPE, recipe

PLENTY = HostFacts(kernel="fixture", memory_available_bytes=900 * GIB, shm_bytes=900 * GIB, shm_free_bytes=900 * GIB,
                   disk_free_bytes=900 * GIB)
H200 = Gpu("NVIDIA H200", 141 * GIB, "580.65.06", 140 * GIB, "9.0")
HUB_MODEL = RECIPE["model"] | {"repository": "org/model", "revision": "a" * 40}
DIGEST = "sha256:" + "1" * 64


def one(findings: list[Finding] | tuple[Finding, ...], name: str) -> Finding:
    found = [f for f in findings if f.name == name]
    assert len(found) == 1, [f.name for f in findings]
    return found[0]


def needing_gpus(**changes) -> Recipe:
    return recipe(**{"hardware": {"gpus": 2, "gpu_memory_gib": 70.0, "memory_gib": 1, "shm_gib": 1, "disk_gib": 1},
                     "model": RECIPE["model"] | {"architecture": "Gemma4ForCausalLM"}} | changes)


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets the GPUs that the host has, and what nvidia-smi complains about."""
    def show(*found: Gpu, problem: str | None = None) -> None:
        monkeypatch.setattr(host, "look_for_gpus", lambda timeout_s=30: (list(found), problem))

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(doctor.shutil, "which", lambda name, which=shutil.which: None if name == "nvidia-smi" else
                        which(name))
    show()
    return show


# GPUs


def test_gpus_that_fit(gpus) -> None:
    gpus(H200, H200)
    found = doctor._gpus(needing_gpus())
    assert {f.state for f in found} == {"ok"}
    assert [f.name for f in found] == ["GPUs", "GPU memory", "free GPU memory", "NVIDIA driver",
                                       "attention, head size 512"]
    assert one(found, "GPU memory").seen == "70 GiB needed, NVIDIA H200 has 141.0 GiB"


def test_no_gpus(gpus) -> None:
    (missing,) = doctor._gpus(needing_gpus())
    assert (missing.state, missing.advice) == ("missing", "run it on a host with 2")
    assert missing.seen.startswith("2 needed, 0 found: no nvidia-smi in PATH")
    assert doctor._gpus(None)[0].state == "warning"
    assert doctor._gpus(recipe())[0].state == "ok"


def test_a_driver_that_does_not_answer_is_not_no_gpu(gpus) -> None:
    gpus(problem="nvidia-smi ended with exit status 18: Failed to initialize NVML: Driver/library version mismatch")
    assert doctor._gpus(None)[0].state == "unknown"
    (missing,) = doctor._gpus(needing_gpus())
    assert missing.state == "missing"
    assert "version mismatch" in missing.seen


def test_gpus_in_use_or_hidden(gpus, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(H200, Gpu("NVIDIA H200", 141 * GIB, "580.65.06", 20 * GIB, "9.0"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    found = doctor._gpus(needing_gpus())
    assert one(found, "free GPU memory").seen == "20.0 of 141.0 GiB on NVIDIA H200"
    assert {f.name for f in found if f.state == "warning"} == {"free GPU memory", "CUDA_VISIBLE_DEVICES"}


def test_what_nvidia_smi_does_not_say_is_unknown(gpus) -> None:
    gpus(Gpu("Old GPU", 80 * GIB, "470.1"))
    found = doctor._gpus(None)
    assert {f.name for f in found if f.state == "unknown"} == {"free GPU memory", "attention, head size 512"}


@pytest.mark.parametrize(
    ("capability", "changes", "state", "said"),
    [
        ("9.0", {}, "ok", "FlashAttention 4"),
        ("9.0", {"engine": {"name": "vllm", "version": "0.23.0"}}, "ok", "TRITON_ATTN"),
        ("8.9", {}, "ok", "TRITON_ATTN"),
        ("10.0", {}, "ok", "TRITON_ATTN"),
        ("7.5", {}, "warning", "bfloat16 needs 8.0"),
        ("9.0", {"engine": {"name": "trtllm", "version": "1.3.0"}}, "warning", "no paged kernel"),
        ("10.0", {"engine": {"name": "trtllm", "version": "1.3.0"}}, "unknown", "nothing is on record"),
        ("9.0", {"engine": {"name": "sglang", "version": "0.5.21"}}, "unknown", "nothing is on record"),
        ("8.0", {"drafts": True}, "warning", "a draft model may not choose by itself"),
        ("9.0", {"drafts": True}, "ok", "FlashAttention 4"),
        ("8.0", {"drafts": True, "pinned": "TRITON_ATTN"}, "ok", "the recipe pins TRITON_ATTN"),
    ],
)
def test_the_attention_backend(capability: str, changes: dict, state: str, said: str) -> None:
    engine = {"name": "vllm", "version": "0.29.0"} | changes.get("engine", {})
    if "pinned" in changes:
        engine["arguments"] = {"attention-backend": changes["pinned"]}
    drafts = {"method": "mtp", "num_speculative_tokens": 1, "assistant": {"repository": "fixture/draft",
                                                                          "revision": "1"}}
    checks = RECIPE["checks"] | {"required": [*RECIPE["checks"]["required"], "speculative"]}
    one_recipe = recipe(engine=engine, **({"speculative": drafts, "checks": checks} if "drafts" in changes else {}))
    found = doctor._attention(one_recipe, capability)
    assert found.state == state
    assert said in found.seen
    assert capability in found.seen
    assert (found.advice is None) == (state in ("ok", "unknown"))


def test_a_driver_too_old_for_the_image(gpus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "read_image", lambda name: type("Image", (), {"cuda": "13"}))
    assert doctor._driver(recipe(image="some"), Gpu("G", GIB, "570.1")).state == "warning"
    assert doctor._driver(recipe(image="some"), Gpu("G", GIB, "580.1")).state == "ok"
    assert doctor._driver(recipe(image="some"), Gpu("G", GIB, "[N/A]")).state == "unknown"
    assert doctor._driver(recipe(), Gpu("G", GIB, "470.1")) == Finding("NVIDIA driver", "ok", "470.1")


def program(folder: Path, name: str, text: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The first folder in PATH, in which tests put programs; docker and nvidia-smi are not in the others."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("sh", "sleep", "cat"):
        (folder / name).symlink_to(f"/bin/{name}")
    monkeypatch.setenv("PATH", str(folder))
    return folder


@pytest.mark.process
@pytest.mark.parametrize(
    ("text", "gpus", "problem"),
    [
        ("echo 'NVIDIA H200, 143771, 580.65.06, 143161, 9.0'",
         [Gpu("NVIDIA H200", 143771 * 1024**2, "580.65.06", 143161 * 1024**2, "9.0")], None),
        ("echo 'NVIDIA GB10, [N/A], 580.65.06, [N/A], 12.1'", [], "does not say how much memory"),
        ("echo 'Tesla, 16384, 450.1, [N/A], [N/A]'", [Gpu("Tesla", 16384 * 1024**2, "450.1")], None),
        ('case "$1" in *compute_cap*) echo "Field \\"compute_cap\\" is not a valid field to query."; exit 2 ;; '
         '*) echo "Tesla V100, 16384, 450.1" ;; esac', [Gpu("Tesla V100", 16384 * 1024**2, "450.1")], None),
        ("echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18", [],
         "exit status 18: Failed to initialize NVML"),
        ("exit 9", [], "exit status 9: it said nothing"),
        ("sleep 20", [], "no answer within 0.3 s"),
        ("echo 'No devices were found'; exit 6", [], "No devices were found"),
    ],
)
def test_what_nvidia_smi_says(path: Path, text: str, gpus: list[Gpu], problem: str | None) -> None:
    program(path, "nvidia-smi", text)
    found, said = host.look_for_gpus(0.3 if "sleep" in text else 30)
    assert found == gpus
    assert said is None if problem is None else problem in said


# Memory, disk, Python


def test_a_containers_memory_limit_counts(tmp_path: Path) -> None:
    own = tmp_path / "cgroup"
    own.write_text("12:cpuset:/x\n0::/pod/container\n")
    inner = tmp_path / "groups" / "pod" / "container"
    inner.mkdir(parents=True)
    for folder, limit in ((inner, "max"), (inner.parent, str(4 * GIB))):
        (folder / "memory.max").write_text(limit + "\n")
        (folder / "memory.current").write_text(str(3 * GIB))
        (folder / "memory.stat").write_text(f"anon 1\ninactive_file {GIB}\n")
    assert host._left_in_cgroup(tmp_path / "groups", own) == 2 * GIB
    (inner.parent / "memory.max").write_text("max")
    assert host._left_in_cgroup(tmp_path / "groups", own) is None
    assert host._left_in_cgroup(tmp_path / "groups", tmp_path / "none") is None
    assert host._left_in_cgroup(tmp_path / "other", own) is None


def test_the_doctor_and_the_preflight_find_the_same(monkeypatch: pytest.MonkeyPatch, gpus) -> None:
    monkeypatch.setattr(host, "facts", lambda cache: PLENTY.model_copy(update={"shm_free_bytes": 0}))
    small = recipe(environment="vllm-cpu")
    (missing,) = [f for f in doctor._amounts(small) if f.state == "missing"]
    assert (missing.name, missing.seen) == ("/dev/shm", "1.0 GiB needed, 0.0 GiB free")
    with pytest.raises(HostError, match=r"/dev/shm: 1\.0 GiB needed, 0\.0 GiB free"):
        preflight.require(small, 0)
    assert missing.advice.startswith("a container needs --shm-size")


def test_in_general_it_says_which_recipes_fit(monkeypatch: pytest.MonkeyPatch, gpus) -> None:
    monkeypatch.setattr(host, "facts", lambda cache: PLENTY)
    fits = one(doctor._amounts(None), "recipes")
    assert fits.state == "ok"
    assert "gemma4-nano-31b" in fits.seen
    assert "gemma4-31b" not in fits.seen.replace("gemma4-nano-31b", "").replace(" ", "").split(",")
    monkeypatch.setattr(host, "facts", lambda cache: PLENTY.model_copy(update={"memory_available_bytes": GIB}))
    fits = one(doctor._amounts(None), "recipes")
    assert (fits.state, fits.seen[:5]) == ("missing", "0 of ")


def test_what_kvproof_lacks_is_missing_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "facts", lambda cache: PLENTY)
    monkeypatch.setattr(doctor, "lacking", lambda recipe, runtime: [f"proof: not yet with {runtime}"])
    only_image = recipe(environment=None, image="some")
    for asked, runtime in ((recipe(environment="vllm-cpu"), "venv"), (only_image, "docker")):
        found = one(doctor._amounts(asked), "proof")
        assert (found.state, found.seen) == ("missing", f"not yet with {runtime}")
    assert doctor._python(only_image) == []


def test_the_environments_python(monkeypatch: pytest.MonkeyPatch, tmp_cache: Path) -> None:
    lock = venv.read_lock("vllm-cpu")
    uses_it = recipe(environment="vllm-cpu")
    lock.interpreter.parent.mkdir(parents=True)
    lock.interpreter.touch()
    assert doctor._python(uses_it)[0].seen == "installed, with Python 3.11"
    lock.interpreter.unlink()
    monkeypatch.setattr(sys, "version_info", (3, 99))
    monkeypatch.setenv("PATH", str(tmp_cache))
    (missing,) = doctor._python(uses_it)
    assert missing.state == "missing"
    assert "locked for Python 3.11" in missing.seen
    assert "uv python install 3.11" in missing.advice
    assert doctor._python(None)[0].state == "warning"


@pytest.mark.process
@pytest.mark.parametrize(("text", "state", "said"), [
    ("exit 0", "ok", "not installed yet: 3.5 GiB"),
    ("echo \"ModuleNotFoundError: No module named 'ensurepip'\" >&2; exit 1", "missing", "lacks the module venv"),
    ("echo 'pyenv: python3.11: command not found' >&2; exit 127", "missing", "does not run: pyenv: python3.11"),
    ("exit 3", "missing", "does not run: exit status 3"),
])
def test_a_python_that_cannot_make_environments(path: Path, monkeypatch: pytest.MonkeyPatch, text: str, state: str,
                                                said: str) -> None:
    program(path, "python3.11", text)
    monkeypatch.setattr(sys, "version_info", (3, 99))
    (found,) = doctor._python(recipe(environment="vllm-cpu"))
    assert found.state == state
    assert said in found.seen


# Docker

ANSWERS = json.dumps({"ServerVersion": "28.2.2", "Runtimes": {"runc": {}, "nvidia": {}}})
IMAGE = recipe(image="fixture-image")
ONLY_IMAGE = recipe(image="fixture-image", environment=None)


@pytest.fixture
def image(monkeypatch: pytest.MonkeyPatch) -> None:
    from kvproof.image_lock import Image

    made = Image(repository="org/image", tag="v1", index=DIGEST, contains={}, learned="reported", date="2026-01-01",
                 sources=[])
    monkeypatch.setattr(doctor, "read_image", lambda name: made)


def docker(path: Path, info: str, inspect: str = "exit 0") -> None:
    program(path, "docker", f'case "$1" in info) {info} ;; image) {inspect} ;; esac')


REFUSED = ("echo '{\"ServerErrors\":[\"permission denied while trying to connect to the Docker daemon socket at "
           "unix:///var/run/docker.sock\"]}'; exit 1")
NO_DAEMON = "echo '{}'; echo 'Cannot connect to the Docker daemon at unix:///var/run/docker.sock.' >&2; exit 1"


@pytest.mark.process
@pytest.mark.parametrize(
    ("info", "needed", "general", "said"),
    [
        (f"echo '{ANSWERS}'", "ok", "ok", "28.2.2 answers"),
        (REFUSED, "missing", "warning", "may not use it (permission denied)"),
        (NO_DAEMON, "missing", "warning", "no daemon answers"),
        ("echo 'some other client'", "unknown", "unknown", "tells no server version"),
        ("echo '[1]'", "unknown", "unknown", "tells no server version"),
        ("sleep 30", "unknown", "unknown", "no answer within 0.5 s"),
        (None, "missing", "warning", "no client in PATH"),
    ],
)
def test_docker(path: Path, image, gpus, monkeypatch: pytest.MonkeyPatch, info: str | None, needed: str, general: str,
                said: str) -> None:
    monkeypatch.setattr(doctor, "_COMMAND_S", 0.5)
    if info is not None:
        docker(path, info)
    for asked, state in ((ONLY_IMAGE, needed), (None, general), (recipe(), "ok" if needed == "missing" else needed)):
        found = one(doctor._docker(asked), "Docker")
        assert found.state == state
        assert said in found.seen
        assert (found.advice is None) == (state == "ok")
    images = [f for f in doctor._docker(ONLY_IMAGE) if f.name == "image"]
    assert [f.state for f in images] == ([] if info is None else ["ok" if needed == "ok" else "unknown"])


@pytest.mark.process
@pytest.mark.parametrize(
    ("inspect", "needed", "beside", "said"),
    [
        ("echo sha256:0", "ok", "ok", f"org/image:v1@{DIGEST} is here"),
        (f"echo 'Error response from daemon: No such image: org/image@{DIGEST}' >&2; exit 1", "missing", "ok",
         "is not here"),
        ("echo 'something else' >&2; exit 1", "unknown", "unknown", "something else"),
        ("sleep 30", "unknown", "unknown", "gave no answer within 0.5 s"),
    ],
)
def test_the_image_by_its_digest(path: Path, image, monkeypatch: pytest.MonkeyPatch, inspect: str, needed: str,
                                 beside: str, said: str) -> None:
    monkeypatch.setattr(doctor, "_COMMAND_S", 0.5)
    docker(path, f"echo '{ANSWERS}'", f'[ "$5" = "org/image@{DIGEST}" ] || exit 7; {inspect}')
    for asked, state in ((ONLY_IMAGE, needed), (IMAGE, beside)):
        found = one(doctor._docker(asked), "image")
        assert found.state == state
        assert said in found.seen


@pytest.mark.process
@pytest.mark.parametrize(("told", "state"), [
    ({"Runtimes": {"nvidia": {}}}, "ok"),
    ({"Runtimes": {"runc": {}}}, "missing"),
    ({"Runtimes": None, "DiscoveredDevices": [{"Source": "cdi", "ID": "nvidia.com/gpu=0"}]}, "ok"),
    ({}, "missing"),
])
def test_the_nvidia_runtime(path: Path, image, told: dict, state: str) -> None:
    docker(path, f"echo '{json.dumps({'ServerVersion': '28'} | told)}'")
    found = one(doctor._docker(needing_gpus(environment=None, image="fixture-image")), "NVIDIA container runtime")
    assert found.state == state
    assert "NVIDIA container runtime" not in [f.name for f in doctor._docker(ONLY_IMAGE)]


# The hub


@contextlib.contextmanager
def serving(answers: Callable[[str, str | None], tuple[int, object]], date: datetime | None = None,
            delay_s: float = 0) -> Iterator[tuple[str, list[tuple[str, str | None]]]]:
    """A hub on this host: path and token to status and JSON.

    Yields:
        Its address, and what it was asked.
    """
    asked: list[tuple[str, str | None]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            token = self.headers.get("Authorization")
            asked.append((self.path, token))
            time.sleep(delay_s)
            status, content = answers(self.path, token)
            data = content if isinstance(content, bytes) else json.dumps(content).encode()
            with contextlib.suppress(ConnectionError):
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(data)

        do_HEAD = do_GET

        def date_time_string(self, timestamp: object = None) -> str:
            return format_datetime(date or datetime.now(UTC), usegmt=True)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as made:
        made.daemon_threads = True
        made.block_on_close = False
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{made.server_port}", asked
        made.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def no_hub_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No token or cache of the user's, and an address that nobody listens on."""
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "HTTP_PROXY",
                 "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")


def hub_states(findings: list[Finding]) -> dict[str, str]:
    return {f.name.partition(" org/")[0]: f.state for f in findings}


GATED = (200, {"gated": "manual"})
OPEN = (200, {"gated": False})
WHO = (200, {"name": "somebody"})


@pytest.mark.parametrize(
    ("token", "whoami", "page", "check", "token_said", "model_said"),
    [
        (False, None, OPEN, None, ("ok", "none is needed"), ("ok", "to everybody")),
        (False, None, GATED, (401, {}), ("missing", "(401)"), ("missing", "(401)")),
        (False, None, (401, {}), None, ("missing", "(401)"), ("missing", "(401)")),
        (True, WHO, GATED, (200, {}), ("ok", "of account somebody"), ("ok", "to account somebody")),
        (True, WHO, GATED, (403, {}), ("ok", "of account somebody"), ("missing", "not accepted the licence")),
        (True, WHO, (403, {}), None, ("ok", "of account somebody"), ("missing", "(403)")),
        (True, (401, {}), (401, {}), None, ("missing", "not valid (401)"), ("missing", "(401)")),
        (True, (401, {}), OPEN, None, ("warning", "not valid (401)"), ("ok", "to everybody")),
        (True, (500, {}), OPEN, None, ("unknown", "HTTP 500"), ("ok", "to everybody")),
        (True, (200, b"<html>"), (404, {}), None, ("unknown", "HTTP 200"), ("missing", "has no revision " + "a" * 40)),
        (False, None, (503, b""), None, ("ok", "none is needed"), ("unknown", "HTTP 503")),
        (False, None, (302, b""), None, ("ok", "none is needed"), ("unknown", "HTTP 302")),
    ],
)
def test_the_token_and_the_licence(monkeypatch: pytest.MonkeyPatch, token: bool, whoami, page, check, token_said,
                                   model_said) -> None:
    secret = "hf_" + "x" * 30

    def answers(path: str, given: str | None) -> tuple[int, object]:
        assert given == (f"Bearer {secret}" if token else None)
        return {"/api/whoami-v2": whoami, f"/api/models/org/model/revision/{'a' * 40}": page,
                "/api/models/org/model/auth-check": check}[path]

    if token:
        monkeypatch.setenv("HF_TOKEN", secret)
    with serving(answers) as (url, asked):
        monkeypatch.setenv("HF_ENDPOINT", url)
        found = hub.model_findings(hub.models_of(recipe(model=HUB_MODEL)))
    for finding, (state, said) in zip(found, (token_said, model_said), strict=True):
        assert finding.state == state
        assert said in finding.seen
        assert secret not in f"{finding}"
        assert (finding.advice is None) == (state == "ok")
    assert 1 <= len(asked) <= 3


def test_the_token_file_is_read_as_the_hub_does(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert hub._token() is None
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "token").write_text("hf_fromfile\n")
    assert hub._token() == "hf_fromfile"
    monkeypatch.setenv("HF_TOKEN", " hf_fromenvironment ")
    assert hub._token() == "hf_fromenvironment"


@pytest.mark.parametrize("setting", [
    {"HF_HUB_OFFLINE": "1"}, {"HF_ENDPOINT": "http://127.0.0.1:9"}, {"HF_ENDPOINT": "no address"},
    {"HF_ENDPOINT": "http://user:secret-word@127.0.0.1:9"}, {"ALL_PROXY": "socks5://127.0.0.1:1"},
    {"HF_TOKEN": "hf_with\nline break"}, {"HF_TOKEN": "hf_ünïcode"},
])
def test_offline_is_neither_401_nor_fine(monkeypatch: pytest.MonkeyPatch, setting: dict[str, str]) -> None:
    for name, value in setting.items():
        monkeypatch.setenv(name, value)
    found = hub.model_findings(hub.models_of(recipe(model=HUB_MODEL)))
    assert {f.state for f in found} <= {"missing", "unknown"}
    assert "offline" in found[-1].seen
    assert "secret-word" not in f"{found}"
    assert "hf_" not in f"{found}".replace("hf_hub", "")


def test_a_hub_that_hangs_counts_as_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "TIMEOUT_S", 0.2)
    with serving(lambda path, token: OPEN, delay_s=1) as (url, _):
        monkeypatch.setenv("HF_ENDPOINT", url)
        found = hub.model_findings(hub.models_of(recipe(model=HUB_MODEL)))
    assert hub_states(found) == {"HF token": "unknown", "model": "missing"}
    assert "ReadTimeout" in found[-1].seen


@pytest.mark.parametrize("damage", [None, "no weights", "index names more", "no config"])
def test_a_model_in_the_hubs_cache_needs_no_hub(tmp_path: Path, damage: str | None) -> None:
    folder = tmp_path / "hf" / "hub" / "models--org--model" / "snapshots" / ("a" * 40)
    folder.mkdir(parents=True)
    for name in ("config.json", "part-1.safetensors", "part-2.safetensors"):
        (folder / name).touch()
    index = {"weight_map": {"a": "part-1.safetensors", "b": "part-2.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    for name, cause in (("part-2.safetensors", "index names more"), ("config.json", "no config"),
                        ("model.safetensors.index.json", "no weights")):
        if damage == cause:
            (folder / name).unlink()
    found = hub.model_findings(hub.models_of(recipe(model=HUB_MODEL)))
    assert found[-1].state == ("ok" if damage is None else "missing")
    assert len(found) == (1 if damage is None else 2)


def test_only_models_of_the_hub_are_asked_for() -> None:
    assert hub.models_of(recipe()) != []
    kept = RECIPE["model"] | {"folder": "models/x"}
    assert hub.models_of(recipe(model=kept)) == []
    assert "models" not in doctor._looks(recipe(model=kept))
    assert "models" not in doctor._looks(None)


# The clock


@pytest.mark.parametrize(("off_s", "state", "said"), [(0, "ok", "within"), (400, "warning", "s behind 127.0.0.1"),
                                                      (-400, "warning", "s ahead of 127.0.0.1")])
def test_the_clock_against_the_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, off_s: int, state: str,
                                   said: str) -> None:
    with serving(lambda path, token: (200, b""), date=datetime.now(UTC) + timedelta(seconds=off_s)) as (url, asked):
        monkeypatch.setenv("HF_ENDPOINT", url)
        monkeypatch.setenv("HF_TOKEN", "hf_" + "x" * 30)
        found = hub.clock_finding(tmp_path)
    assert (found.state, said in found.seen) == (state, True)
    assert asked == [("/", None)], "the token is not for this question"


@pytest.mark.parametrize(("newest", "state"), [(None, "unknown"), (timedelta(days=-1), "unknown"),
                                               (timedelta(days=1), "warning")])
def test_the_clock_offline(tmp_path: Path, newest: timedelta | None, state: str) -> None:
    if newest is not None:
        (tmp_path / "recipe").mkdir()
        (tmp_path / "recipe" / f"{datetime.now(UTC) + newest:%Y%m%dT%H%M%SZ}-abc.json").touch()
        (tmp_path / "recipe" / "other.json").touch()
    assert hub.clock_finding(tmp_path).state == state


# Ports and leftovers


def test_ports_of_copied_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr(doctor, "FIXED_PORTS", {port: "some server"})
        (found,) = doctor._ports()
    assert found.state == "warning"
    assert f"{port} (some server) by " in found.seen
    assert f"process {os.getpid()}" in found.seen
    assert doctor._ports()[0].state == "ok"


@pytest.fixture
def shm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Makes old files in a folder that stands for /dev/shm."""
    folder = tmp_path / "shm"
    folder.mkdir()
    monkeypatch.setattr(process, "SHM", folder)

    def make(name: str, age_s: float = 3600) -> Path:
        path = folder / name
        path.write_bytes(b"x" * 8192)
        os.utime(path, (time.time() - age_s,) * 2)
        return path

    return make


DEAD_PID = 2**22 + 1  # above what Linux gives to processes


def test_segments_that_nobody_has_are_named_and_stay(shm, tmp_path: Path) -> None:
    dead = [shm(f"lmcache_kv_{DEAD_PID}_0"), shm("vllm_offload_abc.mmap"), shm("psm_1234")]
    others = [shm(f"lmcache_kv_{os.getpid()}_0"), shm("sem.mp-1"), shm("something"), shm("psm_new", age_s=0)]
    found = leftovers.findings(tmp_path / "runs")[1]
    assert found.state == "warning"
    for path in dead:
        assert path.name in found.seen
        assert str(path) in found.advice
    for path in others:
        assert path.name not in found.seen
    assert all(path.exists() for path in dead)


def test_a_mapped_segment_is_in_use(shm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shm("psm_1234")
    monkeypatch.setattr(process, "mapped_segments", lambda pid: {"psm_1234"} if pid == os.getpid() else set())
    assert leftovers.findings(tmp_path / "runs")[1].state == "ok"


def test_another_users_segment_is_unknown(shm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shm("psm_1234")
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    found = leftovers.findings(tmp_path / "runs")[1]
    assert found.state == "unknown"
    assert "of another user" in found.seen


def test_without_shared_memory_it_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "SHM", tmp_path / "none")
    assert leftovers.findings(tmp_path)[1].state == "unknown"


def test_runs_that_were_killed(tmp_path: Path) -> None:
    me = psutil.Process()
    for name, owner in (("alive", [me.pid, me.create_time()]), ("dead", [DEAD_PID, 1.0])):
        (tmp_path / name).mkdir()
        note = {"owner": owner, "members": [[me.pid, me.create_time()], [DEAD_PID, 1.0]], "segments": []}
        (tmp_path / name / "processes.json").write_text(json.dumps(note))
    found = leftovers.findings(tmp_path)[0]
    assert (found.state, "alive" in found.seen.partition(" in ")[0]) == ("warning", False)
    assert found.seen.startswith("dead in ")
    assert found.seen.endswith("1 of their processes still run")
    (tmp_path / "dead" / "processes.json").write_text("{")
    assert leftovers.findings(tmp_path)[0].state == "unknown"


# All together


def test_what_hangs_or_fails_is_unknown_and_costs_only_its_limit() -> None:
    started = time.monotonic()
    found = doctor._together({
        "hangs": lambda: time.sleep(5) or [], "also hangs": lambda: time.sleep(5) or [],
        "fails": lambda: (_ for _ in ()).throw(PermissionError(13, "Permission denied")),
        "works": lambda: [Finding("works", "ok", "seen")],
    }, 0.3)
    assert time.monotonic() - started < 2
    assert [(f.name, f.state) for f in found] == [("hangs", "unknown"), ("also hangs", "unknown"), ("fails", "unknown"),
                                                 ("works", "ok")]
    assert "Permission denied" in found[2].seen
    with pytest.raises(ZeroDivisionError):
        doctor._together({"defect": lambda: [1 / 0]}, 1)


@pytest.fixture
def quick_host(monkeypatch: pytest.MonkeyPatch, gpus, path: Path) -> None:
    monkeypatch.setattr(host, "facts", lambda cache: PLENTY)
    monkeypatch.setattr(doctor, "_python", lambda recipe: [])


def inv(*words: str, capsys) -> tuple[int, str, str]:
    """As the command line does it, in this process: exit code, stdout and stderr."""
    code = 0
    try:
        Inv().run(["inv", *words])
    except SystemExit as ended:
        code = ended.code
    out, err = capsys.readouterr()
    return code, out, err


def test_the_command_for_the_host(quick_host, capsys) -> None:
    code, out, err = inv("doctor", capsys=capsys)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert all(line.split()[0] in ("ok", "warning", "unknown") for line in lines)
    assert any(line.startswith("warning  Docker ") and "; next: " in line for line in lines)


@pytest.mark.parametrize("words", [("doctor", "gemma4-e4b", "--json"), ("doctor", "--json", "gemma4-e4b"),
                                   ("doctor", "--name", "gemma4-e4b", "--json"),
                                   ("doctor", "--json", "--name=gemma4-e4b")])
def test_the_command_for_a_recipe(quick_host, capsys, words: tuple[str, ...]) -> None:
    code, out, err = inv(*words, capsys=capsys)
    told = json.loads(out)
    assert (code, told["fits"], told["exit_code"], told["recipe"]) == (3, False, 3, "gemma4-e4b")
    assert one([Finding(f["name"], f["state"], f["seen"], f["next"]) for f in told["findings"]],
               "GPUs").state == "missing"
    assert "does not fit recipe gemma4-e4b: missing GPUs, model google/" in err


@pytest.mark.parametrize(("words", "said"), [
    (("doctor", "gemma4-nan"), "no recipe is called 'gemma4-nan'; did you mean gemma4-nano"),
    (("doctor", "--name"), "--name needs a value"),
    (("doctor", "one", "two"), "no task is called 'two' (inv doctor [NAME] takes no further word)"),
])
def test_a_wrong_word(capsys, words: tuple[str, ...], said: str) -> None:
    code, out, err = inv(*words, capsys=capsys)
    assert (code, out) == (UsageError.exit_code, "")
    assert said in err


def test_a_recipe_that_fits(quick_host, monkeypatch: pytest.MonkeyPatch) -> None:
    diagnosis = doctor.examine("gemma4-nano")
    assert diagnosis.recipe == "gemma4-nano-31b"
    assert diagnosis.fits
    doctor.raise_for(diagnosis)
    assert doctor.as_data(diagnosis)["exit_code"] == 0


def test_every_recipe_can_be_asked_about(quick_host) -> None:
    for file in sorted((PROJECT / "recipes").glob("*.yaml")):
        name = yaml.safe_load(file.read_text())["name"]
        assert {f.state for f in doctor.examine(name).findings} <= {"ok", "warning", "missing", "unknown"}
