"""Locked environments are made once, completely or not at all; pip is a stand-in here."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from kvproof.console import Console
from kvproof.errors import EnvironmentBuildError, HostError, Interrupted, RecipeError
from kvproof.runtimes import venv
from kvproof.runtimes.venv import Lock, ensure, lock_of, read_lock
from made_up import recipe

PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
HERE = f"{sys.platform}-{platform.machine()}"
ABOUT = f"""\
python = "{PYTHON}"
platform = "{HERE}"
first = "torch"
first_index = "https://index.invalid/cpu"
installed_gib = 0.5
"""
LOCK = """\
# a comment
numpy==2.0 \\
    --hash=sha256:11
torch==2.13.0+cpu \\
    --hash=sha256:22 \\
    --hash=sha256:33
torch-extras==1.0 \\
    --hash=sha256:44
"""
QUIET = Console(quiet=True)


@pytest.fixture
def images(tmp_path: Path) -> Path:
    folder = tmp_path / "images"
    (folder / "small").mkdir(parents=True)
    (folder / "small" / "environment.toml").write_text(ABOUT)
    (folder / "small" / "requirements.lock").write_text(LOCK)
    return folder


@pytest.fixture
def lock(images: Path) -> Lock:
    return read_lock("small", images)


class Steps:
    """Stands in for run_step: plays `python -m venv`, pip and compileall.

    Attributes:
        fail: whether a step, given its words, ends with an error.
        before: called before each step.
    """

    def __init__(self) -> None:
        self.seen: list[list[str]] = []
        self.requirements: list[str] = []
        self.fail: Callable[[list[str]], bool] = lambda words: False
        self.before: Callable[[list[str]], None] = lambda words: None

    def __call__(self, argv: list[str], environment: dict[str, str], log: Path, on_line: Callable[[str], None]) -> int:
        self.before(argv)
        self.seen.append(argv)
        assert not [name for name in environment if name.startswith(("PYTHON", "VIRTUAL_ENV"))]
        if argv[2] == "venv":
            scripts = Path(argv[3]) / "bin"
            scripts.mkdir(parents=True)
            (scripts / "python3").touch()
            (scripts / "python").symlink_to("python3")
            (scripts / "tool").write_text(f"#!{argv[3]}/bin/python\nprint('tool')\n")
            (scripts / "other").write_text("#!/bin/sh\n")
        if argv[2] == "pip":
            self.requirements.append(Path(argv[-1]).read_text())
            on_line("Collecting x==1")
            on_line("Installing collected packages: x")
        if self.fail(argv):
            log.write_text(f"Looking in links\nERROR: no matching distribution ({' '.join(argv[-4:-2])})\n")
            return 1
        return 0


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    made = Steps()
    monkeypatch.setattr(venv, "run_step", made)
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    monkeypatch.setenv("VIRTUAL_ENV", "x")
    return made


def test_what_a_lock_says(lock: Lock, tmp_cache: Path) -> None:
    digest = hashlib.sha256(LOCK.encode()).hexdigest()
    assert (lock.name, lock.digest, lock.python, lock.first) == ("small", digest, PYTHON, "torch")
    assert lock.installed_bytes == 512 * 1024**2
    assert lock.interpreter == tmp_cache / "environments" / f"small-{digest[:16]}" / "bin" / "python"


def test_an_environment_that_is_not_there(images: Path) -> None:
    with pytest.raises(RecipeError, match="no locked environment is called 'smal'; did you mean small"):
        read_lock("smal", images)


@pytest.mark.parametrize("about", ["", "python = 3", ABOUT.replace("0.5", '"x"'), "\x00"])
def test_a_damaged_description(images: Path, about: str) -> None:
    (images / "small" / "environment.toml").write_text(about)
    with pytest.raises(RecipeError, match=r"small/environment\.toml: "):
        read_lock("small", images)


def test_a_recipe_without_one() -> None:
    with pytest.raises(RecipeError, match="names no locked environment") as caught:
        lock_of(recipe(environment=None, image="some-image"))
    assert caught.value.tip


def test_it_is_made_once(lock: Lock, steps: Steps) -> None:
    assert ensure(lock, QUIET) == lock.interpreter
    assert lock.interpreter.exists()
    kinds = [words[2] for words in steps.seen]
    assert kinds == ["venv", "pip", "pip", "compileall"]
    assert ensure(lock, QUIET) == lock.interpreter
    assert len(steps.seen) == 4
    assert not [p for p in lock.folder.parent.iterdir() if p.name.startswith(".")]


def test_what_pip_is_asked(lock: Lock, steps: Steps) -> None:
    ensure(lock, QUIET)
    first, rest = steps.requirements
    assert first == "torch==2.13.0+cpu \\\n    --hash=sha256:22 \\\n    --hash=sha256:33\n"
    assert rest == LOCK.replace(first, "")
    for words in (w for w in steps.seen if w[2] == "pip"):
        assert {"--require-hashes", "--no-deps", "--only-binary", "--no-input"} <= set(words)
        assert "--index-url" not in words


def test_scripts_name_the_final_folder(lock: Lock, steps: Steps) -> None:
    ensure(lock, QUIET)
    scripts = lock.folder / "bin"
    assert (scripts / "tool").read_text() == f"#!{lock.interpreter}\nprint('tool')\n"
    assert (scripts / "other").read_text() == "#!/bin/sh\n"
    assert not list(lock.folder.glob("*.txt"))
    compiled = steps.seen[-1]
    assert compiled[compiled.index("-p") + 1] == str(lock.folder)


def test_the_second_index_is_tried(lock: Lock, steps: Steps, capsys: pytest.CaptureFixture[str]) -> None:
    steps.fail = lambda words: words[-1].endswith("first.txt") and "--index-url" not in words
    ensure(lock, Console())
    assert steps.seen[2][-4:-2] == ["--index-url", "https://index.invalid/cpu"]
    assert "torch is not in pip's configured sources; trying https://index.invalid/cpu" in capsys.readouterr().err


def test_when_neither_source_has_it_both_are_named(lock: Lock, steps: Steps) -> None:
    steps.fail = lambda words: words[-1].endswith("first.txt")
    with pytest.raises(EnvironmentBuildError) as caught:
        ensure(lock, QUIET)
    assert caught.value.message == ("torch==2.13.0+cpu could be installed neither from pip's configured sources nor "
                                    "from https://index.invalid/cpu")
    assert len(caught.value.log_tail) == 2
    assert "PIP_FIND_LINKS" in caught.value.tip
    assert_nothing_is_left(lock)


@pytest.mark.parametrize(("kind", "said"), [("venv", "cannot make a virtual environment"), ("rest.txt", "from")])
def test_a_failed_step(lock: Lock, steps: Steps, kind: str, said: str) -> None:
    steps.fail = lambda words: kind in words[2] or words[-1].endswith(kind)
    with pytest.raises(EnvironmentBuildError, match=said) as caught:
        ensure(lock, QUIET)
    assert any("ERROR" in line for line in caught.value.log_tail)
    assert caught.value.exit_code == 3
    assert_nothing_is_left(lock)


@pytest.mark.parametrize("number", range(4))
def test_an_interrupted_build_is_never_used(lock: Lock, steps: Steps, number: int) -> None:
    def interrupt(_: list[str]) -> None:
        if len(steps.seen) == number:
            raise Interrupted("now")

    steps.before = interrupt
    with pytest.raises(Interrupted):
        ensure(lock, QUIET)
    assert_nothing_is_left(lock)
    steps.before = lambda words: None
    assert ensure(lock, QUIET).exists()


def assert_nothing_is_left(lock: Lock) -> None:
    assert not lock.interpreter.exists()
    assert not [p for p in lock.folder.parent.iterdir() if p.is_dir()]


def test_a_build_that_was_killed_is_removed_by_the_next(lock: Lock, steps: Steps) -> None:
    left = lock.folder.with_name(f".{lock.folder.name}.building") / "bin"
    left.mkdir(parents=True)
    (left / "python").touch()
    assert not lock.interpreter.exists()
    ensure(lock, QUIET)
    assert len(steps.seen) == 4
    assert not left.exists()


def test_two_at_once_make_it_once(lock: Lock, steps: Steps, monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = threading.Event()
    monkeypatch.setattr(venv.time, "sleep", lambda _: waiting.set() or threading.Event().wait(0.01))
    steps.before = lambda words: waiting.wait(5)
    made: list[Path] = []
    threads = [threading.Thread(target=lambda: made.append(ensure(lock, QUIET))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert made == [lock.interpreter] * 2
    assert len(steps.seen) == 4


def test_another_platform(images: Path, steps: Steps) -> None:
    (images / "small" / "environment.toml").write_text(ABOUT.replace(HERE, "plan9-mips"))
    with pytest.raises(HostError, match=f"is locked for plan9-mips, this host is {HERE}"):
        ensure(read_lock("small", images), QUIET)


def test_another_python(images: Path, steps: Steps, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (images / "small" / "environment.toml").write_text(ABOUT.replace(f'"{PYTHON}"', '"3.99"'))
    lock = read_lock("small", images)
    with pytest.raises(HostError, match=f"is locked for Python 3.99; this is {PYTHON} and there is no python3.99") as e:
        ensure(lock, QUIET)
    assert "uv python install 3.99" in e.value.tip
    found = tmp_path / "python3.99"
    shutil.copy("/bin/sh", found)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    ensure(lock, QUIET)
    assert steps.seen[0][0] == str(found)


@pytest.mark.process
def test_an_environment_that_does_not_run(lock: Lock) -> None:
    lock.interpreter.parent.mkdir(parents=True)
    lock.interpreter.write_text("#!/bin/sh\necho broken >&2\nexit 1\n")
    lock.interpreter.chmod(0o755)
    with pytest.raises(EnvironmentBuildError, match="environment small does not run: broken") as caught:
        venv.prepare(lock, QUIET)
    assert caught.value.tip == f"remove {lock.folder} and run again"


@pytest.mark.process
def test_versions_come_from_the_environment_itself(lock: Lock) -> None:
    lock.interpreter.parent.mkdir(parents=True)
    lock.interpreter.symlink_to(sys.executable)
    prepared = venv.prepare(lock, QUIET)
    assert prepared.versions["python"] == platform.python_version()
