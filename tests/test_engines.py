"""What kvproof knows of each engine; command lines are in test_plan.py."""

from __future__ import annotations

import pytest

from kvproof.connectors import CONNECTORS
from kvproof.engines import ENGINES, Engine, engine, vllm
from kvproof.errors import RecipeError, ServerError
from made_up import recipe


class Client:
    """Answers with what it is given; an error is raised."""

    name, model = "engine", "m"

    def __init__(self, answer: object):
        self.answer = answer
        self.asked: list[tuple] = []

    def get_json(self, path: str) -> object:
        return self.post_json(path)

    def post_json(self, path: str, body: object = None) -> object:
        self.asked.append((path, body))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def test_the_table_names_each_by_its_own_name() -> None:
    for name, adapter in ENGINES.items():
        assert engine(name) is adapter
        assert name == adapter.NAME
        assert set(adapter.CONNECTORS) <= set(CONNECTORS)
        assert "prompt_tokens" in adapter.COUNTERS


@pytest.mark.parametrize("adapter", ENGINES.values(), ids=list(ENGINES))
def test_every_word_is_counted_or_known_to_be_unmeasured(adapter: Engine) -> None:
    assert not set(adapter.COUNTERS) & set(adapter.UNMEASURED)
    assert set(adapter.COUNTERS) | set(adapter.UNMEASURED) == set(vllm.COUNTERS)
    for reason, link in adapter.UNMEASURED.values():
        assert reason
        assert link.startswith("https://")


def test_one_that_is_not_there() -> None:
    with pytest.raises(RecipeError, match=r"engine\.name: no engine is called 'vlllm'; did you mean vllm"):
        engine("vlllm")


@pytest.mark.parametrize(
    ("log", "active"),
    [
        ("INFO [factory.py:60] Creating v1 connector with name: LMCacheMPConnector and engine_id: 1\n", "lmcache-mp"),
        ("kv_transfer_config={'kv_connector': 'LMCacheMPConnector'}\n", None),
        ("Creating v1 connector with name: OtherConnector\n", "OtherConnector"),
        ("Creating v1 connector with name: Other\nCreating v1 connector with name: LMCacheMPConnector\n", "lmcache-mp"),
        ("", None),
    ],
)
def test_the_active_connector_is_the_one_that_was_made(log: str, active: str | None) -> None:
    assert vllm.active_connector(log) == active


@pytest.mark.parametrize(
    ("answer", "version"),
    [({"version": "0.32.0+cpu"}, "0.32.0+cpu"), ({}, None), ([], None), (ServerError("gone"), None)],
)
def test_the_version_is_what_the_process_says(answer: object, version: str | None) -> None:
    assert vllm.version(Client(answer)) == version


def test_tokens_are_the_engines_own() -> None:
    client = Client({"tokens": [2, 7]})
    assert vllm.tokenize(client, "a") == [2, 7]
    assert client.asked == [("/tokenize", {"model": "m", "prompt": "a", "add_special_tokens": True})]
    for answer in ({}, {"tokens": None}, {"tokens": ["x"]}, []):
        with pytest.raises(ServerError, match="/tokenize gave no list of token ids"):
            vllm.tokenize(Client(answer), "a")


def test_emptying_leaves_the_connectors_store_alone() -> None:
    client = Client(None)
    vllm.empty_cache(client)
    assert client.asked == [("/reset_prefix_cache", None)]


@pytest.mark.parametrize(("arguments", "tokens"), [({"max-model-len": 4096}, 4096), ({}, None)])
def test_the_context_length(arguments: dict, tokens: int | None) -> None:
    assert vllm.max_tokens(recipe(engine={"name": "vllm", "version": "1", "arguments": arguments})) == tokens
