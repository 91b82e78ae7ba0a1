"""Measures a served nano model: accuracy per split, needle recall, draft acceptance.

    python models/evaluate.py http://localhost:8000 --json scores.json

Standard library only; the server is any OpenAI-compatible vLLM. Greedy, few-shot,
no retries: an HTTP error is an error.
"""

import argparse
import json
import re
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from kvproof.nano import data

_SAMPLE = re.compile(r"^vllm:spec_decode_(num_\w+?)_total(\{.*\})? (\S+)$")
_POSITION = re.compile(r'position="(\d+)"')


def complete(url: str, prompt: str, max_tokens: int) -> str:
    """Greedy completion of one prompt, cut at the first blank line.

    Raises:
        urllib.error.HTTPError: the server refused or failed.
    """
    model = _get(f"{url}/v1/models")["data"][0]["id"]
    body = {"model": model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "stop": ["\n\n"]}
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=600) as reply:
        return json.load(reply)["choices"][0]["text"]


def drafting(url: str) -> dict[str, float]:
    """The server's speculative-decoding counters; accepted tokens by position as `accepted_0`, ...

    Empty when the server has none: it does not draft.
    """
    with urllib.request.urlopen(f"{url}/metrics", timeout=60) as reply:
        page = reply.read().decode()
    counters: dict[str, float] = {}
    for line in page.splitlines():
        sample = _SAMPLE.match(line)
        if sample:
            position = _POSITION.search(sample[2] or "")
            name = f"accepted_{position[1]}" if position else sample[1]
            counters[name] = counters.get(name, 0.0) + float(sample[3])
    return counters


def acceptance(before: dict[str, float], after: dict[str, float]) -> dict | None:
    """Acceptance between two readings of the counters; None when nothing was drafted.

    `mean_length_tokens` counts the accepted draft tokens plus the one token each
    verification yields anyway.
    """
    grown = {name: value - before.get(name, 0.0) for name, value in after.items()}
    drafts, drafted = grown.get("num_drafts", 0.0), grown.get("num_draft_tokens", 0.0)
    if not drafted:
        return None
    accepted = grown.get("num_accepted_tokens", 0.0)
    positions = sorted(name for name in grown if name.startswith("accepted_"))
    return {
        "drafts": int(drafts),
        "draft_tokens": int(drafted),
        "accepted_tokens": int(accepted),
        "acceptance_ratio": round(accepted / drafted, 4),
        "mean_length_tokens": round(1 + accepted / drafts, 4),
        "by_position_ratio": [round(grown[name] / drafts, 4) for name in positions],
    }


def measure(url: str, count: int, needle_count: int, shot_tokens: int, needle_tokens: int, seed: int) -> dict:
    """Runs every split once; see `main` for the arguments."""
    result: dict = {}
    for split in ("easy", "hard", "unseen"):
        drawn = data.problems(seed, count, split)
        prompts = [data.few_shot(problem, seed + index, shot_tokens) for index, problem in enumerate(drawn)]
        result[split] = _phase(url, prompts, [problem.answer for problem in drawn], 220)
    share = {"easy": 0.5, "hard": 0.25, "unseen": 0.25}
    result["whole_ratio"] = round(sum(part * result[split]["accuracy_ratio"] for split, part in share.items()), 4)
    drawn_needles = data.needles(seed, needle_count, needle_tokens)
    prompts = [needle.prompt for needle in drawn_needles]
    result["needles"] = _phase(url, prompts, [needle.answer for needle in drawn_needles], 48)
    return result


def main() -> int:
    """Command line; prints the scores as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--count", type=int, default=60, help="problems per split")
    parser.add_argument("--needles", type=int, default=30)
    parser.add_argument("--shot-tokens", type=int, default=900, help="length of a few-shot prompt")
    parser.add_argument("--needle-tokens", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    result = measure(args.url, args.count, args.needles, args.shot_tokens, args.needle_tokens, args.seed)
    text = json.dumps(result, indent=1)
    if args.json:
        args.json.write_text(text + "\n")
    print(text)
    return 0


def _phase(url: str, prompts: list[str], answers: list[int], max_tokens: int) -> dict:
    before = drafting(url)
    with ThreadPoolExecutor(4) as pool:
        texts = list(pool.map(lambda prompt: complete(url, prompt, max_tokens), prompts))
    right = [data.score(text, answer) for text, answer in zip(texts, answers, strict=True)]
    missed = [(text, answer) for text, answer, good in zip(texts, answers, right, strict=True) if not good]
    for text, answer in missed[:3]:
        print(f"missed {answer}:{text}", file=sys.stderr, flush=True)
    return {
        "count": len(right),
        "accuracy_ratio": round(sum(right) / len(right), 4),
        "acceptance": acceptance(before, drafting(url)),
    }


def _get(url: str) -> dict:
    with urllib.request.urlopen(url, timeout=60) as reply:
        return json.load(reply)


if __name__ == "__main__":
    sys.exit(main())
