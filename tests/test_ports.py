"""Ports that no two runs share."""

from __future__ import annotations

import socket

import pytest

from kvproof import ports
from kvproof.errors import HostError
from kvproof.ports import Ports


@pytest.fixture
def four(monkeypatch: pytest.MonkeyPatch) -> range:
    """Only four ports to choose from."""
    monkeypatch.setattr(ports, "_FIRST", 20_100)
    monkeypatch.setattr(ports, "_LAST", 20_104)
    monkeypatch.setattr(ports.random.Random, "sample", lambda _, choice, count: list(choice)[:count])
    return range(20_100, 20_104)


def test_two_runs_never_share_one(tmp_path, four: range) -> None:
    first, second = Ports(tmp_path / "new"), Ports(tmp_path / "new")
    taken = [first.take(), second.take(), first.take(), second.take()]
    assert sorted(taken) == list(four)
    with pytest.raises(HostError, match="no free TCP port found between 20100 and 20104") as caught:
        second.take()
    assert caught.value.tip
    first.release()
    assert second.take() == taken[0]
    second.release()


def test_one_that_another_program_listens_on_is_passed_over(tmp_path, four: range) -> None:
    with socket.create_server(("127.0.0.1", four[0])):
        held = Ports(tmp_path)
        assert held.take() == four[1]
        held.release()


def test_release_twice(tmp_path) -> None:
    held = Ports(tmp_path)
    assert 20_000 <= held.take() < 32_000
    held.release()
    held.release()
