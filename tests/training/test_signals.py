"""Signals: the first asks for a stop, a second one quits, and two at once are one."""

import os
import signal
import time

import pytest

from cclf.training import signals as stopping
from cclf.training.signals import SIGNALS, StopSignal


@pytest.fixture
def stop():
    before = {number: signal.getsignal(number) for number in SIGNALS}
    listening = StopSignal()
    listening.install()
    yield listening
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", SIGNALS)
def test_two_signals_that_come_together_are_one(stop, number):
    """As `timeout` sends them: to the process, then to its group."""
    os.kill(os.getpid(), number)
    os.kill(os.getpid(), number)
    assert stop.requested


def test_a_second_signal_a_while_later_quits_at_once(stop, monkeypatch):
    monkeypatch.setattr(stopping, "SAME_SIGNAL_SECONDS", 0.01)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.02)
    with pytest.raises(SystemExit) as caught:
        os.kill(os.getpid(), signal.SIGTERM)
    assert caught.value.code == 128 + signal.SIGTERM
    assert stop.requested
