"""A recipe that extends another says only what differs; what is wrong is named with the file that says it."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from kvproof import loading
from kvproof.errors import RecipeError
from made_up import RECIPE

BASE = RECIPE | {
    "name": "base", "aliases": ["other-name"],
    "engine": {"name": "vllm", "version": "0.22.0", "arguments": {"max-num-seqs": 4, "seed": 1}},
    "claims": [{"says": "validated", "text": "t", "source": "s", "date": "2026-01-02"}],
    "caveats": [{"text": "base caveat", "reason": "r"}],
    "versioned": [{"versions": "<0.23", "engine_arguments": {"old-flag": True, "seed": 2}, "reason": "r"}],
    "connector": {"name": "lmcache-mp", "version": "4.5.6", "second_tier": "fs", "extra_config": {"a": 1}},
}


def write(folder: Path, name: str, **content: object) -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump({"name": name, "title": name} | content, sort_keys=False))
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path, **BASE)
    return tmp_path


def test_mappings_are_merged_and_all_else_replaces(folder: Path) -> None:
    path = write(folder, "child", extends="base", engine={"version": "0.29.0", "arguments": {"seed": 3}},
                 hardware={"gpus": 2})
    child, base = loading.load_recipe(path), loading.load_recipe(folder / "base.yaml")
    assert child.engine.arguments == {"max-num-seqs": 4, "seed": 3}
    assert (child.engine.name, child.engine.version) == ("vllm", "0.29.0")
    assert child.hardware.model_copy(update={"gpus": 0}) == base.hardware
    assert child.checks == base.checks


def test_what_it_never_takes(folder: Path) -> None:
    child = loading.load_recipe(write(folder, "child", extends="base"))
    assert (child.name, child.title, child.aliases, child.claims) == ("child", "child", [], [])


def test_caveats_and_versioned_parts_add_up(folder: Path) -> None:
    child = loading.load_recipe(write(
        folder, "child", extends="base", caveats=[{"text": "own caveat", "reason": "r"}],
        versioned=[{"versions": ">=0.20", "engine_arguments": {"new-flag": "x"}, "reason": "r"}],
    ))
    assert [c.text for c in child.caveats] == ["own caveat", "base caveat"]
    assert child.resolved().engine.arguments == {"max-num-seqs": 4, "seed": 1, "old-flag": True, "new-flag": "x"}


def test_null_takes_a_key_away(folder: Path) -> None:
    child = loading.load_recipe(write(folder, "child", extends="base", engine={"arguments": {"seed": None}},
                                      connector={"version": None, "extra_config": None}, caveats=None))
    assert child.engine.arguments == {"max-num-seqs": 4}
    assert (child.connector.version, child.connector.extra_config, child.caveats) == (None, {}, [])


def test_over_two_generations_the_nearest_wins(folder: Path) -> None:
    write(folder, "middle", extends="base", engine={"arguments": {"seed": 5, "max-num-seqs": 8}})
    path = write(folder, "child", extends="middle", engine={"arguments": {"seed": 6}})
    assert loading.load_recipe(path).engine.arguments == {"max-num-seqs": 8, "seed": 6}
    assert loading.parents(path) == ["middle", "base"]


def test_the_digest_follows_what_it_extends(folder: Path) -> None:
    path = write(folder, "child", extends="base")
    before = loading.load_recipe(path).digest()
    write(folder, **BASE | {"hardware": RECIPE["hardware"] | {"memory_gib": 2}})
    assert loading.load_recipe(path).digest() != before


def test_evidence_keeps_the_text_of_every_part(folder: Path) -> None:
    path = write(folder, "child", extends="base")
    text = loading.recipe_text(path)
    assert text == f"{path.read_text()}--- # base.yaml\n{(folder / 'base.yaml').read_text()}"


@pytest.mark.parametrize(("versions", "applied"), [("<0.23", True), (">=0.23", False), ("==0.22.*", True)])
def test_what_only_some_versions_need(folder: Path, versions: str, applied: bool) -> None:
    write(folder, **BASE | {"versioned": []})
    part = {"versions": versions, "engine_arguments": {"flag": True, "seed": 9}, "extra_config": {"a": 2, "b": 3},
            "shm_gib": 7, "reason": "r"}
    recipe = loading.load_recipe(write(folder, "child", extends="base", versioned=[part]))
    resolved = recipe.resolved()
    assert ("flag" in resolved.engine.arguments) is applied
    assert resolved.engine.arguments["seed"] == 1  # what the recipe itself says comes first
    assert resolved.connector.extra_config == ({"a": 1, "b": 3} if applied else {"a": 1})
    assert resolved.hardware.shm_gib == (7 if applied else 1)


def test_a_release_candidate_lies_within_its_bounds(folder: Path) -> None:
    recipe = loading.load_recipe(write(folder, "child", extends="base", engine={"version": "1.3.0rc20"}))
    assert recipe.applies(">=1.2")
    assert recipe.applies(None)
    assert not recipe.applies(">=1.3")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"extends": "bass"}, r"child\.yaml:3: extends: no recipe is called 'bass'; did you mean base\?"),
        ({"extends": ["base"]}, r"child\.yaml:3: extends: expected the name of a recipe, seen: \['base'\]"),
        ({"extends": "child"}, r"child\.yaml:3: extends: the recipes go in a circle: child extends child"),
        ({"extends": "base", "engine": {"versoin": "1"}}, r"child\.yaml:5: engine\.versoin: unknown key; did you mean"),
        ({"extends": "base", "hardware": {"gpus": "two"}}, r"child\.yaml:5: hardware\.gpus: .*seen: 'two'"),
        ({"extends": "base", "versioned": [{"versions": "0.29", "reason": "r"}]},
         r"child\.yaml:5: versioned\.0\.versions: expected version bounds such as '>=0\.21,<0\.23'; seen: '0\.29'"),
        ({"extends": "base", "engine": {"version": "newest"}}, r"child\.yaml:5: engine\.version: expected a version"),
    ],
)
def test_what_is_wrong_in_the_child(folder: Path, content: dict, said: str) -> None:
    with pytest.raises(RecipeError, match=said) as caught:
        loading.load_recipe(write(folder, "child", **content))
    assert caught.value.tip


def test_what_is_wrong_in_the_parent_names_the_parent(folder: Path) -> None:
    path = folder / "base.yaml"
    path.write_text(path.read_text().replace("gpus: 0", "gpus: none"))
    line = next(n for n, text in enumerate(path.read_text().splitlines(), 1) if "gpus: none" in text)
    with pytest.raises(RecipeError, match=rf"base\.yaml:{line}: hardware\.gpus"):
        loading.load_recipe(write(folder, "child", extends="base"))


def test_a_place_is_found_in_the_file_that_says_it(folder: Path) -> None:
    path = write(folder, "child", extends="base", engine={"arguments": {"model": "x"}})
    own = loading.error_at(path, ("engine", "arguments", "model"), "no").message
    assert own == f"{path}:6: engine.arguments.model: no"
    assert "base.yaml:" in loading.error_at(path, ("engine", "arguments", "seed"), "no").message


def test_a_circle_of_three(folder: Path) -> None:
    write(folder, "a", extends="b")
    write(folder, "b", extends="c")
    with pytest.raises(RecipeError, match=r"c\.yaml:3: extends: .*circle: a extends b extends c extends a"):
        loading.load_recipe(write(folder, "c", extends="a").with_name("a.yaml"))


def test_one_that_extends_nothing_must_say_everything(folder: Path) -> None:
    with pytest.raises(RecipeError, match=r"child\.yaml:1: hardware: missing, but every recipe needs it"):
        loading.load_recipe(write(folder, "child"))


def test_an_editor_accepts_a_child_and_not_a_bare_name() -> None:
    schema = loading.schema_text()
    assert '"extends"' in schema
    assert '"anyOf"' in schema


def test_a_list_s_item_is_found_in_the_file_that_has_it(folder: Path) -> None:
    broken = [{"text": "own", "reason": "r"}, {"text": "no reason"}]
    path = write(folder, "middle", extends="base", caveats=broken)
    line = next(n for n, text in enumerate(path.read_text().splitlines(), 1) if "no reason" in text)
    for caveats in (None, [{"text": "first", "reason": "r"}]):
        child = write(folder, "child", extends="middle", **({"caveats": caveats} if caveats else {}))
        with pytest.raises(RecipeError, match=rf"middle\.yaml:{line}: caveats\.\d\.reason: missing"):
            loading.load_recipe(child)


def test_what_it_must_say_itself_is_missed_in_its_own_file(folder: Path) -> None:
    path = folder / "child.yaml"
    path.write_text("name: child\nextends: base\n")
    with pytest.raises(RecipeError, match=r"child\.yaml:1: title: missing"):
        loading.load_recipe(path)


@pytest.mark.parametrize("content", [
    {"hardwre": None}, {"connector": {"second_teir": None}}, {"engine": {"arguments": {"max-nm-seqs": None}}},
])
def test_a_null_that_takes_nothing_away_is_no_way_to_misspell(folder: Path, content: dict) -> None:
    with pytest.raises(RecipeError, match=r"child\.yaml:\d: (hardwre|connector\.second_teir|engine\.arguments)"):
        loading.load_recipe(write(folder, "child", extends="base", **content))


@pytest.mark.parametrize("content", [
    {"connector": {"version": "1\ntouch x"}}, {"engine": {"version": "0.29.0\n"}}, {"title": "a\nb"},
    {"title": ""}, {"title": "a\x1b[2J"}, {"caveats": [{"text": "t", "reason": "r", "link": "javascript:x"}]},
])
def test_what_could_break_out_of_a_line_is_refused(folder: Path, content: dict) -> None:
    with pytest.raises(RecipeError, match=r"child\.yaml:\d"):
        loading.load_recipe(write(folder, "child", **{"extends": "base"} | content))
