"""Progress lines and bars: width, number of lines, and the final counts."""

import io
import sys

import pytest

from cclf.training.progress import MAX_EVALUATION_LINES, Progress


class Clock:
    def __init__(self):
        self.seconds = 0.0

    def __call__(self):
        return self.seconds


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def clock():
    return Clock()


def terminal_of_80_columns(monkeypatch):
    """In place of standard error; called by the test, since pytest replaces it too."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    return terminal


def drawn(terminal):
    """All printed lines, with every version of the bar."""
    text = terminal.getvalue().replace("\x1b[?25l", "").replace("\x1b[?25h", "")
    lines = text.replace("\x1b[2K", "").replace("\r", "\n").split("\n")
    return [line.rstrip() for line in lines if line.strip()]


def advance(progress, clock, seconds, start, end, *, updates=True, parts=20):
    """Step from `start` to `end` env steps within so many seconds."""
    begin = clock.seconds
    for part in range(1, parts + 1):
        clock.seconds = begin + seconds * part / parts
        env_steps = start + (end - start) * part // parts
        progress.step(env_steps, env_steps if updates else 0)


def last_left(capsys):
    return capsys.readouterr().err.rpartition("left ")[2].strip()


def test_warm_up_is_not_part_of_the_estimate(clock, capsys):
    progress = Progress(100_000, 0, 0, clock=clock)
    advance(progress, clock, 10, 0, 1_000, updates=False)  # a hundred steps per second
    progress.evaluation(1_000, 0.0, 0.0)
    assert last_left(capsys) == "-"
    advance(progress, clock, 400, 1_000, 1_400)  # one step per second
    progress.evaluation(1_400, 0.0, 0.0)
    assert last_left(capsys) == "", "within five per cent of the first evaluation: no line"
    advance(progress, clock, 400, 1_400, 1_800)
    clock.seconds += 600
    advance(progress, clock, 400, 1_800, 2_200)
    progress.evaluation(2_200, 0.0, 0.0)
    assert last_left(capsys) == "1 d 3 h", "97,800 steps at one per second"


def test_hundreds_of_evaluations_print_few_lines(clock, capsys):
    progress = Progress(400_000, 0, 0, clock=clock)
    for count in range(1, 126):
        advance(progress, clock, 1.0, (count - 1) * 3_200, count * 3_200, parts=2)
        progress.evaluation(count * 3_200, 0.123456, 0.0123)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 + MAX_EVALUATION_LINES, "the first, and one for each share"
    assert lines[0].startswith("3,200/400,000 env steps  eval 0.1235 ± 0.0123")
    assert lines[-1].startswith("400,000/400,000 env steps")
    assert lines[-1].endswith("took 00:02:05")


def test_ten_evaluations_print_a_line_each_and_slow_ones_too(clock, capsys):
    progress = Progress(100_000, 0, 0, clock=clock)
    for count in range(1, 11):
        advance(progress, clock, 1.0, (count - 1) * 10_000, count * 10_000, parts=1)
        progress.evaluation(count * 10_000, 1.0, 0.0)
    assert len(capsys.readouterr().err.splitlines()) == 10
    progress = Progress(10**9, 0, 0, clock=clock)
    for count in range(1, 31):
        clock.seconds += 601
        progress.evaluation(count * 10_000, 1.0, 0.0)
    assert len(capsys.readouterr().err.splitlines()) == 30, "one in ten minutes is not too many"


@pytest.mark.parametrize("label", ["", "atari/Alien seed 2: "])
def test_line_shows_returns_speed_and_time_left(label, clock, capsys):
    progress = Progress(1_000, 0, 0, label=label, clock=clock)
    progress.training_return(-1240.6)
    advance(progress, clock, 100, 0, 500, parts=100)
    progress.evaluation(500, -173.8, 118.3)
    assert capsys.readouterr().err == (
        f"{label}500/1,000 env steps  eval -173.8 ± 118.3  train -1,241  5 steps/s  left 00:01:40\n"
    )


@pytest.mark.parametrize("total", [3_000, 2_000_000])
def test_live_bar_fits_in_80_columns(total, clock, monkeypatch):
    terminal = terminal_of_80_columns(monkeypatch)
    progress = Progress(total, 0, 0, clock=clock)
    progress.training_return(-123_456.7)
    advance(progress, clock, 100, 0, total // 3)
    progress.evaluation(total // 3, -0.00123456, 1234.5)
    advance(progress, clock, 100, total // 3, total // 2)
    progress.close()
    bars = [line for line in drawn(terminal) if "━" in line]
    assert max(len(line) for line in bars) <= 80
    assert "train -123,457" in bars[-1]


def test_last_bar_of_a_finished_and_of_a_stopped_run_shows_its_counts(clock, monkeypatch):
    terminal = terminal_of_80_columns(monkeypatch)
    progress = Progress(1_000, 0, 0, clock=clock)
    advance(progress, clock, 60, 0, 999)
    clock.seconds += 0.01  # too soon to be drawn by `step`
    progress.step(1_000, 1_000)
    progress.evaluation(1_000, 12.5, 0.5)
    progress.close()
    progress.print("below")
    assert "1,000/1,000  eval 12.5" in drawn(terminal)[-2]
    assert drawn(terminal)[-1] == "below"
    assert [line for line in drawn(terminal) if "took 00:01:00" in line]
    stopped = Progress(1_000, 100, 100, clock=clock)
    advance(stopped, clock, 60, 100, 400)
    clock.seconds += 0.01
    stopped.step(401, 401)
    stopped.close()
    assert "401/1,000" in drawn(terminal)[-1]
    assert "0:0" in drawn(terminal)[-1], "the time left"
