"""A host that does not fit is refused before anything is installed or started, with every shortage named."""

from __future__ import annotations

import pytest

from kvproof import host, preflight
from kvproof.errors import HostError
from kvproof.evidence import HostFacts
from kvproof.recipe import GIB, Recipe
from made_up import recipe

PLENTY = HostFacts(kernel="fixture", memory_available_bytes=64 * GIB, shm_bytes=64 * GIB, shm_free_bytes=64 * GIB,
                   disk_free_bytes=64 * GIB)
GPU = host.Gpu("Fixture GPU", 80 * GIB, "1.0")


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> dict:
    """What the host has; tests change it."""
    found = {"facts": PLENTY, "gpus": []}
    monkeypatch.setattr(host, "facts", lambda cache: found["facts"])
    monkeypatch.setattr(host, "gpus", lambda: found["gpus"])
    return found


def needing(**needs: float) -> Recipe:
    return recipe(hardware={"gpus": 0, "memory_gib": 8.0, "shm_gib": 2.0, "disk_gib": 4.0} | needs)


def test_a_host_that_fits(seen: dict) -> None:
    preflight.require(needing(), 10 * GIB)
    seen["gpus"] = [GPU, GPU]
    preflight.require(needing(gpus=2, gpu_memory_gib=80.0), 0)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"memory_available_bytes": 7 * GIB}, "memory: 8.0 GiB needed, 7.0 GiB free"),
        ({"shm_free_bytes": GIB}, "/dev/shm: 2.0 GiB needed, 1.0 GiB free"),
        ({"disk_free_bytes": 5 * GIB}, "6.0 GiB needed, 5.0 GiB free"),
    ],
)
def test_too_little(seen: dict, changes: dict, said: str) -> None:
    seen["facts"] = PLENTY.model_copy(update=changes)
    with pytest.raises(HostError) as caught:
        preflight.require(needing(), 2 * GIB)
    assert said in caught.value.message
    assert "this host does not fit recipe fixture-recipe" in caught.value.message
    assert "--shm-size" in caught.value.tip
    assert caught.value.exit_code == 3


def test_every_shortage_is_named_at_once(seen: dict, tmp_cache) -> None:
    seen["facts"] = HostFacts(kernel="x", memory_available_bytes=0, shm_bytes=0, shm_free_bytes=0, disk_free_bytes=0)
    with pytest.raises(HostError) as caught:
        preflight.require(needing(gpus=1), 0)
    assert [part.split(":")[0] for part in caught.value.message.split("recipe: ")[1].split("; ")] == [
        "GPUs", "memory", "/dev/shm", f"disk at {tmp_cache}"]


def test_gpus_that_are_too_few_or_too_small(seen: dict) -> None:
    seen["gpus"] = [GPU]
    with pytest.raises(HostError, match="GPUs: 2 needed, 1 found"):
        preflight.require(needing(gpus=2), 0)
    with pytest.raises(HostError, match=r"GPU memory: 141 GiB needed, Fixture GPU has 80\.0 GiB"):
        preflight.require(needing(gpus=1, gpu_memory_gib=141.0), 0)
    seen["gpus"] = [GPU, host.Gpu("Large", 200 * GIB, "1.0")]
    preflight.require(needing(gpus=1, gpu_memory_gib=141.0), 0)


def test_the_facts_of_this_host_are_plausible(tmp_path) -> None:
    facts = host.facts(tmp_path / "not" / "there")
    assert facts.memory_available_bytes > 0
    assert 0 <= facts.shm_free_bytes <= facts.shm_bytes
    assert facts.disk_free_bytes > 0
    assert host.cpu_name()


def test_what_no_freed_space_would_help_says_where_to_turn(seen: dict) -> None:
    with pytest.raises(HostError, match="GPUs: 2 needed, 0 found; runtime: another is needed") as caught:
        preflight.require(needing(gpus=2), 0, ["runtime: another is needed"], lambda: "run it elsewhere")
    assert caught.value.tip == "run it elsewhere"
    seen["facts"] = PLENTY.model_copy(update={"shm_free_bytes": 0})
    with pytest.raises(HostError) as caught:
        preflight.require(needing(), 0, (), lambda: "run it elsewhere")
    assert "--shm-size" in caught.value.tip
    assert caught.value.tip.endswith("; run it elsewhere")
