"""Questions with known answers, and prompts of an exact length made of them.

Every prompt starts with solved examples of its own, so that no two prompts share a first chunk and a hit
can only come from the same prompt's earlier pass.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .errors import DatasetError
from .evidence import DatasetFacts, require_regular
from .nano import data
from .recipe import Prompts

GSM8K_SHA256 = "3730d312f6e3440559ace48831e51066acaca737f6eabec99bccb9e4b3c39d14"
GSM8K_URL = (
    "https://raw.githubusercontent.com/openai/grade-school-math/"
    "3101c7d5072418e28b9008a6636bde82a006892c/grade_school_math/data/test.jsonl"
)
NANO = "nano"
_NEEDLE_EVERY = 4
_MAX_BYTES = 256 * 1024 * 1024
_MAX_DOWNLOAD_BYTES = 16 * 1024 * 1024
_MAX_DOWNLOAD_S = 300
_FILE_TIP = "pass a JSONL file, or gsm8k"
_FETCH_TIP = "fetch that file where there is a network and pass it: --dataset PATH"
_ROW_TIP = "mend or remove that line"
_ANSWER = re.compile(r"####\s*(-?[\d,]*\.?\d+)")


@dataclass(frozen=True)
class Question:
    text: str
    solution: str
    """Worked steps that end in `#### NUMBER`."""

    @property
    def answer(self) -> str | None:
        return extract_answer(self.solution)


@dataclass(frozen=True)
class Prompt:
    token_ids: tuple[int, ...]
    expected: str | None
    """The right answer; None when the prompt asks nothing that can be scored."""
    kind: str | None = None
    """Group that scores are reported by; None when the dataset has no groups."""
    stop: tuple[str, ...] = ()
    """Texts that end an answer."""

    @property
    def sha256(self) -> str:
        return hashlib.sha256(",".join(map(str, self.token_ids)).encode()).hexdigest()


@dataclass(frozen=True)
class Dataset:
    name: str
    sha256: str | None
    questions: tuple[Question, ...]

    def facts(self, prompts: Prompts) -> DatasetFacts:
        return DatasetFacts(name=self.name, sha256=self.sha256, seed=prompts.seed, samples=prompts.samples)


def extract_answer(text: str) -> str | None:
    """The number after ####, without thousands separators; None when there is none."""
    found = _ANSWER.search(text)
    return found[1].replace(",", "").removesuffix(".0") if found else None


_NAMES = ("Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gus", "Hana", "Ivo", "Jana", "Kim", "Leo", "Mia", "Noa",
          "Ole", "Pia", "Quin", "Rosa", "Sam", "Tia", "Uwe", "Vera", "Wim", "Xia", "Yara", "Zoe")
_THINGS = ("apples", "books", "coins", "eggs", "flags", "grapes", "keys", "lamps", "nuts", "pens", "shells", "stamps")


def _gain_and_loss(r: random.Random, who: str, what: str) -> Question:
    have, more = r.randint(12, 90), r.randint(11, 70)
    fewer = r.randint(2, have + more - 1)
    return Question(
        f"{who} has {have} {what}, finds {more} more and gives {fewer} away. How many {what} are left?",
        f"{have} + {more} = {have + more}. {have + more} - {fewer} = {have + more - fewer}. #### {have + more - fewer}",
    )


def _boxes(r: random.Random, who: str, what: str) -> Question:
    boxes, each, extra = r.randint(3, 12), r.randint(4, 25), r.randint(1, 30)
    total = boxes * each
    return Question(
        f"{who} packs {boxes} boxes with {each} {what} each and keeps {extra} {what} apart. How many {what} are there?",
        f"{boxes} * {each} = {total}. {total} + {extra} = {total + extra}. #### {total + extra}",
    )


def _shares(r: random.Random, who: str, what: str) -> Question:
    friends, each, left = r.randint(2, 9), r.randint(3, 20), r.randint(0, 8)
    total = friends * each + left
    return Question(
        f"{who} shares {total} {what} among {friends} friends, keeping {left}. How many {what} does each friend get?",
        f"{total} - {left} = {total - left}. {total - left} / {friends} = {each}. #### {each}",
    )


def _price(r: random.Random, who: str, what: str) -> Question:
    count, price = r.randint(2, 15), r.randint(3, 19)
    paid = count * price + r.randint(1, 40)
    return Question(
        f"{who} buys {count} {what} for {price} coins each and pays with {paid} coins. How many coins come back?",
        f"{count} * {price} = {count * price}. {paid} - {count * price} = {paid - count * price}. "
        f"#### {paid - count * price}",
    )


_TEMPLATES = (_gain_and_loss, _boxes, _shares, _price)


def word_problems(seed: int, count: int = 400) -> Dataset:
    """Arithmetic word problems, the same for the same seed on every machine."""
    r = random.Random(f"kvproof word problems {seed}")
    questions = tuple(
        r.choice(_TEMPLATES)(r, r.choice(_NAMES), r.choice(_THINGS)) for _ in range(count)
    )
    return Dataset("word-problems", None, questions)


def nano() -> Dataset:
    """What the nano models are asked: held-out problems and records; each prompt is made from its seed."""
    return Dataset(NANO, None, ())


def read_jsonl(path: Path) -> Dataset:
    """Questions from a file of {"question": …, "answer": …} lines, as gsm8k has them.

    Raises:
        DatasetError: with file and line.
    """
    try:
        require_regular(path)
        with path.open("rb") as file:
            raw = file.read(_MAX_BYTES + 1)
        text = raw.decode("utf-8-sig")
    except FileNotFoundError:
        raise DatasetError(f"dataset {path}: no such file", tip=_FILE_TIP) from None
    except IsADirectoryError:
        raise DatasetError(f"dataset {path}: is a folder; expected a JSONL file", tip=_FILE_TIP) from None
    except OSError as error:
        raise DatasetError(f"dataset {path}: cannot be read: {error.strerror or error}", tip=_FILE_TIP) from None
    except UnicodeDecodeError as error:
        raise DatasetError(f"dataset {path}: byte {error.start} is not UTF-8", tip="save the file as UTF-8") from None
    if len(raw) > _MAX_BYTES:
        raise DatasetError(f"dataset {path}: larger than {_MAX_BYTES} bytes", tip="pass a part of it")
    questions = []
    # Only \n ends a line: other line separators may stand inside a JSON text.
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            questions.append(_question(line, f"dataset {path}:{number}"))
    if len(questions) < 2:
        raise DatasetError(f"dataset {path}: {len(questions)} questions; at least 2 are needed", tip=_FILE_TIP)
    digest = hashlib.sha256(raw).hexdigest()
    return Dataset("gsm8k" if digest == GSM8K_SHA256 else path.stem, digest, tuple(questions))


def _question(line: str, where: str) -> Question:
    try:
        row = json.loads(line)
        question, answer = row["question"], row["answer"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise DatasetError(f"{where}: expected {{\"question\": …, \"answer\": …}}, seen: {line[:80]!r}",
                           tip=_ROW_TIP) from None
    if not isinstance(question, str) or not isinstance(answer, str):
        raise DatasetError(f"{where}: question and answer must be texts", tip=_ROW_TIP)
    try:
        (question + answer).encode()
    except UnicodeEncodeError:
        raise DatasetError(f"{where}: a text holds half of a surrogate pair (\\ud800 to \\udfff)",
                           tip=_ROW_TIP) from None
    if not question.strip():
        raise DatasetError(f"{where}: the question is empty", tip=_ROW_TIP)
    if extract_answer(answer) is None:
        raise DatasetError(f"{where}: the answer does not end in #### NUMBER: {answer[-60:]!r}", tip=_ROW_TIP)
    return Question(question, answer)


def fetch_gsm8k(cache: Path) -> Dataset:
    """gsm8k's test set from its public repository at a pinned revision, kept in the cache.

    Raises:
        DatasetError: it cannot be fetched, or what came is not the pinned file.
    """
    target = cache / "datasets" / f"gsm8k-{GSM8K_SHA256[:12]}.jsonl"
    if not target.exists():
        _download(GSM8K_URL, GSM8K_SHA256, target)
    dataset = read_jsonl(target)
    if dataset.sha256 != GSM8K_SHA256:
        raise DatasetError(f"{target}: sha256 is {dataset.sha256}, expected {GSM8K_SHA256}",
                           tip="the cached file was changed; remove it and run again")
    return dataset


def _download(url: str, sha256: str, target: Path) -> None:
    import httpx

    content = b""
    deadline = time.monotonic() + _MAX_DOWNLOAD_S
    try:
        with httpx.stream("GET", url, timeout=60, follow_redirects=True) as response:
            response.raise_for_status()
            for block in response.iter_bytes():
                content += block
                if len(content) > _MAX_DOWNLOAD_BYTES:
                    raise DatasetError(f"{url}: more than {_MAX_DOWNLOAD_BYTES} bytes came", tip=_FETCH_TIP)
                if time.monotonic() > deadline:
                    raise DatasetError(f"{url}: not complete after {_MAX_DOWNLOAD_S} s", tip=_FETCH_TIP)
    except httpx.HTTPError as error:
        raise DatasetError(f"gsm8k could not be fetched from {url}: {type(error).__name__}", tip=_FETCH_TIP) from None
    except (httpx.InvalidURL, ImportError, ValueError) as error:  # a proxy setting that httpx cannot use
        raise DatasetError(
            f"gsm8k could not be fetched from {url}: {error}",
            tip="mend the proxy setting (ALL_PROXY, HTTPS_PROXY), or pass the file: --dataset PATH",
        ) from None
    seen = hashlib.sha256(content).hexdigest()
    if seen != sha256:
        raise DatasetError(f"{url}: sha256 is {seen}, expected {sha256}",
                           tip="something on the way answered instead of the file; pass one: --dataset PATH")
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_suffix(".part")
    part.write_bytes(content)
    part.replace(target)


def build(dataset: Dataset, spec: Prompts, tokenize: Callable[[str], list[int]],
          max_tokens: int | None) -> list[Prompt]:
    """Prompts of exact length: solved examples, then one question, cut at the front.

    Lengths go round from min_chunks to max_chunks whole chunks, plus the remainder.

    Args:
        tokenize: text to token ids with the model's special tokens, as the engine does it.
        max_tokens: the engine's context length; None when unknown.

    Raises:
        DatasetError: the engine's context is too short, or the dataset too small to fill a prompt.
    """
    r = random.Random(f"kvproof prompts {spec.seed} {dataset.name}")
    order = r.sample(range(len(dataset.questions)), len(dataset.questions))
    prompts = []
    for i in range(spec.samples):
        chunks = spec.min_chunks + i % (spec.max_chunks - spec.min_chunks + 1)
        length = chunks * spec.chunk_tokens + spec.remainder_tokens
        if max_tokens is not None and length + spec.output_tokens > max_tokens:
            raise DatasetError(
                f"a prompt of {length} tokens and {spec.output_tokens} more does not fit the engine's context of "
                f"{max_tokens}", tip="lower prompts.max_chunks, or raise max-model-len in the recipe",
            )
        if dataset.name == NANO:
            prompts.append(_nano(spec.seed, i, length, tokenize))
            continue
        asked = order[i % len(order)]
        question = dataset.questions[asked]
        prompts.append(Prompt(_exact(dataset, asked, question, r, length, tokenize), question.answer))
    return prompts


def _nano(seed: int, number: int, length: int, tokenize: Callable[[str], list[int]]) -> Prompt:
    """Every fourth prompt asks for a record far back, the others are word problems after solved ones."""
    if number % _NEEDLE_EVERY == _NEEDLE_EVERY - 1:
        needle = data.needles(seed * 10_000 + number, 1, length)[0]
        text, expected, kind = needle.prompt, needle.answer, "needle"
    else:
        place = number - number // _NEEDLE_EVERY
        problem = data.problems(seed, place + 1, "eval")[place]
        text = data.few_shot(problem, seed * 10_000 + number, length)
        expected, kind = problem.answer, problem.level if problem.seen else "unseen"
    ids = tokenize(text)
    if len(ids) != length:
        raise DatasetError(f"a prompt of {len(text)} characters has {len(ids)} tokens, expected {length}",
                           tip="dataset nano is for the nano models, whose tokenizer has one token per character")
    return Prompt(tuple(ids), str(expected), kind, ("\n\n",))


def filler(seed: str, length: int, tokenize: Callable[[str], list[int]]) -> tuple[int, ...]:
    """A prompt of exactly so many tokens for timing: text that nobody sent before under this seed."""
    r = random.Random(f"kvproof filler {seed}")
    words = [*_NAMES, *_THINGS]
    ids: list[int] = []
    text = ""
    while len(ids) < length:
        text += " ".join(r.choice(words) + str(r.randint(0, 999)) for _ in range(length)) + " "
        ids = tokenize(text)
    return tuple(ids[:length])


def _exact(dataset: Dataset, asked: int, question: Question, r: random.Random, length: int,
           tokenize: Callable[[str], list[int]]) -> tuple[int, ...]:
    others = [q for n, q in enumerate(dataset.questions) if n != asked]
    ending = f"Question: {question.text}\nAnswer:"
    examples: list[str] = []
    count = max(2, length // 120)
    while True:
        picked = r.choices(others, k=count)
        examples += [f"Question: {q.text}\nAnswer: {q.solution}\n\n" for q in picked]
        ids = tokenize("".join(examples) + ending)
        if len(ids) >= length:
            # Keep the special token at the front: models answer badly without it.
            return (ids[0], *ids[len(ids) - length + 1:])
        if len(examples) > 20_000:
            raise DatasetError(f"dataset {dataset.name}: its texts do not fill {length} tokens",
                               tip="pass one with longer texts")
