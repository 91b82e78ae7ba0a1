"""Exit codes and texts of the command line, on a few small tasks of its own."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from invoke import Collection, Exit, task

from kvproof import __version__, cli
from kvproof.cli import Inv, main, task_errors
from kvproof.errors import EvidenceError, HostError, Interrupted, NotReadyError, RecipeError

ERRORS = {
    "recipe-error": (RecipeError("a.yaml:3: engine: missing", tip="see recipes/schema.json"), 2),
    "host-error": (HostError("too little memory: 1 GiB, needs 4 GiB"), 3),
    "evidence-error": (EvidenceError("evidence/x.json: not JSON"), 1),
    "interrupted": (Interrupted("interrupted by SIGTERM"), 130),
}
SILENT = {"exit-7": (Exit(code=7), 7), "system-exit": (SystemExit(5), 5), "exit-0": (Exit(), 0)}


@task
@task_errors
def recipes(c, json=False):
    """Lists recipes."""
    print("gemma4-nano")


@task
@task_errors
def recipe(c, name, samples=4, json=False, evidence_dir=None, matrix=True, ratio=0.9, tag=()):
    """Proves a recipe.

    With more to say about it.
    """
    print(name, samples, json, evidence_dir, matrix, ratio)


@task(name="raise")
def raise_(c, what):
    """Ends as it is told."""
    raise {name: error for name, (error, _) in (ERRORS | SILENT).items()}[what]


@task
@task_errors
def dead(c):
    raise NotReadyError("the engine died", tip="see above", log_tail=["loading\n", "with HF_TOKEN=hf_abcdefgh"])


@task
@task_errors
def defect(c):
    raise RuntimeError("sent hf_abcdefgh")


@task
@task_errors
def ctrl_c(c):
    print("half of")
    raise KeyboardInterrupt


@task
@task_errors
def full(c):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "evidence/x.json")


@task
@task_errors
def elsewhere_broken(c):
    raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


TASKS = Collection(recipes, recipe, raise_, dead, defect, ctrl_c, full, elsewhere_broken)


class Ended:
    """How a call ended.

    Attributes:
        code: exit code; 0 when it just returned.
        out: stdout.
        err: stderr.
    """

    def __init__(self, code: int, out: str, err: str):
        self.code, self.out, self.err = code, out, err


@pytest.fixture
def inv(capsys):
    def call(*words: str) -> Ended:
        code = 0
        try:
            Inv(TASKS).run(["inv", *words])
        except SystemExit as end:
            code = end.code or 0
        return Ended(code, *capsys.readouterr())

    return call


# --- what was not understood ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("recip", "no task is called 'recip'; did you mean recipe or recipes?"),
        ("zzz", "no task is called 'zzz'; known: ctrl-c, dead, defect, elsewhere-broken, full, raise, recipe, "
                "recipes"),
        ("--help recip", "no task is called 'recip'; did you mean recipe or recipes?"),
        ("recip --help", "no task is called 'recip'; did you mean recipe or recipes?"),
        ("recipes recip", "no task is called 'recip' (inv recipes takes no further word); did you mean recipe or "
                          "recipes?"),
        ("recipe x --jsn", "recipe: no option is called --jsn; did you mean --json"),
        ("recipe --jsn", "recipe: no option is called --jsn; did you mean --json"),
        ("recipe x --no-matri", "recipe: no option is called --no-matri; did you mean --no-matrix or --matrix"),
        ("recipe x --evidence-dri=a", "recipe: no option is called --evidence-dri; did you mean --evidence-dir"),
        ("--lst", "no option is called --lst; did you mean --list"),
        ("recipe", "recipe: NAME is missing; usage: inv recipe NAME [--options]"),
        ("recipe --json", "recipe: NAME is missing; usage: inv recipe NAME [--options]"),
        ("recipe x --evidence-dir", "recipe: --evidence-dir needs a value"),
        ("recipe x --samples", "recipe: --samples needs a value"),
        ("recipe x --samples many", "--samples needs a whole number, seen 'many'"),
        ("recipe x --samples=1.5", "--samples needs a whole number, seen '1.5'"),
        ("recipe x --ratio much", "--ratio needs a number, seen 'much'"),
        ("--list-depth x", "--list-depth needs a whole number, seen 'x'"),
        ("recipe x --samples 1 --samples 2", "recipe: --samples is given twice; give it once"),
        ("recipe x --json=yes", "recipe: --json takes no value, seen --json=yes"),
        ("-f nothing.txt recipes", "invoke's configuration: Config files of type 'txt' (from file 'nothing.txt') are "
                                   "not supported! Please use one of: ('yaml', 'yml', 'json', 'py')"),
    ],
)
def test_what_was_not_understood_is_one_line_and_code_2(inv, words: str, said: str) -> None:
    ended = inv(*words.split())
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith(said)
    assert ended.err.count("\n") == 1


def test_odd_words_are_quoted_whole(inv) -> None:
    assert inv("it's").err.startswith("no task is called \"it's\"; ")
    assert inv("two\nlines").err.startswith(r"no task is called 'two\nlines'; ")


def test_what_was_understood_runs(inv) -> None:
    ended = inv("recipe", "x", "--samples=7", "--json", "--evidence-dir", "a=b", "--no-matrix", "--ratio", "-1e3")
    assert (ended.code, ended.out, ended.err) == (0, "x 7 True a=b False -1000.0\n", "")
    assert inv("recipe", "x", "--samples", "-5").out.startswith("x -5 ")
    assert inv("recipes", "recipe", "x").out.startswith("gemma4-nano\nx 4 ")


# --- help ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [[], ["--list"], ["--list", "recipes"], ["recipes", "-l"]])
def test_without_a_task_it_lists_them(inv, words: list[str]) -> None:
    ended = inv(*words)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith("Tasks:\n\n")
    assert "  recipe             Proves a recipe.\n" in ended.out


def test_help_names_the_tasks_and_few_options(inv) -> None:
    ended = inv("--help")
    assert ended.code == 0
    assert ended.out.startswith("Usage: inv TASK [--options]\n\nTasks:\n")
    assert "--version" in ended.out
    assert "sudo" not in ended.out


@pytest.mark.parametrize("words", ["--help recipe", "recipe --help", "recipe x --help", "recipe -h", "-h recipe"])
def test_help_of_a_task(inv, words: str) -> None:
    ended = inv(*words.split())
    assert ended.code == 0
    assert ended.out.startswith("Usage: inv recipe NAME [--options]\n\nProves a recipe.\n\nWith more to say")
    assert "--evidence-dir=STRING" in ended.out


def test_version(inv) -> None:
    assert inv("--version").out == f"inv {__version__}\n"


# --- errors of tasks -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(ERRORS))
def test_an_expected_error_is_its_message_tip_and_code(inv, name: str) -> None:
    error, code = ERRORS[name]
    ended = inv("raise", name)
    tip = f"next: {error.tip}\n" if error.tip else ""
    assert (ended.code, ended.out, ended.err) == (code, "", f"{error.message}\n{tip}")


@pytest.mark.parametrize("name", sorted(SILENT))
def test_an_exit_code_of_a_task_is_kept(inv, name: str) -> None:
    ended = inv("raise", name)
    assert (ended.code, ended.out, ended.err) == (SILENT[name][1], "", "")


def test_the_log_that_explains_it_comes_first_without_secrets(inv) -> None:
    ended = inv("dead")
    assert ended.code == 3
    assert ended.err == "  | loading\n  | with HF_TOKEN=***\nthe engine died\nnext: see above\n"


def test_a_defect_keeps_its_traceback_without_secrets(inv) -> None:
    ended = inv("defect")
    assert ended.code == 1
    assert ended.err.startswith("Traceback (most recent call last):\n")
    assert ended.err.endswith(f"RuntimeError: sent hf_***\nthis is a defect in kvproof {__version__}: please report it "
                              "with the lines above\n")
    assert "hf_abc" not in ended.err


def test_a_broken_pipe_that_is_not_ours_is_a_defect(inv) -> None:
    assert "BrokenPipeError" in inv("elsewhere-broken").err


def test_ctrl_c(inv) -> None:
    ended = inv("ctrl-c")
    assert (ended.code, ended.out, ended.err) == (130, "half of\n", "interrupted\n")


def test_a_full_disk_is_no_defect(inv) -> None:
    ended = inv("full")
    assert ended.code == 1
    assert ended.err == ("could not write evidence/x.json: No space left on device\n"
                         "next: free some space, then run the same command again\n")


def test_a_task_keeps_its_signature() -> None:
    assert [argument.name for argument in TASKS["recipe"].get_arguments()][:3] == ["name", "samples", "json"]


def test_bytecode_files_are_still_written(inv, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    inv("recipes")
    assert sys.dont_write_bytecode is False


# --- as a program --------------------------------------------------------------------------------


def test_a_checkout_without_tasks_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys) -> None:
    monkeypatch.setattr(cli, "PROJECT", tmp_path)
    with pytest.raises(SystemExit, match=r"^3$"):
        main(["inv", "recipes"])
    assert f"{tmp_path}/tasks.py: no such file" in capsys.readouterr().err


PROJECT_TASKS = """
import kvproof.cli
from invoke import task
from kvproof.cli import task_errors
from kvproof.errors import HostError

@task
@task_errors
def say(c, lines=1):
    for _ in range(lines):
        print("a line of text")

@task
@task_errors
def fail(c):
    raise HostError("too small", tip="grow")

@task
def shell(c):
    c.run("exit 9", hide=True, in_stream=False)
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "tasks.py").write_text(PROJECT_TASKS)
    (tmp_path / "here.py").write_text(
        f"import pathlib, sys, kvproof.cli as c\nc.PROJECT = pathlib.Path({str(tmp_path)!r})\nc.main()\n")
    return tmp_path


def start(project: Path, *words: str, **options: object) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, str(project / "here.py"), *words], cwd="/", text=True,
                            stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, **options)


@pytest.mark.process
def test_the_projects_tasks_are_found_from_any_folder(project: Path) -> None:
    process = start(project, "say", stdout=subprocess.PIPE)
    assert process.communicate(timeout=30) == ("a line of text\n", "")
    assert process.returncode == 0


@pytest.mark.process
def test_a_shell_commands_exit_status_is_kept(project: Path) -> None:
    process = start(project, "shell", stdout=subprocess.PIPE)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 9
    assert "Command: 'exit 9'" in said
    assert "Traceback" not in said


@pytest.mark.process
def test_a_reader_that_goes_away_is_no_error(project: Path) -> None:
    process = start(project, "say", "--lines=100000", stdout=subprocess.PIPE)
    assert process.stdout.readline() == "a line of text\n"
    process.stdout.close()
    with process.stderr:
        assert process.stderr.read() == ""
    assert process.wait(timeout=30) == 141


@pytest.mark.process
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_result_that_cannot_be_written_is_said(project: Path, unbuffered: str) -> None:
    with open("/dev/full", "w") as full_disk:
        process = start(project, "say", stdout=full_disk, env=os.environ | {"PYTHONUNBUFFERED": unbuffered})
        _, said = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "No space left on device" in said
    assert "Traceback" not in said


@pytest.mark.process
def test_plain_invoke_reports_a_tasks_error_in_the_same_way(project: Path) -> None:
    command = [sys.executable, "-m", "invoke", "fail"]
    ended = subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=30, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (3, "", "too small\nnext: grow\n")
