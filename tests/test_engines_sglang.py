"""SGLang's command line and files, word for word, and what its pages and log say. Nothing here was captured."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import yaml

from kvproof.connectors import lmcache_mp
from kvproof.engines import sglang
from kvproof.errors import RecipeError, ServerError
from kvproof.metrics import CounterReset, delta, read_page
from kvproof.plan import Layout
from kvproof.recipe import Recipe
from made_up import RECIPE, recipe

PAGES = Path(__file__).parent / "engine_pages"
LAYOUT = Layout(python="/env/bin/python", model="google/gemma-4-31B-it", folder=Path("/run-folder"), host="127.0.0.1",
                ports={"engine": 1, "baseline": 2, "cache": 3, "cache_http": 4})
MODEL = RECIPE["model"] | {"repository": "google/gemma-4-31B-it", "revision": "842da37", "weights": "real",
                           "served_name": "google/gemma-4-31B-it"}
ENGINE = {"name": "sglang", "version": "0.5.21", "arguments": {"tp-size": 2, "page-size": 256, "skip-tokenizer": False},
          "environment": {"SGLANG_A": "1"}, "ready_timeout_s": 1800}
DRAFT = {"method": "mtp", "num_speculative_tokens": 2, "assistant": {"repository": "d", "revision": "1"}}
GPU = {"gpus": 2, "memory_gib": 1, "shm_gib": 1, "disk_gib": 1}


def made(**changes: object) -> Recipe:
    return recipe(**({"model": MODEL, "engine": ENGINE, "hardware": GPU} | changes))


def without_header(name: str) -> str:
    lines = (PAGES / name).read_text().splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith("#"))


def read(name: str) -> dict[str, float | None]:
    """Values by kvproof's words; None for what is not on the page."""
    page = read_page((PAGES / name).read_text(), sglang.COUNTERS.values())
    return {word: page.get(counter.key) for word, counter in sglang.COUNTERS.items()}


def test_the_engine_with_lmcache() -> None:
    server = sglang.server(made(), LAYOUT, "engine", lmcache_mp.connection(made(), LAYOUT))
    assert server.argv == (
        "/env/bin/python", "-m", "sglang.launch_server", "--model-path", "google/gemma-4-31B-it", "--revision",
        "842da37", "--served-model-name", "google/gemma-4-31B-it", "--host", "127.0.0.1", "--port", "1",
        "--enable-metrics", "--enable-cache-report", "--tp-size", "2", "--page-size", "256",
        "--enable-lmcache", "--lmcache-config-file",
        "/run-folder/engine-lmcache.yaml",
    )
    assert server.files == {"engine-lmcache.yaml": without_header("sglang-lmcache.yaml")}
    assert server.environment == {"SGLANG_A": "1", "LMCACHE_TRACK_USAGE": "false", "LMCACHE_DISABLE_BANNER": "1"}
    assert (server.role, server.url, server.health_path, server.ready_timeout_s, server.log) == (
        "engine", "http://127.0.0.1:1", "/health", 1800, "engine.log")


def test_the_connectors_settings_go_into_its_file() -> None:
    timed = made(connector=RECIPE["connector"] | {"extra_config": {"lmcache.mp.mq_timeout": 10}})
    server = sglang.server(timed, LAYOUT, "engine", lmcache_mp.connection(timed, LAYOUT))
    assert server.files == {"engine-lmcache.yaml": without_header("sglang-lmcache-extra.yaml")}
    assert yaml.safe_load(server.files["engine-lmcache.yaml"])["extra_config"] == {"lmcache.mp.mq_timeout": 10}


def test_the_baseline_knows_nothing_of_lmcache() -> None:
    server = sglang.server(made(), LAYOUT, "baseline", None)
    assert not [word for word in server.argv if "lmcache" in word]
    assert server.argv[server.argv.index("--port") + 1] == "2"
    assert (server.files, server.environment) == ({}, {"SGLANG_A": "1"})


def test_a_checkpoint_of_ours_has_no_revision() -> None:
    ours = made(model=MODEL | {"build": {"builder": "b", "seed": 0}})
    server = sglang.server(ours, dataclasses.replace(LAYOUT, model="/models/m"), "engine", None)
    assert server.argv[3:7] == ("--model-path", "/models/m", "--served-model-name", "google/gemma-4-31B-it")
    assert server.environment["HF_HUB_OFFLINE"] == "1"


def test_drafting_is_refused_in_the_engines_words() -> None:
    drafting = made(speculative=DRAFT, checks={"required": [*RECIPE["checks"]["required"], "speculative"]})
    said = "LMCacheUnifiedRadixCache does not yet support speculative decoding"
    with pytest.raises(RecipeError, match=said) as caught:
        sglang.server(drafting, LAYOUT, "engine", lmcache_mp.connection(drafting, LAYOUT))
    assert "leave speculative out" in caught.value.tip


@pytest.mark.parametrize("flag", ["model-path", "enable-metrics", "lmcache-config-file", "api-key",
                                  "speculative-algorithm"])
def test_flags_that_are_kvproofs(flag: str) -> None:
    assert flag in sglang.RESERVED


def test_its_page() -> None:
    assert read("sglang-0.5.21.txt") == {
        "prompt_tokens": 9520, "local_hit_tokens": 2048, "external_hit_tokens": 3072, "source_computed_tokens": 4404,
        "source_local_tokens": 2048, "source_external_tokens": 3072, "preemptions": 0, "drafts": None,
    }


def test_before_any_request_hits_are_unknown_and_the_schedulers_counters_0() -> None:
    assert read("sglang-0.5.21-fresh.txt") == {
        "prompt_tokens": None, "local_hit_tokens": None, "external_hit_tokens": None, "source_computed_tokens": 0,
        "source_local_tokens": 0, "source_external_tokens": 0, "preemptions": 0, "drafts": None,
    }


def test_without_a_hit_the_counter_is_not_on_the_page_and_0() -> None:
    lines = (PAGES / "sglang-0.5.21.txt").read_text().splitlines()
    page = read_page("\n".join(x for x in lines if 'cache_source="storage"' not in x), sglang.COUNTERS.values())
    assert page[sglang.COUNTERS["external_hit_tokens"].key] == 0
    assert page[sglang.COUNTERS["local_hit_tokens"].key] == 2048


def test_a_total_without_sources_is_no_external_hit() -> None:
    """What SGLang counts when it cannot tell the sources apart must not pass for either."""
    page = (PAGES / "sglang-0.5.21.txt").read_text().replace('cache_source="storage"', 'cache_source="total"')
    reading = read_page(page, sglang.COUNTERS.values())
    assert reading[sglang.COUNTERS["external_hit_tokens"].key] == 0


def test_a_counter_that_goes_back_is_no_difference() -> None:
    counter = sglang.COUNTERS["external_hit_tokens"]
    with pytest.raises(CounterReset, match="cache_source=storage"):
        delta({counter.key: 3072.0}, {counter.key: 0.0}, counter)


class Client:
    """Answers with what it is given; an error is raised."""

    name, model = "engine", "m"

    def __init__(self, answer: object):
        self.answer = answer
        self.asked: list[tuple] = []

    def get_json(self, path: str) -> object:
        return self.post_json(path)

    get_text = get_json

    def post_json(self, path: str, body: object = None) -> object:
        self.asked.append((path, body))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.mark.parametrize(
    ("answer", "version"),
    [({"version": "0.5.21", "tp_size": 2}, "0.5.21"), ({}, None), ([], None), (ServerError("gone"), None)],
)
def test_the_version_is_what_the_process_says(answer: object, version: str | None) -> None:
    client = Client(answer)
    assert sglang.version(client) == version
    assert client.asked == [("/server_info", None)]


def test_tokens_are_the_engines_own() -> None:
    client = Client({"tokens": [2, 7], "count": 2, "max_model_len": 32768})
    assert sglang.tokenize(client, "a") == [2, 7]
    assert client.asked == [("/tokenize", {"model": "m", "prompt": "a", "add_special_tokens": True})]


def test_emptying_waits_for_stores_and_leaves_lmcache_alone() -> None:
    client = Client("Cache flushed.\n")
    sglang.empty_cache(client)
    assert client.asked == [("/flush_cache?timeout=60", None)]
    with pytest.raises(ServerError, match="400"):
        sglang.empty_cache(Client(ServerError("engine: GET /flush_cache answered HTTP 400: Flush cache failed.")))


@pytest.mark.parametrize(
    ("log", "active"),
    [
        ("\x1b[32;20m[2026-12-01 02:00:00,000] LMCache INFO:\x1b[0m UnifiedLMCacheMPConnector initialized succeed. "
         "\x1b[3m(unified_lmcache_mp_connector.py:329:x)\x1b[0m\n", "lmcache-mp"),
        ("server_args=ServerArgs(enable_lmcache=True, lmcache_config_file='/run-folder/engine-lmcache.yaml')\n", None),
        ("LMCache is disabled because of using diffusion LLM inference\n", None),
        ("LMCache MP heartbeat thread started\n", None),
        ("", None),
    ],
)
def test_the_active_connector_is_the_one_that_was_made(log: str, active: str | None) -> None:
    assert sglang.active_connector(log) == active


def test_what_pip_installs_and_the_context_length() -> None:
    assert sglang.requirements(made()) == ("sglang==0.5.21",)
    assert sglang.max_tokens(made()) is None
    assert sglang.max_tokens(made(engine=ENGINE | {"arguments": {"context-length": 32768}})) == 32768
