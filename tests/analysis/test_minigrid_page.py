"""The figures in the sentences of docs/results.md and the README are those of results/minigrid:
made again from it and compared. `test_documents` does so for tables."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from cclf.analysis import load, statistics, verdicts
from cclf.analysis import runs as evaluations

ROOT = Path(__file__).parents[2]
PROFILES = ("entropy-0.01", "entropy-0.001")
SOLVED = 0.9


@cache
def rows():
    return load.read(ROOT / "results" / "minigrid")


def runs(profile, task, method):
    named = evaluations.runs(rows()).items()
    return [found for name, found in named if name[:3] == (f"minigrid/{task}", method, profile)]


def finals(profile, task, method):
    return np.array([[readings[-1].return_mean] for readings in runs(profile, task, method)])


def written(interval):
    estimate, low, high = (float(value) for value in interval)
    return f"{estimate:.2f} [{low:.2f}, {high:.2f}]"


def words_of(name):
    return " ".join((ROOT / name).read_text().replace("**", "").split())


@pytest.mark.parametrize(
    ("profile", "task", "method", "rival"),
    [
        ("entropy-0.01", "DoorKey-6x6", "re3+cclf", "re3"),
        ("entropy-0.01", "DoorKey-8x8", "re3+cclf", "re3"),
        ("entropy-0.001", "DoorKey-6x6", "re3+cclf", "re3"),
        ("entropy-0.001", "DoorKey-8x8", "re3+cclf", "re3"),
        ("entropy-0.01", "DoorKey-6x6", "cclf", "curl"),
        ("entropy-0.01", "DoorKey-8x8", "cclf", "curl"),
        ("entropy-0.01", "Empty-16x16", "cclf", "curl"),
        ("entropy-0.001", "DoorKey-8x8", "cclf", "curl"),
    ],
)
def test_ratios_of_final_returns_in_the_text(profile, task, method, rival):
    ratio = statistics.bootstrap_statistic(
        [finals(profile, task, name) for name in (method, rival)],
        lambda parts: statistics.mean(parts[0]) / statistics.mean(parts[1]),
    )
    assert f"{written(ratio)} on {task}" in words_of("docs/results.md")


@pytest.mark.parametrize("profile", PROFILES)
def test_the_first_scores_on_the_larger_door_in_the_text(profile):
    curves = {method: runs(profile, "DoorKey-8x8", method) for method in ("re3", "re3+cclf")}
    medians = [
        np.median([evaluations.steps_to(one, 0.1) for one in found]) / 1000
        for found in curves.values()
    ]
    assert "after {:,.0f}K and {:,.0f}K".format(*medians) in words_of("docs/results.md")
    means = [
        np.mean([[row.return_mean for row in one] for one in found], axis=0)
        for found in curves.values()
    ]
    clock = [row.env_steps for row in curves["re3"][0]]
    firsts = [clock[int(np.argmax(mean >= 0.1))] / 1000 for mean in means]
    assert "at {:,.0f}K and {:,.0f}K".format(*firsts) in words_of("docs/results.md")


FALLEN = 0.1  # a return below this, after one of SOLVED


def falls(readings):
    returns = [row.return_mean for row in readings]
    solved = next((at for at, value in enumerate(returns) if value >= SOLVED), len(returns))
    return any(value < FALLEN for value in returns[solved:])


@pytest.mark.parametrize("method", ["a2c", "re3", "curl", "re3+curl", "cclf", "re3+cclf"])
def test_the_table_of_falls(method):
    found = runs("entropy-0.001", "DoorKey-8x8", method)
    solved = [one for one in found if np.isfinite(evaluations.steps_to(one, SOLVED))]
    fallen = [one for one in solved if falls(one)]
    back = [one for one in fallen if one[-1].return_mean >= SOLVED]
    line = f"| {method} | {len(solved)} | {len(fallen)} | {len(back)} |"
    assert (len(found), line in words_of("docs/results.md")) == (20, True), line


def test_the_readmes_sentence():
    ends = {
        m: float(finals("entropy-0.01", "DoorKey-6x6", m).mean()) for m in ("cclf", "re3", "a2c")
    }
    words = words_of("README.md")
    assert "{cclf:.2f} against {re3:.2f} for RE3 and {a2c:.2f} for A2C".format(**ends) in words
    claim = next(claim for claim in verdicts.claims("minigrid") if claim.name == "empty-above-re3")
    found = verdicts.evaluate_claim(claim, [row for row in rows() if row.profile == "entropy-0.01"])
    assert found.state == "held"
    assert f"{found.estimate:.3f} [{found.low:.3f}, {found.high:.3f}] above RE3" in words
    solved = [
        evaluations.steps_to(one, SOLVED) for one in runs("entropy-0.01", "DoorKey-8x8", "re3+cclf")
    ]
    assert np.isfinite(solved).all(), "the README says: solves it every time"
