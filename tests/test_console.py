"""Messages on standard error never end a run."""

import io
import os
import sys

import pytest

from cclf import console


class FullDisk(io.StringIO):
    def write(self, _):
        raise OSError(28, "No space left on device")

    def isatty(self):
        raise OSError(5, "Input/output error")


def closed():
    stream = io.StringIO()
    stream.close()
    return stream


def without_reader():
    reading, writing = os.pipe()
    os.close(reading)
    return os.fdopen(writing, "w", buffering=1)


@pytest.mark.parametrize("stream", [FullDisk, closed, without_reader, lambda: None])
def test_message_to_broken_standard_error_is_dropped(monkeypatch, capsys, stream):
    monkeypatch.setattr(sys, "stderr", stream())
    console.say("dropped")
    console.warn("dropped")
    messages = console.MessageStream()
    assert messages.write("dropped\n") == 8
    messages.flush()
    assert not messages.isatty()
    assert capsys.readouterr().out == ""  # and it does not land on standard output


def test_message_and_warning_are_lines_on_standard_error(capsys):
    console.say("one")
    console.warn("two")
    print("three", file=console.MessageStream(), flush=True)
    assert capsys.readouterr().err == "one\ncclf: warning: two\nthree\n"
