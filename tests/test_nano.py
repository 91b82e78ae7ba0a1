"""What the nano models are asked, and that the checkpoints kept here are the ones their cards speak of."""

from __future__ import annotations

import random
import sys
import zlib
from pathlib import Path

import pytest

from kvproof.errors import EnvironmentBuildError
from kvproof.nano import data
from kvproof.paths import PROJECT
from kvproof.prompts import build as build_prompts
from kvproof.prompts import extract_answer, nano
from kvproof.recipe import Prompts
from kvproof.weights import _read_sums, _verify

MODELS = PROJECT / "models"
NAMES = ("gemma4-nano-12b", "gemma4-nano-31b", "gemma4-nano-e4b")
LIMIT_BYTES = 6 * 1000 * 1000


def tokenize(text: str) -> list[int]:
    """As the nano models' tokenizer does: one token per character and one in front."""
    return [2, *data.token_ids(text)]


@pytest.mark.parametrize("split", ["easy", "hard", "unseen", "eval"])
def test_problems_for_evaluation_are_held_out(split: str) -> None:
    for problem in data.problems(3, 200, split):
        assert zlib.crc32(problem.question.encode()) % data.HELD_OUT_SHARE == 0
        assert extract_answer(problem.solution) == str(problem.answer)


def test_training_sees_neither_held_out_problems_nor_unseen_templates() -> None:
    for problem in data.problems(4, 400, "train"):
        assert problem.seen
        assert zlib.crc32(problem.question.encode()) % data.HELD_OUT_SHARE != 0
    assert not any(problem.seen for problem in data.problems(4, 50, "unseen"))
    text, weights = data.training_text(random.Random(1), 512, recall_share=0.3)
    assert len(text) == len(weights) == 512


def test_the_same_seed_gives_the_same_questions_and_another_gives_others() -> None:
    assert data.problems(1, 20, "eval") == data.problems(1, 20, "eval") != data.problems(2, 20, "eval")
    assert data.needles(1, 3, 700) == data.needles(1, 3, 700) != data.needles(2, 3, 700)


@pytest.mark.parametrize("tokens", [700, 1064, 2088])
def test_prompts_have_the_length_that_was_asked_for(tokens: int) -> None:
    problem = data.problems(5, 1, "hard")[0]
    assert len(tokenize(data.few_shot(problem, 5, tokens))) == tokens
    assert [len(tokenize(n.prompt)) for n in data.needles(5, 4, tokens)] == [tokens] * 4


def test_a_needle_lies_far_back_and_is_the_only_right_answer() -> None:
    for needle in data.needles(6, 8, 2000):
        assert needle.prompt.count(f"Record {needle.key} holds {needle.answer}.") == 1
        assert needle.distance_tokens > 2000 * 0.35
        assert data.score(f" Record {needle.key} holds {needle.answer}. #### {needle.answer}", needle.answer)
        assert not data.score(f" #### {needle.answer + 1}", needle.answer)


def test_the_proof_mixes_problems_and_needles() -> None:
    made = build_prompts(nano(), Prompts(dataset="nano", samples=16, min_chunks=4, max_chunks=8), tokenize, 8192)
    assert len({p.sha256 for p in made}) == 16
    assert [p.kind for p in made].count("needle") == 4
    assert {"easy", "hard", "unseen"} <= {p.kind for p in made}
    assert all(p.stop == ("\n\n",) and p.expected is not None for p in made)
    assert {len(p.token_ids) % 256 for p in made} == {40}


@pytest.mark.parametrize("name", NAMES)
def test_the_checkpoints_are_what_their_checksums_say(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(MODELS))
    import checksums

    assert checksums.mismatches(name) == []
    assert sum(p.stat().st_size for p in (MODELS / name).rglob("*") if p.is_file()) <= LIMIT_BYTES
    sys.modules.pop("checksums")


def test_a_changed_checkpoint_is_refused(tmp_path: Path) -> None:
    sums = _read_sums(MODELS / "gemma4-nano-31b")
    copy = tmp_path / "gemma4-nano-31b"
    for name in sums:
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_bytes((MODELS / "gemma4-nano-31b" / name).read_bytes())
    _verify(copy, sums, "tip")
    changed = bytearray((copy / "model.safetensors").read_bytes())
    changed[-1] ^= 1
    (copy / "model.safetensors").write_bytes(changed)
    with pytest.raises(EnvironmentBuildError, match=r"model\.safetensors: sha256 is [0-9a-f]{64}, expected"):
        _verify(copy, sums, "tip")
