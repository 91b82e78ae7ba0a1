"""TensorRT-LLM's command line and files, word for word, and what its page and log say. Nothing here was captured."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from kvproof.connectors import lmcache_mp
from kvproof.engines import trtllm
from kvproof.errors import RecipeError, ServerError
from kvproof.metrics import read_page
from kvproof.plan import Layout
from kvproof.recipe import Recipe
from made_up import RECIPE, recipe

PAGES = Path(__file__).parent / "engine_pages"
LAYOUT = Layout(python="/env/bin/python", model="google/gemma-4-31B-it", folder=Path("/run-folder"), host="127.0.0.1",
                ports={"engine": 1, "baseline": 2, "cache": 3, "cache_http": 4})
MODEL = RECIPE["model"] | {"repository": "google/gemma-4-31B-it", "revision": "842da37", "weights": "real",
                           "served_name": "google/gemma-4-31B-it"}
ENGINE = {"name": "trtllm", "version": "1.3.0rc20", "arguments": {"tp_size": 2, "max_seq_len": 32768},
          "ready_timeout_s": 1800}
DRAFT = {"method": "mtp", "num_speculative_tokens": 2, "assistant": {"repository": "d", "revision": "1"}}
GPU = {"gpus": 2, "memory_gib": 1, "shm_gib": 1, "disk_gib": 1}


class Client:
    name, model = "engine", "m"

    def get_json(self, path: str) -> object:
        assert path == "/version"
        return {"version": "1.3.0rc20"}


def made(**changes: object) -> Recipe:
    return recipe(**({"model": MODEL, "engine": ENGINE, "hardware": GPU} | changes))


def with_settings(**settings: object) -> Recipe:
    return made(connector=RECIPE["connector"] | {"extra_config": settings})


def without_header(name: str) -> str:
    lines = (PAGES / name).read_text().splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith("#"))


def test_the_engine_with_lmcache() -> None:
    server = trtllm.server(made(), LAYOUT, "engine", lmcache_mp.connection(made(), LAYOUT))
    assert server.argv == (
        "/env/bin/trtllm-serve", "google/gemma-4-31B-it", "--backend", "pytorch", "--revision", "842da37",
        "--served_model_name", "google/gemma-4-31B-it", "--host", "127.0.0.1", "--port", "1", "--tp_size", "2",
        "--max_seq_len", "32768", "--extra_llm_api_options", "/run-folder/engine-options.yaml",
    )
    assert server.files == {"engine-options.yaml": without_header("trtllm-options.yaml")}
    assert server.environment == {"TRTLLM_NO_USAGE_STATS": "1", "PYTHONHASHSEED": "0", "LMCACHE_TRACK_USAGE": "false",
                                  "LMCACHE_DISABLE_BANNER": "1"}
    assert (server.role, server.url, server.health_path, server.ready_timeout_s, server.log) == (
        "engine", "http://127.0.0.1:1", "/health", 1800, "engine.log")


@pytest.mark.parametrize("flag", ["free_gpu_memory_fraction", "kv_cache_free_gpu_memory_fraction"])
def test_the_baseline_has_no_connector_and_keeps_its_share_of_memory(flag: str) -> None:
    """The options file replaces what the flag says, so the share must stand in it too."""
    server = trtllm.server(made(engine=ENGINE | {"arguments": {flag: 0.8}}), LAYOUT, "baseline", None)
    assert server.files == {"baseline-options.yaml": without_header("trtllm-options-baseline.yaml")}
    assert server.argv[-4:] == (f"--{flag}", "0.8", "--extra_llm_api_options", "/run-folder/baseline-options.yaml")
    assert server.environment == {"TRTLLM_NO_USAGE_STATS": "1"}


def test_a_checkpoint_of_ours_has_no_revision() -> None:
    ours = made(model=MODEL | {"build": {"builder": "b", "seed": 0}})
    server = trtllm.server(ours, dataclasses.replace(LAYOUT, python="python", model="/models/m"), "engine", None)
    assert server.argv[:5] == ("trtllm-serve", "/models/m", "--backend", "pytorch", "--served_model_name")
    assert server.environment["HF_HUB_OFFLINE"] == "1"


def test_the_one_setting_that_lmcaches_adapter_takes() -> None:
    timed = with_settings(**{"lmcache.mp.mq_timeout": 10})
    server = trtllm.server(timed, LAYOUT, "engine", lmcache_mp.connection(timed, LAYOUT))
    assert server.environment["LMCACHE_MQ_TIMEOUT"] == "10"


def test_settings_that_would_be_ignored_are_refused() -> None:
    other = with_settings(**{"lmcache.mp.mq_timeout": 10, "lmcache.mp.mp_transfer_mode": "x"})
    with pytest.raises(RecipeError, match=r"has no setting 'lmcache\.mp\.mp_transfer_mode'"):
        trtllm.server(other, LAYOUT, "engine", lmcache_mp.connection(other, LAYOUT))


def test_drafting_is_refused() -> None:
    drafting = made(speculative=DRAFT, checks={"required": [*RECIPE["checks"]["required"], "speculative"]})
    with pytest.raises(RecipeError, match=r"1\.3\.0rc20 has no MTP for Gemma 4.*not for 12B.*pull/15833"):
        trtllm.server(drafting, LAYOUT, "engine", lmcache_mp.connection(drafting, LAYOUT))


@pytest.mark.parametrize("flag", ["served_model_name", "extra_llm_api_options", "config", "kv_connector", "revision"])
def test_flags_that_are_kvproofs(flag: str) -> None:
    assert flag.replace("_", "-") in trtllm.RESERVED


def test_its_page() -> None:
    page = read_page((PAGES / "trtllm-1.3.0rc20.txt").read_text(), trtllm.COUNTERS.values())
    assert {word: page.get(counter.key) for word, counter in trtllm.COUNTERS.items()} == {
        "prompt_tokens": 9472, "drafts": 128, "draft_tokens": 376, "accepted_tokens": 160, "accepted_tokens_0": 96,
        "accepted_tokens_1": 64, **{f"accepted_tokens_{i}": 0 for i in range(2, 8)},
    }


def test_without_drafting_nothing_is_known_of_it() -> None:
    lines = (PAGES / "trtllm-1.3.0rc20.txt").read_text().splitlines()
    page = read_page("\n".join(x for x in lines if "spec_decode" not in x), trtllm.COUNTERS.values())
    assert page == {"trtllm_prompt_tokens_total": 9472}


def test_a_sum_of_hits_passes_for_neither_kind() -> None:
    names = {counter.name for counter in trtllm.COUNTERS.values()}
    assert "trtllm_prompt_cached_tokens_total" not in names
    for word in ("local_hit_tokens", "external_hit_tokens", "source_external_tokens"):
        assert trtllm.UNMEASURED[word][1] == "https://github.com/NVIDIA/TensorRT-LLM/issues/18465"


def test_what_it_has_no_endpoint_for() -> None:
    with pytest.raises(ServerError, match="no endpoint that turns text into token ids") as caught:
        trtllm.tokenize(Client(), "a")
    assert "/v1/completions/render" in caught.value.tip
    with pytest.raises(ServerError, match="only a restart of the engine does") as caught:
        trtllm.empty_cache(Client())
    assert caught.value.tip == "run with --restart-engine"


@pytest.mark.parametrize(
    ("log", "active"),
    [
        ("LMCache INFO: LMCache MP scheduler: connected to server at tcp://127.0.0.1:3 (chunk_size=256)\n"
         "LMCache INFO: LMCache MP worker: registered KV caches (tensor_shape=[9, 2, 2, 64], NH=1, BS=32, HS=2)\n",
         "lmcache-mp"),
        ("[TRT-LLM] [I] Initializing kv connector with config: connector_module='lmcache.integration.tensorrt_llm."
         "tensorrt_mp_adapter'\nLMCache INFO: LMCache MP scheduler: connected to server at tcp://127.0.0.1:3\n", None),
        ("LMCache ERROR: LMCache MP worker: KV cache registration timed out after 300.0s\n", None),
        ("", None),
    ],
)
def test_the_active_connector_is_the_one_that_registered(log: str, active: str | None) -> None:
    assert trtllm.active_connector(log) == active


def test_the_version_the_installation_and_the_context_length() -> None:
    assert trtllm.version(Client()) == "1.3.0rc20"
    assert trtllm.requirements(made()) is None
    assert trtllm.max_tokens(made()) == 32768
    assert trtllm.max_tokens(made(engine=ENGINE | {"arguments": {}})) is None
