"""How a paste is read: JSON, YAML and shell text with their places, images, sizes, versions."""

from __future__ import annotations

import json
import shlex

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproof.lint import images, jsonish, shell, tree, units, versions, yamlish
from kvproof.lint.rules import near
from kvproof.lint.source import Source, Text
from kvproof.lint.versions import LMCACHE, TRTLLM, VLLM, Known

_SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-10**9, 10**9), st.text(max_size=8))
_DATA = st.recursive(_SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
    st.text(max_size=6), inner, max_size=3), max_leaves=12)


# --- JSON -----------------------------------------------------------------------------------------


@settings(deadline=None)
@given(_DATA, st.sampled_from([None, 2]))
def test_json_that_is_right_is_read_as_python_reads_it(data: object, indent: int | None) -> None:
    parsed = jsonish.parse(Text.plain(json.dumps(data, indent=indent, ensure_ascii=False), 0))
    assert parsed.problems == ()
    assert tree.plain(parsed.root) == data


@settings(deadline=None)
@given(st.text(max_size=60))
def test_json_has_a_problem_when_python_says_so(text: str) -> None:
    parsed = jsonish.parse(Text.plain(text, 0), human_numbers=False)
    try:
        json.loads(text)
    except ValueError:
        assert parsed.problems
        assert all(0 <= p.index <= len(text) for p in parsed.problems)
    else:
        assert not parsed.problems


@pytest.mark.parametrize(
    ("text", "kinds", "value"),
    [
        ('{"a": 80m, "b": 2G}', [], {"a": 80_000_000, "b": 2 * 1024**3}),
        ('{"a": "2g"}', [], {"a": "2g"}),
        ("{“a”: “b”}", ["smart-quotes"], {"a": "b"}),
        ('{"a”: "b”, "c": 1}', ["smart-quotes"], {"a": "b", "c": 1}),
        ('{"a": "say “hi”, you"}', [], {"a": "say “hi”, you"}),
        ("{'a': True, 'b': None,}", ["python-literal", "single-quotes", "trailing-comma"], {"a": True, "b": None}),
        ("{a: b}", ["unquoted"], {"a": "b"}),
        ("'{\"a\": 1}'", ["literal-quotes"], {"a": 1}),
        ('{"a": 1', ["broken"], {"a": 1}),
        ('{"a": 1} x', ["broken"], {"a": 1}),
        ('{"a": {"b": 1}', ["broken"], {"a": {"b": 1}}),
        ('{"a" 1}', ["broken"], {}),
        ("", ["broken"], None),
    ],
)
def test_json_as_it_is_pasted(text: str, kinds: list[str], value: object) -> None:
    parsed = jsonish.parse(Text.plain(text, 0))
    assert sorted(p.kind for p in parsed.problems) == kinds
    assert tree.plain(parsed.root) == value


def test_places_in_json() -> None:
    text = '{"a": {"b": [10, "x"]}}'
    root = jsonish.parse(Text.plain(text, 100)).root
    found = {node.text.value: node.start - 100 for node in tree.walk(root) if isinstance(node, tree.Scalar)}
    assert found == {"10": text.index("10"), "x": text.index('"x"')}


# --- YAML -----------------------------------------------------------------------------------------


def _as_text(data: object) -> object:
    if isinstance(data, dict):
        return {str(k): _as_text(v) for k, v in data.items()}
    if isinstance(data, list):
        return [_as_text(v) for v in data]
    return data


@settings(deadline=None)
@given(_DATA.filter(lambda d: isinstance(d, dict | list)), st.booleans(), st.sampled_from([None, "'", '"', "|", ">"]))
def test_yaml_is_read_as_pyyaml_reads_it(data: object, flow: bool, style: str | None) -> None:
    text = yaml.safe_dump(data, default_flow_style=flow, default_style=style, allow_unicode=True)
    (root,) = yamlish.documents(Source(text))
    expected = yaml.load(text, Loader=yaml.BaseLoader)
    texts = [n.text.value for n in tree.walk(root) if isinstance(n, tree.Scalar)]
    assert sorted(texts) == sorted(_values(expected))


def _values(data: object) -> list[str]:
    if isinstance(data, dict):
        return [s for v in data.values() for s in _values(v)]
    if isinstance(data, list):
        return [s for v in data for s in _values(v)]
    return [str(data)]


@settings(deadline=None)
@given(st.text(alphabet=st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), min_size=1, max_size=30),
       st.sampled_from(["'", '"', "|", None]))
def test_places_in_yaml(value: str, style: str | None) -> None:
    text = yaml.safe_dump({"key": value}, default_style=style, allow_unicode=True, width=1000)
    (root,) = yamlish.documents(Source(text))
    assert isinstance(root, tree.Map)
    node = root.get("key")
    assert isinstance(node, tree.Scalar)
    assert len(node.text.starts) == len(node.text.value) == len(node.text.ends)
    for char, start, end in zip(node.text.value, node.text.starts, node.text.ends, strict=True):
        written = text[start:end]
        assert 0 <= start <= end <= len(text)
        assert char in written or "\\" in written or not written.strip() or written == node.text.value


def test_places_in_blocks() -> None:
    text = "a: |\n  one\n    two\nb: >-\n  three\n  four\n"
    (root,) = yamlish.documents(Source(text))
    for name, word in (("a", "two"), ("b", "four")):
        node = root.get(name)  # type: ignore[attr-defined]
        at = node.text.value.index(word)
        assert text[node.text.start(at):node.text.end(at + len(word))] == word


@pytest.mark.parametrize(
    "text", ["a: &a [*a]", "a: *b", "[" * 200, "a: &a x\nb: [" + "*a," * 2000 + "]", "a: 'x", "\x01"])
def test_yaml_that_is_refused(text: str) -> None:
    with pytest.raises(yamlish.Broken):
        yamlish.documents(Source(text))


def test_merged_maps() -> None:
    (root,) = yamlish.documents(Source("a: &a {x: 1, y: 2}\nb:\n  <<: *a\n  y: 3\n"))
    assert tree.plain(root) == {"a": {"x": 1, "y": 2}, "b": {"x": 1, "y": 3}}


# --- shell ----------------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.lists(st.text(alphabet=[chr(n) for n in range(32, 127)], max_size=10), max_size=6))
def test_words_are_split_as_a_shell_does(words: list[str]) -> None:
    text = shlex.join(["vllm", *words])
    (statement,) = shell.split(Text.plain(text, 0))
    assert [w.value for w in statement.words] == ["vllm", *words]
    for word in statement.words:
        assert shlex.split(text[word.start:word.end]) == [word.value]


@settings(deadline=None)
@given(st.text(alphabet="ab '\"\\$`{}()<>|&;#\n=-“”’–", max_size=40))
def test_every_character_of_a_word_knows_its_place(text: str) -> None:
    for statement in shell.split(Text.plain(text, 0)):
        for word in statement.words:
            assert len(word.text.starts) == len(word.text.ends) == len(word.value)
            assert all(0 <= a < b <= len(text) for a, b in zip(word.text.starts, word.text.ends, strict=True))
            assert 0 <= word.start <= word.end <= len(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a \\\n  b", [["a", "b"]]),
        ("a; b && c | d & e", [["a"], ["b"], ["c"], ["d"], ["e"]]),
        ("a # b\nc", [["a"], ["c"]]),
        ("$ a b\n> c", [["a", "b"], ["c"]]),
        ("root@host:~# a b", [["a", "b"]]),
        ("(venv) me@host:/x$ a", [["a"]]),
        ("a >f 2>&1 <g b", [["a", "b"]]),
        ("X=1 a $X ${X} ${Y:-2} '$X'", [["a", "$X", "${X}", "2", "$X"]]),
        ("X=1\na $X \"$X\"", [["a", "1", "1"]]),
        ("X='1 2'\na $X \"$X\"", [["a", "1", "2", "1 2"]]),
        ("a <<E b\nc d\nE\nf", [["a", "b"], ["f"]]),
        ("it's b\nc 'd'", [["it's", "b"], ["c", "d"]]),
        ("the users' things\nc 'd'", [["the", "users'", "things"], ["c", "d"]]),
        ("a $(b; c) `d e`", [["a", "$(b; c)", "`d e`"]]),
        ("a {\"b\": \"c\"} d", [["a", '{"b": "c"}', "d"]]),
        ("a \"{\"b\":\"c\"}\"", [["a", '{"b":"c"}']]),
        ("a ^\n b", [["a", "b"]]),
        ("a <name> b", [["a", "<name>", "b"]]),
        ("if a; then b; fi", [["a"], ["b"]]),
        ("a 'b\nc", [["a", "b"], ["c"]]),
    ],
)
def test_statements(text: str, words: list[list[str]]) -> None:
    found = shell.split(Text.plain(text, 0))
    assert [[w.value for w in s.words] for s in found if s.words] == words


# --- images, sizes, versions, names ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("reference", "moves"),
    [
        ("vllm/vllm-openai", True), ("vllm/vllm-openai:latest", True), ("vllm/vllm-openai:nightly", True),
        ("vllm/vllm-openai:gemma4", True), ("vllm/vllm-openai:v0.31.0", False),
        ("vllm/vllm-openai:nightly-" + "0a1b2c3d" * 5, False), ("registry:5000/vllm/vllm-openai:v0.31.0-cu130", False),
        ("vllm/vllm-openai:latest@sha256:" + "0" * 64, False), ("nvcr.io/nvidia/vllm:26.07-py3", False),
    ],
)
def test_tags_that_move(reference: str, moves: bool) -> None:
    image = images.read(reference)
    assert image is not None
    assert image.moves is moves


@pytest.mark.parametrize("reference", ["$IMAGE", "${REPO}:x", "{{ .Values.image }}", "a b", "", "a:b:c d"])
def test_what_is_no_image(reference: str) -> None:
    assert images.read(reference) is None


@pytest.mark.parametrize(
    ("read", "text", "size"),
    [
        (units.docker, "8gb", 8 * units.GIB), (units.docker, "512m", 512 * units.MIB), (units.docker, "64", 64),
        (units.docker, "8 GiB", 8 * units.GIB), (units.docker, "x", None), (units.docker, None, None),
        (units.kubernetes, "16Gi", 16 * units.GIB), (units.kubernetes, "16G", 16 * 10**9),
        (units.kubernetes, "16gb", None), (units.written, "40GB", 40 * 10**9), (units.written, "40g", 40 * units.GIB),
        (units.written, "40 GiB", 40 * units.GIB),
    ],
)
def test_sizes(read: object, text: str | None, size: int | None) -> None:
    assert read(text) == size  # type: ignore[operator]


@pytest.mark.parametrize(
    ("known", "bounds", "holds"),
    [
        (Known(VLLM, versions.parse("0.27.1")), ">=0.27", True),
        (Known(VLLM, versions.parse("v0.27.0rc1")), ">=0.27", True),
        (Known(VLLM, versions.parse("0.19.1.dev6+g6d4a8e6d2")), "<0.20", True),
        (Known(VLLM, versions.parse("0.31")), "<0.29", False),
        (Known(VLLM), ">=0.14", True),
        (Known(VLLM), "<0.14", False),
        (Known(VLLM), ">=0.27", None),
        (Known(VLLM, at_least="0.32"), ">=0.27", True),
        (Known(VLLM), None, True),
        (Known(TRTLLM, versions.parse("1.3.0rc20")), "<=1.3.0rc20", True),
        (Known(TRTLLM, versions.parse("1.3.0rc26")), "<=1.3.0rc20", False),
        (Known(LMCACHE), None, True),
    ],
)
def test_bounds(known: Known, bounds: str | None, holds: bool | None) -> None:
    assert known.holds(bounds) is holds


@pytest.mark.parametrize(
    ("seen", "right", "sure"),
    [("LMCacheMPConector", "LMCacheMPConnector", True), ("offloadingconnector", "OffloadingConnector", True),
     ("Offload", None, False), ("OffloadConnector", "OffloadingConnector", True)],
)
def test_names_that_were_meant(seen: str, right: str | None, sure: bool) -> None:
    found = near.match(seen, ["LMCacheMPConnector", "OffloadingConnector", "NixlConnector"])
    assert found == right
    assert (found is not None and near.is_sure(seen, found)) is sure
