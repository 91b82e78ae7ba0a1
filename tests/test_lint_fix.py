"""What --fix makes of a paste: what is certain, and nothing else."""

from __future__ import annotations

import pytest

from kvproof import lint
from kvproof.lint import mend
from kvproof.lint.finding import Edit
from kvproof.lint.source import decode
from test_lint import CASES, READABLE, Case, read_cases

GOOD = [case for case in READABLE if case.is_good]


def mended(text: str, version: str | None = None) -> lint.Mended:
    return lint.fix(lint.examine(decode(text.encode(), "x"), "x", version), version)


@pytest.mark.parametrize("case", GOOD, ids=lambda case: case.name)
def test_what_is_right_stays_as_it_is(case: Case) -> None:
    assert lint.fix(case.report(), case.version).text == case.text


@pytest.mark.parametrize("case", READABLE, ids=lambda case: case.name)
def test_it_ends_and_mends_what_it_says(case: Case) -> None:
    report = case.report()
    made = lint.fix(report, case.version)
    assert not any(f.edits for f in made.left.findings)
    before = {f.id for f in report.findings}
    mendable = {f.id for f in report.findings if f.edits}
    after = {f.id for f in made.left.findings}
    assert mendable.isdisjoint(after) or mendable & after <= before - {f.id for f in made.mended}
    again = lint.fix(made.left, case.version)
    assert again.text == made.text


@pytest.mark.parametrize(
    ("name", "says", "says_no_more"),
    [
        ("typographic-all-over", "--kv-transfer-config '{\"kv_connector\":\"OffloadingConnector\"", "“"),
        ("stripped-quotes", "--kv-transfer-config '{\"kv_connector\"", "config {"),
        ("stripped-by-double-quotes", "--kv-transfer-config '{\"kv_connector\"", '"{'),
        ("already-stripped", "'{\"kv_connector\":\"OffloadingConnector\"", "{kv_connector"),
        ("single-quoted-keys", r'"{\"kv_connector\":\"OffloadingConnector\"', "'kv_connector'"),
        ("trailing-comma", '42949672960}}\'', ",}"),
        ("python-literal", "false", "False"),
        ("misplaced-key", '"kv_connector_extra_config": {"cpu_bytes_to_use":42949672960}', '"kv_both","cpu_bytes'),
        ("extra-config", '"kv_connector_extra_config":{', '"extra_config"'),
        ("misspelled-key", '"cpu_bytes_to_use"', '"cpu_byte_to_use"'),
        ("size-with-unit", "--kv-offloading-size 40\n", "GB"),
        ("size-in-bytes", "--kv-offloading-size=40\n", "42949672960"),
        ("bytes-as-text", '"cpu_bytes_to_use":40000000000', "GB"),
        ("non-breaking-space", "--kv-offloading-size 40", "\u00a0"),
        ("space-behind-backslash", "Qwen3-32B \\\n", "\\  "),
        ("missing-backslash", "--tensor-parallel-size 2 \\\n  --kv", "2\n"),
        ("missing-scheme", '"tcp://10.0.0.7"', '"10.0.0.7"'),
        ("mp-key-without-prefix", '"lmcache.mp.port"', '"mp.port"'),
        ("mtp-without-pin", "--attention-backend TRITON_ATTN\n", "\n\n"),
        ("assistant-12b", "--enforce-eager\n", "\n\n"),
        ("hybrid-manager-off", "--no-disable-hybrid-kv-cache-manager\n", "\n\n"),
        ("assistant-as-draft", '"method":"mtp"', "draft_model"),
        ("flag-misspelled", "--kv-offloading-size 40", "--kv-offload-size"),
        ("trtllm-without-seed", "enable_block_reuse: true", "false"),
        ("sglang-groups", "--l1-size-gb 60 --separate-object-groups\n", "60\n"),
    ],
)
def test_shell_lines(name: str, says: str, says_no_more: str) -> None:
    case = next(case for case in read_cases("shell") if case.name == f"shell/{name}")
    made = lint.fix(case.report(), case.version).text
    assert says in made
    assert says_no_more not in made
    assert made.count("\n") == case.text.count("\n")


def test_a_dead_key_goes_when_the_other_is_there() -> None:
    made = lint.fix(lint.lint(str(CASES / "smart-quotes.txt")))
    assert '{"cpu_bytes_to_use": 128849018880, "blocks_per_chunk": 8}' in made.text


def test_a_dead_key_stays_when_nobody_knows_the_bytes() -> None:
    report = lint.lint(str(CASES / "dead-key.txt"))
    assert lint.fix(report).text == report.source.text


@pytest.mark.parametrize("place", ["first", "middle", "last", "only"])
def test_a_removed_key_leaves_json(place: str) -> None:
    pairs = {"first": ["D", "A", "B"], "middle": ["A", "D", "B"], "last": ["A", "B", "D"], "only": ["A", "D"]}[place]
    texts = {"A": '"cpu_bytes_to_use": 107374182400', "B": '"blocks_per_chunk": 8', "D": '"num_cpu_blocks": 4'}
    inside = ", ".join(texts[p] for p in pairs)
    text = ('{"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": {'
            + inside + "}}\n")
    made = mended(text, "0.31")
    assert "num_cpu_blocks" not in made.text
    assert not made.left.findings


def test_moved_keys_join_those_that_are_there() -> None:
    text = ('{"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "blocks_per_chunk": 8, '
            '"kv_connector_extra_config": {"cpu_bytes_to_use": 107374182400}}\n')
    made = mended(text, "0.31")
    assert '"kv_connector_extra_config": {"blocks_per_chunk": 8, "cpu_bytes_to_use": 107374182400}' in made.text
    assert not made.left.findings


def test_the_line_ends_of_the_paste_are_kept() -> None:
    text = "vllm serve x/y \\\r\n  --kv-offloading-size 40GB\r\n"
    assert mended(text, "0.31").text == "vllm serve x/y \\\r\n  --kv-offloading-size 40\r\n"


def test_within_quotes_that_would_be_broken_nothing_is_mended() -> None:
    text = "bash -c \"vllm serve google/gemma-4-31B-it --kv-offloading-size 100\"\n"
    made = mended(text, "0.22")
    assert made.text == text
    assert [f.id for f in made.left.findings] == ["hybrid-manager-off"]


def test_what_a_variable_holds_is_mended_where_it_is_written() -> None:
    text = "SIZE=40GB\nvllm serve x/y --kv-offloading-size $SIZE\n"
    made = mended(text, "0.31")
    assert made.text == text  # the option is $SIZE, and SIZE may serve others
    assert [f.id for f in made.left.findings] == ["size-as-text"]


def test_edits_that_overlap_do_not_garble() -> None:
    assert mend.apply("abcdef", [Edit(1, 3, "X"), Edit(2, 4, "Y"), Edit(5, 5, "Z"), Edit(5, 5, "Z")]) == "aXdeZf"
