"""Signals become one exception, at a moment when nothing is lost."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from kvproof import interrupts
from kvproof.errors import Interrupted
from kvproof.interrupts import deferred, interruptible, silence


def send(number: signal.Signals = signal.SIGINT) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda n: n.name)
def test_a_signal_becomes_an_exception(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with pytest.raises(Interrupted, match=f"interrupted by {number.name}") as caught, interruptible():
        send(number)
    assert caught.value.exit_code == 130
    assert signal.getsignal(number) is before


def test_it_waits_for_the_end_of_a_deferred_block() -> None:
    done: list[str] = []

    def work() -> None:
        with deferred():
            send()
            with deferred():
                send(signal.SIGTERM)
            done.append("inner")
        done.append("never")

    with pytest.raises(Interrupted, match="SIGTERM"), interruptible():
        work()
    assert done == ["inner"]


def test_it_comes_after_an_error_in_a_deferred_block_too() -> None:
    def fail() -> None:
        with deferred():
            send()
            raise ValueError("of less interest than that the user wants to stop")

    with pytest.raises(Interrupted), interruptible():
        fail()


def test_silenced_signals_only_say_so(capsys: pytest.CaptureFixture[str]) -> None:
    with interruptible():
        silence()
        send()
        send(signal.SIGTERM)
    assert capsys.readouterr().err.count("stopping what was started") == 2
    with pytest.raises(Interrupted), interruptible():
        send()


def test_a_pending_signal_does_not_reach_the_next_run() -> None:
    interrupts._pending = "SIGINT"
    with interruptible(), deferred():
        pass


def test_elsewhere_than_in_the_main_thread_nothing_is_changed() -> None:
    before, seen = signal.getsignal(signal.SIGINT), []

    def look() -> None:
        with interruptible():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [before]
