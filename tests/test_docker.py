"""The docker runtime against a real daemon: its own, with images made here, and the fake servers of the other tests
in real containers."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import daemon
from fakes import ENVIRONMENT, MODULES, RECIPE, Ended, Fake, make_project
from kvproof.console import Console
from kvproof.errors import CannotRunError, EnvironmentBuildError, HostError, UsageError
from kvproof.plan import Server
from kvproof.recipe import Recipe
from kvproof.runtimes import docker as runtime
from kvproof.runtimes import docker_build, docker_containers, docker_errors, docker_images, docker_profile

# The SDK leaves some sockets to the garbage collector
pytestmark = [pytest.mark.filterwarnings("ignore::ResourceWarning"),
              pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")]
UPSTREAM, TAG = "library/python", "3.11-stand-in"
DOCKERFILE = """\
ARG BASE=python:3.11-stand-in@sha256:{digest}
FROM ${{BASE}}
ARG PIP_INDEX_URL
COPY fake-env/modules /opt/fake
COPY --chmod=755 fake-env/lmcache /usr/local/bin/lmcache
RUN --mount=type=cache,target=/var/cache/fake \\
    python3 -c "import os, urllib.request as u; print(u.urlopen(os.environ['PIP_INDEX_URL'] + 'fake-rest/').read())"
ENV PYTHONPATH=/opt/fake
LABEL kvproof.image.engine="fake 1"
HEALTHCHECK CMD ["python3", "-c", "1"]
"""
LOCK_TOML = """\
[stand-in]
repository = "{repository}"
tag = "{tag}"
index = "{digest}"
contains = {{ python = "3.11" }}
learned = "registry"
date = "2026-12-01"
sources = []
"""
LMCACHE = "#!/usr/local/bin/python3\nimport fake_lmcache_server\nfake_lmcache_server.main()\n"
LIMIT_S = 120


# Without a daemon


@pytest.mark.parametrize(("said", "kind", "words"), [
    ('could not select device driver "" with capabilities: [[gpu]]', HostError, "no NVIDIA runtime"),
    ("write /var/lib/docker/tmp/x: no space left on device", HostError, "keeps its data on is full"),
    ("failed to copy: write /x/ingest/5/data: no space left on device", HostError, "keeps its data on is full"),
    ("manifest verification failed for digest sha256:1", EnvironmentBuildError, "not what the digest says"),
    ("manifest for x@sha256:1 not found: manifest unknown", EnvironmentBuildError, "there is no such image"),
    ("pull access denied for x, repository does not exist", EnvironmentBuildError, "there is no such image"),
    ("unauthorized: authentication required", EnvironmentBuildError, "wants a login"),
    ('Get "https://registry-1.docker.io/v2/": dial tcp: lookup: no such host', EnvironmentBuildError, "be reached"),
    ("invalid mount config for type bind: bind source path does not exist: /x", HostError, "see this host's folders"),
    ("runc: error setting rlimit type 8: operation not permitted", HostError, "the host profile asks for"),
    ("something new", CannotRunError, "Docker says: something new"),
])
def test_what_a_daemon_says_is_told_apart(said: str, kind: type[CannotRunError], words: str) -> None:
    error = docker_errors.explain("doing", said)
    assert type(error) is kind
    assert error.message.startswith("doing: ")
    assert words in error.message
    assert error.tip


def test_the_host_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVPROOF_CONFIG", str(tmp_path))
    assert docker_profile.read().options() == {}
    (tmp_path / "docker.toml").write_text('memory_gib = 2\nulimits = { memlock = -1 }\n')
    assert docker_profile.read().options() == {"memory_gib": 2.0, "ulimits": {"memlock": -1}}
    for text, said in (('memory = 2', "memory: Extra inputs are not permitted"), ("x =", "docker.toml"),
                       ('bases = { a = "python:3" }', "bases.a: String should match")):
        (tmp_path / "docker.toml").write_text(text)
        with pytest.raises(UsageError, match=said):
            docker_profile.read()


def test_an_image_that_is_not_there_is_made_from_the_lock() -> None:
    recipe = Recipe.model_validate(RECIPE | {"environment": "vllm-0.19.1", "image": "python-3.12",
                                             "hardware": RECIPE["hardware"] | {"gpus": 1}})
    source = docker_images.source_of(recipe, docker_profile.Profile())
    assert source.lock is not None
    assert source.tag.startswith("kvproof/vllm-0.19.1:")
    assert "COPY vllm-0.19.1/requirements.lock /opt/kvproof/requirements.lock" in source.dockerfile
    assert "apt-get install -y --no-install-recommends gcc" in source.dockerfile
    assert [p.name for p in source.files() if p.parent.name == "vllm-0.19.1"] == ["requirements.lock"]


def test_a_stand_in_changes_the_tag_and_what_is_on_record() -> None:
    recipe = Recipe.model_validate(RECIPE | {"environment": "vllm-cpu"})
    other = f"python:3@sha256:{'0' * 64}"
    plain = docker_images.source_of(recipe, docker_profile.Profile())
    replaced = docker_images.source_of(recipe, docker_profile.Profile(bases={"python-3.11": other}))
    assert replaced.base == other
    assert plain.tag != replaced.tag


def on_gpus(folder: Path) -> runtime.Containers:
    recipe = Recipe.model_validate(RECIPE | {
        "environment": None, "image": "vllm", "hardware": RECIPE["hardware"] | {"gpus": 2},
        "model": {k: v for k, v in RECIPE["model"].items() if k != "build"} | {"weights": "real"}})
    return runtime.Containers(recipe, runtime.Place("python3", None, None), folder, "run-1")


def test_gpus_are_handed_to_engine_and_cache_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVPROOF_CONFIG", str(tmp_path))
    (tmp_path / "docker.toml").write_text('ulimits = { memlock = -1 }\ncapabilities = ["SYS_NICE"]\n'
                                          'environment = ["NAMED", "NOT_SET"]\n')
    monkeypatch.setenv("NAMED", "handed on")
    monkeypatch.setenv("UNNAMED", "kept back")
    options = on_gpus(tmp_path)._options("engine", ["python3", "-m", "x"], {"A": "1"}, {"/models": "ro"}, 2)
    assert options["device_requests"][0]["Count"] == 2
    assert options["ipc_mode"] == "host"
    assert options["environment"] == {"A": "1", "NAMED": "handed on"}
    assert (options["cap_add"], options["ulimits"][0]["Hard"]) == (["SYS_NICE"], -1)
    assert options["mounts"][0]["ReadOnly"] is True
    assert options["labels"]["kvproof.run"] == "run-1"
    assert options["labels"]["kvproof.recipe"] == "fake"


def test_the_hub_token_is_named_by_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVPROOF_CONFIG", str(tmp_path))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_TOKEN", "hf_" + "aBcDeFgHiJkL")
    made = on_gpus(tmp_path)
    server = Server("engine", ("python3",), {}, "http://127.0.0.1:1", "/health", 1, "engine.log")
    assert made._hub(server) == {"HF_HOME": str(tmp_path / "hub"), "HF_TOKEN_PATH": str(tmp_path / ".hf-token")}
    assert (tmp_path / ".hf-token").stat().st_mode & 0o777 == 0o600
    assert made._mounts(server)[str(tmp_path / "hub")] == "rw"
    made.stop_all(lambda _: None)
    assert not (tmp_path / ".hf-token").exists()


def test_progress_is_read_from_buildkit() -> None:
    def field(number: int, content: bytes) -> bytes:
        return bytes([number << 3 | 2, len(content)]) + content

    vertex = field(1, b"sha256:1") + field(3, b"[1/2] RUN x") + field(5, b"\x08\x01")
    log = field(1, b"sha256:1") + bytes([3 << 3, 1]) + field(4, b"one\n\x1b[1mtwo\x1b[0m\n")
    names: dict[str, str] = {}
    assert list(docker_build._told(field(1, vertex), names)) == ["[1/2] RUN x"]
    assert list(docker_build._told(field(1, vertex) + field(3, log), names)) == ["one", "two"]


# With one


@pytest.fixture(scope="session")
def there() -> Iterator[daemon.Daemon]:
    missing = [name for name in daemon.PROGRAMS if shutil.which(name) is None]
    if missing or os.getuid():
        why = f"{', '.join(missing)} is not installed" if missing else "a daemon needs root"
        if os.environ.get("CI") == "true":
            pytest.fail(f"{why}, and CI must leave nothing out: add it to .ci/run")
        pytest.skip(why)
    # A socket's path may have 107 characters
    folder = Path(f"/tmp/kvproof-dockerd-{os.getpid()}")
    try:
        with daemon.running(folder) as made:
            yield made
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(autouse=True)
def _forget(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if request.node.get_closest_marker("engine"):
        daemon.forget()


@pytest.fixture(scope="session")
def base(there: daemon.Daemon) -> str:
    """Digest of the stand-in base, in the registry under its upstream name and not in the daemon."""
    return daemon.push_base(there, UPSTREAM, TAG)


@pytest.fixture(scope="session")
def project(base: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_docker_project(tmp_path_factory.mktemp("docker") / "project", "python", base)


def make_docker_project(folder: Path, repository: str, digest: str) -> Path:
    """A fake project with an image of its own, and the wheels that its lock names."""
    make_project(folder)
    image, wheels = folder / "images" / "fake-env", folder / "wheels"
    wheels.mkdir()
    (image / "requirements.lock").write_text("".join(
        f"{name}=={version} \\\n    --hash=sha256:{daemon.wheel(wheels, name, version)}\n"
        for name, version in (("fake-first", "1.0"), ("fake-rest", "2.0"))))
    (image / "environment.toml").write_text(ENVIRONMENT + 'image = "stand-in"\n')
    (image / "Dockerfile").write_text(DOCKERFILE.format(digest=digest.removeprefix("sha256:")))
    (image / "lmcache").write_text(LMCACHE)
    shutil.copytree(MODULES, image / "modules", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "images" / "lock.toml").write_text(LOCK_TOML.format(repository=repository, tag=TAG, digest=digest))
    return folder


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("docker-cache")


@pytest.fixture
def fake(there: daemon.Daemon, project: Path, cache: Path, tmp_path: Path) -> Iterator[Fake]:
    """Runs in containers, of which none may be left."""
    made = in_containers(there, project, cache, tmp_path)
    yield made
    left = listed(there)
    for name in left:
        with contextlib.closing(there.client()) as client:
            client.containers.get(name).remove(force=True)
    assert not left
    assert not made.strays()


def in_containers(there: daemon.Daemon, project: Path, cache: Path, folder: Path, **profile: object) -> Fake:
    config = folder / "config"
    config.mkdir(exist_ok=True)
    lines = {"environment": ["FAKE_LIE"], **profile}
    (config / "docker.toml").write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in lines.items()))
    return Fake(project, cache, folder / "evidence", {
        "DOCKER_HOST": there.url, "KVPROOF_CONFIG": str(config), "PIP_FIND_LINKS": str(project / "wheels"),
        "PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull})


def listed(there: daemon.Daemon) -> list[str]:
    with contextlib.closing(there.client()) as client:
        return [c.name for c in client.containers.list(all=True, filters={"label": docker_containers.RUN})]


def run(fake: Fake, recipe: str = "quick", **hooks: object) -> Ended:
    environment = hooks.pop("environment", None)
    return fake.start(recipe, environment=environment, runtime="docker", **hooks).end(LIMIT_S)


@pytest.mark.engine
def test_a_proof_in_containers(fake: Fake, project: Path, base: str, there: daemon.Daemon) -> None:
    ended = run(fake, "fake", keep=True)
    assert ended.code == 0, ended.stderr
    record = ended.record
    header, facts = record.header, record.environment.container
    lock = hashlib.sha256((project / "images/fake-env/requirements.lock").read_bytes()).hexdigest()
    assert (header.verdict, header.runtime, header.image_digest, header.lock_digest) == ("pass", "docker", base, lock)
    assert {c.name: c.verdict for c in header.checks}.items() >= {"smoke": "pass", "control-damage": "pass",
                                                                   "control-drop": "pass", "overhead": "pass"}.items()
    assert record.plan["image"] == f"python:{TAG}@{base}"
    assert record.environment.versions["lmcache"] == "0.5.6"
    assert facts.base == f"python:{TAG}@{base}"
    assert facts.labels["kvproof.lock"] == lock
    assert facts.labels["kvproof.image.engine"] == "fake 1"
    assert {"kvproof.commit", "kvproof.dockerfile", "kvproof.inputs"} <= facts.labels.keys()
    assert (facts.options["network_mode"], facts.options["security_opt"]) == ("host", ["no-new-privileges"])
    assert facts.daemon.startswith("Docker")
    folder = Path(ended.data["run_folder"])
    assert "fake engine is ready" in (folder / "engine.log").read_text()
    assert all(path.stat().st_uid == os.getuid() for path in folder.rglob("*"))
    with contextlib.closing(there.client()) as client:
        history = json.dumps(client.images.get(facts.reference).history())
    assert "fake-rest" not in history.replace("'fake-rest/'", "")


@pytest.mark.engine
def test_an_image_is_pulled_by_its_upstream_name_and_digest(there: daemon.Daemon, base: str,
                                                           monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", there.url)
    source = docker_images.Source(f"python:{TAG}@{base}")
    with contextlib.closing(docker_containers.connect()) as client:
        image = docker_images.ensure(client, source, Console(quiet=True))
        assert f"python@{base}" in image.attrs["RepoDigests"]
        assert docker_images.ensure(client, source, Console(quiet=True)).id == image.id


@pytest.mark.engine
def test_an_image_is_built_once(fake: Fake, project: Path, base: str) -> None:
    first, second = (fake.inv("build", "fake-env", "--json").end(LIMIT_S) for _ in range(2))
    assert first.code == second.code == 0, first.stderr
    assert first.data == second.data
    assert "building image" not in second.stderr
    assert first.data["base"] == f"python:{TAG}@{base}"
    again = fake.inv("build", "fake-env", "--again", "--json").end(LIMIT_S)
    assert "fake_rest-2.0-py3-none-any.whl" in (fake.cache / "builds/fake-env.log").read_text()
    assert again.data["image"] == first.data["image"]


@pytest.mark.engine
def test_serving_from_containers(fake: Fake, there: daemon.Daemon) -> None:
    served = fake.inv("serve", "quick", "--runtime", "docker")
    served.wait_for("Ctrl-C stops it", "stdout")
    with contextlib.closing(there.client()) as client:
        running = {c.labels["kvproof.role"]: c for c in client.containers.list()}
    assert running.keys() == {"cache_server", "engine"}
    about = running["engine"].attrs["HostConfig"]
    assert about["IpcMode"] == f"container:{running['cache_server'].id}"
    assert (about["NetworkMode"], about["SecurityOpt"], about["Init"]) == ("host", ["no-new-privileges"], True)
    assert running["cache_server"].attrs["HostConfig"]["ShmSize"] == 1024**3
    assert running["engine"].labels["kvproof.recipe"] == "quick"
    served.send(signal.SIGINT)
    ended = served.end(LIMIT_S)
    assert ended.code == 0, ended.stderr
    assert "stopped quick; nothing is left running" in ended.stderr


@pytest.mark.engine
def test_ctrl_c_leaves_nothing(fake: Fake) -> None:
    started = fake.start("quick", runtime="docker")
    started.wait_for("noise-floor ...")
    started.send(signal.SIGINT)
    ended = started.end(LIMIT_S)
    assert ended.code == 130
    assert ended.record.header.status == "interrupted"


@pytest.mark.engine
def test_clean_removes_what_a_killed_run_left(fake: Fake, there: daemon.Daemon) -> None:
    alive = fake.inv("serve", "quick", "--runtime", "docker")
    alive.wait_for("Ctrl-C stops it", "stdout")
    killed = fake.start("quick", runtime="docker")
    killed.wait_for("smoke ...")
    killed.kill()
    assert len(listed(there)) == 5
    shown = fake.inv("clean", "--dry-run").end()
    assert sorted(line.split(":")[0] for line in shown.stdout.splitlines()) == ["left"] * 2 + ["would be removed"] * 3
    assert len(listed(there)) == 5
    ended = fake.inv("clean", "--json").end()
    assert sum(left["removed"] for left in ended.data["leftovers"]) == 3
    assert len(listed(there)) == 2
    alive.send(signal.SIGINT)
    assert alive.end(LIMIT_S).code == 0


@pytest.mark.engine
def test_the_next_run_removes_what_a_killed_one_left(fake: Fake, there: daemon.Daemon) -> None:
    killed = fake.start("quick", runtime="docker")
    killed.wait_for("start engine and baseline ...")
    killed.kill()
    assert listed(there)
    ended = run(fake, "impatient", environment={"FAKE_LIE": "cache-dies-at-start"})
    assert "cleaning up after a run that was killed: container kvproof-" in ended.stderr
    assert (ended.code, listed(there)) == (3, [])


@pytest.mark.engine
@pytest.mark.parametrize(("lie", "code", "said"), [
    ("cache-dies-at-start", 3, "cache_server exited with code 4 before cache_server was ready"),
    ("dies", 1, "engine exited with code 3 during retrieval"),
    ("is-killed", 1, "engine was ended by signal 9 during retrieval"),
])
def test_a_container_that_ends(fake: Fake, lie: str, code: int, said: str) -> None:
    ended = run(fake, environment={"FAKE_LIE": lie})
    assert ended.code == code
    assert said in ended.stderr
    assert said in ended.record.header.reason
    assert "  | " in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.engine
def test_a_restart_of_the_engine(fake: Fake) -> None:
    ended = run(fake, restart_engine=True)
    assert ended.code == 0, ended.stderr


@pytest.mark.engine
def test_a_port_that_is_taken(fake: Fake) -> None:
    ended = run(fake, occupy="engine")
    assert ended.code == 3
    assert "its port was taken by another program" in ended.stderr


@pytest.mark.engine
def test_no_daemon(fake: Fake) -> None:
    ended = run(fake, environment={"DOCKER_HOST": "unix:///tmp/nothing-listens-here.sock"})
    assert ended.code == 3
    assert "no Docker daemon answers at unix:///tmp/nothing-listens-here.sock" in ended.stderr
    assert "next: start it: sudo systemctl start docker" in ended.stderr
    assert not fake.evidence.exists()
    cleaned = fake.inv("clean", environment={"DOCKER_HOST": "unix:///tmp/nothing-listens-here.sock"}).end()
    assert cleaned.code == 0
    assert "not looked into: docker: no Docker daemon answers" in cleaned.stdout


@pytest.mark.engine
def test_no_permission(there: daemon.Daemon) -> None:
    code = """\
        import os
        import docker, requests.adapters
        from kvproof.runtimes import docker_containers
        os.seteuid(65534)
        try:
            docker_containers.connect()
        except Exception as error:
            print(type(error).__name__, error.message, error.tip)
        """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True,
                          env={**os.environ, "DOCKER_HOST": there.url})
    assert done.stdout.startswith("HostError a Docker daemon listens at unix://")
    assert "sudo usermod -aG docker $USER" in done.stdout


@pytest.mark.engine
def test_no_nvidia_runtime(there: daemon.Daemon, image: str, tmp_path: Path) -> None:
    with pytest.raises(HostError, match="no NVIDIA runtime") as caught, container(there, image, tmp_path, gpus=1):
        pass
    assert "nvidia-container-toolkit" in caught.value.tip
    assert listed(there) == []


@pytest.mark.engine
def test_a_container_that_runs_out_of_memory(there: daemon.Daemon, image: str, tmp_path: Path) -> None:
    with container(there, image, tmp_path, mem_limit=64 * 1024**2) as running:
        wait_for_end(running)
        what, advice = running.ending()
    assert what == "was killed because its container ran out of memory"
    assert "memory_gib in docker.toml" in advice


@pytest.mark.engine
def test_a_container_that_somebody_else_removes(there: daemon.Daemon, image: str, tmp_path: Path) -> None:
    with container(there, image, tmp_path, code="import time; time.sleep(60)") as running:
        with contextlib.closing(there.client()) as client:
            client.containers.get(running.name).remove(force=True)
        wait_for_end(running)
        assert running.ending()[0] == "was removed by somebody else"


@pytest.mark.engine
def test_an_option_that_this_host_refuses(there: daemon.Daemon, project: Path, cache: Path, tmp_path: Path) -> None:
    made = in_containers(there, project, cache, tmp_path)
    (tmp_path / "config" / "docker.toml").write_text("ulimits = { nofile = 99999999999 }\n")
    ended = run(made)
    assert ended.code == 3
    assert "that the host profile asks for" in ended.stderr
    assert "take it out of docker.toml" in ended.stderr
    assert listed(there) == []


@pytest.mark.engine
def test_an_image_that_no_registry_has(there: daemon.Daemon, tmp_path: Path) -> None:
    wrong = f"sha256:{'1' * 64}"
    made = make_docker_project(tmp_path / "project", f"{there.registry}/{UPSTREAM}", wrong)
    ended = run(in_containers(there, made, tmp_path / "cache", tmp_path))
    assert ended.code == 3
    assert "there is no such image" in ended.stderr
    assert "next: ./inv pin --check" in ended.stderr


@pytest.mark.engine
def test_a_registry_whose_content_is_not_what_the_digest_says(there: daemon.Daemon,
                                                              monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", there.url)
    manifest = json.dumps({
        "schemaVersion": 2, "mediaType": "application/vnd.docker.distribution.manifest.v2+json", "layers": [],
        "config": {"mediaType": "application/vnd.docker.container.image.v1+json", "size": 2,
                   "digest": f"sha256:{hashlib.sha256(b'{}').hexdigest()}"}}).encode()

    class Liar(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            data = manifest if "manifests" in self.path else b"{}"
            self.send_response(200)
            self.send_header("Content-Type", "application/vnd.docker.distribution.manifest.v2+json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(data)

        do_HEAD = do_GET

        def log_message(self, format: str, *words: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Liar)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        reference = f"127.0.0.1:{server.server_address[1]}/some/image:1@sha256:{'2' * 64}"
        with contextlib.closing(docker_containers.connect()) as client, \
                pytest.raises(EnvironmentBuildError, match="not what the digest says"):
            docker_images.pull(client, reference, Console(quiet=True))
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.engine
def test_a_disk_that_is_full(there: daemon.Daemon, base: str, tmp_path: Path,
                             monkeypatch: pytest.MonkeyPatch) -> None:
    data, folder = tmp_path / "small-disk", Path(f"/tmp/kvproof-small-{os.getpid()}")
    data.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", str(data)], check=True)
    try:
        with daemon.running(folder, "--max-download-attempts=1", data=data, registry=there.registry) as small:
            monkeypatch.setenv("DOCKER_HOST", small.url)
            with contextlib.closing(docker_containers.connect()) as client, \
                    pytest.raises(HostError, match="the disk that Docker keeps its data on is full") as caught:
                docker_images.pull(client, f"{there.registry}/{UPSTREAM}:{TAG}@{base}", Console(quiet=True))
    finally:
        subprocess.run(["umount", "--lazy", str(data)], check=True)
        shutil.rmtree(folder, ignore_errors=True)
    assert "docker system prune" in caught.value.tip


@pytest.mark.engine
def test_a_build_that_fails_shows_why(there: daemon.Daemon, project: Path, cache: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(project, other)
    file = other / "images/fake-env/Dockerfile"
    file.write_text(file.read_text() + 'RUN echo the reason stands here && exit 7\n')
    ended = in_containers(there, other, cache, tmp_path).inv("build", "fake-env").end(LIMIT_S)
    assert ended.code == 3
    assert "  | the reason stands here" in ended.stderr
    assert "could not be built" in ended.stderr
    assert "builds/fake-env.log" in ended.stderr


@pytest.fixture
def image(there: daemon.Daemon, project: Path, cache: Path, tmp_path: Path) -> str:
    """Id of the fake image, which any test may be the first to build."""
    (tmp_path / "image").mkdir()
    built = in_containers(there, project, cache, tmp_path / "image").inv("build", "fake-env", "--json").end(LIMIT_S)
    assert built.code == 0, built.stderr
    return built.data["id"]


@contextlib.contextmanager
def container(there: daemon.Daemon, image: str, folder: Path, code: str = "x = bytearray(10**9)", gpus: int = 0,
              **options: object) -> Iterator[docker_containers.Running]:
    """A container of the runtime's own kind, with another command."""
    recipe = Recipe.model_validate(RECIPE | {"environment": None, "image": "vllm"})
    made = runtime.Containers(recipe, runtime.Place("python3", None, None), folder, f"test-{time.monotonic_ns()}")
    made._image, made._client = image, there.client()
    try:
        words = made._options("engine", ["python3", "-c", code], {}, {str(folder): "rw"}, gpus)
        yield docker_containers.Running(made._client, "engine", words | options, folder / "engine.log")
    finally:
        made._client.close()
        for name in listed(there):
            with contextlib.closing(there.client()) as client:
                client.containers.get(name).remove(force=True)


def wait_for_end(running: docker_containers.Running) -> None:
    deadline = time.monotonic() + 30
    while running.exit_code() is None:
        assert time.monotonic() < deadline
        time.sleep(0.1)
