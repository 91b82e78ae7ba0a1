"""What a recipe refuses, and what its digest covers."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from kvproof.recipe import PROOF, Recipe
from made_up import RECIPE, recipe


def thresholds(**limits: float) -> dict:
    return {"checks": RECIPE["checks"] | {"thresholds": limits}}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"environment": None}, "nothing says where the engine comes from"),
        ({"checks": {"required": ["smoke"]}}, "required leaves out noise-floor, store, retrieval"),
        *[({"checks": {"required": [n for n in PROOF if n != name]}}, f"leaves out {name};") for name in PROOF],
        ({"checks": RECIPE["checks"] | {"reported": ["smoke"]}}, "smoke is both required and reported"),
        ({"checks": RECIPE["checks"] | {"reported": ["overhead"]}}, "overhead needs thresholds.overhead.baseline"),
        (thresholds(min_external_hit_ratio=0.4), "greater than or equal to 0.5"),
        (thresholds(max_floor_logprob_drift=9.0), "less than or equal to 0.5"),
        (thresholds(max_floor_disagreement_ratio=0.6), "less than or equal to 0.5"),
        ({"prompts": {"min_chunks": 4, "max_chunks": 3}}, "max_chunks 3 is below min_chunks 4"),
        ({"prompts": {"chunk_tokens": 64, "remainder_tokens": 64}}, "must be below chunk_tokens 64"),
        ({"colour": "red"}, "Extra inputs are not permitted"),
        ({"name": "Has Capitals"}, "should match pattern"),
        ({"hardware": RECIPE["hardware"] | {"gpus": "2"}}, "valid integer"),
        ({"hardware": RECIPE["hardware"] | {"memory_gib": 0}}, "greater than 0"),
        ({"claims": [{"says": "maybe", "text": "", "source": "s", "date": "2026-01"}]}, "'validated'"),
        ({"claims": [{"says": "supported", "text": "", "source": "s", "date": "Jan"}]}, "match pattern"),
    ],
)
def test_refuses(changes: dict, said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        Recipe.model_validate(RECIPE | changes)


def test_is_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        recipe().name = "other"


@pytest.mark.parametrize(
    "changes",
    [
        {"title": "Another title"},
        {"caveats": [{"text": "t", "reason": "r"}]},
        {"claims": [{"says": "supported", "text": "t", "source": "s", "date": "2026-01"}]},
    ],
)
def test_digest_leaves_out_what_decides_nothing(changes: dict) -> None:
    assert recipe(**changes).digest() == recipe().digest()


@pytest.mark.parametrize(
    "changes",
    [
        {"engine": RECIPE["engine"] | {"version": "1.2.4"}},
        {"engine": RECIPE["engine"] | {"arguments": {"enforce-eager": True}}},
        {"connector": RECIPE["connector"] | {"second_tier": None}},
        {"checks": {"required": [*PROOF, "latency"]}},
        {"checks": {"required": list(PROOF), "reported": ["latency"]}},
        {"checks": RECIPE["checks"] | {"thresholds": {"min_external_hit_ratio": 0.5}}},
        {"prompts": {"seed": 1}},
        {"model": RECIPE["model"] | {"revision": "2"}},
    ],
)
def test_digest_covers_what_is_run_and_how_it_is_judged(changes: dict) -> None:
    assert recipe(**changes).digest() != recipe().digest()


def test_digest_does_not_depend_on_the_order_of_keys() -> None:
    turned = Recipe.model_validate(dict(reversed(RECIPE.items())))
    assert turned.digest() == recipe().digest()
    assert len(turned.digest()) == 64
