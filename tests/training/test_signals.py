"""Signals: the first requests a stop, a later second one exits, and two at once count as one."""

import os
import signal
import time

import pytest

from cclf.training import signals
from cclf.training.signals import SIGNALS, StopSignal


@pytest.fixture
def stop():
    # `install` leaves SIGHUP ignored if the process was started by nohup.
    before = {number: signal.signal(number, signal.SIG_DFL) for number in SIGNALS}
    stop_signal = StopSignal()
    stop_signal.install()
    yield stop_signal
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", SIGNALS)
def test_two_simultaneous_signals_count_as_one(stop, number):
    """`timeout` sends a signal to the process and then to its process group."""
    os.kill(os.getpid(), number)
    os.kill(os.getpid(), number)
    assert stop.requested


def test_ignored_hangup_stays_ignored(stop):
    """`nohup cclf train ...` goes on when its terminal is closed."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    stop.install()
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN


def test_second_signal_later_exits_at_once(stop, monkeypatch):
    monkeypatch.setattr(signals, "SAME_SIGNAL_SECONDS", 0.01)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.02)
    with pytest.raises(SystemExit) as caught:
        os.kill(os.getpid(), signal.SIGTERM)
    assert caught.value.code == 128 + signal.SIGTERM
    assert stop.requested
