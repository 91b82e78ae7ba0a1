"""`./inv explain`: from logs and metrics pages, as people have them, to an answer with an exit code."""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproof import explain
from kvproof.errors import UsageError
from kvproof.explain import Explanation, Kind, Status, inputs, names
from kvproof.explain.cleaning import SHOWN_CHARACTERS, bare, entries, normalised
from kvproof.paths import PROJECT

CASES = Path(__file__).parent / "cases"
HANDED = [row for row in csv.DictReader((CASES / "expected.tsv").read_text().splitlines(), delimiter="\t")
          if row["command"] == "explain"]
OWN = list(csv.DictReader((CASES / "expected-explain.tsv").read_text().splitlines(), delimiter="\t"))
GRAPH = ("(EngineCore pid=98) ERROR 07-30 17:01:09 [core.py:1197] RuntimeError: Cannot copy between CPU and CUDA "
         "tensors during CUDA graph capture unless the CPU tensor is pinned.")
TOKEN = "hf_" + "AbCdEfGhIjKlMnOpQr"


def file(path: Path, version: str | None = None) -> Explanation:
    return explain.what(str(path), io.BytesIO(), version)


def text(data: bytes | str, name: str = "standard input") -> Explanation:
    stream = io.BytesIO(data.encode() if isinstance(data, str) else data)
    return explain.explained([inputs.from_stream(stream, name)], strict=True)


def said(explanation: Explanation) -> str:
    return "\n".join(explain.lines(explanation))


def require(printed: str, words: str) -> None:
    for one in filter(None, words.split(";")):
        assert any(word.lower() in printed.lower() for word in one.split("|")), one


@pytest.mark.parametrize("row", HANDED, ids=lambda row: row["file"])
def test_a_handed_case(row: dict[str, str]) -> None:
    found = file(CASES / row["file"])
    assert found.exit_code == int(row["exit"])
    require(said(found), row["must_contain"])


@pytest.mark.parametrize("row", OWN, ids=lambda row: row["file"])
def test_a_case_of_our_own(row: dict[str, str]) -> None:
    found = file(CASES / row["file"])
    assert (found.status.value, found.exit_code) == (row["status"], int(row["exit"]))
    require(said(found), row["must_contain"])


@pytest.mark.parametrize("row", [*HANDED, *OWN], ids=lambda row: row["file"])
@pytest.mark.parametrize("form", ["gzip", "crlf", "utf-16", "docker-json", "compose", "timestamps", "cri", "nul"])
def test_the_answer_does_not_depend_on_the_wrapping(row: dict[str, str], form: str) -> None:
    plain = (CASES / row["file"]).read_bytes()
    before = text(plain)
    after = text(wrapped(plain, form), "x.gz" if form == "gzip" else "x")
    assert (after.status, after.versions) == (before.status, before.versions)
    assert [m.signature.id for m in after.matches] == [m.signature.id for m in before.matches]
    assert [m.line.number for m in after.matches] == [m.line.number for m in before.matches]


def wrapped(plain: bytes, form: str) -> bytes:
    """A log as one of the tools that carry logs about hands it on."""
    lines = plain.decode("utf-8", "replace").split("\n")
    stamp = "2026-08-11T09:12:44.123456789Z"
    if form == "gzip":
        half = len(plain) // 2
        return gzip.compress(plain[:half]) + gzip.compress(plain[half:])
    if form == "docker-json":
        lines = [json.dumps({"log": line + "\n", "stream": "stderr", "time": stamp}).replace("<", "\\u003c")
                 for line in lines]
    prefix = {"compose": "engine-1  | ", "timestamps": stamp + " ", "cri": stamp + " stdout F "}.get(form, "")
    joined = ("\r\n" if form == "crlf" else "\n").join(prefix + line for line in lines)
    if form == "utf-16":
        return joined.encode("utf-16")
    return b"\0" * 5000 + joined.encode() if form == "nul" else joined.encode()


def test_several_logs_of_one_run_are_judged_together(tmp_path: Path) -> None:
    paths = [CASES / "explain-engine-cold.log", CASES / "explain-cache-server-working.log", tmp_path / "missing.log"]
    (tmp_path / "empty.log").touch()
    found = explain.lines_of([*paths, tmp_path / "empty.log"])
    assert found.status is Status.WORKING
    assert [i.name for i in found.inputs if not i.lines] == [str(tmp_path / "missing.log"), str(tmp_path / "empty.log")]
    assert "not read" in said(found)


def test_no_log_at_all_is_unknown(tmp_path: Path) -> None:
    found = explain.lines_of([tmp_path / "missing.log"])
    assert (found.status, found.exit_code) == (Status.UNKNOWN, 1)
    assert explain.lines_of([]).status is Status.UNKNOWN


@pytest.mark.parametrize(
    ("version", "claimed"), [(None, True), ("0.28.0", True), ("0.29.0", False), ("0.29.0rc2", True), ("0.32.0", False)]
)
def test_a_version_outside_the_bounds_is_not_claimed(version: str | None, claimed: bool) -> None:
    found = file(CASES / "log-graph-capture.txt", version)
    assert (found.status is Status.FAILURE) is claimed
    assert claimed or f"known for vllm <0.29, and this is {version}" in said(found)


def test_the_version_that_is_given_wins() -> None:
    assert file(CASES / "explain-version-excludes.log").status is Status.UNKNOWN
    assert file(CASES / "explain-version-excludes.log", "0.27.0").status is Status.FAILURE


@pytest.mark.parametrize(
    ("line", "component", "version"),
    [
        ("(EngineCore pid=209) INFO 07-28 15:11:28 [core.py:105] Initializing a V1 LLM engine "
         "(v0.19.1.dev6+g6d4a8e6d2) with config: model='x'", "vllm", "0.19.1.dev6+g6d4a8e6d2"),
        ("INFO 12-01 03:29:20 [api_utils.py:347]  ▄▄ ▄█ █     █     █ ▀▄▀ █  version \x1b[1m0.32.0\x1b[0m",
         "vllm", "0.32.0"),
        ("INFO 09-03 21:20:47 [api_server.py:1755] vLLM API server version 0.10.0", "vllm", "0.10.0"),
        ("vLLM server version 0.32.0, serving model /m", "vllm", "0.32.0"),
        ("Successfully installed torch-2.13.0 vllm-0.32.0", "vllm", "0.32.0"),
        ("image: vllm/vllm-openai:v0.19.1", "vllm", "0.19.1"),
        ("[pip3] transformers==5.6.0", "transformers", "5.6.0"),
        ("LMCache initialized for role KVConnectorRole.WORKER with version 0.5.6-g3e11e108, vllm version 0.32.0, x",
         "lmcache", "0.5.6-g3e11e108"),
        ("[TensorRT-LLM] TensorRT-LLM version: 1.3.0rc20", "tensorrt-llm", "1.3.0rc20"),
        ("/venv/lib/python3.12/site-packages/sglang-0.5.21.dist-info", "sglang", "0.5.21"),
    ],
)
def test_versions_are_read_from_the_log(line: str, component: str, version: str) -> None:
    assert dict(text(line).versions)[component] == version


@pytest.mark.parametrize(
    ("data", "name", "message"),
    [
        (b"", "x", "empty"),
        (b"\0" * 100_000, "x", "nothing but NUL bytes"),
        (random.Random(1).randbytes(5000), "x", "binary data"),
        (b"\x7fELF\x02\x01\x01" + bytes(range(32)) * 8, "x", "binary data"),
        (b"\x89PNG\r\n\x1a\n" + random.Random(2).randbytes(500), "x", "binary data"),
        (b"PK\x03\x04log", "x", "a zip archive"),
        (b"\x28\xb5\x2f\xfdlog", "x", "compressed with zstd"),
        (b"plain text\n", "x.log.gz", "named .gz, but it is no gzip archive"),
        (b"\x1f\x8bnot gzip at all", "x.gz", "starts as gzip does, but cannot be unpacked"),
        (gzip.compress(b""), "x.gz", "empty"),
    ],
)
def test_what_is_no_log_is_an_error(data: bytes, name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        text(data, name)
    assert caught.value.tip
    assert caught.value.exit_code == 2


def test_a_gzip_that_ends_early_gives_what_it_has() -> None:
    noise = "\n".join(f"INFO request {random.Random(n).random()}" for n in range(20_000))
    packed = gzip.compress(f"{GRAPH}\n{noise}".encode())
    for cut in (len(packed) // 2, len(packed) - 4):
        found = text(packed[:cut], "x.gz")
        assert found.status is Status.FAILURE
        assert "ends early" in said(found)
    damaged = bytearray(packed)
    damaged[len(packed) // 2] ^= 0xFF
    assert text(bytes(damaged), "x.gz").status is Status.FAILURE


def test_a_line_of_many_megabytes() -> None:
    filler = "x" * 6_000_000
    found = text(f"{filler} {GRAPH} {filler}{filler}")
    assert found.status is Status.FAILURE
    line = found.matches[0].line
    assert line.number == 1
    assert "CUDA graph capture" in line.text
    assert len(line.text) <= SHOWN_CHARACTERS + 4


def test_a_log_that_is_cut_in_the_middle_of_a_line_or_a_character() -> None:
    whole = ("INFO start é\n" + GRAPH).encode()
    assert text(whole).matches[0].line.number == 2
    for cut in range(len(whole) - 60, len(whole)):
        text(whole[:cut])
    assert text("caf\xe9 latin-1\n".encode("latin-1") + GRAPH.encode()).status is Status.FAILURE


def test_line_numbers_across_blocks() -> None:
    lines = [f"INFO 12-01 00:00:00 [x.py:1] request {n} done" for n in range(120_000)]
    lines[77_776] = GRAPH
    assert text("\n".join(lines)).matches[0].line.number == 77_777


def test_secrets_are_masked_wherever_they_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_API_KEY", "verysecretvalue")
    bearer, password = "abcdefghijklmnopqrstuv", "s3cretpass"
    padding = "y" * 3000
    found = text(f"""vLLM API server version 0.27.0
INFO 10-02 10:00:00 [u.py:1] non-default args: {{'hf_token': '{TOKEN}', 'x': 'verysecretvalue'}}
ERROR 10-02 10:00:00 [x.py:1] HTTPError for https://user:{password}@hub.example/x with Authorization: Bearer {bearer}
{padding} {TOKEN} OSError: [Errno 98] Address already in use HF_TOKEN={TOKEN} {padding}
ValueError: {TOKEN} is no token
""")
    everything = said(found) + json.dumps(explain.as_data(found)) + repr(found)
    for secret in (TOKEN, bearer, password, "verysecretvalue"):
        assert secret not in everything
    assert TOKEN not in said(text(f"ValueError: {TOKEN} is no token"))


def test_nothing_in_a_log_steers_the_terminal() -> None:
    found = text("\x1b]0;title\x07\x1b[2J\x9b31m ValueError: \x1b[31mred\x1b[0m \u202etxt\x08\x08")
    assert not {c for c in said(found) if (ord(c) < 32 and c != "\n") or 127 <= ord(c) < 160 or c == "\u202e"}


def test_the_root_of_a_failure_is_shown_when_it_is_unknown() -> None:
    found = file(CASES / "explain-unknown-oom.log")
    assert "torch.OutOfMemoryError" in found.telling[0].text
    assert not any("warnings" in line.text for line in found.telling)


def test_the_last_error_of_a_long_log_is_shown_too() -> None:
    noise = "\n".join(f"INFO line {n}" for n in range(60_000))
    errors = "\n".join(f"ValueError: number {n}" for n in range(20))
    found = text(f"{errors}\n{noise}\nTraceback (most recent call last):\n  File \"x\", line 1\nKeyError: 'last'\n")
    shown = [line.text for line in found.telling]
    assert shown[0] == "ValueError: number 0"
    assert shown[-1] == "KeyError: 'last'"


def test_a_warning_in_the_log_of_a_server_that_came_up_is_no_failure() -> None:
    start = (CASES / "explain-engine-cold.log").read_text()
    warned = text(start + "LMCache WARNING: Using builtin hash without PYTHONHASHSEED set. For production you MUST\n")
    assert warned.status is Status.UNKNOWN
    assert "PYTHONHASHSEED=0" in said(warned)
    assert text("LMCache WARNING: Using builtin hash without PYTHONHASHSEED set.").status is Status.FAILURE


def test_a_crash_after_it_worked_is_a_failure() -> None:
    working = (CASES / "explain-engine-working.log").read_text()
    found = text(f"{working}\n{GRAPH}")
    assert found.status is Status.UNKNOWN or found.matches == ()  # 0.32 cannot have this one
    segfault = "LMCache ERROR: Something went wrong when processing the retrieve request for request_id=a, result=False"
    found = text(f"{working}\n{segfault}")
    assert found.status is Status.FAILURE
    assert any(e.kind is Kind.WORKING for e in found.evidence)


def test_hundreds_of_restarts_that_end_well() -> None:
    failing = (CASES / "explain-no-server.log").read_text()
    working = (CASES / "explain-engine-working.log").read_text()
    found = text((failing * 60) + working)
    assert found.status is Status.WORKING
    assert [m.signature.id for m in found.doubtful if m.earlier] == ["lmcache-server-unreachable"]
    assert text(failing * 60).status is Status.FAILURE


def rate(external: str, *, local: str = "0.0", prompt: str = "812.3") -> str:
    return ("(APIServer pid=1) INFO 12-01 03:30:05 [loggers.py:335] Engine 000: "
            f"Avg prompt throughput: {prompt} tokens/s, Avg generation throughput: 6.1 tokens/s, Running: 1 reqs, "
            f"Prefix cache hit rate: {local}%, External prefix cache hit rate: {external}%\n")


HITS, ASKED = "vllm:external_prefix_cache_hits_total", "vllm:external_prefix_cache_queries_total"
FILLER = "INFO:     127.0.0.1:50938 - \"POST /v1/completions HTTP/1.1\" 200 OK\n" * 30


@pytest.mark.parametrize(
    ("log", "status"),
    [
        (FILLER + rate("0.0"), Status.UNKNOWN),
        (FILLER + rate("0.0") * 2, Status.UNKNOWN),
        (FILLER + rate("0.0") * 3, Status.NOT_OFFLOADING),
        (FILLER + rate("0.0", prompt="0.0") * 9, Status.UNKNOWN),
        (FILLER + rate("0.0", local="61.2"), Status.NOT_OFFLOADING),
        (FILLER + rate("0.0") * 9 + rate("0.1"), Status.WORKING),
        (FILLER + rate("0.0", local="61.2") + rate("32.3"), Status.WORKING),
        (rate("0.0"), Status.NOT_OFFLOADING),
        (FILLER, Status.UNKNOWN),
        (FILLER + "KV Transfer metrics: GPU_to_CPU_total_bytes=1024, CPU_to_GPU_total_bytes=2048\n", Status.WORKING),
        (FILLER + "KV Transfer metrics: vllm:kv_offload_store_bytes=1024\n", Status.UNKNOWN),
        (FILLER + "LMCache INFO: Stored 256 tokens in 0.004 seconds\n", Status.UNKNOWN),
        (FILLER + "LMCache INFO: Retrieved 0 tokens in 0.004 seconds\n", Status.UNKNOWN),
        (FILLER + "LMCache INFO: [req_id=a] Retrieved 2560 out of 2560 required tokens\n", Status.WORKING),
        (FILLER + "LMCache INFO: LMCache hit tokens: 0, need to load: 0\n" * 2, Status.UNKNOWN),
        (FILLER + "LMCache INFO: LMCache hit tokens: 0, need to load: 0\n" * 3, Status.NOT_OFFLOADING),
        (FILLER + "Request cmpl-1: cannot store chunks\n" * 2, Status.UNKNOWN),
        (FILLER + "Request cmpl-1: cannot store chunks\n" * 3, Status.NOT_OFFLOADING),
    ],
)
def test_signs_of_offloading(log: str, status: Status) -> None:
    assert text(log).status is status


@pytest.mark.parametrize(
    ("page", "status"),
    [
        (f"{HITS} 5\n", Status.WORKING),
        (HITS + '{a="}"} 5', Status.UNKNOWN),
        (HITS + '{engine="0"} NaN\n' + HITS + '{engine="1"} 3 17\n', Status.WORKING),
        (HITS + '{engine="0"} +Inf\n', Status.UNKNOWN),
        (HITS + '{engine="0"}\n' + HITS + "{engine=", Status.UNKNOWN),
        ('vllm:kv_offload_total_bytes_total{transfer_type="CPU_to_GPU"} 4096\n', Status.WORKING),
        ('vllm:kv_offload_total_bytes_total{transfer_type="GPU_to_CPU"} 4096\n', Status.UNKNOWN),
        ("vllm:kv_offload_store_bytes_total 5e9\nvllm:kv_offload_load_bytes_total 0\n", Status.NOT_OFFLOADING),
        ("vllm:kv_offload_allocation_failure_total 12\n", Status.NOT_OFFLOADING),
        (f"{ASKED} 90000\n{HITS} 0\n", Status.NOT_OFFLOADING),
        ("lmcache_mp_lookup_requested_tokens_total 90000\nlmcache_mp_lookup_hit_tokens_total 0\n",
         Status.NOT_OFFLOADING),
        ("lmcache_mp_l2_store_submitted_requests_total 7\nlmcache_mp_l2_store_completed_requests_total 0\n",
         Status.NOT_OFFLOADING),
        ("vllm:prompt_tokens_total 500\n" + f"{ASKED} 0\n", Status.NOT_OFFLOADING),
        ("vllm:prompt_tokens_total 0\n" + f"{ASKED} 0\n", Status.UNKNOWN),
    ],
)
def test_metrics_pages(page: str, status: Status) -> None:
    assert text(page).status is status


def test_a_page_scraped_twice_counts_once() -> None:
    page = "vllm:external_prefix_cache_hits_total{engine=\"0\"} {}\n"
    found = text(page.replace("{}", "3") + page.replace("{}", "7"))
    assert "7 prompt tokens came back" in said(found)


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("engine-1  | x", "x"), ("[pod/a-b/engine] x", "x"), ("2026-08-11T09:12:44.1Z x", "x"),
        ("2026-08-11T09:12:44+02:00 stderr F x", "x"), ("Aug 11 09:12:44 host vllm[12]: x", "x"),
        ('{"log":"a \\"b\\" \\u001b[31mc\\u001b[0m\\n","stream":"stderr","time":"t"}', 'a "b" c'),
        ('2026-08-11T09:12:44.1Z stdout F {"level":"ERROR","message":"one\\ntwo"}', "one"),
        ('{"no":"message"}', '{"no":"message"}'), ("{not json", "{not json"), ("", ""), ("10%\r100%", "10%"),
    ],
)
def test_lines_without_their_wrapping(raw: str, shown: str) -> None:
    assert entries(raw.encode())[0] == shown


@pytest.mark.parametrize(
    "prefix",
    ["(EngineCore pid=412) ERROR 08-11 09:12:44 [core.py:1211] ", "(Worker_TP0 pid=7) ", "(EngineCore_DP0 pid=7) ",
     "(Worker_TP0_EP0 pid=10816) ERROR 06-15 08:40:03 [multiproc_executor.py:962] ",
     "[2026-12-01 03:34:53,821] LMCache ERROR: ", "[2026-04-24 13:47:24 TP0] ", "[08/10/2026-12:00:00] [TRT-LLM] [E] "],
)
def test_messages_without_their_prefix(prefix: str) -> None:
    assert bare(f"{prefix}ValueError: x") == "ValueError: x"


def test_the_newest_run_of_a_recipe(tmp_path: Path) -> None:
    runs, evidence = tmp_path / "runs", tmp_path / "evidence"
    for name in ("gemma4-nano-31b-20261201T000000Z-aaaaaa", "gemma4-nano-31b-20261202T000000Z-bbbbbb",
                 "gemma4-nano-31b-mtp-20261203T000000Z-cccccc"):
        (runs / name).mkdir(parents=True)
        (runs / name / "engine.log").write_text(name)
    found = names.sources("gemma4-nano-31b", runs, evidence)
    assert [b"".join(s.chunks()) for s in found] == [b"gemma4-nano-31b-20261202T000000Z-bbbbbb"]
    with pytest.raises(UsageError, match="has no run yet"):
        names.sources("gemma4-nano-31b", tmp_path / "none", evidence)
    with pytest.raises(UsageError, match=r"neither a file nor a recipe.*did you mean"):
        names.sources("gemma4-nana", runs, evidence)


def test_the_logs_that_evidence_keeps() -> None:
    found = explain.what("gemma4-nano-31b-mtp", io.BytesIO())
    assert found.status is Status.WORKING
    assert any(i.name.endswith("cache_server") for i in found.inputs)


@pytest.mark.parametrize(
    ("words", "exit_code", "expected"),
    [
        (["tests/cases/log-graph-capture.txt"], 0, "--enforce-eager"),
        (["tests/cases/log-graph-capture.txt", "--engine-version", "0.32.0"], 1, "not claimed"),
        (["tests/cases/explain-engine-plain.log", "--json"], 1, '"status": "unknown"'),
        (["tests"], 2, "a folder"),
        (["no/such/file"], 2, "No such file"),
        (["tests/cases/log-graph-capture.txt", "--engine-version", "new"], 2, "expected a version"),
    ],
)
def test_exit_codes_of_the_command(words: list[str], exit_code: int, expected: str) -> None:
    done = subprocess.run([sys.executable, "-m", "kvproof.cli", "explain", *words], cwd=PROJECT, capture_output=True,
                          text=True, check=False)
    assert done.returncode == exit_code, done.stderr
    assert expected in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "word", ["x" * 5000, "a/" * 3000, "nul\0byte", "nul/\0byte", "~nobody-of-that-name/x", "", "é/\udcff"])
def test_a_word_that_can_be_no_file(word: str) -> None:
    with pytest.raises(UsageError):
        explain.what(word, io.BytesIO())


PIECES = [
    b"\x1b[31m", b"\x1b]0;", b"\0", b"\r", b"\n", b"\\u001b[0m", b"\\u003c", b'\\"', b'{"log":"',
    b'\\n","stream":"stderr"}', b"# TYPE x counter\n", b'vllm:external_prefix_cache_hits_total{engine="0"} ', b"NaN",
    b"1e999", b"{", b"}", b"\xff\xfe", b"\x1f\x8b", b"(EngineCore pid=", b"ERROR 07-30 17:01:09 [core.py:1197] ",
    b"Traceback (most recent call last):\n", b"ValueError: ", b"non-default args: {", b"'cpu_bytes_to_use': 40",
    b"kv_connector=None", b"server_args=ServerArgs(", b"LMCache hit tokens: 0",
    b"External prefix cache hit rate: 0.0%", GRAPH.encode(), b"Retrieved 99 tokens in", b"\xe2\x96\x88",
    b"Initializing a V1 LLM engine (v0.", b"vLLM API server version ", b"2026-08-11T09:12:44Z stdout F ",
    b"engine-1 | ",
]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(PIECES) | st.binary(max_size=12) | st.text(max_size=8).map(str.encode), max_size=40))
def test_nothing_that_is_read_ends_in_a_traceback(pieces: list[bytes]) -> None:
    data = b"".join(pieces)
    for name, content in (("x", data), ("x.gz", gzip.compress(data)[: len(data) + 20])):
        with contextlib.suppress(UsageError):
            found = text(content, name)
            assert found.status in Status
            assert said(found)
            json.dumps(explain.as_data(found))


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300), st.integers(1, 40))
def test_blocks_keep_every_line(data: bytes, size: int) -> None:
    chunks = [data[n:n + size] for n in range(0, len(data), size)]
    assert b"".join(inputs._whole_lines(chunks)) == data
    assert all(block.endswith(b"\n") for block in list(inputs._whole_lines(chunks))[:-1])
    assert normalised(data).count(b"\n") == data.count(b"\n")
