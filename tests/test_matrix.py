"""Every standing, every kind of problem, and a page that is the same for the same evidence."""

from __future__ import annotations

import json
import os
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproof import evidence, matrix, runnable, standing
from kvproof.errors import EvidenceError, KvproofError, UsageError
from kvproof.evidence import Hardware, Header
from kvproof.matrix import Standing
from kvproof.matrix_page import hardware_text
from kvproof.recipe import PROOF, Recipe
from made_up import LOCK_DIGEST, PASSES, RECIPE, checks, header, project, recipe, record

Folders = tuple[Path, Path, Path]
CLAIM = {"says": "supported", "text": "It works.", "source": "https://example.org/page", "date": "2026-01"}
CHANGED = {"recipe_digest": "0" * 64}


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    return project(tmp_path, {})


def keep(folders: Folders, number: int = 1, **changes: Any) -> Header:
    """Write evidence number so and so; a higher number is a later run."""
    fields = {"run_id": f"fixture-run-{number}", "started_at": f"2026-01-{number:02}T03:04:05Z"} | changes
    made = header(**fields)
    evidence.write(record(made), folders[1])
    return made


def claim(folders: Folders, **changes: Any) -> None:
    """Give the made-up recipe a claim, which leaves its digest as it is."""
    content = RECIPE | {"claims": [CLAIM | changes]}
    (folders[0] / "fixture-recipe.yaml").write_text(json.dumps(content))


def in_hours(hours: int) -> str:
    return f"{datetime.now(UTC) + timedelta(hours=hours):%Y-%m-%dT%H:%M:%SZ}"


def only(folders: Folders) -> matrix.Cell:
    found = matrix.collect(*folders)
    assert found.problems == ()
    (cell,) = found.cells
    return cell


def test_proven(folders: Folders) -> None:
    made = keep(folders)
    cell = only(folders)
    assert (cell.standing, cell.reason) == (Standing.PROVEN, None)
    assert cell.evidence == "evidence/fixture-recipe/fixture-run-1.json"
    assert (cell.weights, cell.hardware, cell.date) == ("dummy", made.hardware, "2026-01-01")
    assert (cell.engine_version, cell.connector_version) == ("1.2.3", "4.5.6")
    assert (cell.checks, cell.highlights) == (PASSES, made.highlights)


def test_failing_gives_the_reason_of_the_run(folders: Folders) -> None:
    keep(folders, verdict="fail", reason="retrieval: 0.1")
    assert (only(folders).standing, only(folders).reason) == (Standing.FAILING, "retrieval: 0.1")


def test_unsupported(folders: Folders) -> None:
    keep(folders, verdict="unsupported", reason="no such kernel")
    assert (only(folders).standing, only(folders).reason) == (Standing.UNSUPPORTED, "no such kernel")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (CHANGED, "the recipe changed"),
        ({"lock_digest": "0" * 64}, "the lock of fixture-env changed"),
        (CHANGED | {"lock_digest": "0" * 64}, "the recipe and the lock of fixture-env changed"),
        ({"lock_digest": None}, "the lock of fixture-env changed"),
        ({"image_digest": "sha256:1"}, "the image (none is pinned) changed"),
        ({"lock_digest": None, "image_digest": "sha256:1"},
         "the image (none is pinned) and the lock of fixture-env changed"),
    ],
)
def test_stale_says_which_pin_changed(folders: Folders, changes: dict, said: str) -> None:
    keep(folders, **changes)
    cell = only(folders)
    assert cell.standing is Standing.STALE
    assert cell.reason == f"passed on 2026-01-01, but since then {said}"
    assert cell.evidence is not None


def test_a_changed_lock_file_makes_evidence_stale(folders: Folders) -> None:
    keep(folders)
    (folders[2] / "fixture-env" / "requirements.lock").write_text("fixture-package==1.1\n")
    assert only(folders).standing is Standing.STALE


IMAGE = """\
[python]
repository = "python"
tag = "3"
index = "sha256:{index}"
contains = {{ python = "3.11" }}
learned = "reported"
date = "2026-01-01"
sources = []
[python.platforms]
"linux/amd64" = "sha256:{platform}"
"""


def test_a_run_in_a_container_is_held_to_the_pinned_image(folders: Folders) -> None:
    index, platform = "1" * 64, "2" * 64
    lock, environment = folders[2] / "lock.toml", folders[2] / "fixture-env" / "environment.toml"
    lock.write_text(IMAGE.format(index=index, platform=platform))
    environment.write_text('image = "python"\n')
    for digest in (index, platform):
        keep(folders, image_digest=f"sha256:{digest}")
        assert only(folders).standing is Standing.PROVEN
    lock.write_text(IMAGE.format(index="3" * 64, platform="4" * 64))
    assert only(folders).reason.endswith("since then the image changed")
    lock.write_text(IMAGE.format(index=index, platform=platform))
    (folders[2] / "fixture-env" / "requirements.lock").write_text("fixture-package==1.1\n")
    assert only(folders).reason.endswith("since then the lock of fixture-env changed")


def test_what_is_added_to_an_image_is_pinned_too() -> None:
    image, layer = frozenset({"sha256:1"}), "2" * 64
    of = Recipe.model_validate(RECIPE | {"environment": None, "image": "python"})
    head = header(of, lock_digest=layer, image_digest="sha256:1")
    added = standing.Current(of, of.digest(), None, image, layer)
    assert added.changed(head) == []
    assert added.changed(head.model_copy(update={"lock_digest": "3" * 64})) == ["the lock of python"]
    assert added.changed(head.model_copy(update={"lock_digest": None})) == ["the lock of python"]
    whole = standing.Current(of, of.digest(), None, image, None)
    assert whole.changed(head.model_copy(update={"lock_digest": None})) == []


def test_a_corrected_title_does_not(folders: Folders) -> None:
    keep(folders)
    (folders[0] / "fixture-recipe.yaml").write_text(json.dumps(RECIPE | {"title": "Other"}))
    assert only(folders).standing is Standing.PROVEN


def test_claimed_names_its_source(folders: Folders) -> None:
    claim(folders)
    cell = only(folders)
    assert (cell.standing, cell.evidence) == (Standing.CLAIMED, None)
    assert cell.reason == "supported (2026-01): https://example.org/page"
    page = matrix.render(matrix.collect(*folders))
    assert "**claimed** [supported](https://example.org/page)" in page


def test_not_run(folders: Folders) -> None:
    assert (only(folders).standing, only(folders).reason) == (Standing.NOT_RUN, None)


def test_a_missing_evidence_folder_holds_no_evidence(folders: Folders) -> None:
    folders[1].rmdir()
    assert only(folders).standing is Standing.NOT_RUN


def test_the_newest_judged_run_decides(folders: Folders) -> None:
    keep(folders, 1, verdict="fail", reason="was broken")
    keep(folders, 2)
    assert only(folders).standing is Standing.PROVEN
    keep(folders, 3, verdict="fail", reason="is broken")
    assert only(folders).reason == "is broken"
    keep(folders, 4, **CHANGED)
    assert only(folders).reason == "is broken"


def test_newest_goes_by_time_not_by_text(folders: Folders) -> None:
    keep(folders, 1, started_at="2026-01-01T23:00:00-05:00")
    keep(folders, 2, started_at="2026-01-02T01:00:00Z", verdict="fail", reason="earlier")
    assert (only(folders).standing, only(folders).date) == (Standing.PROVEN, "2026-01-02")


def test_of_two_runs_at_one_time_the_run_id_decides(folders: Folders) -> None:
    keep(folders, 1, run_id="b")
    keep(folders, 1, run_id="a", verdict="fail", reason="x")
    assert only(folders).run_id == "b"


UNJUDGED = [
    ({"verdict": "error", "reason": "control stayed green"}, "could not be judged: control stayed green"),
    ({"verdict": "not_measured", "reason": None}, "could not be judged: no reason given"),
    ({"status": "interrupted", "verdict": "error", "reason": None}, "could not be judged: interrupted"),
    ({"status": "failed", "verdict": "fail", "reason": "died"}, "could not be judged: died"),
    ({"status": "interrupted"}, "could not be judged: interrupted"),
    ({"weaker": ("--samples 1",)}, "does not count: --samples 1"),
    ({"damage_left_in": "bytes"}, "does not count: damage left in: bytes"),
    ({"damage_left_in": ""}, "does not count: damage left in: "),
]


@pytest.mark.parametrize(("changes", "said"), UNJUDGED)
def test_what_decides_nothing_is_a_note(folders: Folders, changes: dict, said: str) -> None:
    keep(folders, 2, **changes)
    where = "(2026-01-02, evidence/fixture-recipe/fixture-run-2.json)"
    assert only(folders).standing is Standing.NOT_RUN
    assert only(folders).notes == (f"last run {said} {where}",)
    keep(folders, 1)
    assert only(folders).standing is Standing.PROVEN
    assert only(folders).notes == (f"last run {said} {where}",)
    keep(folders, 3)
    assert only(folders).notes == ()


@pytest.mark.parametrize(("changes", "_"), UNJUDGED)
def test_what_decides_nothing_is_not_stale_either(folders: Folders, changes: dict, _: str) -> None:
    keep(folders, **(changes | CHANGED))
    assert (only(folders).standing, only(folders).notes) == (Standing.NOT_RUN, ())


@pytest.mark.parametrize(
    ("says", "run", "contradicted"),
    [
        ("supported", {"verdict": "fail", "reason": "x"}, True),
        ("validated", {"verdict": "unsupported", "reason": "x"}, True),
        ("not supported", {}, True),
        ("supported", {}, False),
        ("not validated", {}, False),
        ("not supported", {"verdict": "fail", "reason": "x"}, False),
        ("validated", {"verdict": "fail", "reason": "x"} | CHANGED, False),
    ],
)
def test_evidence_against_a_claim(folders: Folders, says: str, run: dict, contradicted: bool) -> None:
    claim(folders, says=says)
    keep(folders, **run)
    cell = only(folders)
    assert bool(cell.contradictions) is contradicted
    assert ("contradicts a claim" in matrix.render(matrix.collect(*folders))) is contradicted
    if contradicted:
        assert f"upstream says {says} (https://example.org/page, 2026-01)" in cell.contradictions[0]
        assert str(cell.standing) in cell.contradictions[0]


def test_claims_against_each_other(folders: Folders) -> None:
    both = [CLAIM, CLAIM | {"says": "not supported", "source": "a talk"}]
    (folders[0] / "fixture-recipe.yaml").write_text(json.dumps(RECIPE | {"claims": both}))
    assert only(folders).contradictions == (
        "the claims contradict each other: supported (https://example.org/page), not supported (a talk)",
    )


def problem(folders: Folders, kind: str) -> matrix.Problem:
    (found,) = matrix.collect(*folders).problems
    assert found.kind == kind
    assert str(folders[0].parent) not in found.reason
    return found


def test_half_written_evidence_is_named_and_the_rest_counts(folders: Folders) -> None:
    keep(folders)
    path = folders[1] / "fixture-recipe" / "half.json"
    path.write_bytes((folders[1] / "fixture-recipe" / "fixture-run-1.json").read_bytes()[:900])
    found = problem(folders, "evidence")
    assert found.path == "evidence/fixture-recipe/half.json"
    assert found.reason.startswith("half-written")
    assert matrix.collect(*folders).cells[0].standing is Standing.PROVEN
    assert matrix.check(matrix.collect(*folders), matrix.write(matrix.collect(*folders), page(folders))) == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"started_at": "yesterday"}, "started_at is no ISO 8601 time: 'yesterday'"),
        ({"checks": ()}, f"says pass, but has no pass of: {', '.join(PROOF)}"),
        ({"checks": checks("error")}, "no pass of: retrieval"),
        *[({"checks": tuple(c for c in PASSES if c.name != name)}, f"no pass of: {name}") for name in PROOF],
        ({"verdict": "fail", "reason": "x", "checks": PASSES}, "says fail, but its checks make it pass"),
        (
            {"verdict": "unsupported", "reason": "x", "checks": checks("fail")},
            "says unsupported, but its checks make it fail",
        ),
        ({"verdict": "fail", "reason": "x", "checks": ()}, "says fail, but its checks make it error"),
        ({"checks": PASSES, "verdict": "fail"} | CHANGED, "says fail, but its checks make it pass"),
        ({"started_at": in_hours(48)}, "started_at is in the future: "),
        ({"started_at": "9999-12-31T00:00:00Z"}, "started_at is in the future: '9999-12-31T00:00:00Z'"),
        ({"started_at": "9999-12-31T23:59:59-14:00"}, "started_at is no ISO 8601 time: "),
    ],
)
def test_evidence_that_contradicts_itself_is_named(folders: Folders, changes: dict, said: str) -> None:
    keep(folders, **changes)
    assert said in problem(folders, "evidence").reason
    assert matrix.collect(*folders).cells[0].standing is Standing.NOT_RUN


def test_a_clock_that_is_a_little_ahead_is_no_problem(folders: Folders) -> None:
    keep(folders, started_at=in_hours(20))
    assert only(folders).standing is Standing.PROVEN


def test_a_check_that_only_the_recipe_requires_must_have_passed(folders: Folders) -> None:
    more = RECIPE | {"checks": {"required": [*PROOF, "latency"]}}
    (folders[0] / "fixture-recipe.yaml").write_text(json.dumps(more))
    keep(folders, recipe_digest=recipe(checks=more["checks"]).digest())
    assert problem(folders, "evidence").reason == "says pass, but has no pass of: latency"


@pytest.mark.parametrize("name", PROOF)
def test_what_every_proof_needs_must_have_passed_whatever_the_recipe_requires(name: str) -> None:
    made = recipe()
    weak = made.model_copy(update={"checks": made.checks.model_copy(update={"required": ["smoke"]})})
    current = standing.Current(weak, weak.digest(), LOCK_DIGEST)
    assert standing.kind(header(weak), current) == "decides"
    with pytest.raises(EvidenceError, match=f"has no pass of: {name}$"):
        standing.kind(header(weak, checks=tuple(c for c in PASSES if c.name != name)), current)


def falsify(path: Path, how: str) -> None:
    """Change an evidence file, but not what is read as its header."""
    text = path.read_text(encoding="utf-8")
    content = json.loads(text)
    head = text[: text.index(',\n "recipe_text"')]
    if how == "no JSON":
        path.write_text(head + ",\n nonsense\n}\n")
    elif how == "cut out":
        path.write_text(head + "\n}\n")
    elif how == "two headers":
        second = json.dumps(content["header"] | {"duration_s": 1})
        path.write_text(f'{text.rstrip().removesuffix("}")}, "header": {second}\n}}\n')
    else:
        if how == "other verdict":
            content["checks"][3]["verdict"] = "fail"
        elif how == "other name":
            content["checks"][3]["name"] = "retrieval-too"
        elif how == "not required":
            content["checks"][3]["required"] = False
        elif how == "one left out":
            del content["checks"][3]
        path.write_text(json.dumps(content, indent=1))


FALSIFIED = {
    "no JSON": "not a complete evidence file",
    "cut out": "not a complete evidence file",
    "two headers": "it has two headers",
    **dict.fromkeys(
        ("other verdict", "other name", "not required", "one left out"),
        "its header names other checks or results than the record",
    ),
}


@pytest.mark.parametrize("how", FALSIFIED)
def test_a_file_that_does_not_bear_its_header_out_decides_nothing(folders: Folders, how: str) -> None:
    keep(folders, 1, verdict="fail", reason="retrieval: 0.1")
    for number in (2, 3):
        keep(folders, number)
        falsify(folders[1] / "fixture-recipe" / f"fixture-run-{number}.json", how)
    found = matrix.collect(*folders)
    assert (found.cells[0].standing, found.cells[0].run_id) == (Standing.FAILING, "fixture-run-1")
    assert [p.path for p in found.problems] == [f"evidence/fixture-recipe/fixture-run-{n}.json" for n in (3, 2)]
    for told in found.problems:
        assert told.reason.startswith(FALSIFIED[how])
        assert str(folders[1]) not in told.reason
    keep(folders, 4)
    assert only(folders).standing is Standing.PROVEN


@pytest.mark.parametrize("how", FALSIFIED)
def test_nor_does_it_make_a_recipe_stale(folders: Folders, how: str) -> None:
    keep(folders, **CHANGED)
    falsify(folders[1] / "fixture-recipe" / "fixture-run-1.json", how)
    assert matrix.collect(*folders).cells[0].standing is Standing.NOT_RUN


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes")
def test_what_is_no_regular_file_is_named_and_not_waited_for(folders: Folders) -> None:
    os.mkfifo(folders[0] / "pipe.yaml")
    os.mkfifo(folders[1] / "pipe.json")
    (folders[1] / "zero.json").symlink_to("/dev/zero")
    (folders[2] / "fixture-env" / "requirements.lock").unlink()
    os.mkfifo(folders[2] / "fixture-env" / "requirements.lock")
    found = matrix.collect(*folders)
    assert {p.path: p.reason for p in found.problems} == {
        "recipes/pipe.yaml": "not a regular file",
        "images/fixture-env/requirements.lock": "cannot be read, so that no evidence can match it: not a regular file",
        "evidence/pipe.json": "cannot be read: not a regular file",
        "evidence/zero.json": "cannot be read: not a regular file",
    }


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"engine": RECIPE["engine"] | {"name": "vlm"}}, "engine.name: no engine is called 'vlm'; did you mean vllm?"),
        (
            {"connector": RECIPE["connector"] | {"name": "lmcache"}},
            "connector.name: no connector of vllm is called 'lmcache'; did you mean lmcache-mp or lmcache-inprocess?",
        ),
        (
            {"environment": "fixture-enw"},
            "environment: no environment is called 'fixture-enw'; did you mean fixture-env?",
        ),
        ({"image": "gone"}, "image: no image is called 'gone'; known: none"),
        (
            {"checks": {"required": [*PROOF, "latenci"]}},
            "checks.required: no check is called 'latenci'; did you mean latency?",
        ),
        (
            {"checks": RECIPE["checks"] | {"reported": ["latenci"]}},
            "checks.reported: no check is called 'latenci'; did you mean latency?",
        ),
    ],
)
def test_a_recipe_that_names_what_kvproof_does_not_have_is_an_error(
    tmp_path: Path, changes: dict, said: str
) -> None:
    folders = project(tmp_path, changes)
    (row,) = matrix.standings(*folders)
    assert (row["name"], row["standing"]) == ("fixture-recipe", None)
    line, _, reason = row["error"].partition(": ")
    assert reason == said
    lines = (folders[0] / "fixture-recipe.yaml").read_text().splitlines()
    assert said.split("'")[1] in lines[int(line.removeprefix("line ")) - 1]
    assert problem(folders, "recipe").blocking


def test_leftovers_are_not_evidence(folders: Folders) -> None:
    (folders[1] / ".x.part").write_text("x")
    (folders[1] / ".hidden.json").write_text("x")
    (folders[1] / ".folder").mkdir()
    (folders[1] / ".folder" / "x.json").write_text("x")
    (folders[1] / "README.md").write_text("x")
    assert only(folders).standing is Standing.NOT_RUN


@pytest.mark.skipif(os.name != "posix", reason="file names are text elsewhere")
def test_a_file_name_that_is_not_utf_8_is_no_traceback(folders: Folders) -> None:
    Path(os.fsdecode(os.fsencode(folders[1]) + b"/\xff.json")).write_text("x")
    assert problem(folders, "evidence").path == "evidence/?.json"
    matrix.render(matrix.collect(*folders)).encode()


def test_evidence_of_an_unknown_recipe_is_listed(folders: Folders) -> None:
    keep(folders, 1, recipe="gone")
    keep(folders, 2, recipe="gone", verdict="fail", reason="x")
    (orphan,) = matrix.collect(*folders).orphans
    assert (orphan.recipe, orphan.runs, orphan.date) == ("gone", 2, "2026-01-02")
    assert orphan.evidence == "evidence/gone/fixture-run-2.json"
    text = matrix.render(matrix.collect(*folders))
    assert "| gone | no recipe has this name | 2 | [fail](../evidence/gone/fixture-run-2.json), 2026" in text


def page(folders: Folders) -> Path:
    return folders[0].parent / "docs" / "support-matrix.md"


def test_a_bad_recipe_is_listed_and_fails_the_check(folders: Folders) -> None:
    (folders[0] / "bad.yaml").write_text("name: bad\n")
    keep(folders)
    keep(folders, recipe="bad")
    found = matrix.collect(*folders)
    assert found.problems[0].path == "recipes/bad.yaml"
    assert found.problems[0].reason.startswith("line 1: title: missing, but every recipe needs it; line 1: model")
    assert [cell.recipe for cell in found.cells] == ["fixture-recipe"]
    assert found.orphans[0].reason == "its recipe cannot be read"
    matrix.write(found, page(folders))
    assert "recipes/bad.yaml" in page(folders).read_text(encoding="utf-8")
    assert matrix.check(found, page(folders))[0].startswith("recipes/bad.yaml: ")


def test_two_files_for_one_recipe(folders: Folders) -> None:
    shutil.copy(folders[0] / "fixture-recipe.yaml", folders[0] / "fixture-recipe.yml")
    assert "two recipes are called 'fixture-recipe'" in problem(folders, "recipe").reason


def test_a_missing_lock_is_named_and_nothing_matches_it(folders: Folders) -> None:
    keep(folders)
    (folders[2] / "fixture-env" / "requirements.lock").unlink()
    assert problem(folders, "lock").path == "images/fixture-env/requirements.lock"
    found = matrix.collect(*folders)
    assert found.cells[0].standing is Standing.STALE
    assert matrix.check(found, matrix.write(found, page(folders)))


def test_no_recipes_folder(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such folder") as caught:
        matrix.collect(tmp_path / "a", tmp_path / "b", tmp_path / "c")
    assert caught.value.tip


def test_the_page_names_weights_hardware_versions_date_and_numbers(folders: Folders) -> None:
    keep(folders)
    text = matrix.render(matrix.collect(*folders))
    (row,) = [line for line in text.splitlines() if line.startswith("| [fixture-recipe]")]
    assert [cell.strip() for cell in row.strip("|").split(" | ")] == [
        "[fixture-recipe](recipes/fixture-recipe.md)",
        "[**proven**](../evidence/fixture-recipe/fixture-run-1.json)",
        "dummy",
        "Fixture CPU, 2 cores, 8 GiB",
        "vllm 1.2.3",
        "lmcache-mp 4.5.6",
        "2026-01-01",
        "external_hit_ratio 0.9877<br>ttft_warm_s 0.25<br>mtp_acceptance_ratio not measured",
    ]
    assert "| fixture/model | base | [**proven**](../evidence/" in text


def test_a_version_that_nobody_reported_is_not_invented(folders: Folders) -> None:
    keep(folders, engine_version=None, verdict="fail", reason="x")
    assert "| vllm, version not reported | lmcache-mp 4.5.6 |" in matrix.render(matrix.collect(*folders))


def have_connectors(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    made_up = SimpleNamespace(RESERVED=frozenset(), RESERVED_CONFIG=frozenset(), unfit=lambda recipe: None)
    monkeypatch.setattr(runnable, "CONNECTORS", dict.fromkeys(names, made_up))
    monkeypatch.setattr(runnable.ENGINES["vllm"], "CONNECTORS", dict.fromkeys(names))


def test_recipes_that_share_a_place_share_its_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    have_connectors(monkeypatch, "lmcache-mp", "native")
    other = {"connector": {"name": "native"}, "feature": "native"}
    folders = project(tmp_path, {"name": "a"}, {"name": "b"}, {"name": "c"} | other)
    text = matrix.render(matrix.collect(*folders))
    assert "| Model | Feature | vllm + lmcache-mp | vllm + native |" in text
    pinned = "dummy weights, vllm 1.2.3 (pinned)"
    a, b, c = (f"**not run**: [{name}](recipes/{name}.md)<br>{pinned}" for name in "abc")
    assert f"| fixture/model | base | {a}, lmcache-mp 4.5.6 (pinned)<br>{b}, lmcache-mp 4.5.6 (pinned) | - |" in text
    assert f"| fixture/model | native | - | {c}, native |" in text


def test_texts_of_others_break_no_table(folders: Folders) -> None:
    keep(folders, verdict="fail", reason="a | b\n<script> `x` [y](z) sliding_window __init__")
    text = matrix.render(matrix.collect(*folders))
    shown = r"a \| b \<script\> \`x\` \[y\](z) sliding_window \__init_\_"
    assert f"[^1]: {shown}\n" in text
    assert "<script>" not in text


def test_hardware_text() -> None:
    made = Hardware(cpu="C", cores=4, memory_bytes=16 * 1024**3, gpus=("G", "G"), gpu_driver="1.2")
    assert hardware_text(made) == "2 x G (driver 1.2); C, 4 cores, 16 GiB"
    assert hardware_text(None) == "-"


def test_the_same_evidence_gives_the_same_bytes(tmp_path: Path) -> None:
    pages = []
    for turn in (1, -1):
        folders = project(tmp_path / str(turn), {}, {"name": "b"}, {"name": "a"})
        for number in range(1, 6)[::turn]:
            keep(folders, number, verdict="error", reason="x", recipe="gone")
            keep(folders, number)
        pages.append(matrix.render(matrix.collect(*folders)))
    assert pages[0] == pages[1]


def test_check_is_silent_after_write_and_shows_the_first_drift(folders: Folders) -> None:
    path = page(folders)
    assert "No such file" in matrix.check(matrix.collect(*folders), path)[0]
    matrix.write(matrix.collect(*folders), path)
    assert matrix.check(matrix.collect(*folders), path) == []
    keep(folders)
    drift = matrix.check(matrix.collect(*folders), path)
    assert 1 <= len(drift) <= 3
    assert drift[0].startswith(f"{path}:9: ")
    assert "**not run**" in drift[0]
    assert "**proven**" in drift[0]
    path.write_text(path.read_text(encoding="utf-8") + "more\n", encoding="utf-8")
    assert matrix.check(matrix.collect(*folders), path)


def test_write_is_whole_or_not_at_all(folders: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    path = matrix.write(matrix.collect(*folders), page(folders))
    before = path.read_bytes()
    keep(folders)

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(KvproofError, match="No space left") as caught:
        matrix.write(matrix.collect(*folders), path)
    assert caught.value.tip
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_the_matrix_as_data(folders: Folders) -> None:
    keep(folders)
    found = matrix.collect(*folders)
    assert json.loads(json.dumps(found.model_dump()))["cells"][0]["standing"] == "proven"
    assert matrix.Matrix.model_validate_json(found.model_dump_json()) == found


def test_standings_are_the_short_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    have_connectors(monkeypatch, "lmcache-mp", "none")
    folders = project(tmp_path, {"name": "b"}, {"name": "a", "connector": {"name": "none"}})
    (folders[0] / "bad.yaml").write_text("")
    keep(folders, recipe="b", recipe_digest=recipe(name="b").digest())
    rows = matrix.standings(*folders)
    same = {"title": RECIPE["title"], "weights": "dummy", "engine": "vllm 1.2.3", "error": None}
    assert json.loads(json.dumps(rows)) == [
        {"name": "a", "standing": "not run", "connector": "none"} | same,
        {"name": "b", "standing": "proven", "connector": "lmcache-mp 4.5.6"} | same,
        dict.fromkeys(same, None) | {"name": "bad", "standing": None, "connector": None, "error": "the file is empty"},
    ]
    assert matrix.standings_table(rows).splitlines() == [
        "NAME  STANDING    WEIGHTS  ENGINE      CONNECTOR         TITLE",
        "a     not run     dummy    vllm 1.2.3  none              A recipe made up for tests",
        "b     proven      dummy    vllm 1.2.3  lmcache-mp 4.5.6  A recipe made up for tests",
        "bad   unreadable  -        -           -                 -",
        "bad: the file is empty",
    ]
    assert matrix.standings_table([]) == "there are no recipes"


def test_the_project_s_own_matrix_is_the_default(folders: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    own = matrix.collect(*folders)
    monkeypatch.setattr(matrix, "collect", lambda: own)
    path = page(folders)
    assert matrix.check(path=path)
    assert matrix.write(path=path) == path
    assert matrix.check(path=path) == []


RUNS = st.fixed_dictionaries(
    {
        "verdict": st.sampled_from(list(evidence.Verdict)),
        "status": st.sampled_from(["completed", "interrupted", "failed"]),
        "weaker": st.sampled_from([(), ("--samples 1",)]),
        "damage_left_in": st.sampled_from([None, "bytes"]),
        "lock_digest": st.sampled_from([LOCK_DIGEST, "0" * 64, None]),
        "checks": st.sampled_from([PASSES, PASSES[:1], (), *map(checks, ("fail", "unsupported"))]),
        "started_at": st.sampled_from([f"2026-01-0{day}T00:00:00Z" for day in range(1, 6)]),
    }
)


@settings(deadline=None)  # each example writes and syncs files
@given(runs=st.lists(RUNS, max_size=6))
def test_proven_only_by_a_whole_pass_with_the_present_pins(
    tmp_path_factory: pytest.TempPathFactory, runs: list[dict]
) -> None:
    folders = project(tmp_path_factory.mktemp("project"), {})
    made = [keep(folders, **(run | {"run_id": f"r{number}"})) for number, run in enumerate(runs)]
    cell = matrix.collect(*folders).cells[0]
    if cell.standing is Standing.PROVEN:
        (run,) = [head for head in made if head.run_id == cell.run_id]
        assert (run.verdict, run.status, run.weaker, run.damage_left_in) == ("pass", "completed", (), None)
        assert (run.lock_digest, run.checks) == (LOCK_DIGEST, PASSES)


def test_the_page_that_is_kept_here_is_up_to_date() -> None:
    assert matrix.check() == []
