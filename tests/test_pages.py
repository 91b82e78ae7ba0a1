"""A page per recipe: what it says comes from recipe and evidence, and it is whole or an error."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jinja2
import pytest

from kvproof import evidence, matrix, pages
from kvproof.errors import KvproofError
from kvproof.export import FORMS, export
from kvproof.loading import load_recipe, recipe_paths
from kvproof.paths import PROJECT
from kvproof.redact import Redactor
from kvproof.standing import Standing
from made_up import header, project, recipe, record

CLAIM = {"says": "validated", "text": "It works.", "source": "https://example.org/page", "date": "2026-01-02",
         "numbers": {"score_computed": 0.78, "external_hit_ratio": 0.5}}
Folders = tuple[Path, Path, Path]


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    return project(tmp_path, {"claims": [CLAIM], "caveats": [{"text": "Mind <this> | it.", "reason": "r",
                                                              "link": "https://example.org/issue"}]},
                   {"name": "small", "stands_for": "fixture-recipe"})


def render(folders: Folders) -> dict[str, str]:
    return pages.render_all(matrix.collect(*folders), folders[0], folders[1])


def keep(folders: Folders, name: str = "fixture-recipe", **changes: object) -> None:
    of = load_recipe(folders[0] / f"{name}.yaml")
    evidence.write(record(header(of, **changes)), folders[1], Redactor())


def test_one_page_per_recipe_and_an_index(folders: Folders) -> None:
    made = render(folders)
    assert sorted(made) == ["fixture-recipe.md", "index.md", "small.md"]
    assert "| [small](small.md) | **not run** | dummy |" in made["index.md"]
    assert made == render(folders)


def test_a_page_without_a_run_says_so(folders: Folders) -> None:
    page = render(folders)["small.md"]
    assert "**not run**." in page
    assert "Nothing was run here, so no output is on record." in page
    assert "No run is on record." in page
    assert "No upstream page says anything of this path." in page
    assert "It stands in for [fixture-recipe](fixture-recipe.md)" in page


def test_a_proven_page_shows_its_run(folders: Folders) -> None:
    keep(folders)
    page = render(folders)["fixture-recipe.md"]
    assert "**proven**: [evidence](../../evidence/fixture-recipe/fixture-run-1.json) of 2026-01-02." in page
    assert "fixture-recipe: PROVEN" in page
    assert re.search(r"\| \[2026-01-02T\S+\]\(\.\./\.\./evidence/fixture-recipe/fixture-run-1\.json\) \| pass \| dummy "
                     r"\| Fixture CPU, 2 cores, 8 GiB \| 1\.2\.3 \| 4\.5\.6 \|", page)
    assert "| ttft_warm_s | 0.25 |" in page
    assert "| mtp_acceptance_ratio | not measured |" in page


def test_a_failing_page_gives_the_reason(folders: Folders) -> None:
    keep(folders, verdict="fail", reason="retrieval: no hits")
    page = render(folders)["fixture-recipe.md"]
    assert "**failing**" in page
    assert "retrieval: no hits" in page
    assert "**Contradiction**: upstream says validated (https://example.org/page, 2026-01-02), but the evidence" in page


def test_claims_stand_beside_what_was_measured(folders: Folders) -> None:
    page = render(folders)["fixture-recipe.md"]
    assert "| score_computed | 0.78 (claim) | not run | - |" in page
    keep(folders)
    keep(folders, "small", run_id="fixture-run-2")
    page = render(folders)["fixture-recipe.md"]
    assert "| external_hit_ratio | 0.5 (claim) | 0.9877 | 0.9877 |" in page
    assert "In small: [small](small.md) is **proven** with dummy weights." in page


def test_a_stand_in_that_fails_is_flagged(folders: Folders) -> None:
    keep(folders, "small", verdict="fail", reason="x")
    known = next(c for c in matrix.collect(*folders).cells if c.recipe == "fixture-recipe")
    assert known.standing is Standing.CLAIMED
    assert known.contradictions == (
        "upstream says validated (https://example.org/page, 2026-01-02), but small, which stands in for it with dummy "
        "weights, is failing",)
    assert "**contradicts a claim**" in matrix.render(matrix.collect(*folders))


def test_a_claimed_number_that_real_weights_do_not_reach_is_flagged(tmp_path: Path) -> None:
    real = recipe().model.model_dump() | {"weights": "real"}
    folders = project(tmp_path, {"claims": [CLAIM], "model": real})
    keep(folders, weights="real", highlights={"score_computed": 0.70})
    (known,) = matrix.collect(*folders).cells
    assert known.contradictions == (
        "upstream gives score_computed 0.78 (https://example.org/page, 2026-01-02), measured here: 0.7",)
    keep(folders, weights="real", highlights={"score_computed": 0.75}, run_id="fixture-run-2",
         started_at="2026-02-02T00:00:00+00:00")
    assert matrix.collect(*folders).cells[0].contradictions == ()


def test_caveats_are_escaped_and_linked(folders: Folders) -> None:
    page = render(folders)["fixture-recipe.md"]
    assert r"- Mind \<this\> \| it. r [Upstream](https://example.org/issue)." in page


@pytest.mark.parametrize("name", ["gemma4-31b-mtp", "gemma4-nano-31b"])
def test_every_form_is_the_export_word_for_word(name: str) -> None:
    page = pages.render_all(matrix.collect())[f"{name}.md"]
    known = load_recipe(recipe_paths()[name])
    blocks = re.findall(r"<summary>(\w+)</summary>\n\n```\w+\n(.*?)\n```\n", page, re.DOTALL)
    assert dict(blocks) == {form: export(known, form).strip() for form in FORMS}


def test_a_form_that_cannot_be_had_says_why(folders: Folders) -> None:
    page = render(folders)["small.md"]  # the made-up environment names no image
    assert "# not to be had as docker: " in page


def test_a_render_that_fails_is_an_error_and_writes_nothing(
    folders: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> str:
        raise jinja2.UndefinedError("'gone' is undefined")

    monkeypatch.setattr(jinja2.Template, "render", broken)
    with pytest.raises(KvproofError, match=r"the page of fixture-recipe could not be made: UndefinedError: 'gone'"):
        render(folders)
    with pytest.raises(KvproofError):
        pages.write(matrix.collect(), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_writing_twice_writes_once(tmp_path: Path) -> None:
    made = matrix.collect()
    assert len(pages.write(made, tmp_path)) == len(made.cells) + 1
    assert pages.write(made, tmp_path) == []
    assert pages.check(made, tmp_path) == []


def test_drift_and_orphans_are_named(tmp_path: Path) -> None:
    made = matrix.collect()
    pages.write(made, tmp_path)
    (tmp_path / "gone.md").write_text("x")
    (tmp_path / "gemma4-tiny.md").unlink()
    path = tmp_path / "gemma4-nano-31b.md"
    path.write_text(path.read_text().replace("\n# gemma4-nano-31b\n", "\n# other\n"))
    assert pages.check(made, tmp_path) == [
        f"{path}:2: differs from what ./inv docs would write",
        f"{tmp_path / 'gemma4-tiny.md'}: cannot be read: No such file or directory",
        f"{tmp_path / 'gone.md'}: no recipe is called 'gone', so this page is an orphan; remove it",
    ]


def test_the_pages_that_are_kept_here_are_up_to_date() -> None:
    assert pages.check() == []


def test_a_file_that_is_no_evidence_stops_no_page(folders: Folders) -> None:
    keep(folders)
    (folders[1] / "fixture-recipe" / "half.json").write_text('{"header": {"run_id"')
    assert "**proven**" in render(folders)["fixture-recipe.md"]


SEEDS = ("0.78", "0.28", "0.69", "0.911", "0.91", "0.854", "0.853", "0.807", "3.7", "1.7", "1.4")


def test_each_number_of_the_upstream_page_is_found_as_a_claim() -> None:
    texts = "\n".join(pages.render_all(matrix.collect()).values())
    table = matrix.render(matrix.collect())
    for number in SEEDS:
        assert f"{number} (claim)" in texts
        assert re.search(rf"\| claimed|{re.escape(number)} \(here: ", table)


def test_no_page_names_a_place_of_this_machine() -> None:
    for name, text in pages.render_all(matrix.collect()).items():
        assert str(PROJECT) not in text, name
        assert str(Path.home()) + "/" not in text.replace("/root/.cache/huggingface", ""), name
    assert json.dumps(matrix.collect().model_dump(mode="json")).count(str(PROJECT)) == 0


HOSTILE = "x\n```\n<script>alert(1)</script>\n`a` | b"


def test_what_evidence_says_breaks_out_of_nothing(folders: Folders) -> None:
    keep(folders, verdict="fail", reason=HOSTILE, engine_version="<script>", connector_version="a|b`c`")
    made = render(folders)["fixture-recipe.md"]
    blocks = re.sub(r"(?s)(`{3,})text\n.*?\n\1\n", "", made)
    assert "<script>" not in re.sub(r"\\<", "", blocks)
    assert "````text\nfixture-recipe: FAILED (x ``` <script>" in made


def test_an_unusable_file_s_name_is_shown_as_it_is(folders: Folders) -> None:
    (folders[1] / "a`b<script>.json").write_text("{")
    assert "- ``evidence/a`b<script>.json``: " in matrix.render(matrix.collect(*folders))


def test_a_recipe_that_cannot_be_read_keeps_every_page_from_being_written(folders: Folders, tmp_path: Path) -> None:
    (folders[0] / "small.yaml").write_text("a: [")
    made = matrix.collect(*folders)
    with pytest.raises(KvproofError, match=r"no page is written .*\nrecipes/small\.yaml: "):
        pages.write(made, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "small.md").write_text("x")
    assert pages.orphans(made, tmp_path / "old") == []
