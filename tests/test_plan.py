"""The plan of the nano recipe, word for word: what is run is what --dry-run shows."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from kvproof import report, run
from kvproof.errors import UsageError
from kvproof.plan import Layout, Plan, Server, flags

NUMBERS = {"engine": 1, "baseline": 2, "cache": 3, "cache_http": 4}
FOLDER = Path("/run-folder")


@pytest.fixture
def nano(tmp_cache: Path) -> Plan:
    return run.plan("gemma4-tiny", run.Options(), folder=FOLDER, numbers=NUMBERS)


def words(plan: Plan, role: str, cache: Path) -> str:
    server = plan.server(role)
    assert server is not None
    return " ".join(server.argv).replace(str(cache), "CACHE")


def test_the_order_in_which_servers_start(nano: Plan) -> None:
    assert [s.role for s in nano.servers] == ["cache_server", "engine", "baseline"]
    assert nano.server("no such role") is None


def test_the_cache_server(nano: Plan, tmp_cache: Path) -> None:
    environment = nano.servers[0].argv[0].removesuffix("/bin/lmcache")
    assert environment.startswith(str(tmp_cache / "environments" / "vllm-cpu-"))
    assert list(nano.servers[0].argv[1:]) == [
        "server", "--host", "127.0.0.1", "--port", "3", "--http-host", "127.0.0.1", "--http-port", "4",
        "--l1-size-gb", "1", "--eviction-policy", "LRU", "--chunk-size", "256",
        "--l2-adapter", '{"type": "fs", "base_path": "/run-folder/second-tier"}',
    ]
    assert nano.servers[0].url + nano.servers[0].health_path == "http://127.0.0.1:4/healthcheck"


def test_the_engine(nano: Plan, tmp_cache: Path) -> None:
    engine = nano.servers[1]
    model = engine.argv[engine.argv.index("--model") + 1]
    assert model.startswith(str(tmp_cache / "models" / "kvproof--gemma4-tiny-"))
    config = engine.argv[engine.argv.index("--kv-transfer-config") + 1]
    assert list(engine.argv[1:]) == [
        "-m", "vllm.entrypoints.openai.api_server", "--model", model, "--served-model-name", "gemma4-tiny",
        "--host", "127.0.0.1", "--port", "1", "--enable-prompt-tokens-details",
        "--max-model-len", "8192", "--max-num-seqs", "4", "--enforce-eager", "--kv-transfer-config", config,
    ]
    assert json.loads(config) == {
        "kv_connector": "LMCacheMPConnector", "kv_role": "kv_both",
        "kv_connector_extra_config": {"lmcache.mp.host": "tcp://127.0.0.1", "lmcache.mp.port": 3,
                                      "lmcache.mp.mq_timeout": 10},
    }
    assert engine.environment == {
        "HF_HUB_OFFLINE": "1", "LMCACHE_DISABLE_BANNER": "1", "LMCACHE_MP_TRANSFER_MODE": "lmcache_driven",
        "LMCACHE_TRACK_USAGE": "false", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1",
        "VLLM_SERVER_DEV_MODE": "1",
    }


def test_the_baseline_is_the_engine_without_connector(nano: Plan, tmp_cache: Path) -> None:
    engine, baseline = words(nano, "engine", tmp_cache), words(nano, "baseline", tmp_cache)
    assert engine.startswith(baseline.replace("--port 2", "--port 1"))
    assert "kv-transfer" not in baseline
    assert not [name for name in nano.servers[2].environment if name.startswith("LMCACHE")]


def test_as_data_and_as_text_say_the_same(nano: Plan) -> None:
    data = json.loads(json.dumps(nano.as_data()))
    assert data["recipe_digest"] == nano.recipe.digest()
    assert (data["environment"], data["lock_digest"]) == ("vllm-cpu", nano.lock_digest)
    text = report.plan_text(nano)
    for server in data["servers"]:
        assert shlex.join(server["argv"]) in text
        for name, value in server["environment"].items():
            assert f"{name}={shlex.quote(value)} \\" in text


def test_without_numbers_the_ports_are_open(tmp_cache: Path) -> None:
    made = run.plan("gemma4-tiny", run.Options(), folder=FOLDER)
    assert {s.url for s in made.servers} == {"http://127.0.0.1:0"}
    assert not tmp_cache.exists()


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("gemma4-tinyy", run.Options(), "did you mean gemma4-tiny"),
        ("gemma4-tiny", run.Options(runtime="venw"), "no runtime is called 'venw'; did you mean venv"),
        ("gemma4-tiny", run.Options(samples=0), "--samples is 0, expected 1 or more"),
    ],
)
def test_a_wrong_name_or_option(name: str, options: run.Options, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        run.plan(name, options, folder=FOLDER)


def test_flags() -> None:
    assert flags({"a": 1, "b": True, "c": False, "d": ["x", "y"], "e": "", "f": 0.5}) == [
        "--a", "1", "--b", "--d", "x", "y", "--e", "", "--f", "0.5"]


def test_a_tool_lies_beside_the_interpreter() -> None:
    layout = Layout(python="/env/bin/python", model="m", folder=FOLDER, host="h", ports={})
    assert layout.tool("lmcache") == "/env/bin/lmcache"
    bare = Layout(python="python", model="m", folder=FOLDER, host="h", ports={})
    assert bare.tool("lmcache") == "lmcache"


def test_a_server_is_data() -> None:
    one, other = (Server("engine", ("a",), {}, "u", "/h", 1, "log") for _ in range(2))
    assert one == other
