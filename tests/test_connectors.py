"""What kvproof knows of each KV connector; command lines are in test_plan.py."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvproof.connectors import CONNECTORS, connector, lmcache_mp
from kvproof.errors import KvproofError, RecipeError, ServerError
from kvproof.plan import Layout
from kvproof.recipe import Recipe
from made_up import recipe

SUBMITTED = "lmcache_mp_num_submitted_stores_total"
FINISHED = "lmcache_mp_num_finished_stores_total"
L2_SUBMITTED = "lmcache_mp_l2_store_submitted_requests_total"
L2_COMPLETED = "lmcache_mp_l2_store_completed_requests_total"


class Cache:
    """A cache server that answers /status with what it is given."""

    name = "cache server"

    def __init__(self, status: object = None):
        self.status = {} if status is None else status
        self.asked: list[tuple] = []

    def get_json(self, path: str) -> object:
        assert path == "/status"
        return self.status

    def post_json(self, path: str, body: object = None) -> object:
        self.asked.append((path, body))
        return {}


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    (tmp_path / "second-tier").mkdir()
    return Layout(python="python", model="m", folder=tmp_path, host="h", ports={})


def test_the_table_names_each_by_its_own_name() -> None:
    for name, adapter in CONNECTORS.items():
        assert connector(name) is adapter
        assert name == adapter.NAME
    with pytest.raises(RecipeError, match=r"connector\.name: no connector is called 'lmcach'"):
        connector("lmcach")


@pytest.mark.parametrize(
    ("line", "fatal"),
    [
        ("ERROR: sub-chunk sliding window size 64 must be a multiple of tokens_per_block 256 (x.py:1)\n", True),
        ("ERROR: REGISTER_KV_CACHE failed for engine 0", True),
        ("ERROR: Error registering KV cache", True),
        ("INFO: Registered KV cache for engine 1", False),
        ("WARNING: retrieve failed", False),
    ],
)
def test_a_refused_registration_is_seen_in_the_log(line: str, fatal: bool) -> None:
    assert lmcache_mp.fatal_line(line) == (line.strip() if fatal else None)


@pytest.mark.parametrize(
    ("reading", "status", "settled"),
    [
        ({}, {}, None),
        ({SUBMITTED: 2.0, FINISHED: 2.0}, {}, True),
        ({SUBMITTED: 2.0, FINISHED: 1.0}, {}, False),
        ({SUBMITTED: 2.0}, {}, False),
        ({SUBMITTED: 2.0, FINISHED: 2.0, L2_SUBMITTED: 2.0, L2_COMPLETED: 1.0}, {}, False),
        ({SUBMITTED: 2.0, FINISHED: 2.0, L2_SUBMITTED: 2.0, L2_COMPLETED: 2.0}, {}, True),
        ({SUBMITTED: 2.0, FINISHED: 2.0}, {"pending_keys_count": 1}, False),
        ({SUBMITTED: 2.0, FINISHED: 2.0}, {"in_flight_task_count": 1}, False),
        ({SUBMITTED: 2.0, FINISHED: 2.0}, {"pending_keys_count": 0, "in_flight_task_count": 0}, True),
    ],
)
def test_stores_have_settled(reading: dict, status: dict, settled: bool | None) -> None:
    cache = Cache({"storage_manager": {"store_controller": status}})
    assert lmcache_mp.is_settled(cache, reading) is settled


def meta(*sizes: object) -> dict:
    return {"cache_context_meta": {str(n): {"kv_cache_layout": {"cache_size_per_token": s}}
                                   for n, s in enumerate(sizes)}}


@pytest.mark.parametrize(
    ("status", "size"),
    [(meta(4096), 4096), (meta(8, 8), 8), (meta(8, 16), None), (meta(None), None), ({}, None), (meta(), None),
     ({"cache_context_meta": None}, None)],
)
def test_the_size_of_a_token(status: dict, size: int | None) -> None:
    assert lmcache_mp.bytes_per_token(Cache(status)) == size


@pytest.mark.parametrize(("status", "count"), [({"registered_gpu_ids": [0]}, 1), ({"registered_gpu_ids": []}, 0),
                                               ({}, None)])
def test_registered_engines(status: dict, count: int | None) -> None:
    assert lmcache_mp.registered_engines(Cache(status)) == count


def test_a_status_that_is_none() -> None:
    with pytest.raises(ServerError, match="/status is not an object"):
        lmcache_mp.registered_engines(Cache([]))


def fill(layout: Layout) -> dict[Path, bytes]:
    """Files as the second tier has them: names begin with a dot, and some are in folders."""
    folder = layout.folder / "second-tier"
    files = {folder / ".a.data": bytes(range(256)) * 40, folder / "sub" / ".b.data": b"\x3f\x80" * 5000}
    for path, data in files.items():
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
    return files


def test_damage_changes_one_bit_in_one_of_a_hundred_bytes(layout: Layout) -> None:
    files, cache = fill(layout), Cache()
    damage = lmcache_mp.damage_store(cache, layout, seed=0)
    changed = 0
    for path, before in files.items():
        after = path.read_bytes()
        assert len(after) == len(before)
        different = [(n, a ^ b) for n, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]
        # bf16 has its mantissa in the lower byte, which comes first: no exponent changes, so no value becomes NaN.
        assert all(bit == 0x20 and n % 2 == 0 for n, bit in different)
        changed += len(different)
    assert (damage.changed_bytes, damage.files) == (changed, 2)
    assert damage.total_bytes == sum(map(len, files.values()))
    assert 0.009 < changed / damage.total_bytes <= 0.01
    assert cache.asked == [("/cache/clear", {"tier": "l1", "force": False})]


def test_the_same_seed_damages_the_same_bytes(layout: Layout) -> None:
    fill(layout)
    lmcache_mp.damage_store(Cache(), layout, seed=1)
    once = (layout.folder / "second-tier" / ".a.data").read_bytes()
    fill(layout)
    lmcache_mp.damage_store(Cache(), layout, seed=1)
    assert (layout.folder / "second-tier" / ".a.data").read_bytes() == once


def test_nothing_to_damage(layout: Layout) -> None:
    for _ in range(2):
        with pytest.raises(KvproofError, match="nothing is stored in") as caught:
            lmcache_mp.damage_store(Cache(), layout, seed=0)
        assert "second_tier: fs" in caught.value.tip
        layout = Layout(python="python", model="m", folder=layout.folder / "none", host="h", ports={})


def test_dropping_empties_both_tiers(layout: Layout) -> None:
    files, cache = fill(layout), Cache()
    lmcache_mp.drop_store(cache, layout)
    assert not any(path.exists() for path in files)
    assert cache.asked == [("/cache/clear", {"tier": "l1", "force": False})]


def test_the_transfer_mode_follows_the_hardware() -> None:
    at = Layout(python="python", model="m", folder=Path("/run"), host="h", ports={"cache": 3})
    assert lmcache_mp.connection(recipe(), at).environment["LMCACHE_MP_TRANSFER_MODE"] == "lmcache_driven"
    gpu = recipe(hardware={"gpus": 1, "memory_gib": 1, "shm_gib": 1, "disk_gib": 1})
    assert "LMCACHE_MP_TRANSFER_MODE" not in lmcache_mp.connection(gpu, at).environment


def test_a_codec_is_handed_to_the_second_tier() -> None:
    layout = Layout(python="p", model="m", folder=Path("/run"), host="h", ports={"cache": 1, "cache_http": 2})

    def tier(of: Recipe) -> dict:
        argv = lmcache_mp.cache_server(of, layout).argv
        return json.loads(argv[argv.index("--l2-adapter") + 1])

    plain = {"type": "fs", "base_path": str(layout.folder / "second-tier")}
    assert tier(recipe()) == plain
    coded = recipe(connector=recipe().connector.model_dump() | {"codec": "fp8"})
    assert tier(coded) == plain | {"serde": {"type": "fp8"}}


def test_a_codec_needs_a_second_tier() -> None:
    with pytest.raises(ValueError, match="codec fp8 encodes what the second tier keeps, and there is no second_tier"):
        recipe(connector={"name": "lmcache-mp", "codec": "fp8"})
