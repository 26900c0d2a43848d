"""What a person sees of a run: lines that fit, are few, and are true."""

import io
import sys

import pytest

from cclf.training.progress import MAX_EVALUATION_LINES, WIDTH, Progress


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
    """In the place of standard error; from within a test, since pytest sets its own."""
    shown = Terminal()
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    return shown


def drawn(terminal):
    """What is drawn live, each time whole, and the lines that stay."""
    text = terminal.getvalue().replace("\x1b[?25l", "").replace("\x1b[?25h", "")
    return [line for line in text.replace("\x1b[2K", "").replace("\r", "\n").split("\n") if line]


def advance(progress, clock, seconds, env_steps, updates, parts=20):
    """So many seconds, after which it stands there."""
    first = progress._env_steps, progress._updates
    begin = clock.seconds
    for part in range(1, parts + 1):
        clock.seconds = begin + seconds * part / parts
        progress.step(
            *(
                int(start + (end - start) * part / parts)
                for start, end in zip(first, (env_steps, updates), strict=True)
            )
        )


def last_left(capsys):
    """Empty where nothing was said."""
    return capsys.readouterr().err.rpartition("left ")[2].strip()


def test_no_time_is_guessed_from_the_warm_up(clock, capsys):
    progress = Progress(100_000, 0, 0, clock=clock)
    advance(progress, clock, 10, 1_000, 0)  # a hundred steps a second
    progress.evaluation(1_000, 0.0, 0.0)
    assert last_left(capsys) == "-"
    advance(progress, clock, 400, 1_400, 400)  # one
    progress.evaluation(1_400, 0.0, 0.0)
    assert last_left(capsys) == ""  # within five per cent of the first: no line
    advance(progress, clock, 400, 1_800, 800)
    clock.seconds += 600
    advance(progress, clock, 400, 2_200, 1_200)
    progress.evaluation(2_200, 0.0, 0.0)
    assert last_left(capsys) == "1 d 3 h", "97,800 steps at one a second"


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (36.0, "00:56:24"),
        (3_600.0, "3 d 22 h"),
        (1e15, "over 9,999 d"),
        (1e300, "over 9,999 d"),
    ],
)
def test_time_left_counts_days(seconds, shown, clock, capsys, monkeypatch):
    monkeypatch.setattr("cclf.training.progress.SPEED_SECONDS", float("inf"))
    progress = Progress(97, 0, 0, clock=clock)
    for step in (1, 2, 3):
        progress.step(step, step)
        clock.seconds = step * seconds
    progress.evaluation(3, 0.0, 0.0)
    assert last_left(capsys) == shown


def test_hundreds_of_evaluations_do_not_flood(clock, capsys):
    progress = Progress(400_000, 0, 0, clock=clock)
    for number in range(1, 126):
        advance(progress, clock, 1.0, number * 3_200, number * 25, parts=2)
        progress.evaluation(number * 3_200, 0.123456, 0.0123)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 + MAX_EVALUATION_LINES + 1, "a header, the first, and one for each share"
    assert lines[0].split() == ["env", "steps", "eval", "return", "train", "updates/s", "time"]
    assert "3,200/400,000" in lines[1]
    assert "400,000/400,000" in lines[-1]
    assert lines[-1].endswith("took 00:02:05")


@pytest.mark.parametrize("total", [60, 2_000_000])
def test_rows_stand_below_their_header(total, clock, capsys):
    progress = Progress(total, 0, 0, clock=clock)
    progress.step(total, 1)
    progress.evaluation(total, 12.5, 0.5)
    header, row = capsys.readouterr().err.splitlines()
    assert header.index("eval return") == row.index("12.5 ± 0.5")
    assert header.index(" time") == row.index(" took")


def test_ten_evaluations_get_a_line_each_and_slow_ones_too(clock, capsys):
    progress = Progress(100_000, 0, 0, clock=clock)
    for number in range(1, 11):
        advance(progress, clock, 1.0, number * 10_000, number, parts=1)
        progress.evaluation(number * 10_000, 1.0, 0.0)
    assert len(capsys.readouterr().err.splitlines()) == 1 + 10
    progress = Progress(10**9, 0, 0, clock=clock)
    for number in range(1, 31):
        clock.seconds += 601
        progress.evaluation(number * 10_000, 1.0, 0.0)
    assert len(capsys.readouterr().err.splitlines()) == 1 + 30, "one in ten minutes is no flood"


@pytest.mark.parametrize("label", ["", "atari/Alien seed 2: "])
def test_a_log_shows_that_a_run_goes_on_and_ever_less_often(label, clock, capsys):
    progress = Progress(400_000, 0, 0, label=label, shows_life=True, clock=clock)
    advance(progress, clock, 50, 40_000, 10_000, parts=10)
    assert not capsys.readouterr().err, "not yet"
    advance(progress, clock, 550, 200_000, 50_000, parts=110)
    lines = capsys.readouterr().err.splitlines()
    rows = [line for line in lines if "/400,000" in line]
    assert len(rows) == 7, "every minute, later at every fifth of the time since the start"
    assert all(line.startswith(label) and len(line) <= WIDTH for line in rows)
    assert " left 00:1" in rows[-1]
    assert lines[0].split()[0] == ("env" if not label else "atari/Alien")
    progress.evaluation(200_000, 1.0, 0.0)
    advance(progress, clock, 100, 240_000, 60_000)
    assert len(capsys.readouterr().err.splitlines()) == 1, "an evaluation's line shows it too"


def test_what_is_drawn_live_needs_no_lines_between(clock, monkeypatch):
    terminal = terminal_of_80_columns(monkeypatch)
    progress = Progress(400_000, 0, 0, shows_life=True, clock=clock)
    advance(progress, clock, 600, 200_000, 50_000, parts=100)
    progress.close()
    assert not [line for line in drawn(terminal) if "eval return" in line]


@pytest.mark.parametrize(
    ("label", "total", "mean", "std", "shown"),
    [
        ("", 400_000, 0.00123456, 0.017, "0.001235 ± 0.017"),
        ("", 2_000_000, -0.00123456, 1234.5, "-0.001235 ± 1,234"),
        ("", 2_000_000, -999_999.4, 123_456.7, "-999,999 ± 123,457"),
        ("dmc/cartpole-swingup seed 12: ", 500_000, 823.456, 12.3, "823.5 ± 12"),
    ],
)
def test_lines_fit_the_terminal(label, total, mean, std, shown, clock, capsys):
    progress = Progress(total, 0, 0, label=label, clock=clock)
    progress.training_return(-123_456.7)
    advance(progress, clock, 1_000, total // 1_000, 50)
    progress.evaluation(total // 1_000, mean, std)
    line = capsys.readouterr().err.splitlines()[-1]
    assert len(line) <= WIDTH, f"{line!r} has {len(line)} columns"
    assert shown in line
    assert " d " in line, "it takes days"


@pytest.mark.parametrize(
    ("train", "mean", "std", "shown"),
    [
        (-1240.6, -173.8, 118.3, ["-173.8 ± 118", "-1,241"]),
        (-9999.6, 9999.6, 99.6, ["10,000 ± 100", "-10,000"]),
        (-999_999.4, -999_999.4, 999_999.4, ["-999,999 ± 999,999", "-999,999"]),
        (999_999.6, -1_234_567.0, 1_234_567.0, ["-1.235e6 ± 1.2e6", "1e6"]),
        (-1.5e300, -1.2345e300, 1.2345e300, ["-1.23e300 ± 1.2e300", "-1.5e300"]),
        (-1.25e-7, -1.2345e-5, 1e-17, ["-1.234e-5 ± 1e-17", "-1.25e-7"]),
        (float("nan"), float("-inf"), float("inf"), ["-inf ± inf", "nan"]),
    ],
)
def test_returns_stand_in_their_columns_without_an_exponent_below_a_million(
    train, mean, std, shown, clock, capsys
):
    progress = Progress(1_000, 0, 0, clock=clock)
    progress.training_return(train)
    advance(progress, clock, 1.0, 500, 1)
    advance(progress, clock, 1.0, 1_000, 1 + 123_456)
    progress.evaluation(1_000, mean, std)
    header, row = capsys.readouterr().err.splitlines()
    cells = row[header.index("eval return") : header.index("updates/s") - 2]
    assert [cell.strip() for cell in (cells[:19], cells[19:])] == shown
    assert header.index(" time") == row.index(" took")
    assert "e" not in row[header.index("updates/s") :].split()[0]


@pytest.mark.parametrize("total", [3_000, 2_000_000])
def test_the_live_line_fits_with_room_for_a_bar_and_a_ctrl_c(total, clock, monkeypatch):
    terminal = terminal_of_80_columns(monkeypatch)
    progress = Progress(total, 0, 0, clock=clock)
    progress.training_return(-123_456.7)
    advance(progress, clock, 100, total // 3, total // 9)
    progress.evaluation(total // 3, -0.00123456, 1234.5)
    advance(progress, clock, 100, total // 2, total // 6)
    progress.close()
    lines = drawn(terminal)
    assert max(len(line) for line in lines) <= WIDTH
    assert max(len(line) for line in lines if "━" in line) <= WIDTH - len("^C")
    assert "━━━" in lines[-1]
    assert "left 00:0" in lines[-1]


def test_the_last_line_is_true(clock, monkeypatch):
    terminal = terminal_of_80_columns(monkeypatch)
    progress = Progress(1_000, 0, 0, clock=clock)
    advance(progress, clock, 60, 999, 999)
    clock.seconds += 0.01  # too soon to be drawn
    progress.step(1_000, 1_000)
    progress.evaluation(1_000, 12.5, 0.5)
    progress.close()
    progress.say("below")
    assert "1,000/1,000  eval 12.5" in drawn(terminal)[-2]
    assert drawn(terminal)[-2].strip().endswith("took 00:01:00")
    assert drawn(terminal)[-1] == "below"


def test_the_last_line_of_a_run_that_was_stopped_is_true(clock, monkeypatch):
    terminal = terminal_of_80_columns(monkeypatch)
    progress = Progress(1_000, 100, 100, clock=clock)
    advance(progress, clock, 60, 400, 400)
    clock.seconds += 0.01
    progress.step(401, 401)
    progress.close()
    assert "401/1,000" in drawn(terminal)[-1]
    assert "left 00:0" in drawn(terminal)[-1]
