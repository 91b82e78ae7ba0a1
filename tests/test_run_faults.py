"""What can go wrong around a run: whatever it is, it is named, recorded, and nothing is left running."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fakes import Ended, Fake, family, gate, make_project
from kvproof import process

pytestmark = pytest.mark.process
SHM = Path("/dev/shm")
AT_ONCE = 4
SECRETS = ("hf_" + "aBcDeFgHiJkLmNoP", "no-known-shape-at-all-1")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_project(tmp_path_factory.mktemp("faults") / "project")


@pytest.fixture(scope="module")
def warm_cache(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder in which environment and model are installed already."""
    folder = tmp_path_factory.mktemp("warm")
    ended = Fake(project, folder / "cache", folder / "evidence").run("impatient", occupy="cache")
    assert ended.code == 3
    return folder / "cache"


@contextlib.contextmanager
def place(project: Path, warm_cache: Path, folder: Path, *, relatives: bool = False) -> Iterator[Fake]:
    """Runs in a folder of their own, of which nothing may be left afterwards.

    Args:
        warm_cache: where environment and model are taken from.
        relatives: whether fake engines have children, shared memory and semaphores.
    """
    cache, relations = folder / "cache-of-runs", folder / "family"
    for made in (cache, relations):
        made.mkdir(parents=True)
    for name in ("environments", "models"):
        (cache / name).symlink_to(warm_cache / name)
    fake = Fake(project, cache, folder / "evidence", {"FAKE_FAMILY": str(relations)} if relatives else {})
    yield fake
    strays, (_, segments) = fake.strays(), family(relations)
    left = {s for s in segments if (SHM / s).exists()}
    for stray in strays:
        with contextlib.suppress(process.psutil.Error):
            stray.kill()
    for name in left:
        (SHM / name).unlink(missing_ok=True)
    assert not strays
    assert not left


@pytest.fixture
def fake(project: Path, warm_cache: Path, tmp_path: Path) -> Iterator[Fake]:
    with place(project, warm_cache, tmp_path) as made:
        yield made


@pytest.fixture
def related(project: Path, warm_cache: Path, tmp_path: Path) -> Iterator[Fake]:
    """As `fake`, but engines have relatives: they take longer to start and to stop."""
    with place(project, warm_cache, tmp_path, relatives=True) as made:
        yield made


@pytest.fixture(scope="module")
def ahead(request: pytest.FixtureRequest, project: Path, warm_cache: Path,
          tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Any]]:
    """What the selected tests of SCENARIOS found, by their names; a few run at once, as they mostly wait."""
    names = [item.name for item in request.session.items if item.path == request.path and item.name in SCENARIOS]

    def play(name: str) -> Any:
        with place(project, warm_cache, tmp_path_factory.mktemp("place"), relatives=True) as made:
            return SCENARIOS[name](made)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        futures = {name: pool.submit(play, name) for name in names}
        yield lambda name: futures[name].result()
        pool.shutdown(cancel_futures=True)


# Servers that fail


FAILING = {
    # lie: exit code, what is said
    "cache-dies-at-start": (3, "cache_server exited with code 4 before cache_server was ready"),
    "dies-at-register": (3, "cache_server exited with code 4 before engine was ready"),
    "dies-at-store": (1, "cache_server exited with code 4 during noise-floor"),
    "dies-at-retrieve": (1, "cache_server exited with code 4 during retrieval"),
    "is-killed": (1, "engine was ended by signal 9 during retrieval"),
    "refuses-registration": (3, "engine will not become ready: the cache server refused it: "),
}


@pytest.mark.parametrize("lie", FAILING)
def test_a_server_that_fails(ahead: Callable[[str], Any], request: pytest.FixtureRequest, lie: str) -> None:
    (code, said), ended = FAILING[lie], ahead(request.node.name)
    assert ended.code == code
    assert said in ended.stderr
    assert "Traceback" not in ended.stderr
    record = ended.record
    assert (record.header.status, record.header.verdict) == ("failed", "error")
    assert said in record.header.reason
    assert Path(ended.data["run_folder"]).is_dir()
    if lie == "is-killed":
        assert any("fake engine is about to be killed" in line for line in record.logs["engine"][-5:])
        assert "  | INFO: fake engine is about to be killed" in ended.stderr.splitlines()
    if code == 1:
        check = said.rpartition(" ")[2]
        assert {check: "error"} == ended.red
        assert said in ended.reasons[check]
        assert record.passes or check == "noise-floor"


def test_a_refused_registration_ends_the_wait_early(fake: Fake) -> None:
    ended = fake.run("quick", environment={"FAKE_LIE": "refuses-registration"})
    assert "must be a multiple of tokens_per_block 256" in ended.record.header.reason
    assert ended.record.header.duration_s < 10  # the recipe would wait 30 s for an engine that hangs


def test_a_server_that_is_never_ready(fake: Fake) -> None:
    ended = fake.run("impatient", environment={"FAKE_LIE": "never-ready"})
    assert ended.code == 3
    assert "engine was not ready after 1 s" in ended.stderr
    assert "raise ready_timeout_s in the recipe" in ended.stderr
    assert "  | INFO: fake engine takes its time" in ended.stderr.splitlines()
    assert ended.record.header.status == "failed"
    assert ended.record.checks == ()


@pytest.mark.parametrize("name", ["engine", "cache_http"])
def test_a_port_that_was_taken_after_it_was_chosen(fake: Fake, name: str) -> None:
    ended = fake.run("quick", occupy=name)
    assert ended.code == 3
    assert "its port was taken by another program" in ended.stderr
    assert "next: run again; other ports will be chosen" in ended.stderr
    assert "Traceback" not in ended.stderr.partition("its port")[2]
    assert ended.record.header.status == "failed"


def test_an_engine_that_does_not_come_back_after_its_restart(fake: Fake) -> None:
    lie = {"FAKE_LIE": "starts-once", "FAKE_STARTS": str(fake.cache)}
    ended = fake.run("quick", environment=lie, restart_engine=True)
    assert ended.code == 3
    assert ended.red == {"retrieval": "error"}
    assert "engine exited with code 5 before engine was ready" in ended.reasons["retrieval"]
    assert ended.record.header.status == "failed"


# Evidence that cannot be written


def test_evidence_below_a_file(fake: Fake, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    assert_kept(fake.run("quick", evidence_dir=str(file / "evidence")), "Not a directory")


def test_evidence_on_a_full_disk(fake: Fake) -> None:
    assert_kept(fake.run("quick", disk_full=True), "No space left on device")
    assert not list(fake.evidence.rglob("*"))[1:]  # the folder is there, and no part of a file


def assert_kept(ended: Ended, said: str) -> None:
    """The result is shown and kept in the run folder all the same."""
    assert ended.code == 1
    assert said in ended.stderr
    assert ended.data["evidence"] is None
    assert ended.data["header"]["verdict"] == "pass"
    assert ended.kept["header"]["verdict"] == "pass"
    assert f"{ended.data['run_folder']}/record.json" in ended.stderr


def test_a_cache_folder_that_cannot_be_made(fake: Fake, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    ended = fake.run("quick", environment={"KVPROOF_CACHE": str(tmp_path / "file" / "cache")})
    assert ended.code == 3
    assert "cannot be made: Not a directory" in ended.stderr
    assert "set KVPROOF_CACHE" in ended.stderr
    assert not fake.evidence.exists()


# Interruptions

CHECKS_WITH_REQUESTS = ("smoke", "noise-floor", "store", "retrieval", "latency", "overhead", "control-drop",
                        "control-damage")
PHASES = {
    # phase: what progress says when it begins, which gate holds it
    "install": ("installing environment fake-env (2 packages, once)", "FAKE_PIP_GATE"),
    "model build": ("building model fake/model", "FAKE_BUILD_GATE"),
    "start of the cache server": ("start cache server", None),
    "start of the engines": ("start engine and baseline", None),
    "warm-up": ("warm-up", "FAKE_GATE"),
    **{check: (check, "FAKE_GATE") for check in CHECKS_WITH_REQUESTS},
}


def interrupt(fake: Fake, phase: str) -> tuple[Ended, set[int]]:
    """Interrupt a run in a phase that a gate holds open; how it ended, and what its engines had started."""
    words, gate_name = PHASES[phase]
    relations, held = Path(fake.environment["FAKE_FAMILY"]), fake.cache / "gate"
    installs = gate_name in ("FAKE_PIP_GATE", "FAKE_BUILD_GATE")
    environment = {gate_name: str(held)} if gate_name else {}
    if installs:
        for name in ("environments", "models"):
            (fake.cache / name).unlink()
        held.touch()
    if phase == "start of the engines":
        environment["FAKE_LIE"] = "never-ready"
    recipe = "fake" if phase in ("latency", "overhead") else "quick"
    hooks = {"gate_at": [words, str(held)]} if gate_name == "FAKE_GATE" else {}
    run = fake.start(recipe, environment=environment, **hooks)
    run.wait_for(f"{words} ...")
    if phase == "start of the engines":
        while len(list(relations.glob("*.json"))) < 2:
            time.sleep(0.05)
    time.sleep(0.1)
    run.send(number_of(phase))
    return run.end(), family(relations)[0]


def number_of(phase: str) -> signal.Signals:
    return signal.SIGTERM if phase in ("warm-up", "store") else signal.SIGINT


@pytest.mark.parametrize("phase", PHASES)
def test_an_interruption(ahead: Callable[[str], Any], request: pytest.FixtureRequest, phase: str) -> None:
    ended, pids = ahead(request.node.name)
    assert ended.code == 130, ended.stderr
    assert f"interrupted by {number_of(phase).name}" in ended.stderr
    assert "Traceback" not in ended.stderr
    header = ended.record.header
    assert header.status == ended.data["header"]["status"] == "interrupted"
    assert header.verdict != "pass"
    if phase in CHECKS_WITH_REQUESTS:
        assert ended.reasons[phase] == "interrupted while it ran"
    assert bool(pids) == (phase not in ("install", "model build", "start of the cache server"))
    cache = Path(ended.data["run_folder"]).parents[1]
    if phase == "install":
        assert not list((cache / "environments").glob("*/bin"))
    if phase == "model build":
        assert not list((cache / "models").glob("*/"))


SCENARIOS: dict[str, Callable[[Fake], Any]] = {
    f"test_an_interruption[{phase}]": partial(interrupt, phase=phase) for phase in PHASES
} | {
    f"test_a_server_that_fails[{lie}]": partial(Fake.run, recipe="quick", environment={"FAKE_LIE": lie})
    for lie in FAILING
}


def test_ctrl_c_twice(related: Fake, tmp_path: Path) -> None:
    held = str(tmp_path / "gate")
    run = related.start("quick", environment={"FAKE_GATE": held}, gate_at=["retrieval", held])
    run.wait_for("retrieval ...")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGINT):
        run.send(number)
    run.wait_for("stop ...")
    for number in (signal.SIGINT, signal.SIGTERM):
        run.send(number)
    ended = run.end()
    assert ended.code == 130
    assert ended.record.header.status == "interrupted"
    assert "stopping what was started" in ended.stderr


def test_ctrl_c_while_servers_are_stopped_loses_nothing(related: Fake) -> None:
    run = related.start("quick", samples=1)
    run.wait_for("stop ...")
    run.send(signal.SIGINT)
    ended = run.end()
    assert ended.data["header"]["status"] == "completed"
    assert ended.data["header"]["verdict"] == "pass"
    assert list(ended.record.header.weaker) == ["1 samples, the recipe asks for 3"]


def test_a_run_after_one_that_was_killed_cleans_up(related: Fake, tmp_path: Path) -> None:
    held = str(tmp_path / "gate")
    run = related.start("quick", environment={"FAKE_GATE": held}, gate_at=["noise-floor", held])
    run.wait_for("noise-floor ...")
    run.kill()
    _, segments = family(tmp_path / "family")
    assert {s for s in segments if (SHM / s).exists()}, "nothing was left, so this would show nothing"
    assert related.strays()
    said: list[str] = []
    process.sweep(related.cache / "runs", said.append)
    assert len(said) == 1
    assert "cleaning up after a run that was killed" in said[0]
    process.sweep(related.cache / "runs", said.append)
    assert len(said) == 1


def test_the_next_run_sweeps(fake: Fake) -> None:
    run = fake.start("quick")
    run.wait_for("smoke ...")
    run.kill()
    ended = fake.run("impatient", occupy="cache")
    assert "cleaning up after a run that was killed: quick-" in ended.stderr


# Two at once, and secrets


def test_two_runs_side_by_side(fake: Fake) -> None:
    runs = [fake.start("quick"), fake.start("quick")]
    records = []
    for run in runs:
        ended = run.end()
        assert ended.code == 0, ended.reasons or ended.stderr
        records.append(ended.record)
    used = [{s["url"] for s in r.plan["servers"]} for r in records]
    assert len(used[0] | used[1]) == 6
    assert len({r.header.run_id for r in records}) == 2


def test_the_first_two_runs_side_by_side(project: Path, tmp_path: Path) -> None:
    """With nothing installed: one installs, the other waits, and both build the same model."""
    fake = Fake(project, tmp_path / "empty", tmp_path / "evidence")
    held = tmp_path / "gate"
    with gate(held):
        runs = [fake.start("quick", environment={"FAKE_BUILD_GATE": str(held)}, samples=1) for _ in range(3)]
        for run in runs:
            run.wait_for("building model")
    for run in runs:
        ended = run.end()
        assert ended.code == 0, ended.reasons or ended.stderr
    assert len(list((fake.cache / "environments").glob("fake-env-*/bin/python"))) == 1
    assert not list((fake.cache / "models").glob(".*"))


@pytest.mark.parametrize("secret", SECRETS)
def test_a_token_reaches_neither_screen_nor_evidence(fake: Fake, secret: str) -> None:
    """The fake engine writes it into its log, whose end is shown and kept when the engine dies."""
    ended = fake.run("quick", environment={"FAKE_LIE": "is-killed", "HF_TOKEN": secret})
    assert ended.code == 1
    folder = Path(ended.data["run_folder"])
    assert secret in (folder / "engine.log").read_text(), "the fake never wrote it, so this would show nothing"
    assert "fake engine was given the token" in ended.stderr
    for text in (ended.stdout, ended.stderr, Path(ended.data["evidence"]).read_text(),
                 (folder / "record.json").read_text()):
        assert secret not in text
    assert any("fake engine was given the token" in line for line in ended.record.logs["engine"])


# The command line itself, with no hook


def test_the_command_line(project: Path, fake: Fake) -> None:
    run = fake.inv("recipe", "quick", "--json")
    other = fake.inv("recipe", "quick", "--evidence-dir", str(fake.evidence), environment={"FAKE_LIE": "noisy"})
    ended = run.end()
    assert ended.code == 0, ended.reasons or ended.stderr
    assert ended.data["header"]["verdict"] == "pass"
    assert Path(ended.data["evidence"]).parent == project / "evidence" / "quick"
    assert not ended.data["run_folder"], "a proven run's folder goes"
    assert "quick" in (project / "docs" / "support-matrix.md").read_text()
    assert fake.inv("matrix", "--check").end().code == 0
    noisy = other.end()
    assert noisy.code == 1
    assert noisy.stdout.startswith("quick: FAILED (noise-floor: floor_logprob_drift is ")
    assert "quick is not proven" in noisy.stderr
    shown = next(line for line in noisy.stdout.splitlines() if line.split()[:1] == ["evidence"]).split()[1]
    assert json.loads(Path(shown).read_text())["header"]["verdict"] == "fail"


def test_a_dry_run_starts_nothing(fake: Fake) -> None:
    ended = fake.inv("recipe", "fake", "--dry-run", "--json").end()
    assert ended.code == 0
    assert [s["role"] for s in ended.data["servers"]] == ["cache_server", "engine", "baseline"]
    assert not (fake.cache / "runs").exists()


# Serving


def test_serving_until_ctrl_c(related: Fake) -> None:
    served = related.inv("serve", "quick")
    served.wait_for("Ctrl-C stops it", "stdout")
    served.send(signal.SIGINT)
    ended = served.end()
    assert ended.code == 0, ended.stderr
    url = next(word for word in ended.stdout.split() if word.startswith("http://"))
    assert ended.stdout.startswith(f"quick is ready at {url}\n\ncurl {url}/completions ")
    assert '"model": "fake"' in ended.stdout
    assert "stopped quick; nothing is left running" in ended.stderr
    assert "baseline" not in ended.stderr
    assert list((related.cache / "runs").glob("*")) == []


def test_a_server_that_ends_while_it_serves(related: Fake) -> None:
    served = related.inv("serve", "quick")
    served.wait_for("Ctrl-C stops it", "stdout")
    engine = next(p for p in related.strays() if "vllm.entrypoints.openai.api_server" in " ".join(p.cmdline()))
    engine.kill()
    ended = served.end()
    assert ended.code == 1
    assert "engine was ended by signal 9 while it was serving" in ended.stderr
    assert "its whole log is " in ended.stderr


def test_serving_on_a_port_that_is_taken(fake: Fake) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ended = fake.inv("serve", "quick", "--port", str(taken.getsockname()[1])).end()
    assert ended.code == 3
    assert "its port was taken by another program" in ended.stderr


@pytest.mark.parametrize(("words", "said"), [
    (("nothing",), "no recipe is called 'nothing'"),
    (("quick", "--port", "0"), "--port is 0, expected 1 to 65535"),
    (("quick", "--port", "http"), "--port is 'http', expected a whole number"),
])
def test_serving_with_a_wrong_word(fake: Fake, words: tuple[str, ...], said: str) -> None:
    ended = fake.inv("serve", *words).end()
    assert (ended.code, ended.stdout) == (2, "")
    assert said in ended.stderr


def test_a_shm_folder_is_there() -> None:
    """Without it the tests above would pass for the wrong reason."""
    assert os.path.ismount(SHM)
