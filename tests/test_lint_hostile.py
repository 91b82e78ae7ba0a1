"""Pastes that are broken, hostile or no pastes at all: an answer or a clear error, quickly, and never a secret."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvproof import lint
from kvproof.lint import secrets
from kvproof.lint.source import MAX_BYTES, decode
from test_lint import CASES, READABLE, Case

MIB = 1024 * 1024
TOKENS = ("hf_AbCdEfGhIjKlMnOpQrStUvWxYz01234567", "sk-proj-0123456789abcdefABCDEF", "Bearer abcDEF0123456789xyz",
          "https://user:s3cr3tW0rd@cache.internal:6379", "nvapi-0123456789abcdef")
SECRET_PARTS = ("AbCdEfGhIjKl", "proj-0123456789", "abcDEF0123456789xyz", "s3cr3tW0rd", "0123456789abcdef")


def answer(data: bytes, name: str = "x") -> lint.Report | None:
    """All that lint makes of a paste; None when it says that it cannot read it."""
    try:
        report = lint.examine(decode(data, name), name)
    except lint.Unreadable:
        return None
    said = lint.text(report)
    assert said.count("\n    why: ") == len(report.findings)
    made = lint.fix(report)
    json.dumps(lint.data(report, made))
    assert all(0 <= f.offset <= len(report.source.text) for f in report.findings)
    return report


# --- no pastes ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "empty"),
        (b" \n\t\r\n", "empty"),
        (b"\xef\xbb\xbf", "empty"),
        (b"\x7fELF\x02\x01\x01\0\0\0", "binary"),
        (bytes(range(1, 32)) * 20, "binary"),
        (b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03" + bytes(100), "binary"),
        (b"x" * (10 * MIB), "at most"),
        (b"hello world\n", "nothing in it"),
        (b"{}", "nothing in it"),
        (b"[]", "nothing in it"),
        (b"- a\n- b\n", "nothing in it"),
        (b"kind: Pod\napiVersion: v1\n", "Kubernetes manifest without an engine"),
        (b"services:\n  a: [\n", "not readable as YAML"),
        (b"apiVersion: v1\nkind: Pod\nmetadata:\n\tname: x\n", "not readable as YAML"),
    ],
)
def test_what_is_no_paste_is_said_to_be_none(data: bytes, said: str) -> None:
    with pytest.raises(lint.Unreadable) as error:
        lint.examine(decode(data, "x"), "x")
    assert said in error.value.message
    assert error.value.exit_code == 2
    assert error.value.tip or said == "binary"


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    for name, said in ((str(tmp_path), "not a regular file"), (str(tmp_path / "none"), "no such file"),
                       ("/dev/zero", "not a regular file"), ("a\0b", "cannot be read"), ("x" * 5000, "cannot be read")):
        with pytest.raises(lint.Unreadable, match=said):
            lint.lint(name)


def test_a_large_file_is_not_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "large.txt"
    with path.open("wb") as file:
        file.truncate(50 * 1024 * MIB)
    with pytest.raises(lint.Unreadable, match="at most"):
        lint.lint(str(path))


def test_templates_are_told_from_manifests() -> None:
    with pytest.raises(lint.Unreadable) as error:
        lint.examine(decode(b"apiVersion: v1\nkind: Pod\nmetadata: {name: {{ .Release.Name }}}\n", "x"), "x")
    assert error.value.tip is not None
    assert "helm template" in error.value.tip


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-be", "utf-32", "cp1252"])
def test_encodings(encoding: str) -> None:
    text = "vllm serve x/y --kv-transfer-config '{“kv_connector”: “LMCacheMPConnector”, “kv_role”: “kv_both”}'\n"
    data = text.encode(encoding)
    if encoding == "utf-16-be":
        data = b"\xfe\xff" + data
    report = answer(data)
    assert report is not None
    assert [f.id for f in report.findings] == ["json-smart-quotes"]
    assert lint.fix(report).text == text.replace("“", '"').replace("”", '"')


def test_one_line_in_several_encodings() -> None:
    report = answer("vllm serve x/y # é\n".encode("latin-1") + "--kv-offloading-size 40 # “é”\n".encode())
    assert report is not None


# --- hostile --------------------------------------------------------------------------------------

ROOM = MAX_BYTES - 4096


def _much(part: str, head: str = "", tail: str = "") -> str:
    return head + part * (ROOM // len(part.encode())) + tail


HOSTILE = {
    "quotes": _much("'"), "double quotes": _much('"'), "braces": _much('{"'), "brackets": _much("["),
    "smart quotes": _much("“x "), "substitutions": _much("vllm $("), "backticks": _much("vllm `a"),
    "here-documents": _much("vllm <<A\n"), "continuations": _much("\\ \n", "vllm serve x "),
    "doubling variables": "A=xxxxxxxxxxxxxxxx\n" + "A=$A$A\n" * 60 + "vllm serve $A\n",
    "commands": _much("vllm serve x --kv-offloading-size 4\n"),
    "options": _much("--kv-transfer-config {} ", "vllm serve x "),
    "keys": _much('"a":1,', "vllm serve x --kv-transfer-config '{", "}'"),
    "deep JSON": _much('{"a":', '{"kv_connector":'), "deep list": _much("[", '{"kv_role":'),
    "deep YAML": _much("[", "services: "), "wide YAML": _much("  a: {image: x, command: [x]}\n", "services:\n"),
    "documents": _much("apiVersion: v1\nkind: Pod\nspec: {containers: [{image: x, args: [--model, x]}]}\n---\n"),
    "aliases": "a: &a [x]\nb: [" + "*a," * 60_000 + "]\nservices: {}\n",
    "bomb": "\n".join(f"{b}: &{b} [{','.join([f'*{a}'] * 9)}]" for a, b in zip("abcdefghij", "bcdefghijk", strict=True))
            .join(["a: &a [x]\n", "\nservices: {x: {image: *k, command: *k}}\n"]),
    "self-reference": "services: &s {x: *s}\n", "fences": _much("```\n{\"kv_role\":\"kv_both\"}\n```\n"),
    "tokens": _much("HF_TOKEN=hf_abcdefghijkl ", "vllm serve x "), "addresses": _much("://a:b", "vllm serve x "),
    "control characters": _much("vllm serve \x0c\x1b[31m\n"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_pastes_are_answered_quickly(name: str) -> None:
    started = time.process_time()
    answer(HOSTILE[name].encode()[:MAX_BYTES])
    assert time.process_time() - started < 15  # 2 at most on an idle machine


def test_nothing_of_a_paste_is_run(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    text = (f"vllm serve $(touch {ran}) --kv-offloading-size `touch {ran}` ${{X:-$(touch {ran})}}\n"
            f"bash -c 'touch {ran}; vllm serve x/y'\nA=$(touch {ran})\n")
    assert answer(text.encode()) is not None
    assert not ran.exists()


def test_nothing_of_the_environment_gets_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIZE", "40GB")
    report = answer(b"vllm serve x/y --kv-offloading-size $SIZE\n")
    assert report is not None
    assert not report.findings


# --- secrets --------------------------------------------------------------------------------------


@pytest.mark.parametrize("token", TOKENS)
@pytest.mark.parametrize("form", ["-e X={}", "# {}", "--api-key {}", '"{}"', "X: {}", "-H 'Authorization: {}'", "{}"])
def test_no_token_gets_out(token: str, form: str) -> None:
    text = f"vllm serve x/y --kv-offloading-size 40GB\nrun {form.format(token)} here\n"
    report = answer(text.encode())
    assert report is not None
    assert "secret" in [f.id for f in report.findings]
    made = lint.fix(report)
    for said in (lint.text(report), json.dumps(lint.data(report, made)), made.text, lint.text(made.left)):
        assert not any(part in said for part in SECRET_PARTS), said


@pytest.mark.parametrize("case", READABLE[::7], ids=lambda case: case.name)
def test_no_token_gets_out_wherever_it_stands(case: Case) -> None:
    r = random.Random(case.name)
    for token in TOKENS:
        at = r.choice([n for n, c in enumerate(case.text) if c in " \n'\""])
        report = answer((case.text[:at] + f" {token} " + case.text[at:]).encode())
        if report is None:
            continue
        made = lint.fix(report)
        for said in (lint.text(report), json.dumps(lint.data(report, made)), made.text):
            assert not any(part in said for part in SECRET_PARTS), said


@pytest.mark.parametrize(
    "text",
    ["HF_TOKEN=$HF_TOKEN", 'HF_TOKEN: "${HF_TOKEN:-}"', "HF_TOKEN=<your token>", "HF_TOKEN=hf_xxxxxxxxxxxxxxxxxxxx",
     "--api-key token-abc123", "--api-key $KEY", "-e HF_TOKEN", "HF_TOKEN=", "secretName: my-hf-secret-name",
     "TOKENIZERS_PARALLELISM=false", "--max-num-batched-tokens 8192", "kv_both: {secretKeyRef: {name: hf, key: token}}",
     "OPENAI_API_KEY=EMPTY", "vllm/vllm-openai@sha256:" + "ab12" * 16, "HF_TOKEN={{ .Values.hfToken }}"],
)
def test_what_only_names_a_secret_is_none(text: str) -> None:
    assert secrets.find(text) == []


@pytest.mark.parametrize("text", ["A=$HF_TOKEN b", "HF_TOKEN=${HF_TOKEN}", "--api-key $KEY", "HF_TOKEN=<your token>"])
def test_references_stay_as_they_are(text: str) -> None:
    assert secrets.scrub(text) == text


# --- anything -------------------------------------------------------------------------------------

_PIECES = st.sampled_from([
    "vllm serve ", "docker run ", "vllm/vllm-openai:v0.31.0 ", "--kv-transfer-config ", "--kv-offloading-size ", "'{",
    "}'", '"kv_connector"', ":", ",", "OffloadingConnector", "services:\n", "  x:\n", "    image: ", "    command: ",
    "- ",
    "[", "]", "{", "}", "\\\n", "\n", " ", "'", '"', "$(", "${X:-", "`", "<<E\n", "E\n", "“", "”", "–", "&a ", "*a ",
    "apiVersion: v1\n", "kind: Pod\n", "spec:\n", "containers:\n", "args: ", "lmcache server ", "40GB", "```\n", "#",
    ";", "|", "> ", "\u00a0", "\0",
])


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(_PIECES, max_size=40).map("".join))
def test_any_pieces(text: str) -> None:
    answer(text.encode())


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.one_of(st.binary(max_size=300), st.text(max_size=300).map(lambda t: t.encode("utf-8", "surrogatepass"))))
def test_any_bytes(data: bytes) -> None:
    answer(data)
    answer(b"vllm serve " + data)
    answer(b"services:\n  x:\n    image: vllm/vllm-openai:v0.31.0\n    command: " + data)
    answer(b'{"kv_connector":' + data)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(READABLE), st.lists(st.tuples(st.floats(0, 1), st.integers(0, 12), _PIECES), max_size=6))
def test_any_damage(case: Case, damage: list[tuple[float, int, str]]) -> None:
    text = case.text
    for share, lost, piece in damage:
        at = int(share * len(text))
        text = text[:at] + piece + text[at + lost:]
    answer(text.encode())


def test_handed_logs_are_no_pastes() -> None:
    for path in sorted(CASES.glob("log-*.txt")):
        assert answer(path.read_bytes()) is None
