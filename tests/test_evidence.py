"""Evidence is whole or absent, readable for ever, and never turns an unknown into a pass."""

from __future__ import annotations

import errno
import json
import math
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvproof import evidence
from kvproof.errors import EvidenceError
from kvproof.evidence import CheckResult, Measurement, Verdict
from kvproof.redact import Redactor
from made_up import LOCK_DIGEST, header, record

V1 = Path(__file__).parent / "fixtures" / "evidence" / "v1.json"
NO_REDACTION = Redactor({})


def result(name: str, verdict: str, reason: str | None = "because") -> CheckResult:
    return CheckResult(name=name, verdict=Verdict(verdict), required=True, reason=reason)


def test_what_is_written_is_what_is_read(tmp_path: Path) -> None:
    path = evidence.write(record(), tmp_path, NO_REDACTION)
    assert path == tmp_path / "fixture-recipe" / "fixture-run-1.json"
    assert evidence.read(path) == record()
    assert evidence.read_header(path) == header()
    assert path.stat().st_mode & 0o777 == 0o644
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_the_header_is_the_first_key_and_number_lists_are_short(tmp_path: Path) -> None:
    text = evidence.write(record(), tmp_path, NO_REDACTION).read_text(encoding="utf-8")
    assert next(iter(json.loads(text))) == "header"
    assert '"token_ids": [11, 12, 13]' in text
    assert '"logprobs": [-0.25, -1.5, null]' in text


def test_texts_keep_every_space(tmp_path: Path) -> None:
    log = "[ 1,   2 ] [1754820000.123456789012345678901234567890 no end"
    made = record(logs={"engine": [log]})
    kept = evidence.read(evidence.write(made, tmp_path, NO_REDACTION))
    assert kept.logs["engine"] == (log,)
    assert kept.recipe_text == made.recipe_text


def test_not_a_number_becomes_null(tmp_path: Path) -> None:
    nan, inf = math.nan, math.inf
    path = evidence.write(record(plan={"a": nan, "b": [1.0, -inf]}, own_share_ratio=nan), tmp_path)
    assert "NaN" not in path.read_text(encoding="utf-8")
    kept = evidence.read(path)
    assert kept.plan == {"a": None, "b": [1.0, None]}
    assert kept.own_share_ratio is None


def test_no_secret_and_no_place_rewrites_what_identifies_a_run(tmp_path: Path) -> None:
    words = [
        "lmcache-mp", "vllm", "fixture-recipe", "venv", "dummy", "completed", "pass", "smoke", "retrieval",
        "fixture/model", "fixture-run-1", "2026-01-02T03:04:05Z", "0" * 64, "1" * 64, "f" * 40, LOCK_DIGEST, "ratio",
        "Fixture CPU", "word-problems", "4.5.6", "model.safetensors",
    ]
    redact = Redactor({f"N{n}_PASSWORD": word for n, word in enumerate(words)}, {"/": "~", "fixture": "$CACHE"})
    made = record(logs={"engine": ["uses lmcache-mp"]}, environment=record().environment.model_copy(
        update={"versions": {"tiktoken": "0.9", "vllm": "1.2.3"}}))
    kept = evidence.read(evidence.write(made, tmp_path, redact))
    assert kept.header == made.header
    assert (kept.checks, kept.model, kept.environment) == (made.checks, made.model, made.environment)
    assert (kept.passes, kept.steps, kept.dataset) == (made.passes, made.steps, made.dataset)
    assert kept.logs["engine"] == ("uses ***",)


def test_text_of_others_is_masked_in_every_part(tmp_path: Path) -> None:
    secret = "Zq7-no-known-shape"
    sample = record().passes[0].samples[0].model_copy(update={"error": secret, "answer": secret})
    check = CheckResult(name="a", verdict="fail", required=True, reason=secret, link=secret, measurements=(
        Measurement(name="m", value=secret, unit="text", source=secret),))
    made = record(
        header(reason=secret, verdict="fail", weaker=(secret,), damage_left_in=secret, highlights={"m": secret}),
        recipe_text=secret, plan={"argv": [secret]}, options={"dataset": secret}, logs={"engine": [secret]},
        checks=[check], passes=[record().passes[0].model_copy(update={"samples": (sample,)})],
    )
    text = evidence.to_json(made, Redactor({"HF_TOKEN": secret}))
    assert secret not in text
    assert text.count("***") == 15


def test_secrets_are_masked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "no-known-shape")
    made = record(logs={"engine": ["token no-known-shape"]}, plan={"environment": {"HF_TOKEN": "x"}})
    text = evidence.write(made, tmp_path).read_text(encoding="utf-8")
    assert "no-known-shape" not in text
    assert '"HF_TOKEN": "***"' in text


@pytest.mark.parametrize("code", [errno.EROFS, errno.ENOSPC, errno.EACCES])
@pytest.mark.parametrize("call", ["replace", "fsync", "mkdir"])
def test_a_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int) -> None:
    def refuse(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    if call != "mkdir":
        (tmp_path / "fixture-recipe").mkdir()
    monkeypatch.setattr(os, call, refuse)
    with pytest.raises(EvidenceError, match=os.strerror(code)) as caught:
        evidence.write(record(), tmp_path)
    assert str(tmp_path) in caught.value.message
    assert "--evidence-dir" in caught.value.tip
    monkeypatch.undo()
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = evidence.write(record(), tmp_path)
    before = path.read_bytes()

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(EvidenceError):
        evidence.write(record(recipe_text="other"), tmp_path)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_an_interrupted_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        evidence.write(record(), tmp_path)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_path_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "fixture-recipe").write_text("in the way")
    with pytest.raises(EvidenceError, match="could not be written"):
        evidence.write(record(), tmp_path)


def test_evidence_of_version_1_stays_readable() -> None:
    kept = evidence.read(V1)
    assert kept.header == evidence.read_header(V1)
    assert kept.header.schema_version == 1
    assert kept.header.highlights == {
        "external_hit_ratio": 0.987654,
        "ttft_warm_s": 0.25,
        "mtp_acceptance_ratio": None,
    }
    assert kept.passes[0].samples[0].logprobs == (-0.25, -1.5, None)
    assert kept.checks[0].measurements[0].holds() is True


def test_a_newer_file_with_more_facts_stays_readable(tmp_path: Path) -> None:
    content = json.loads(V1.read_text(encoding="utf-8"))
    content["header"] |= {"schema_version": 99, "new_fact": {"deep": [1]}}
    content["new_part"] = "x"
    path = tmp_path / "new.json"
    path.write_text(json.dumps(content, indent=1))
    assert evidence.read_header(path).schema_version == 99
    assert evidence.read(path).header.verdict is Verdict.PASS


@pytest.mark.parametrize("layout", [{"indent": 1}, {"indent": None}, {"indent": 4}])
def test_a_header_is_read_in_any_layout_and_order(tmp_path: Path, layout: dict) -> None:
    content = json.loads(V1.read_text(encoding="utf-8"))
    turned = dict(reversed(content.items())) | {"plan": {'"header": {}': 1}}
    for number, value in enumerate((content, turned)):
        path = tmp_path / f"{number}.json"
        path.write_text(json.dumps(value, **layout))
        assert evidence.read_header(path) == evidence.read_header(V1)


def test_a_header_longer_than_the_first_look_is_read(tmp_path: Path) -> None:
    long = header(reason="é" * 40_000, verdict="fail")
    assert evidence.read_header(evidence.write(record(long), tmp_path)) == long


@pytest.mark.parametrize("share", [0.0, 0.05, 0.3, 0.9, 0.999])
def test_a_half_written_file_is_named(tmp_path: Path, share: float) -> None:
    whole = V1.read_bytes()
    path = tmp_path / "half.json"
    path.write_bytes(whole[: int(len(whole) * share)])
    for reader in (evidence.read_header, evidence.read):
        with pytest.raises(EvidenceError, match=r"half\.json") as caught:
            reader(path)
        assert caught.value.tip


def test_a_file_cut_off_anywhere_is_refused(tmp_path: Path) -> None:
    whole = V1.read_bytes().rstrip()
    path = tmp_path / "half.json"
    ends = [n for n in range(1, len(whole)) if whole[n - 1 : n] == b"}"]
    assert len(ends) > 10
    for end in ends:
        path.write_bytes(whole[:end])
        with pytest.raises(EvidenceError):
            evidence.read_header(path)


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"}", b"\xff\xfe}", b'{"header": {}\n}', b'{"header":'])
def test_what_is_no_evidence_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "no.json"
    path.write_bytes(content)
    with pytest.raises(EvidenceError, match=r"no\.json"):
        evidence.read_header(path)


@pytest.mark.parametrize("reader", [evidence.read_header, evidence.read])
def test_what_is_no_regular_file_is_not_read(tmp_path: Path, reader: Callable) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "zero.json").symlink_to("/dev/zero")
    for name in ("pipe.json", "zero.json"):
        with pytest.raises(EvidenceError, match=rf"{name}: cannot be read: not a regular file") as caught:
            reader(tmp_path / name)
        assert caught.value.tip


def test_a_file_larger_than_any_evidence_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = evidence.write(record(), tmp_path)
    monkeypatch.setattr(evidence, "_MAX_BYTES", path.stat().st_size)
    assert evidence.read(path) == record()
    monkeypatch.setattr(evidence, "_MAX_BYTES", path.stat().st_size - 1)
    with pytest.raises(EvidenceError, match="larger than any evidence file") as caught:
        evidence.read(path)
    assert caught.value.tip


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    for reader in (evidence.read_header, evidence.read):
        with pytest.raises(EvidenceError, match=r"no\.json: cannot be read: No such file"):
            reader(tmp_path / "no.json")


@pytest.mark.parametrize(
    ("value", "limit", "relation", "holds"),
    [
        (0.9, 0.9, ">=", True),
        (0.8, 0.9, ">=", False),
        (0.9, 0.9, "<=", True),
        (1, 0.9, "<=", False),
        (3, 3, "==", True),
        (3, 4, "==", False),
        (None, 0.9, ">=", None),
        (math.nan, 0.9, ">=", None),
        (math.inf, 0.9, ">=", None),
        ("text", 0.9, ">=", None),
        (1.0, None, ">=", None),
        (1.0, 0.9, None, None),
    ],
)
def test_whether_a_measurement_holds(value: object, limit: object, relation: object, holds: object) -> None:
    assert Measurement(name="x", value=value, unit="ratio", limit=limit, relation=relation).holds() is holds


@pytest.mark.parametrize(
    ("verdicts", "expected", "said"),
    [
        ({"a": "pass", "b": "pass"}, "pass", None),
        ({"a": "pass", "b": "fail"}, "fail", "b: because"),
        ({"a": "fail", "b": "fail"}, "fail", "a: because; b: because"),
        ({"a": "fail", "b": "error"}, "fail", "a: because"),
        ({"a": "pass", "b": "error"}, "error", "b: because"),
        ({"a": "pass", "b": "not_measured"}, "error", "b: because"),
        ({"a": "pass", "b": "unsupported"}, "unsupported", "b: because"),
        ({"a": "error", "b": "unsupported"}, "error", "a: because; b: because"),
        ({"b": "unsupported"}, "error", "b: because; a: did not run"),
        ({"a": "pass"}, "error", "b: did not run"),
        ({}, "error", "a: did not run; b: did not run"),
        ({"a": "pass", "b": "pass", "optional": "fail"}, "pass", None),
        ({"a": "pass", "b": "pass", "control": "fail"}, "error", "control: because; the proof is void"),
        ({"a": "fail", "b": "pass", "control": "fail"}, "error", "control: because; the proof is void"),
        ({"a": "pass", "b": "pass", "control": "pass"}, "pass", None),
    ],
)
def test_overall(verdicts: dict[str, str], expected: str, said: str | None) -> None:
    results = tuple(result(name, verdict) for name, verdict in verdicts.items())
    assert evidence.overall(results, ["a", "b"], frozenset({"control"})) == (expected, said)


def test_overall_without_any_required_check_is_no_pass() -> None:
    assert evidence.overall((result("a", "pass"),), [], frozenset())[0] is Verdict.ERROR


def test_a_green_control_that_is_required_is_an_error_too() -> None:
    results = (result("a", "pass"), result("control", "fail"))
    assert evidence.overall(results, ["a", "control"], frozenset({"control"}))[0] is Verdict.ERROR


NAMES = st.sampled_from(["a", "b", "c", "control"])


@given(
    results=st.lists(st.builds(result, NAMES, st.sampled_from(list(Verdict)))).map(tuple),
    required=st.lists(NAMES),
    controls=st.frozensets(NAMES),
)
def test_overall_passes_only_what_passed(
    results: tuple[CheckResult, ...], required: list[str], controls: frozenset[str]
) -> None:
    verdict, reason = evidence.overall(results, required, controls)
    assert (reason is None) == (verdict is Verdict.PASS)
    if verdict is Verdict.PASS:
        assert required
        for name in required:
            assert {r.verdict for r in results if r.name == name} == {Verdict.PASS}
        assert not [r for r in results if r.name in controls and r.verdict is Verdict.FAIL]
