"""`inv` as a user meets it: run for real, in a copy, mostly with a stand-in for Python that installs nothing."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kvproof import __version__
from kvproof.paths import PROJECT

TOOLS = ["sh", "cat", "cp", "date", "dirname", "head", "mkdir", "mv", "readlink", "rm", "sed", "sleep", "tail", "uname"]
SHELL = shutil.which("sh")

# Plays the interpreter outside .venv and, copied, the one inside.
FAKE_PYTHON = f"""#!{SHELL}
case "$*" in
    *"-m kvproof.cli"*)
        shift 3
        printf 'in %s\\n' "$PWD"
        printf 'arg %s\\n' "$@"
        printf 'path %s\\n' "${{PYTHONPATH-none}}"
        exit "${{FAKE_EXIT:-0}}" ;;
    *"-m venv "*)
        for folder; do :; done
        echo "venv with $0" >>"$FAKE_LOG"
        mkdir -p "$folder/bin"
        cp "$0" "$folder/bin/python"
        echo >"$folder/pyvenv.cfg" ;;
    *"-m pip "*)
        echo "pip start" >>"$FAKE_LOG"
        echo "Looking for wheels"
        sleep "${{FAKE_PIP_S:-0}}"
        [ "${{FAKE_PIP_EXIT:-0}}" = 0 ] || echo "ERROR: nothing is reachable" >&2
        echo "pip end" >>"$FAKE_LOG"
        exit "${{FAKE_PIP_EXIT:-0}}" ;;
    *"import pip"*) exit "${{FAKE_HAS_PIP:-0}}" ;;
    *) echo 3.12.1 ;;
esac
"""


def python_with(change: str) -> str:
    """A real Python that lies about itself, so that the question that inv asks is tested too."""
    return f"""#!{SHELL}
exec "{sys.executable}" -c 'import sys; {change}; exec(sys.argv[1])' "$2"
"""


OLD = python_with('sys.version_info = (3, 9, 2, "final", 0)')
NO_ENSUREPIP = python_with('sys.modules["ensurepip"] = None')
NO_VENV = python_with('sys.modules["venv"] = None')
BROKEN = f"#!{SHELL}\necho 'python3: command not found' >&2\nexit 127\n"


class Copy:
    """A copy of inv in a folder of its own, with a PATH that holds nothing but what is put there.

    Attributes:
        folder: where inv lies.
        bin: the only folder in PATH.
        log: what the stand-in for Python was asked to do.
    """

    def __init__(self, root: Path, name: str = "check out"):
        self.folder = root / name
        self.folder.mkdir()
        shutil.copy(PROJECT / "inv", self.folder)
        (self.folder / "pyproject.toml").write_text("[project]\n")
        self.bin = root / "bin"
        self.bin.mkdir()
        for tool in TOOLS:
            (self.bin / tool).symlink_to(shutil.which(tool))
        self.log = root / "asked.log"
        self.log.touch()

    @property
    def venv(self) -> Path:
        return self.folder / ".venv"

    @property
    def lock(self) -> Path:
        return self.folder / ".venv.lock"

    def program(self, name: str, text: str = FAKE_PYTHON) -> Path:
        path = self.bin / name
        path.write_text(text)
        path.chmod(0o755)
        return path

    def asked(self) -> list[str]:
        return self.log.read_text().splitlines()

    def start(self, *args: str, inv: Path | str | None = None, cwd: Path | None = None, **env: str) -> subprocess.Popen:
        return subprocess.Popen(
            ["sh", str(inv or self.folder / "inv"), *args], executable=SHELL, cwd=cwd or self.folder,
            env={"PATH": str(self.bin), "FAKE_LOG": str(self.log), **env}, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )

    def run(self, *args: str, **options: object) -> subprocess.CompletedProcess:
        process = self.start(*args, **options)
        out, err = process.communicate(timeout=60)
        return subprocess.CompletedProcess(args, process.returncode, out, err)

    def refused(self, **options: object) -> str:
        """What inv says when it cannot run; it must then end with 3, say a next step, and leave no lock."""
        result = self.run("recipes", **options)
        assert result.returncode == 3, result
        assert result.stdout == ""
        assert "\nnext: " in result.stderr
        assert not self.lock.exists()
        return result.stderr

    def impatient(self) -> None:
        """Takes a silent lock for dead after two seconds instead of twenty."""
        inv = self.folder / "inv"
        text = inv.read_text()
        assert "stale_s=20\n" in text
        inv.write_text(text.replace("stale_s=20\n", "stale_s=2\n"))

    def wait_for(self, met: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 20
        while not met():
            assert time.monotonic() < deadline
            time.sleep(0.02)


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    return Copy(tmp_path)


@pytest.fixture
def fake(copy: Copy) -> Copy:
    copy.program("python3")
    return copy


# --- first use, and every later one --------------------------------------------------------------


def test_first_use_installs_and_hands_over(fake: Copy) -> None:
    first = fake.run("recipe", "a b", "--json")
    assert first.returncode == 0
    assert first.stdout.splitlines()[1:4] == ["arg recipe", "arg a b", "arg --json"]
    assert "first use: making .venv with Python 3.12.1" in first.stderr
    assert re.search(r"^inv: installed in \d+ s$", first.stderr, re.M)
    assert fake.asked() == [f"venv with {fake.bin / 'python3'}", "pip start", "pip end"]
    assert not fake.lock.exists()


def test_later_uses_are_quiet_and_install_nothing(fake: Copy) -> None:
    fake.run()
    fake.log.write_text("")
    later = fake.run("recipes")
    assert (later.returncode, later.stderr, fake.asked()) == (0, "", [])


def test_the_programs_exit_status_is_handed_on(fake: Copy) -> None:
    assert fake.run("recipes", FAKE_EXIT="41").returncode == 41


def test_it_runs_from_any_folder_which_stays_the_users(fake: Copy, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "direct").symlink_to(fake.folder / "inv")
    (elsewhere / "relative").symlink_to(Path("..") / "check out" / "inv")
    (elsewhere / "twice").symlink_to("relative")
    (tmp_path / "folder link").symlink_to(fake.folder)
    for inv in ("direct", "./relative", "twice", "../check out/inv", "../folder link/inv"):
        result = fake.run("recipes", inv=inv, cwd=elsewhere)
        assert result.returncode == 0, (inv, result)
        assert result.stdout.splitlines()[0] == f"in {elsewhere}"
    assert fake.asked().count("pip start") == 1


def test_it_runs_by_itself_and_from_path(fake: Copy, tmp_path: Path) -> None:
    (fake.bin / "inv").symlink_to(fake.folder / "inv")
    env = {"PATH": str(fake.bin), "FAKE_LOG": str(fake.log)}
    result = subprocess.run(["inv", "recipes"], executable=fake.bin / "inv", cwd=tmp_path, env=env, check=True,
                            capture_output=True, text=True)
    assert result.stdout.startswith(f"in {tmp_path}\narg recipes\n")


def test_cdpath_and_module_paths_of_the_user_do_not_matter(fake: Copy, tmp_path: Path) -> None:
    (tmp_path / "decoy" / "check out").mkdir(parents=True)
    result = fake.run("recipes", inv="check out/inv", cwd=tmp_path, CDPATH=str(tmp_path / "decoy"),
                      PYTHONPATH="/of/others")
    assert result.returncode == 0
    assert result.stdout.splitlines()[-1] == "path none"


def test_a_copied_inv_says_that_it_is_lost(fake: Copy, tmp_path: Path) -> None:
    shutil.copy(fake.folder / "inv", tmp_path / "inv")
    assert f"{tmp_path} has no pyproject.toml" in fake.refused(inv=tmp_path / "inv")


# --- what is missing is said ---------------------------------------------------------------------


def test_no_python(copy: Copy) -> None:
    said = copy.refused()
    assert "no python3 in PATH, but kvproof needs Python 3.11 or newer" in said
    assert "apt install python3 python3-venv" in said
    assert not copy.venv.exists()


def test_too_old(copy: Copy) -> None:
    copy.program("python3", OLD)
    copy.program("python3.11", BROKEN)
    assert "no Python 3.11 or newer: python3 is 3.9.2, python3.11 does not run\n" in copy.refused()


@pytest.mark.parametrize(("name", "text"), [("ensurepip", NO_ENSUREPIP), ("venv", NO_VENV)])
def test_no_venv_module(copy: Copy, name: str, text: str) -> None:
    copy.program("python3", text)
    said = copy.refused()
    assert re.search(r"python3 \(.*, Python 3\.\d+\.\d+\) lacks the module venv or ensurepip", said), name
    assert "apt install python3-venv" in said


@pytest.mark.parametrize("text", [OLD, NO_ENSUREPIP, BROKEN])
def test_a_good_one_by_another_name_is_found(copy: Copy, text: str) -> None:
    copy.program("python3", text)
    good = copy.program("python3.13")
    assert copy.run("recipes").returncode == 0
    assert copy.asked()[0] == f"venv with {good}"


def test_a_folder_that_cannot_be_written(fake: Copy) -> None:
    (fake.bin / "mkdir").unlink()
    fake.program("mkdir", f"#!{SHELL}\necho 'mkdir: cannot create directory: Read-only file system' >&2\nexit 1\n")
    said = fake.refused()
    assert f"cannot make .venv in {fake.folder}, which must be writable on first use (Read-only file system)" in said


def test_a_complete_environment_is_used_where_nothing_can_be_written(fake: Copy) -> None:
    fake.run()
    (fake.bin / "mkdir").unlink()
    assert fake.run("recipes").returncode == 0


def test_a_failed_installation_shows_the_end_of_its_log_and_is_not_used(fake: Copy) -> None:
    said = fake.refused(FAKE_PIP_EXIT="1")
    assert "installing kvproof failed with exit status 1" in said
    assert "  | ERROR: nothing is reachable\n" in said
    log = Path(re.search(r"the whole log is in (.+)", said)[1])
    assert "Looking for wheels" in log.read_text()
    assert fake.run("recipes").returncode == 0
    assert fake.asked().count("pip start") == 2


# --- KVPROOF_PYTHON ------------------------------------------------------------------------------


def test_the_interpreter_can_be_chosen(fake: Copy) -> None:
    chosen = fake.program("mypython")
    assert fake.run("recipes", cwd=fake.bin, KVPROOF_PYTHON="./mypython").returncode == 0
    assert fake.asked()[0].endswith(f"{chosen.parent}/./mypython")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "KVPROOF_PYTHON is 'mypython', but there is no such program"),
        (OLD, "mypython) is Python 3.9.2, but kvproof needs 3.11 or newer"),
        (NO_ENSUREPIP, "lacks the module venv or ensurepip"),
        (BROKEN, "does not run as Python"),
    ],
)
def test_a_bad_choice_is_not_replaced_by_another(fake: Copy, text: str | None, said: str) -> None:
    if text:
        fake.program("mypython", text)
    assert said in fake.refused(KVPROOF_PYTHON="mypython")
    assert not fake.venv.exists()


# --- interrupted, twice at once, stale -----------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_installation_is_not_taken_as_complete(fake: Copy, number: signal.Signals) -> None:
    process = fake.start("recipes", FAKE_PIP_S="30")
    fake.wait_for(lambda: "pip start" in fake.asked())
    os.killpg(process.pid, number)
    out, _ = process.communicate(timeout=20)
    assert out == ""
    assert process.returncode == (-number if number == signal.SIGKILL else 128 + number)
    assert fake.lock.exists() == (number == signal.SIGKILL)
    assert "pip end" not in fake.asked()

    fake.log.write_text("")
    again = fake.run("recipes")
    assert again.returncode == 0
    assert fake.asked() == [f"venv with {fake.bin / 'python3'}", "pip start", "pip end"]
    assert not fake.lock.exists()


def test_first_uses_at_once_install_once(fake: Copy) -> None:
    started = [fake.start("recipes", FAKE_PIP_S="1") for _ in range(3)]
    ended = [process.communicate(timeout=60) for process in started]
    assert [process.returncode for process in started] == [0, 0, 0]
    assert all("arg recipes" in out for out, _ in ended)
    assert sum("another inv is installing here; waiting for it" in err for _, err in ended) == 2
    assert fake.asked().count("pip start") == 1


def test_of_all_who_wait_for_a_dead_one_only_one_takes_over(fake: Copy) -> None:
    dead = fake.start("--version")
    dead.communicate(timeout=60)
    shutil.rmtree(fake.venv)
    fake.log.write_text("")
    fake.lock.mkdir()
    (fake.lock / "owner").write_text(f"{os.uname().nodename}.{dead.pid}\n")
    started = [fake.start("recipes", FAKE_PIP_S="0.5") for _ in range(4)]
    for process in started:
        process.communicate(timeout=60)
    assert [process.returncode for process in started] == [0] * 4
    assert fake.asked().count("pip start") == 1
    assert not fake.lock.exists()


@pytest.mark.parametrize("owner", ["elsewhere.12\n", ""])
def test_a_lock_from_elsewhere_is_honoured_while_it_shows_life(fake: Copy, owner: str) -> None:
    fake.impatient()
    fake.lock.mkdir()
    (fake.lock / "owner").write_text(owner)
    process = fake.start("recipes")
    for count in range(7):
        (fake.lock / "beat").write_text(f"{count}\n")
        time.sleep(0.5)
    assert process.poll() is None
    assert fake.asked() == []
    process.communicate(timeout=20)
    assert process.returncode == 0
    assert fake.asked().count("pip start") == 1


# --- what makes it install again -----------------------------------------------------------------


def test_a_changed_pyproject_installs_again_into_the_same_environment(fake: Copy) -> None:
    fake.run()
    (fake.folder / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    fake.log.write_text("")
    changed = fake.run("recipes")
    assert "pyproject.toml changed: installing again" in changed.stderr
    assert fake.asked() == ["pip start", "pip end"]
    assert fake.run("recipes").stderr == ""


def test_a_moved_folder_gets_a_new_environment(fake: Copy, tmp_path: Path) -> None:
    fake.run()
    moved = tmp_path / "moved"
    fake.folder.rename(moved)
    fake.log.write_text("")
    assert fake.run("recipes", inv=moved / "inv", cwd=tmp_path).returncode == 0
    assert fake.asked() == [f"venv with {fake.bin / 'python3'}", "pip start", "pip end"]


def test_an_interpreter_that_went_away_gets_a_new_environment(fake: Copy) -> None:
    fake.run()
    (fake.venv / "bin" / "python").unlink()
    assert fake.run("recipes").returncode == 0
    assert fake.asked().count("pip start") == 2


def test_an_environment_made_by_hand_is_used_and_kept(fake: Copy) -> None:
    fake.run()
    for mark in fake.venv.glob("kvproof-*"):
        mark.unlink()
    (fake.venv / "mine").touch()
    fake.log.write_text("")
    assert "installing kvproof into the .venv that is there" in fake.run("recipes").stderr
    assert fake.asked() == ["pip start", "pip end"]
    assert (fake.venv / "mine").exists()
    (fake.folder / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    assert fake.run("recipes").returncode == 0
    assert (fake.venv / "mine").exists()


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, "is there, but it is no Python environment"),
        ({"pyvenv.cfg": "", "bin/python": OLD}, "has Python 3.9.2, but kvproof needs 3.11 or newer"),
        ({"pyvenv.cfg": "", "bin/python": BROKEN}, "bin/python does not run"),
        ({"pyvenv.cfg": ""}, "bin/python does not run"),
        ({"pyvenv.cfg": "", "bin/python": FAKE_PYTHON}, "has no pip"),
    ],
)
def test_what_cannot_be_used_is_refused_and_kept(fake: Copy, files: dict[str, str], said: str) -> None:
    (fake.venv / "bin").mkdir(parents=True)
    for name, text in files.items():
        (fake.venv / name).write_text(text)
        (fake.venv / name).chmod(0o755)
    (fake.venv / "mine").touch()
    assert said in fake.refused(FAKE_HAS_PIP="1")
    assert (fake.venv / "mine").exists()


# --- the script itself ---------------------------------------------------------------------------


def test_the_oldest_python_is_the_projects() -> None:
    oldest = re.search(r'^oldest="(.+?)"', (PROJECT / "inv").read_text(), re.M)[1]
    assert f'requires-python = ">={oldest}"' in (PROJECT / "pyproject.toml").read_text()


@pytest.mark.process
@pytest.mark.parametrize("script", ["inv", ".ci/run"])
def test_shellcheck_finds_nothing(require_tool: Callable[[str], str], script: str) -> None:
    command = [require_tool("shellcheck"), script]
    found = subprocess.run(command, cwd=PROJECT, stdout=subprocess.PIPE, text=True, check=False)
    assert found.returncode == 0, found.stdout


@pytest.mark.engine
def test_a_real_first_use(tmp_path: Path) -> None:
    """Needs the package index; takes half a minute."""
    folder = tmp_path / "check out"
    folder.mkdir()
    for name in ("inv", "pyproject.toml", "README.md"):
        shutil.copy(PROJECT / name, folder)
    shutil.copytree(PROJECT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "tasks.py").write_text("from invoke import task\n\n\n@task\ndef hello(c):\n    print('hello')\n")
    (tmp_path / "kvproof.py").write_text("raise SystemExit('a module of the user got in the way')\n")

    def run(*command: str | Path) -> subprocess.CompletedProcess:
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False)

    first = run(folder / "inv", "--version")
    assert (first.returncode, first.stdout) == (0, f"inv {__version__}\n"), first.stderr
    later = run(folder / "inv", "hello")
    assert (later.returncode, later.stdout, later.stderr) == (0, "hello\n", "")
    plain = run(folder / ".venv/bin/invoke", "--search-root", folder, "hello")
    assert (plain.returncode, plain.stdout) == (0, "hello\n"), plain.stderr
