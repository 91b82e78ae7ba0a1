"""The signature files: each one's examples are its tests, and a damaged one is named with its key."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from kvproof import explain
from kvproof.errors import KvproofError
from kvproof.explain import inputs
from kvproof.loading import parse
from kvproof.signatures import FOLDER, Expression, Matcher, Signature, load
from kvproof.signatures.matching import UnusableExpression, escaped
from kvproof.signatures.model import holds

SIGNATURES = load()
POSITIVE = [pytest.param(s, text, id=f"{s.id}-{n}") for s in SIGNATURES for n, text in enumerate(s.positive)]
NEGATIVE = [pytest.param(s, text, id=f"{s.id}-{n}") for s in SIGNATURES for n, text in enumerate(s.negative)]
GOOD = {
    "id": "made-up", "title": "Made up", "log": "engine", "severity": "fatal",
    "any_of": [{"literal": "something broke"}], "cause": "c", "fix": "f", "link": "https://example.org/1",
    "positive": ["something broke"], "negative": ["all is well"],
}


def found_in(text: str) -> set[str]:
    """Ids of the signatures that kvproof sees in a few pasted lines, in or out of their versions."""
    explanation = explain.explained([inputs.from_lines("paste", text.split("\n"))], strict=True)
    return {match.signature.id for match in (*explanation.matches, *explanation.doubtful)}


@pytest.mark.parametrize(("signature", "text"), POSITIVE)
def test_a_positive_example_is_recognised(signature: Signature, text: str) -> None:
    assert signature.id in found_in(text)


@pytest.mark.parametrize(("signature", "text"), POSITIVE)
def test_it_is_recognised_as_containers_and_collectors_write_it(signature: Signature, text: str) -> None:
    lines = text.split("\n")
    for form in ("engine-1  | \x1b[0;36m(EngineCore pid=1)\x1b[0;0m {}", "2026-08-11T09:12:44.123456789Z stderr F {}"):
        assert signature.id in found_in("\n".join(form.format(line) for line in lines)), form


@pytest.mark.parametrize(("signature", "text"), NEGATIVE)
def test_a_negative_example_is_not(signature: Signature, text: str) -> None:
    assert signature.id not in found_in(text)


@pytest.mark.parametrize(("signature", "text"), POSITIVE)
def test_no_other_signature_sees_something_in_it(signature: Signature, text: str) -> None:
    # A degraded LMCache and a missing hash seed are told by other lines of the same report.
    assert found_in(text) == {signature.id}


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_file_reads_the_same_strictly(path: Path) -> None:
    assert parse(path, path.read_text(encoding="utf-8"))[1] == yaml.safe_load(path.read_text(encoding="utf-8"))


def test_every_report_with_a_log_line_has_a_signature() -> None:
    links = " ".join(s.link for s in SIGNATURES)
    for report in (
        "vllm/issues/42348", "vllm/issues/24498", "vllm/issues/48878", "vllm/issues/44888", "vllm/issues/51317",
        "vllm/issues/42404", "vllm/issues/41830", "LMCache/issues/2845", "vllm/issues/42911", "recipes/issues/511",
        "vllm/issues/51744", "vllm/issues/42005", "vllm/issues/48503", "LMCache/issues/1139", "LMCache/issues/681",
        "LMCache/issues/5217", "LMCache/issues/3618", "vllm/issues/43206", "LMCache/issues/5101",
        "sglang/issues/23659", "LMCache/issues/4358", "LMCache/issues/3388", "LMCache/issues/3326",
        "vllm/issues/41789", "TensorRT-LLM/pull/17772",
    ):
        assert report in links, report


def written(folder: Path, change: dict | str) -> Path:
    text = change if isinstance(change, str) else yaml.safe_dump(
        {k: v for k, v in (GOOD | change).items() if v is not None})
    (folder / "made-up.yaml").write_text(text, encoding="utf-8")
    return folder


def test_one_more_file_is_one_more_failure(tmp_path: Path) -> None:
    signatures = load(written(tmp_path, {}))
    source = inputs.from_lines("log", ["ERROR something broke"])
    explanation = explain.explained([source], patterns=explain.Patterns(signatures))
    assert [m.signature.id for m in explanation.matches] == ["made-up"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"severity": "bad"}, "made-up.yaml:12: severity: Input should be 'fatal', 'error' or 'warning'; seen: 'bad'"),
        ({"cause": None}, ": cause: missing, but every signature needs it"),
        ({"causes": "x"}, ": causes: unknown key; did you mean cause or unless?"),
        ({"any_of": []}, "neither any_of nor all_of has a pattern"),
        ({"any_of": [{"literal": "short"}]}, "any_of.0.literal: String should have at least 6 characters"),
        ({"any_of": [{"literal": "something", "regex": "something"}]}, "any_of.0: expected either literal or regex"),
        ({"any_of": [{"regex": "(unclosed"}]}, "any_of.0: not a regular expression: missing ), unterminated"),
        ({"any_of": [{"regex": "^ERROR something"}]}, "any_of.0: a line has prefixes"),
        ({"any_of": [{"regex": "something broke$"}]}, "any_of.0: a line has prefixes"),
        ({"any_of": [{"regex": "(?:anything)*"}]}, "any_of.0: it matches an empty line"),
        ({"any_of": [{"regex": "schön oder nicht"}]}, "any_of.0: a regular expression must be ASCII"),
        ({"any_of": [{"literal": "two\nlines"}]}, "any_of.0: a pattern is searched for within one line"),
        ({"versions": {"vllm": "0.21"}}, "versions.vllm: expected version bounds such as '>=0.21,<0.23'; seen: '0.21'"),
        ({"versions": {"torch": ">=2"}}, "versions.torch"),
        ({"link": "github.com/x"}, ": link: "),
        ({"positive": []}, ": positive: List should have at least 1 item"),
        ({"id": "other"}, ": id: it is 'other', expected the file's name, 'made-up'"),
        ({"id": "Made Up"}, ": id: String should match pattern"),
        ("id: a\nid: b\n", "made-up.yaml:2:1: not readable as YAML: key 'id' appears twice, first at line 1"),
        ("id: [a\n", "made-up.yaml:2:1: not readable as YAML"),
        ("- a\n", "made-up.yaml:1: file: "),
        ("", "the file is empty"),
        ("a: &x [1]\nb: *x\n", "made-up.yaml:2:4: not readable as YAML: anchors and aliases are not allowed"),
    ],
)
def test_a_damaged_file_is_named_with_its_key(tmp_path: Path, change: dict | str, said: str) -> None:
    with pytest.raises(KvproofError) as caught:
        load(written(tmp_path, change))
    assert said in caught.value.message
    assert str(tmp_path / "made-up.yaml") in caught.value.message


def test_a_folder_without_signatures_is_said(tmp_path: Path) -> None:
    with pytest.raises(KvproofError, match="no signature files"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("bounds", "version", "expected"),
    [
        ("<0.23", "0.22.1", True), ("<0.23", "0.23.0", False), ("<0.23", "v0.19.1.dev6+g6d4a8e6d2", True),
        ("<0.23", "0.23.0rc1", True), (">=0.23", "0.23.0rc1", False), (">=0.27,<0.29", "0.28.0", True),
        (">=0.27,<0.29", "0.29.0", False), ("<=0.5.2", "0.5.6-g3e11e108", False), (">=0.5", "0.5.6-g3e11e108", True),
        ("<1", "nightly", None), ("<1", "", None),
    ],
)
def test_version_bounds(bounds: str, version: str, expected: bool | None) -> None:
    assert holds(bounds, version) is expected


@pytest.mark.parametrize("literal", ["a.b*c", "“quoted”", "tab\there", "[Errno 98]", "back\\slash", "é"])
def test_a_literal_is_searched_for_as_it_is(literal: str) -> None:
    text = f"before {literal} after".encode()
    hits = Matcher([Expression("it", escaped(literal))]).scan(text)
    assert hits == [("it", text.index(literal.encode()) + len(literal.encode()))]
    assert not Matcher([Expression("it", escaped(literal))]).scan(b"before axbxc [Errno 97] after")


def test_an_expression_that_cannot_be_searched_for_is_named() -> None:
    with pytest.raises(UnusableExpression) as caught:
        Matcher([Expression("good", "abc"), Expression("bad", "a{1,9999}(?R)")])
    assert caught.value.key == "bad"


def test_one_place_per_block_unless_every_is_asked_for() -> None:
    matcher = Matcher([Expression("once", "abc"), Expression("every", "xyz", every=True)])
    assert matcher.scan(b"abc xyz abc xyz") == [("once", 3), ("every", 7), ("every", 15)]
    assert matcher.scan(b"") == []
