"""The warning that a run would take days: from the speed of learning alone, once."""

import pytest

from cclf.training.pace import Pace
from cclf.training.progress import Progress

DAY = 86_400.0


class Clock:
    def __init__(self):
        self.seconds = 0.0

    def __call__(self):
        return self.seconds


def said(pace, clock, steps, *, seconds, first=0, learns=True):
    """What a run's steps make it say, each of so many seconds."""
    told = []
    for step in range(first + 1, first + steps + 1):
        clock.seconds += seconds
        told.append(pace.step(step, step if learns else 0))
    return [left for left in told if left is not None]


def test_a_run_that_takes_days_says_so_once_after_a_minute():
    clock = Clock()
    pace = Pace(100_000, clock)
    assert said(pace, clock, 35, seconds=2.0) == []
    assert said(pace, clock, 200, seconds=2.0, first=35) == [(100_000 - 36) * 2.0]


@pytest.mark.parametrize("learned", [0, 1_000])
def test_compiling_does_not_count(learned):
    """Of a run that begins, and of one that goes on."""
    clock = Clock()
    pace = Pace(100_000, clock)
    assert pace.step(learned, learned) is None
    for step in range(1, 6):
        clock.seconds += 100.0
        assert pace.step(learned + step, learned + step) is None
    assert said(pace, clock, 1_000, seconds=0.1, first=learned + 5) == []


def test_a_run_that_takes_hours_says_nothing():
    clock = Clock()
    assert said(Pace(100_000, clock), clock, 3_000, seconds=0.8) == []


def test_warm_up_and_evaluations_do_not_count():
    clock = Clock()
    pace = Pace(10_000, clock)
    assert said(pace, clock, 1_000, seconds=0.01, learns=False) == []
    clock.seconds += 5 * DAY  # before the first update
    pace.pause()
    assert said(pace, clock, 40, seconds=1.0, first=1_000) == []
    clock.seconds += 5 * DAY
    pace.pause()
    assert said(pace, clock, 100, seconds=1.0, first=1_040) == []


def test_a_fast_warm_up_hides_nothing():
    clock = Clock()
    pace = Pace(100_000, clock)
    assert said(pace, clock, 5_000, seconds=0.02, learns=False) == []
    (left,) = said(pace, clock, 100, seconds=4.0, first=5_000)
    assert left == pytest.approx(95_000 * 4.0, rel=0.01)


def test_steps_without_an_update_count_once_it_learns():
    clock = Clock()
    pace, told = Pace(1_000_000, clock), []
    for step in range(1, 200):
        clock.seconds += 2.0 * (step % 2 == 0)  # every second step has an update
        told.append(pace.step(step, step // 2))
    (left,) = (seconds for seconds in told if seconds is not None)
    assert left == pytest.approx(1e6, rel=0.05)


def test_the_warning_is_printed_for_one_run_of_several(capsys):
    for seed, shows_life in ((1, False), (2, True)):  # runs of one process go at one pace
        progress = Progress(
            10**9, 0, 0, label=f"seed {seed}: ", if_slow="a GPU would help", shows_life=shows_life
        )
        clock = Clock()
        progress._pace = Pace(10**6, clock)
        for step in range(1, 9):
            clock.seconds += 61.0
            progress.step(step, step)
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert err.startswith("seed 2: cclf: at the speed of its first minute of learning this run ")
    assert err.endswith("more: a GPU would help\n")
