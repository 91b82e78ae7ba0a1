"""Bad recipe files: each error names the file, the line where there is one, and a next step."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvproof import loading, strict_yaml
from kvproof.errors import KvproofError, RecipeError, UsageError
from kvproof.loading import find_recipe
from kvproof.paths import RECIPES
from made_up import RECIPE, project

GOOD = yaml.safe_dump(RECIPE | {"name": "bad"}, sort_keys=False)


def line_of(text: str, start: str) -> int:
    return next(n for n, line in enumerate(text.splitlines(), 1) if line.strip().startswith(start))


VERSION_LINE = line_of(GOOD, "version: 1.2.3")
BAD_INPUTS: dict[str, tuple[str | bytes, int | None, str]] = {
    # name: content, line, what is said
    "unknown key": (
        GOOD.replace("  version: 1.2.3", "  versoin: 1.2.3"),
        VERSION_LINE,
        "did you mean version",
    ),
    "missing key": (GOOD.replace("title:", "titel:"), 1, "title: missing, but every recipe needs it"),
    "wrong type": (GOOD.replace("gpus: 0", "gpus: none"), line_of(GOOD, "gpus"), "seen: 'none'"),
    "number for text": (GOOD.replace("1.2.3", "1.2"), VERSION_LINE, "seen: 1.2; put it in quotes"),
    "exponent": (GOOD.replace("disk_gib: 1", "disk_gib: 1e-300"), line_of(GOOD, "disk_gib"), "; write 1.0e-300"),
    "exponent without sign": (
        GOOD.replace("disk_gib: 1", "disk_gib: 2.5E3"),
        line_of(GOOD, "disk_gib"),
        "; write 2.5e+3",
    ),
    "check twice": (GOOD + "  - smoke\n", GOOD.count("\n") + 1, "checks.required: 'smoke' appears twice"),
    "empty": ("", None, "the file is empty"),
    "blank": (" \n\n", None, "the file is empty"),
    "only a comment": ("# nothing\n", 1, "seen: NoneType"),
    "not UTF-8": (b"name: bad\ntitle: caf\xe9\n", 2, "byte 0xe9 is not UTF-8"),
    "UTF-16": (GOOD.encode("utf-16"), 1, "is not UTF-8"),
    "control character": ("name: bad\ntitle: \x07\n", 2, "character 0x07"),
    "other stem": (
        GOOD.replace("name: bad", "name: good"),
        1,
        "name is 'good', but the file is called 'bad'",
    ),
    "duplicate key": ("name: bad\ntitle: a\nname: bad\n", 3, "appears twice, first at line 1"),
    "alias": ("name: &n bad\ntitle: *n\n", 2, "anchors and aliases"),
    "top-level list": ("- name\n- title\n", 1, "seen: list"),
    "top-level text": ("name\n", 1, "seen: str"),
    "tab": ("name: bad\n\ttitle: a\n", 2, "\\t"),
    "unclosed": ("name: [bad\n", 2, "not readable as YAML"),
    "huge": ("# " + "x" * strict_yaml.MAX_RECIPE_BYTES, None, "but a recipe has at most"),
    "deep nesting": ("name: bad\ntitle: " + "[" * 50_000, 2, "levels deep"),
    "list as key": ("? [a]\n: b\n", 1, "a key must be a plain word"),
    "python tag": ("name: bad\ntitle: !!python/name:os.system x\n", 2, "could not determine a constructor"),
    "two documents": (GOOD + "---\na: b\n", GOOD.count("\n") + 1, "another document"),
    "merge key": (GOOD + "<<: {}\n", GOOD.count("\n") + 1, "not readable as YAML"),
    "huge number": ("name: " + "9" * 5000 + "\n", None, "4300 digits"),
}


@pytest.mark.parametrize("name", BAD_INPUTS)
def test_bad_input(tmp_path: Path, name: str) -> None:
    content, line, said = BAD_INPUTS[name]
    path = tmp_path / "bad.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(RecipeError) as caught:
        loading.load_recipe(path)
    assert said in caught.value.message
    assert re.search(rf"{re.escape(str(path))}{f':{line}(:|$)' if line else ':'}", caught.value.message, re.M)
    assert caught.value.tip
    assert caught.value.exit_code == 2


def test_every_mistake_is_named_at_once(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(GOOD.replace("gpus: 0", "gpus: none").replace("disk_gib: 1", "disk: 1"))
    with pytest.raises(RecipeError) as caught:
        loading.load_recipe(path)
    assert {m.split(": ")[1] for m in caught.value.message.splitlines()} == {
        "hardware.gpus",
        "hardware.disk_gib",
        "hardware.disk",
    }


def test_a_number_as_the_advice_writes_it_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(GOOD.replace("disk_gib: 1", "disk_gib: 1.0e-300"))
    assert loading.load_recipe(path).hardware.disk_gib == 1e-300


def test_what_is_no_regular_file_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "zero.yaml").symlink_to("/dev/zero")
    for name in ("pipe.yaml", "zero.yaml"):
        with pytest.raises(RecipeError, match=rf"{name}: not a regular file") as caught:
            loading.load_recipe(tmp_path / name)
        assert caught.value.tip


def test_the_line_of_a_place_in_a_recipe(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(GOOD)
    for location, line in {
        ("engine", "version"): VERSION_LINE,
        ("checks", "required", 1): line_of(GOOD, "- noise-floor"),
        ("engine", "arguments", "port"): line_of(GOOD, "engine:"),
        ("gone",): 1,
    }.items():
        assert f"{path}:{line}: " in loading.error_at(path, location, "x").message
    error = loading.error_at(path, ("checks", "required", 1), "no check is called so", tip="mend it")
    assert error.message == f"{path}:{line_of(GOOD, '- noise-floor')}: checks.required: no check is called so"
    assert error.tip == "mend it"


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"no\.yaml: no such file") as caught:
        loading.load_recipe(tmp_path / "no.yaml")
    assert caught.value.tip


def test_folder_instead_of_file(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"cannot be read: Is a directory") as caught:
        loading.load_recipe(tmp_path)
    assert caught.value.tip


def test_duplicate_names(tmp_path: Path) -> None:
    folder, _, _ = project(tmp_path, {"name": "a"})
    (folder / "a.yml").write_text("name: a\n")
    with pytest.raises(RecipeError, match=r"two recipes are called 'a': .*a\.yaml and .*a\.yml") as caught:
        loading.recipe_paths(folder)
    assert caught.value.tip


def test_unknown_name_gives_the_nearest(tmp_path: Path) -> None:
    folder, _, _ = project(tmp_path, {"name": "gemma4-nano"}, {"name": "other"})
    with pytest.raises(UsageError, match="did you mean gemma4-nano") as caught:
        loading.find_recipe("gema4-nano", folder)
    assert caught.value.tip == "./inv recipes lists them"
    assert loading.find_recipe("other", folder) == folder / "other.yaml"


def test_an_unquoted_date_stays_text(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(GOOD + "claims:\n- {says: supported, text: t, source: s, date: 2026-01-02}\n")
    assert loading.load_recipe(path).claims[0].date == "2026-01-02"


def test_a_byte_order_mark_is_no_mistake(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + GOOD.encode())
    assert loading.load_recipe(path).name == "bad"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(content=st.one_of(st.binary(max_size=200), st.text("{}[]:-&*!?|>'\"#%@,ab01 \n\t", max_size=60)))
def test_no_content_makes_a_traceback(tmp_path: Path, content: bytes | str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(KvproofError, match=re.escape(str(path))):
        loading.load_recipe(path)


def test_the_schema_on_file_is_the_one_of_the_model() -> None:
    assert (RECIPES / "schema.json").read_text(encoding="utf-8") == loading.schema_text()


@pytest.mark.parametrize("path", loading.recipe_paths().values(), ids=lambda path: path.stem)
def test_the_recipes_here_load_and_name_the_schema(path: Path) -> None:
    assert loading.load_recipe(path).name == path.stem
    assert loading.recipe_text(path).startswith("# yaml-language-server: $schema=schema.json\n")


def test_a_recipe_is_found_by_its_aliases(tmp_path: Path) -> None:
    folder, _, _ = project(tmp_path, {"name": "long-name", "aliases": ["short"]}, {"name": "other"})
    assert find_recipe("short", folder) == folder / "long-name.yaml"
    with pytest.raises(UsageError, match="did you mean short"):
        find_recipe("shorty", folder)


def test_an_alias_that_is_taken_is_refused(tmp_path: Path) -> None:
    folder, _, _ = project(tmp_path, {"name": "one", "aliases": ["short"]}, {"name": "two", "aliases": ["short"]})
    with pytest.raises(RecipeError, match=r"two\.yaml:\d+: aliases: 'short' is also the name of one\.yaml"):
        find_recipe("short", folder)
