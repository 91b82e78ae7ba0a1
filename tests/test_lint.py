"""What lint finds in pastes of every kind, and what it must not find."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from kvproof import export, lint, loading
from kvproof.errors import UsageError
from kvproof.lint.facts import FACTS
from kvproof.lint.finding import SEVERITIES
from kvproof.lint.source import decode
from kvproof.paths import PROJECT, RECIPES

CASES = Path(__file__).parent / "cases"
DIGEST = "sha256:" + "0" * 64
KINDS = ("shell", "docker", "compose", "kubernetes", "helm", "json", "trtllm", "lmcache", "mixed")


@dataclass(frozen=True)
class Case:
    """One paste of tests/cases/lint.

    Attributes:
        expected: ids of all findings, with ~ before those that are notes; or only "unreadable".
        version: of the engine, as given on the command line; None when it is not.
    """

    name: str
    text: str
    expected: tuple[str, ...]
    version: str | None

    @property
    def is_good(self) -> bool:
        return all(e.startswith("~") for e in self.expected)

    def report(self) -> lint.Report:
        return lint.examine(decode(self.text.encode(), self.name), self.name, self.version)


def read_cases(kind: str) -> list[Case]:
    text = (CASES / "lint" / f"{kind}.cases").read_text(encoding="utf-8")
    text = text.replace("@D", f"@{DIGEST}").replace("digest: D", f"digest: {DIGEST}")
    parts = re.split(r"^==== (.*)\n", text, flags=re.M)
    made = []
    for head, body in zip(parts[1::2], parts[2::2], strict=True):
        name, options, expected = (part.strip() for part in head.split("|"))
        version = re.search(r"version=(\S+)", options)
        made.append(Case(f"{kind}/{name}", body.rstrip("\n") + "\n", tuple(sorted(expected.split())),
                         version[1] if version else None))
    return made


ALL = [case for kind in KINDS for case in read_cases(kind)]
READABLE = [case for case in ALL if case.expected != ("unreadable",)]


def told(report: lint.Report) -> tuple[str, ...]:
    return tuple(sorted(("~" if f.severity == "note" else "") + f.id for f in report.findings))


@pytest.mark.parametrize("case", ALL, ids=lambda case: case.name)
def test_a_paste_has_just_these_findings(case: Case) -> None:
    if case.expected == ("unreadable",):
        with pytest.raises(lint.Unreadable) as error:
            case.report()
        assert error.value.exit_code == 2
        assert error.value.tip
        return
    report = case.report()
    assert told(report) == case.expected, lint.text(report)
    assert report.exit_code == (0 if case.is_good else 1)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "mixed"])
def test_every_kind_has_ten_pastes_of_which_some_are_right(kind: str) -> None:
    cases = read_cases(kind)
    assert len(cases) >= 10
    assert sum(case.is_good for case in cases) >= 3
    assert len({case.name for case in cases}) == len(cases)


HANDED = [row.split("\t") for row in (CASES / "expected.tsv").read_text().splitlines()[1:] if "\tlint\t" in row]


@pytest.mark.parametrize("row", HANDED, ids=lambda row: row[0])
def test_the_handed_cases(row: list[str]) -> None:
    file, _, status, required = row
    report = lint.lint(str(CASES / file))
    said = lint.text(report).lower()
    assert report.exit_code == int(status)
    for requirement in required.split(";"):
        assert any(word.lower() in said for word in requirement.split("|")), (requirement, said)


def test_there_are_seven_handed_cases() -> None:
    assert len(HANDED) == 7


def test_every_fact_has_a_paste_that_shows_it() -> None:
    shown = {e.lstrip("~") for case in ALL for e in case.expected}
    assert shown - {"unreadable"} == set(FACTS)


@pytest.mark.parametrize("name", sorted(FACTS))
def test_a_fact_is_well_formed(name: str) -> None:
    fact = FACTS[name]
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name)
    assert fact.severity in SEVERITIES
    assert fact.maybe in (None, *SEVERITIES)
    assert fact.link is None or re.fullmatch(r"https://[\w./#-]+", fact.link)
    if fact.versions is not None:
        SpecifierSet(fact.versions)
    assert fact.reason.endswith(".")
    assert not fact.message.endswith(".")


# --- no false alarms ------------------------------------------------------------------------------

# What is wrong with recipes on purpose (regression recipes, claims that do not hold), and stands in their caveats.
TRUE_FINDINGS = {
    "gemma4-31b-cacheblend": {"blend-never"},
    "gemma4-31b-cachegen": {"hybrid-inprocess", "hash-seed"},
    "gemma4-31b-fp8": {"serde-fp8-hybrid"},
    "gemma4-31b-native-v0.19.1": {"hybrid-no-path", "key-by-version", "key-dead"},
    "gemma4-31b-trtllm": {"trtllm-windows"},
    # Its /dev/shm is too small for its pool since vLLM 0.27.
}


@pytest.mark.parametrize("form", export.FORMS)
@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.yaml")), ids=lambda path: path.stem)
def test_what_kvproof_exports_has_no_findings_but_true_ones(path: Path, form: str) -> None:
    recipe = loading.load_recipe(path)
    try:
        text = export.export(recipe, form)
    except UsageError as error:
        pytest.skip(f"it has no such form: {error.message}")
    report = lint.examine(decode(text.encode(), path.stem), path.stem)
    assert report.engines
    assert {f.id for f in report.findings} <= TRUE_FINDINGS.get(path.stem, set()), lint.text(report)


def test_pages_of_the_docs_have_no_findings() -> None:
    """What a user is told to copy, in the guides that are written by hand."""
    for page in sorted((PROJECT / "docs").glob("*.md")):
        try:
            report = lint.lint(str(page))
        except lint.Unreadable:
            continue  # nothing to copy in it
        assert report.exit_code == 0, lint.text(report)


# --- what it says ---------------------------------------------------------------------------------


def test_a_finding_says_where_why_what_to_do_for_which_versions_and_who_says_so() -> None:
    report = lint.lint(str(CASES / "dead-key.txt"))
    data = lint.data(report)
    found = next(f for f in data["findings"] if f["id"] == "key-dead")
    assert (found["line"], found["column"]) == (1, 168)
    assert found["severity"] == "error"
    assert found["versions"] == "vLLM >=0.14"
    assert found["link"] == "https://github.com/vllm-project/vllm/issues/24498"
    assert "cpu_bytes_to_use" in found["fix"]
    said = lint.text(report)
    assert "dead-key.txt:1:168: error:" in said
    assert "holds for: vLLM >=0.14" in said
    assert said.splitlines()[-1].startswith(str(CASES / "dead-key.txt"))


@pytest.mark.parametrize(
    ("name", "finding", "at"),
    [
        ("shell/misplaced-key", "field-misplaced", '"cpu_bytes_to_use"'),
        ("shell/missing-backslash", "continuation-missing", "--kv-offloading-size 40"),
        ("shell/typographic-all-over", "odd-dash", "–kv"),
        ("compose/shm-in-json", "shm-too-small", '"8gb"'),
        ("compose/glued", "argument-glued", "--kv-offloading-size 40"),
        ("compose/single-quoted-keys", "json-single-quotes", "'kv_connector'"),
        ("kubernetes/misspelled-connector", "connector-unknown", '"LmcacheMpConnector"'),
        ("kubernetes/shm-too-small", "shm-too-small", "16Gi"),
        ("kubernetes/config-map", "trtllm-reuse-off", "false"),
        ("helm/bytes", "bytes-too-few", "64}"),
        ("mixed/args", "key-dead", '"num_cpu_blocks"'),
        ("lmcache/bytes", "setting-in-bytes", "42949672960"),
        ("trtllm/two-things", "trtllm-preset", "LMCacheMPConnector"),
        ("docker/token", "secret", "hf_AbC"),
    ],
)
def test_places_are_those_of_the_paste(name: str, finding: str, at: str) -> None:
    case = next(case for case in ALL if case.name == name)
    found = next(f for f in lint.data(case.report())["findings"] if f["id"] == finding)
    assert case.text.splitlines()[found["line"] - 1][found["column"] - 1:].startswith(at)


@pytest.mark.parametrize(
    ("text", "version", "source"),
    [
        ("docker run --ipc=host vllm/vllm-openai:v0.30.0-cu129 --model x/y", "0.30.0", "images/lock.toml|tag"),
        ("docker run rocm/vllm:rocm6.3.1_vllm_0.28.5 vllm serve x/y", "0.28.5", "tag"),
        ("docker run lmcache/vllm-openai:v0.5.5 x/y", "0.29.0", "images/lock.toml"),
        ("docker run lmcache/vllm-openai:v0.4.9 x/y", None, "not said"),
        ("docker run nvcr.io/nvidia/vllm:26.07-py3 vllm serve x/y", None, "not said"),
        ("docker run vllm/vllm-openai:latest --model x/y", None, "tag latest"),
        ("docker run lmsysorg/sglang:v0.5.21 python3 -m sglang.launch_server --model-path x/y", "0.5.21", "tag|lock"),
        ("docker run nvcr.io/nvidia/tensorrt-llm/release:1.3.0rc26 trtllm-serve x/y", "1.3.0rc26", "tag"),
        ("pip install 'vllm==0.27.1'\nvllm serve x/y", "0.27.1", "pin"),
        ("# with vLLM 0.28.0\nvllm serve x/y", "0.28.0", "named"),
        ("# not vLLM 0.28.0 but vLLM 0.29.0\nvllm serve x/y", None, "not said"),
        ("vllm serve x/y", None, "not said"),
    ],
)
def test_the_version_is_found(text: str, version: str | None, source: str) -> None:
    (engine,) = lint.data(lint.examine(decode(text.encode(), "x"), "x"))["engines"]
    assert engine["version"] == version
    assert any(word in engine["version_source"] for word in source.split("|"))


def test_a_version_given_counts_more_than_the_tag() -> None:
    source = decode(b"docker run --gpus all vllm/vllm-openai:v0.26.0 x/y --kv-offloading-size 64", "x")
    assert "shm-missing" not in told(lint.examine(source, "x"))
    assert "shm-missing" in told(lint.examine(source, "x", "v0.31.0rc1"))


@pytest.mark.parametrize("version", ["", "new", "0", "latest"])
def test_a_version_that_is_none_is_an_error_of_use(version: str) -> None:
    with pytest.raises(lint.Unreadable, match="--engine-version"):
        lint.examine(decode(b"vllm serve x/y", "x"), "x", version)


# --- the command line -----------------------------------------------------------------------------


def run(*words: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([sys.executable, "-m", "kvproof.cli", "lint", *words], input=given, capture_output=True,
                          cwd=PROJECT, check=False, timeout=60)


def test_the_task_prints_and_its_exit_status_says_it() -> None:
    bad = run(str(CASES / "swap-space.txt"))
    assert (bad.returncode, bad.stderr) == (1, b"")
    assert b"swap-space" in bad.stdout
    nowhere = run("no-such-file.txt")
    assert (nowhere.returncode, nowhere.stdout) == (2, b"")
    assert b"no-such-file.txt: no such file" in nowhere.stderr


def test_the_task_reads_what_is_piped_in() -> None:
    bad = run("-", given=b"vllm serve x/y --kv-offloading-backend native\n")
    assert bad.returncode == 1
    assert bad.stdout.startswith(b"stdin:1:16: error:")
    assert run("-").returncode == 2


def test_the_task_as_json() -> None:
    bad = run(str(CASES / "bytes-meant-gib.txt"), "--json", "--fix", "--engine-version", "0.31")
    said = json.loads(bad.stdout)
    assert [f["id"] for f in said["findings"]] == ["bytes-too-few"]
    assert '"cpu_bytes_to_use":42949672960' in said["fixed"]
    assert (said["left"], bad.returncode) == ([], 0)
    unreadable = run(str(CASES / "log-degraded.txt"), "--json")
    assert (unreadable.returncode, json.loads(unreadable.stdout)["exit_code"]) == (2, 2)


def test_the_task_with_fix_prints_the_text_alone() -> None:
    mended = run(str(CASES / "smart-quotes.txt"), "--fix")
    assert mended.returncode == 0
    assert mended.stdout.decode().startswith("docker run --gpus all")
    assert '{"kv_connector": "OffloadingConnector"' in mended.stdout.decode()
    assert b"json-smart-quotes" in mended.stderr
