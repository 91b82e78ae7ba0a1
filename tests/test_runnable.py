"""A recipe that cannot be run as it stands is refused before anything is installed, with file and line."""

from pathlib import Path

import pytest

from kvproof import starting
from kvproof.errors import RecipeError
from kvproof.loading import find_recipe, load_recipe, recipe_paths
from kvproof.runnable import lacking, lacking_to_run, require_known

GOOD = find_recipe("gemma4-nano-31b").read_text(encoding="utf-8").replace("name: gemma4-nano-31b\n", "name: r\n", 1)
GOOD = GOOD.replace("stands_for: gemma4-31b\n", "")


def test_the_recipes_here_can_be_run() -> None:
    path = find_recipe("gemma4-nano-31b")
    require_known(load_recipe(path), path)


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
        ("    max-num-seqs: 4\n", "    kv-transfer-config.kv_role: x\n", "kvproof sets this flag itself"),
        ("    VLLM_CPU_KVCACHE_SPACE:", "    VLLM_SERVER_DEV_MODE:", "kvproof sets this itself"),
        ("    lmcache.mp.mq_timeout: 10\n", "    lmcache.mp.port: 10\n", "kvproof sets this itself"),
        ("caveats:\n", "versioned:\n  - {versions: '>0', reason: r, engine_arguments: {port: 1}}\ncaveats:\n",
         "versioned.engine_arguments.port: kvproof sets this flag itself"),
        ("    VLLM_CPU_KVCACHE_SPACE:", "    HF_TOKEN:", "a recipe holds no secrets"),
        ("    max-num-seqs: 4\n", "    api-key: x\n", "a recipe holds no secrets"),
        ("environment: vllm-cpu\n", "environment: vllm-cpu\nimage: vlm\n", "no image is called 'vlm'; did you"),
        ("caveats:\n", "stands_for: gone\ncaveats:\n", "no recipe is called 'gone'; known: r"),
    ],
)
def test_what_cannot_be_run(tmp_path: Path, old: str, new: str, said: str) -> None:
    path = tmp_path / "r.yaml"
    assert old in GOOD
    path.write_text(GOOD.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(RecipeError) as caught:
        require_known(load_recipe(path), path)
    assert said in caught.value.message
    assert caught.value.message.startswith(f"{path}:")


def test_what_kvproof_itself_lacks() -> None:
    path = find_recipe("gemma4-nano-31b")
    recipe = load_recipe(path)
    assert lacking(recipe, "venv") == []
    only_image = recipe.model_copy(update={"environment": None, "image": "vllm"})
    assert lacking(only_image, "venv") == lacking_to_run(only_image, "venv")
    assert lacking(only_image, "venv")[0].startswith("runtime: it needs the image vllm, and the runtime venv")
    native = load_recipe(find_recipe("gemma4-31b-native"))
    assert lacking_to_run(native, "venv") == []
    assert lacking(native, "venv")[0].startswith("proof: kvproof cannot yet")


def test_where_to_turn_does_not_depend_on_recipes_that_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "broken.yaml"
    broken.write_text("a: [")
    paths = recipe_paths() | {"broken": broken}
    monkeypatch.setattr(starting.loading, "recipe_paths", lambda *_: paths)
    said = starting.elsewhere(load_recipe(find_recipe("gemma4-31b-mtp")))
    assert said.startswith("./inv recipe gemma4-nano-31b-mtp proves the same path on this host; ")
    said = starting.elsewhere(load_recipe(find_recipe("gemma4-31b-native")))
    assert said.startswith("no recipe proves this path without its hardware; the nearest is ./inv recipe gemma4-nano")
    assert starting.elsewhere(load_recipe(find_recipe("gemma4-nano-31b"))) == ""
