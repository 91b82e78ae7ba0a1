"""Prompts of an exact length, the same every time, from data that is what it should be."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from operator import add, mul, sub, truediv
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvproof import prompts
from kvproof.errors import DatasetError
from kvproof.paths import PROJECT
from kvproof.prompts import Dataset, Question, build, extract_answer, filler, read_jsonl, word_problems
from kvproof.recipe import Prompts

ROWS = [{"question": f"What is {n} + 1?", "answer": f"It is {n + 1}.\n#### {n + 1}"} for n in range(1, 40)]
SPEC = Prompts(samples=5, chunk_tokens=64, min_chunks=2, max_chunks=4, remainder_tokens=10, output_tokens=8)


def by_bytes(text: str) -> list[int]:
    return [2, *(b + 6 for b in text.encode())]


def by_words(text: str) -> list[int]:
    return [2, *(hash_of(word) for word in text.split())]


def hash_of(word: str) -> int:
    return int.from_bytes(hashlib.sha256(word.encode()).digest()[:2], "big") + 3


def text_of(ids: tuple[int, ...]) -> str:
    return bytes(i - 6 for i in ids if i >= 6).decode()


def write(path: Path, rows: list) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("tokenize", [by_bytes, by_words])
def test_lengths_are_exact_and_go_round(tokenize) -> None:
    made = build(word_problems(0), SPEC, tokenize, None)
    assert [len(p.token_ids) for p in made] == [138, 202, 266, 138, 202]
    assert all(p.token_ids[0] == 2 for p in made)


def test_the_question_stands_whole_at_the_end() -> None:
    for prompt in build(word_problems(0), SPEC, by_bytes, None):
        text = text_of(prompt.token_ids)
        assert text.endswith("?\nAnswer:")
        assert prompt.expected is not None


def test_no_two_prompts_share_a_first_chunk() -> None:
    spec = SPEC.model_copy(update={"samples": 50})
    made = build(word_problems(0), spec, by_bytes, None)
    assert len({p.token_ids[:64] for p in made}) == 50
    assert len({p.sha256 for p in made}) == 50


def test_the_same_seed_gives_the_same_prompts() -> None:
    first, second = (build(word_problems(7), SPEC, by_bytes, None) for _ in range(2))
    assert first == second
    assert first != build(word_problems(8), SPEC, by_bytes, None)
    assert first != build(word_problems(7), SPEC.model_copy(update={"seed": 1}), by_bytes, None)


def test_the_prompts_of_a_seed_stay_what_they_were() -> None:
    """A change here makes evidence on record incomparable: raise the recipe's seed instead."""
    made = build(word_problems(0), SPEC, by_bytes, None)
    together = hashlib.sha256("".join(p.sha256 for p in made).encode()).hexdigest()
    assert together == "3a8dc569fb1ced3065ab6c80ece2df1293852d13521296e0414a9d94ce223c76"


def test_a_prompt_is_named_by_its_token_ids() -> None:
    prompt = prompts.Prompt((2, 10, 300), None)
    assert prompt.sha256 == hashlib.sha256(b"2,10,300").hexdigest()


def test_a_context_that_is_too_short() -> None:
    build(word_problems(0), SPEC, by_bytes, 266 + 8)
    with pytest.raises(DatasetError, match="266 tokens and 8 more does not fit the engine's context of 273") as caught:
        build(word_problems(0), SPEC, by_bytes, 273)
    assert caught.value.tip


def test_a_dataset_that_cannot_fill_a_prompt() -> None:
    empty = Dataset("empty", None, (Question("", "#### 1"), Question("", "#### 2")))
    with pytest.raises(DatasetError, match="dataset empty: its texts do not fill 138 tokens") as caught:
        build(empty, SPEC, lambda _: [2], None)
    assert caught.value.tip


def test_every_word_problem_has_the_answer_it_says() -> None:
    for question in word_problems(3).questions:
        steps = question.solution.rpartition("####")[0]
        for step in filter(None, (step.strip(" .") for step in steps.split(". "))):
            left, _, right = step.partition(" = ")
            a, operator, b = left.split()
            calculate = {"+": add, "-": sub, "*": mul, "/": truediv}[operator]
            assert calculate(int(a), int(b)) == int(right)
        assert question.answer == right


@given(seed=st.text(max_size=10), length=st.integers(1, 300))
def test_filler_is_exact_and_repeatable(seed: str, length: int) -> None:
    made = filler(seed, length, by_bytes)
    assert len(made) == length
    assert made == filler(seed, length, by_bytes)
    assert length < 40 or made != filler(seed + "x", length, by_bytes)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("so it is 4.\n#### 4", "4"), ("#### 1,234", "1234"), ("#### -7", "-7"), ("#### 2.50", "2.50"),
        ("#### 3.0", "3"), ("####5", "5"), ("#### x", None), ("7", None), ("", None), ("#### 4\n#### 5", "4"),
    ],
)
def test_the_answer_is_what_stands_after_the_mark(text: str, answer: str | None) -> None:
    assert extract_answer(text) == answer


@given(text=st.text())
def test_any_text_has_an_answer_or_none(text: str) -> None:
    found = extract_answer(text)
    assert found is None or found


def test_a_file_of_questions(tmp_path: Path) -> None:
    path = write(tmp_path / "some.jsonl", ROWS)
    dataset = read_jsonl(path)
    assert (dataset.name, len(dataset.questions)) == ("some", 39)
    assert dataset.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert dataset.questions[4].answer == "6"
    facts = dataset.facts(SPEC)
    assert (facts.name, facts.sha256, facts.samples) == ("some", dataset.sha256, 5)


GOOD = json.dumps(ROWS[0])
BAD_FILES: dict[str, tuple[bytes, str]] = {
    # name: content, what is said after the path
    "not JSON": (f"{GOOD}\nnonsense\n".encode(), ":2: expected {\"question\": …, \"answer\": …}, seen: 'nonsense'"),
    "a list": (f"{GOOD}\n\n[1]\n".encode(), ":3: expected {"),
    "no answer": (b'{"question": "x"}\n', ":1: expected {"),
    "a number": (b'{"question": "x", "answer": 4}\n', ":1: question and answer must be texts"),
    "no mark": (b'{"question": "x", "answer": "4"}\n', ":1: the answer does not end in #### NUMBER: '4'"),
    "empty": (b"", ": 0 questions; at least 2 are needed"),
    "one": (GOOD.encode(), ": 1 questions; at least 2 are needed"),
    "not UTF-8": (b"ab\xff", ": byte 2 is not UTF-8"),
    "no question": (b'{"question": " ", "answer": "#### 4"}\n', ":1: the question is empty"),
    "half a surrogate pair": (
        f'{GOOD}\n{{"question": "a\\ud800", "answer": "#### 4"}}\n'.encode(),
        ":2: a text holds half of a surrogate pair",
    ),
    "half a pair in the answer": (b'{"question": "a", "answer": "\\udc00 #### 4"}\n', ":1: a text holds half"),
    "deep nesting": (f"{GOOD}\n{'[' * 100_000}\n".encode(), ":2: expected {"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_bad_file_is_named_with_its_line(tmp_path: Path, name: str) -> None:
    content, said = BAD_FILES[name]
    path = tmp_path / "bad.jsonl"
    path.write_bytes(content)
    with pytest.raises(DatasetError) as caught:
        read_jsonl(path)
    assert caught.value.message.startswith(f"dataset {path}{said}")
    assert caught.value.tip
    assert caught.value.exit_code == 2


def test_a_byte_order_mark_is_no_mistake(tmp_path: Path) -> None:
    path = write(tmp_path / "some.jsonl", ROWS)
    plain = read_jsonl(path).questions
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert read_jsonl(path).questions == plain


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85", "\x0c", "\x1c"])
def test_only_a_line_feed_ends_a_line(tmp_path: Path, separator: str) -> None:
    row = {"question": f"a{separator}b", "answer": "#### 4"}
    text = json.dumps(row, ensure_ascii=False) if ord(separator) > 31 else json.dumps(row)
    path = tmp_path / "some.jsonl"
    path.write_bytes(f"{text}\r\n{text}\n".encode())
    assert [q.text for q in read_jsonl(path).questions] == [f"a{separator}b"] * 2


def test_what_is_no_regular_file_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "zero.jsonl").symlink_to("/dev/zero")
    for name in ("pipe.jsonl", "zero.jsonl"):
        with pytest.raises(DatasetError, match=rf"{name}: cannot be read: not a regular file") as caught:
            read_jsonl(tmp_path / name)
        assert caught.value.tip


def test_a_file_that_is_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "some.jsonl", ROWS)
    monkeypatch.setattr(prompts, "_MAX_BYTES", path.stat().st_size - 1)
    with pytest.raises(DatasetError, match="larger than") as caught:
        read_jsonl(path)
    assert caught.value.tip


def test_a_file_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="no such file") as caught:
        read_jsonl(tmp_path / "no.jsonl")
    assert caught.value.tip == "pass a JSONL file, or gsm8k"
    with pytest.raises(DatasetError, match="is a folder") as caught:
        read_jsonl(tmp_path)
    assert caught.value.tip


class Web:
    """Stands in for httpx.stream."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, content: bytes | Exception):
        self.asked: list[str] = []
        self.content = content
        monkeypatch.setattr(httpx, "stream", self.stream)

    @contextmanager
    def stream(self, method: str, url: str, **_: object) -> Iterator[httpx.Response]:
        self.asked.append(url)
        if isinstance(self.content, Exception):
            raise self.content
        yield httpx.Response(200, content=self.content, request=httpx.Request(method, url))


def test_gsm8k_is_fetched_once_and_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = write(tmp_path / "small.jsonl", ROWS).read_bytes()
    monkeypatch.setattr(prompts, "GSM8K_SHA256", hashlib.sha256(content).hexdigest())
    web = Web(monkeypatch, content)
    first, second = (prompts.fetch_gsm8k(tmp_path) for _ in range(2))
    assert web.asked == [prompts.GSM8K_URL]
    assert (first.name, len(first.questions)) == ("gsm8k", 39)
    assert second == first
    (kept,) = (tmp_path / "datasets").iterdir()
    write(kept, ROWS[:5])
    with pytest.raises(DatasetError, match=r"sha256 is \w+, expected") as caught:
        prompts.fetch_gsm8k(tmp_path)
    assert "remove it" in caught.value.tip


def test_another_file_than_the_pinned_one_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Web(monkeypatch, b"<html>log in first</html>")
    with pytest.raises(DatasetError, match=f"expected {prompts.GSM8K_SHA256}") as caught:
        prompts.fetch_gsm8k(tmp_path)
    assert "--dataset PATH" in caught.value.tip
    assert not (tmp_path / "datasets").exists()


def test_without_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Web(monkeypatch, httpx.ConnectError("no route"))
    with pytest.raises(DatasetError, match="could not be fetched from https://") as caught:
        prompts.fetch_gsm8k(tmp_path)
    assert "--dataset PATH" in caught.value.tip


@pytest.mark.parametrize("proxy", ["socks5://127.0.0.1:1", "gopher://127.0.0.1:1", "http://[::1", "http://127.0.0.1:no"])
def test_a_proxy_setting_that_cannot_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, proxy: str) -> None:
    monkeypatch.setenv("ALL_PROXY", proxy)
    with pytest.raises(DatasetError, match="could not be fetched from https://") as caught:
        prompts.fetch_gsm8k(tmp_path)
    assert "--dataset PATH" in caught.value.tip


@pytest.mark.parametrize(
    ("limit", "said"), [("_MAX_DOWNLOAD_BYTES", "more than 0 bytes"), ("_MAX_DOWNLOAD_S", "after 0 s")]
)
def test_a_download_that_does_not_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, said: str
) -> None:
    monkeypatch.setattr(prompts, limit, 0)
    Web(monkeypatch, b"more and more")
    with pytest.raises(DatasetError, match=said) as caught:
        prompts.fetch_gsm8k(tmp_path)
    assert "--dataset PATH" in caught.value.tip
    assert not (tmp_path / "datasets").exists()


def test_the_real_gsm8k() -> None:
    chosen = os.environ.get("KVPROOF_TEST_GSM8K")
    path = Path(chosen) if chosen else PROJECT.parent / "shared" / "data" / "gsm8k" / "test.jsonl"
    if not path.is_file():
        pytest.skip("gsm8k is not here; KVPROOF_TEST_GSM8K names the file")
    dataset = read_jsonl(path)
    assert (dataset.name, dataset.sha256) == ("gsm8k", prompts.GSM8K_SHA256)
    assert len(dataset.questions) == 1319
    made = build(dataset, SPEC.model_copy(update={"samples": 20}), by_bytes, None)
    assert all(p.expected is not None for p in made)
