"""A recipe that cannot be run as it stands is refused before anything is installed, with file and line."""

from pathlib import Path

import pytest

from kvproof.errors import RecipeError
from kvproof.loading import find_recipe, load_recipe
from kvproof.runnable import require_runnable

GOOD = find_recipe("gemma4-nano-31b").read_text(encoding="utf-8").replace("name: gemma4-nano-31b\n", "name: r\n", 1)


def test_the_recipes_here_can_be_run() -> None:
    path = find_recipe("gemma4-nano-31b")
    require_runnable(load_recipe(path), path)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("  name: vllm\n", "  name: vlm\n", "no engine is called 'vlm'; did you mean vllm?"),
        ("  name: lmcache-mp\n", "  name: lmcache\n", "no connector of vllm is called 'lmcache'; did you"),
        ("environment: vllm-cpu\n", "environment: vllm-gpu\n", "no environment is called 'vllm-gpu'"),
        ("reported: [overhead]", "reported: [overhed]", "no check is called 'overhed'; did you mean overhead"),
        ("    max-num-seqs: 4\n", "    model: other\n", "kvproof sets this flag itself"),
        ("    max-num-seqs: 4\n", "    kv_transfer_config: x\n", "kvproof sets this flag itself"),
        ("    eviction-policy: LRU\n", "    l2-adapter: x\n", "kvproof sets this flag itself"),
        ("  second_tier: fs\n", "", "second_tier is missing"),
    ],
)
def test_what_cannot_be_run(tmp_path: Path, old: str, new: str, said: str) -> None:
    path = tmp_path / "r.yaml"
    assert old in GOOD
    path.write_text(GOOD.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(RecipeError) as caught:
        require_runnable(load_recipe(path), path)
    assert said in caught.value.message
    assert caught.value.message.startswith(f"{path}:")
