"""Data of the nano models: word problems, long-context needles, scoring (standard library only).

Everything is a function of a seed. A problem's question decides by its CRC-32
whether it may be trained on: one in `HELD_OUT_SHARE` is kept for evaluation, and
templates in `templates.UNSEEN` are never trained on at all. One character is one
token, and each prompt gets one more token, `<bos>`, from the tokenizer.
"""

import random
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from . import templates

SPECIALS = ("<pad>", "<eos>", "<bos>", "<unk>", "<|turn>", "<turn|>")
CHARACTERS = "\n" + "".join(chr(code) for code in range(32, 127))
VOCAB_SIZE = 128
"""Special tokens, then `CHARACTERS`; the rest is unused."""
EOS, BOS, TURN, TURN_END = "\x01", "\x02", "\x04", "\x05"
"""Stand-ins for special tokens in training text: the character code is the token id."""

HELD_OUT_SHARE = 16
SPLITS = ("train", "easy", "hard", "unseen", "eval")
RECORD_TOKENS = 22

_ANSWER = re.compile(r"####\s*(-?\d+)")
_OPERATIONS = {
    "+": lambda left, right: left + right,
    "-": lambda left, right: left - right,
    "*": lambda left, right: left * right,
    "/": lambda left, right: left // right if left % right == 0 else -1,
}


@dataclass(frozen=True)
class Problem:
    """A word problem with its worked solution."""

    question: str
    solution: str
    """Worked steps, ending in `#### answer`."""
    answer: int
    template: str
    seen: bool
    """Whether training uses this template (never this very problem, unless the split is train)."""
    level: str
    """`easy` or `hard`: number ranges and chain lengths."""


@dataclass(frozen=True)
class Needle:
    """A question about one record far back in a long prompt."""

    prompt: str
    answer: int
    key: str
    distance_tokens: int
    """From the record's first character to the prompt's end."""


def problems(seed: int, count: int, split: str) -> list[Problem]:
    """Draws `count` problems of a split.

    Args:
        seed: same seed, count and split give the same problems.
        count: how many.
        split: `train` (seen templates, not held out), `easy` (held out, seen
            templates, small numbers), `hard` (held out, seen templates, large numbers
            and long chains), `unseen` (templates never trained on, small numbers), or
            `eval`: `easy`, `hard`, `easy`, `unseen`, and so on in turn.

    Raises:
        ValueError: unknown split.
    """
    if split not in SPLITS:
        raise ValueError(f"split: {split!r} is none of {', '.join(SPLITS)}")
    rng = random.Random(f"{split}-{seed}")
    turns = ("easy", "hard", "easy", "unseen") if split == "eval" else (split,)
    return [_draw(rng, turns[index % len(turns)]) for index in range(count)]


def block(problem: Problem) -> str:
    """A solved problem as it stands in a few-shot context."""
    return f"Q: {problem.question}\nA: {problem.solution}\n\n"


def few_shot(problem: Problem, seed: int, tokens: int) -> str:
    """Builds a prompt of solved problems before `problem`, ending in `A:`.

    Args:
        problem: the one to be answered.
        seed: draws the solved problems (split `train`).
        tokens: wanted length with `<bos>`; met exactly from about 500 up, below that
            the prompt is at most so long (or the bare question, if that is longer).
    """
    rng = random.Random(f"shots-{seed}-{tokens}")
    tail = f"Q: {problem.question}\nA:"
    left = tokens - 1 - len(tail)
    shots: list[str] = []
    while left > 700:
        shots.append(block(_draw(rng, "train")))
        left -= len(shots[-1])
    for _ in range(4000):
        last = [block(_draw(rng, "train")) for _ in range(3)]
        fitting = next((n for n in (1, 2, 3) if sum(map(len, last[:n])) == left), 0)
        if fitting:
            return "".join(shots + last[:fitting]) + tail
    while left > 0:
        shot = block(_draw(rng, "train"))
        if len(shot) > left:
            break
        shots.append(shot)
        left -= len(shot)
    return "".join(shots) + tail


def needles(seed: int, count: int, tokens: int) -> list[Needle]:
    """Builds prompts of many records with a question about one of the older ones.

    Args:
        seed: same arguments give the same prompts.
        count: how many.
        tokens: exact length of each prompt with `<bos>`; at least 200.

    Raises:
        ValueError: `tokens` is below 200.
    """
    if tokens < 200:
        raise ValueError(f"needles: {tokens} tokens asked for, at least 200 needed")
    made = []
    for index in range(count):
        rng = random.Random(f"needle-{seed}-{tokens}-{index}")
        tail = _ask("X00") + "A:"
        free = tokens - 1 - len(_header(0)) - len(tail) - 1
        records = _records(rng, free // RECORD_TOKENS)
        keys = list(records)
        key = keys[rng.randrange(max(1, len(keys) * 6 // 10))]
        head = _header(free % RECORD_TOKENS)
        prompt = head + _record_text(records) + "\n" + _ask(key) + "A:"
        made.append(Needle(prompt, records[key], key, len(prompt) - len(head) - RECORD_TOKENS * keys.index(key)))
    return made


def score(answer_text: str, expected: int) -> bool:
    """Whether the first `#### N` in a model's answer is the expected number."""
    found = _ANSWER.search(answer_text)
    return found is not None and int(found.group(1)) == expected


def training_text(rng: random.Random, length: int, recall_share: float) -> tuple[str, bytes]:
    """One training sequence of `length` tokens with a weight class per token.

    Args:
        recall_share: how likely the sequence is one of records and questions about them.

    Returns:
        The text with stand-ins for special tokens, and as many bytes: 1 where the token
        belongs to an answer (what the model must learn to write), else 0.
    """
    if rng.random() < recall_share:
        pieces = (_needle_pieces if rng.random() < 0.8 else _mixed_pieces)(rng, length)
    else:
        pieces = (_chat_pieces if rng.random() < 0.08 else _problem_pieces)(rng, length)
    parts: list[tuple[str, str]] = []
    size = 1
    for prompt, answer in pieces:
        parts.append((prompt, answer))
        size += len(prompt) + len(answer)
        if size >= length:
            break
    text = BOS + "".join(prompt + answer for prompt, answer in parts)
    weights = b"\0" + b"".join(bytes(len(prompt)) + b"\1" * len(answer) for prompt, answer in parts)
    return text[:length], weights[:length]


def token_ids(text: str) -> bytes:
    """Token ids of training text, one byte each, as the tokenizer files give them."""
    return text.encode("latin-1").translate(_BYTE_TO_ID)


def _draw(rng: random.Random, split: str) -> Problem:
    while True:
        level = {"train": "hard" if rng.random() < 0.45 else "easy", "hard": "hard"}.get(split, "easy")
        seen = split != "unseen"
        table = templates.SEEN if seen else templates.UNSEEN
        if not seen and rng.random() < 0.6:
            name, made = "chain-new", _chain(rng, level, seen)
        elif seen and rng.random() < (0.4 if level == "hard" else 0.2):
            name, made = "chain", _chain(rng, level, seen)
        else:
            name = rng.choice(tuple(table))
            made = next(filter(None, (_story(rng, table[name], level) for _ in range(30))), None)
        if made is None:
            continue
        question, solution, answer = made
        held_out = zlib.crc32(question.encode()) % HELD_OUT_SHARE == 0
        if held_out == (split != "train"):
            return Problem(question, solution, answer, name, seen, level)


def _words(rng: random.Random) -> dict[str, str]:
    names = rng.sample(templates.NAMES, 3)
    items = rng.sample(templates.ITEMS, 2)
    return {"A": names[0], "B": names[1], "C": names[2], "i": items[0], "j": items[1]}


def _story(rng: random.Random, template: tuple, level: str) -> tuple[str, str, int] | None:
    text, numbers, steps = template
    words = _words(rng)
    values: dict[str, int] = {}
    for pair in numbers.split():
        variable, kind = pair.split(":")
        values[variable] = rng.randint(*templates.RANGES[level][kind])
    lines, result = [], 0
    for step in steps:
        equation, phrase = step.split("|")
        left, operation, right = values[equation[2]], equation[3], values[equation[4]]
        result = _OPERATIONS[operation](left, right)
        if not 0 < result < 10000:
            return None
        values[equation[0]] = result
        lines.append(phrase.format(eq=f"{left} {operation} {right} = {result}", **words, **values))
    return text.format(**words, **values), f"{' '.join(lines)} #### {result}", result


def _chain(rng: random.Random, level: str, seen: bool) -> tuple[str, str, int] | None:
    words = _words(rng)
    total = rng.randint(*templates.RANGES[level]["n"])
    sentences = [rng.choice(templates.CHAIN_OPENINGS).format(n=total, **words)]
    lines = []
    length = rng.randint(*templates.CHAIN_LENGTHS[level])
    fresh = -1 if seen else rng.randrange(length)
    for index in range(length):
        operation = rng.choice("++--*")
        number = rng.randint(*((2, 4) if operation == "*" else templates.RANGES[level]["m"]))
        result = _OPERATIONS[operation](total, number)
        if not 0 < result < 10000:
            return None
        wordings = templates.CHAIN_NEW_EVENTS if index == fresh else templates.CHAIN_EVENTS
        sentences.append(rng.choice(wordings[operation]).format(n=number, **words))
        lines.append(f"{total} {operation} {number} = {result}.")
        total = result
    question = " ".join(sentences) + " " + templates.CHAIN_QUESTION.format(**words)
    return question, f"{' '.join(lines)} #### {total}", total


def _records(rng: random.Random, count: int) -> dict[str, int]:
    keys = rng.sample(range(2600), count)
    return {f"{chr(65 + key // 100)}{key % 100:02d}": rng.randint(100, 999) for key in keys}


def _header(dots: int) -> str:
    return f"Records{'.' * dots}\n"


def _record_text(records: dict[str, int]) -> str:
    return "".join(f"Record {key} holds {value}.\n" for key, value in records.items())


def _ask(key: str) -> str:
    return f"Q: What does record {key} hold?\n"


def _tell(key: str, value: int) -> str:
    return f" Record {key} holds {value}. #### {value}\n\n"


def _problem_pieces(rng: random.Random, length: int) -> Iterator[tuple[str, str]]:
    while True:
        problem = _draw(rng, "train")
        yield f"Q: {problem.question}\nA:", f" {problem.solution}\n\n"


def _needle_pieces(rng: random.Random, length: int) -> Iterator[tuple[str, str]]:
    most = int(length * 0.75) // RECORD_TOKENS
    records = _records(rng, round(4 * (most / 4) ** rng.random()))
    yield _header(rng.randrange(RECORD_TOKENS)) + _record_text(records) + "\n", ""
    solved = _problem_pieces(rng, length)
    while True:
        # Each key once a round: asked again at once, the last answer could be copied.
        for key in rng.sample(list(records), min(len(records), 24)):
            yield _ask(key) + "A:", _tell(key, records[key])
        for _ in range(rng.randint(1, 4)):
            yield next(solved)


def _mixed_pieces(rng: random.Random, length: int) -> Iterator[tuple[str, str]]:
    known: dict[str, int] = {}
    solved = _problem_pieces(rng, length)
    while True:
        choice = rng.random()
        if choice < 0.3 or not known:
            fresh = {k: v for k, v in _records(rng, rng.randint(2, 12)).items() if k not in known}
            known.update(fresh)
            yield _header(rng.randrange(RECORD_TOKENS)) + _record_text(fresh) + "\n", ""
        elif choice < 0.55:
            yield next(solved)
        else:
            key = rng.choice(list(known))
            yield _ask(key) + "A:", _tell(key, known[key])


def _chat_pieces(rng: random.Random, length: int) -> Iterator[tuple[str, str]]:
    while True:
        problem = _draw(rng, "train")
        yield f"{TURN}user\n{problem.question}{TURN_END}\n{TURN}model\n", f"{problem.solution}{TURN_END}"
        yield "\n", ""


_BYTE_TO_ID = bytes(
    code
    if code < len(SPECIALS) and code != 3
    else len(SPECIALS) + CHARACTERS.index(chr(code))
    if chr(code) in CHARACTERS
    else SPECIALS.index("<unk>")
    for code in range(256)
)
