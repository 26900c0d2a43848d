"""Verdicts on made-up results with a known answer, on equal methods, and on the results of this
repository."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from cclf.analysis import load, verdicts
from cclf.analysis.runs import ResultRow, StepBudget
from cclf.analysis.verdicts import Claim, Verdict, evaluate_claim
from cclf.errors import ConfigError
from tiny_rows import TASK, row, runs_of

HIGH, LOW = [0.9, 0.91, 0.92, 0.93, 0.94], [0.4, 0.45, 0.5, 0.55, 0.6]  # means 0.92 and 0.5
WIDE, MIDDLE = [0.1, 0.9, 0.1, 0.9, 0.5], [0.2, 0.8, 0.3, 0.7, 0.5]
SIX = tuple(f"minigrid/Made-Up-{number}" for number in range(6))
END = StepBudget("env_steps", 400_000)


def claim(
    measure: str = "return",
    *baselines: str,
    factor: float | None = None,
    threshold: float | None = None,
    tasks: tuple[str, ...] = (TASK,),
) -> Claim:
    names = "made-up", "c", "a claim", measure, "cclf", baselines
    return Claim(*names, tasks, END, threshold, factor, "nowhere")


@pytest.mark.parametrize(
    ("ours", "theirs", "factor", "state", "text"),
    [
        (HIGH, LOW, None, "held", "cclf is above re3"),
        (LOW, HIGH, None, "did not hold", "cclf is below re3"),
        ([0.9] * 5, [0.5] * 5, None, "held", "difference 0.400 [0.400, 0.400], 5 seeds; cclf is a"),
        (WIDE, MIDDLE, None, "undecided", "; 0 (no difference) is inside the interval"),
        (HIGH, LOW, 1.8, "held", "cclf is above re3; the claimed 1.8 is inside the interval"),
        (HIGH, LOW, 1.2, "held", "cclf is above re3; beyond the claimed 1.2"),
        (HIGH, LOW, 3.0, "did not hold", "cclf is above re3; short of the claimed 3"),
        (LOW, HIGH, 3.0, "did not hold", "5 seeds; cclf is below re3"),
        (HIGH, HIGH, 3.0, "did not hold", "inside the interval; short of the claimed 3"),
        (WIDE, MIDDLE, 1.1, "undecided", "interval; the claimed 1.1 is inside the interval"),
        ([0.0] * 5, [0.0] * 5, 1.6, "undecided", "ratio unknown [0, ∞], 5 seeds; the mean of cclf"),
        ([0.0] * 5, HIGH, 1.6, "did not hold", "ratio 0 [0, 0], 5 seeds; the mean of cclf is 0; c"),
        (HIGH, [0.0] * 5, 1.6, "held", "ratio ∞ [∞, ∞], 5 seeds; the mean of re3 is 0; cclf is ab"),
        (HIGH[:3], LOW, None, "undecided", "3 to 5 seeds; too few to decide, at least 5 of each"),
        (HIGH[:1], LOW[:1], None, "undecided", "difference 0.500, 1 seed; too few to decide"),
        (HIGH, LOW[:1], None, "undecided", "difference 0.520, 1 to 5 seeds; too few to decide"),
    ],
)
def test_verdict_follows_from_the_interval(
    ours: list[float], theirs: list[float], factor: float | None, state: str, text: str
) -> None:
    rows = runs_of("cclf", ours) + runs_of("re3", theirs)
    found = evaluate_claim(claim("return", "re3", factor=factor), rows)
    assert found.state == state
    assert text in found.text
    assert found.seeds == min(len(ours), len(theirs))
    assert (found.low is None) == (found.seeds == 1)


def test_several_tasks_need_three_seeds_each() -> None:
    rows = [
        r
        for task in SIX
        for r in runs_of("cclf", HIGH[:3], task=task) + runs_of("re3", LOW[:3], task=task)
    ]
    assert evaluate_claim(claim("return", "re3", tasks=SIX), rows).state == "held"


def test_methods_that_were_not_run_are_named() -> None:
    found = evaluate_claim(claim("return", "re3"), runs_of("cclf", HIGH))
    assert found == Verdict("undecided", "no results of re3 at 400,000 env steps")


def test_several_baselines_are_compared_by_the_best_of_them() -> None:
    rows = runs_of("cclf", [0.7] * 5) + runs_of("re3", LOW) + runs_of("a2c", HIGH)
    assert evaluate_claim(claim("return", "re3"), rows).state == "held"
    found = evaluate_claim(claim("return", "re3", "a2c"), rows)
    assert (found.state, found.estimate) == ("did not hold", pytest.approx(-0.22))
    assert found.text.endswith("cclf is below the best of 2 baselines")


# Claims about equal methods; each is evaluated in 500 trials, or 60 in quick tests.
EQUAL = [
    pytest.param("return", 1, 2, 1, id="2 seeds"),
    pytest.param("return", 1, 5, 1, id="5 seeds"),
    pytest.param("return", 1, 20, 1, id="20 seeds"),
    pytest.param("return", 7, 5, 1, id="best of 7, 5 seeds"),
    pytest.param("return", 7, 20, 1, id="best of 7, 20 seeds"),
    pytest.param("return", 3, 10, 1, id="best of 3, 10 seeds"),
    pytest.param("seconds", 2, 8, 1, id="seconds"),
    pytest.param("steps", 2, 8, 1, id="steps"),
    pytest.param("iqm", 1, 3, 6, id="iqm of 6 tasks"),
    pytest.param("wins", 1, 10, 26, id="wins on 26 tasks"),
]


@pytest.mark.quick("5 seeds", "best of 7, 20 seeds", "wins on 26 tasks")
@pytest.mark.parametrize(("measure", "baselines", "seeds", "tasks"), EQUAL)
def test_equal_methods_are_decided_in_at_most_five_percent(
    measure: str,
    baselines: int,
    seeds: int,
    tasks: int,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Among equal methods a claim of wins is wrong: its verdict may be "did not hold", but not
    "held"."""
    is_quick = request.node.get_closest_marker("slow") is None
    trials = 60 if is_quick else 500
    if is_quick:
        monkeypatch.setattr(verdicts, "RESAMPLES", 5_000)
    names = [f"method-{number}" for number in range(baselines + 1)]
    about = claim(measure, *names[1:], threshold=0.9, factor=1.0 if measure == "wins" else None)
    about = about._replace(
        method=names[0], tasks=tuple(f"minigrid/{number}" for number in range(tasks))
    )
    random, states = np.random.default_rng(0), []
    for _ in range(trials):
        values = random.lognormal(0.0, 0.5, (baselines + 1, tasks, seeds))
        if measure == "steps":  # nearly a third of the runs never reach the return
            values = np.where(values > 1.3, np.inf, np.ceil(8 * values))
        samples = list(values.swapaxes(1, 2))
        monkeypatch.setattr(verdicts, "_samples", lambda *_, samples=samples: samples)
        states.append(evaluate_claim(about, []).state)
    wrong = states.count("held") + (measure != "wins") * states.count("did not hold")
    assert wrong <= 0.05 * trials, Counter(states)


def test_a_method_that_is_better_than_all_others_is_found() -> None:
    """CCLF is two standard deviations above or below the best of seven methods, with ten seeds."""
    random = np.random.default_rng(0)
    names = [f"method-{number}" for number in range(7)]
    level = {name: random.normal(0.5, 0.1, 10) for name in ("cclf", *names)}
    rows = [r for name in names for r in runs_of(name, list(level[name]))]
    about = claim("return", *names)
    above, below = (runs_of("cclf", list(level["cclf"] + shift)) for shift in (0.2, -0.2))
    assert evaluate_claim(about, rows + above).state == "held"
    assert evaluate_claim(about, rows + below).state == "did not hold"


def test_failed_run_counts_as_the_lowest_return() -> None:
    """One failed seed of five counts as the lowest return of the task, and the claim no longer
    holds."""
    rivals = [*runs_of("re3", [0.85] * 5), row("re3", 1, 12_800, 0.0)]
    failed = [*runs_of("cclf", HIGH[:4]), row("cclf", 5, 12_800, 0.9, state="failed")]
    assert evaluate_claim(claim("return", "re3"), rivals + runs_of("cclf", HIGH)).state == "held"
    verdict_ = evaluate_claim(claim("return", "re3"), rivals + failed)
    assert verdict_.state == "undecided"
    assert verdict_.seeds == 5


def curve(
    method: str, seed: int, reached_at: int | None, episodes_every: int = 100_000
) -> list[ResultRow]:
    steps = range(episodes_every, 400_001, episodes_every)
    return [
        row(method, seed, s, 1.0 if reached_at is not None and s >= reached_at else 0.0)
        for s in steps
    ]


def steps_verdict(
    ours: list[int | None], theirs: list[int | None], factor: float | None = None
) -> Verdict:
    rows = [r for seed, at in enumerate(ours, 1) for r in curve("cclf", seed, at)]
    rows += [r for seed, at in enumerate(theirs, 1) for r in curve("re3", seed, at)]
    return evaluate_claim(claim("steps", "re3", threshold=0.9, factor=factor), rows)


QUICK, SLOW, NEVER = [100_000] * 5, [300_000] * 5, [None] * 5
SOME = [100_000, 100_000, None, None, None]


@pytest.mark.parametrize(
    ("ours", "theirs", "factor", "state", "text"),
    [
        (QUICK, SLOW, 0.5, "held", "steps 0.333 [0.333, 0.333], 5 seeds; cclf needs fewer steps"),
        (QUICK, SLOW, 0.5, "held", "cclf needs fewer steps than re3; beyond the claimed 0.5"),
        (QUICK, SLOW, 0.2, "did not hold", "short of the claimed 0.2"),
        (SLOW, QUICK, None, "did not hold", "cclf needs more steps than re3"),
        (QUICK, NEVER, None, "held", "ratio of steps 0 [0, 0], 5 seeds; the median run of re3"),
        (QUICK, SOME, None, "undecided", "never reached 0.9 (runs that did: cclf 5 of 5, re3 2 of"),
        (
            NEVER,
            SLOW,
            None,
            "did not hold",
            "ratio of steps ∞ [∞, ∞], 5 seeds; the median run of c",
        ),
        (
            NEVER,
            NEVER,
            None,
            "undecided",
            "steps unknown [0, ∞], 5 seeds; the median run of cclf a",
        ),
        (SOME, SOME, None, "undecided", "steps unknown [0, ∞], 5 seeds"),
    ],
)
def test_run_that_never_reaches_the_return_counts_as_infinite_steps(
    ours: list[int | None], theirs: list[int | None], factor: float | None, state: str, text: str
) -> None:
    found = steps_verdict(ours, theirs, factor)
    assert found.state == state
    assert text in found.text


def test_steps_on_different_schedules_are_undecided() -> None:
    rows = [
        r
        for seed in range(1, 6)
        for r in curve("cclf", seed, 100_000) + curve("re3", seed, 300_000, 200_000)
    ]
    found = evaluate_claim(claim("steps", "re3", threshold=0.9), rows)
    assert found.state == "undecided"
    assert "evaluated every 100,000 env steps in cclf and every 200,000 in re3" in found.text


def test_wins_are_counted_by_task() -> None:
    rows = [
        r for n, task in enumerate(SIX) for r in runs_of("cclf", HIGH if n < 4 else LOW, task=task)
    ]
    rows += [r for task in SIX for r in runs_of("re3", [0.7] * 5, task=task)]
    held, failed = (
        evaluate_claim(claim("wins", "re3", factor=factor, tasks=SIX), rows)
        for factor in (4.0, 5.0)
    )
    assert (held.state, failed.state) == ("held", "did not hold")
    assert held.text == "4 of 6 tasks won [4, 4], 5 seeds; at least the claimed 4"
    assert failed.text.endswith("fewer than the claimed 5")


@pytest.mark.parametrize(
    ("measure", "baselines", "settings", "state", "text"),
    [
        ("above", (), {"threshold": 0.8}, "held", "5 seeds; above 0.8"),
        ("above", (), {"threshold": 0.99}, "did not hold", "5 seeds; below 0.99"),
        ("above", (), {"threshold": 0.92}, "undecided", "5 seeds; 0.92 is inside the interval"),
        ("below", (), {"threshold": 0.99}, "held", "below 0.99"),
        ("below", (), {"threshold": 0.8}, "did not hold", "above 0.8"),
        ("seconds", ("re3",), {"factor": 0.6}, "held", "beyond the claimed 0.6"),
        ("seconds", ("re3",), {"factor": 0.4}, "did not hold", "short of the claimed 0.4"),
        ("seconds", ("a2c",), {}, "undecided", "timed on different machines: cpu x1, cpu x2"),
    ],
)
def test_fixed_scores_and_seconds(
    measure: str, baselines: tuple[str, ...], settings: dict[str, float], state: str, text: str
) -> None:
    rows = runs_of("cclf", HIGH, seconds=50.0) + runs_of("re3", LOW, seconds=100.0)
    rows += runs_of("a2c", LOW, device="cpu x2")
    found = evaluate_claim(claim(measure, *baselines, **settings), rows)
    assert (found.state, found.text[-len(text) :]) == (state, text)


def test_two_profiles_are_refused() -> None:
    rows = runs_of("cclf", HIGH) + runs_of("re3", LOW, profile="entropy-0.001")
    with pytest.raises(ConfigError, match="one profile"):
        evaluate_claim(claim("return", "re3"), rows)


def test_an_average_is_of_all_evaluations_until_the_clock_and_a_failed_run_has_the_lowest() -> None:
    # Both end at 0.9, with 0 or 0.5 half-way; evaluations beyond the budget do not count.
    def curve(method: str, half_way: float, seed: int) -> list[ResultRow]:
        moments = ((200_000, half_way), (400_000, 0.9), (800_000, 1.0))
        return [
            row(method=method, seed=seed, env_steps=steps, value=value) for steps, value in moments
        ]

    rows = [
        one for seed in range(5) for one in (*curve("cclf", 0.5, seed), *curve("re3", 0.0, seed))
    ]
    found = evaluate_claim(claim("average", "re3"), rows)
    assert (found.state, found.estimate) == ("held", pytest.approx(0.25))
    assert found.text.startswith("difference 0.25")
    failed = row(method="re3", seed=9, env_steps=200_000, value=0.2, state="failed")
    assert evaluate_claim(claim("average", "re3"), [*rows, failed]).estimate == pytest.approx(
        0.7 - 0.375
    )


def test_an_iqm_is_of_scores_on_the_scale_of_each_game() -> None:
    """Pong: random -20.7, human 14.6; Freeway: 0 and 29.6; with Boxing (0.1 and 12.1) and Krull
    (1,598 and 2,665.5) there are twelve runs, whose middle six count."""
    games = {"Pong": (-20.7, 14.6), "Freeway": (0.0, 29.6), "Boxing": (0.1, 12.1)}
    games["Krull"] = (1598.0, 2665.5)
    ours = {"Pong": 0.1, "Freeway": 0.2, "Boxing": 0.3, "Krull": 9.0}
    theirs = {"Pong": 0.0, "Freeway": 0.1, "Boxing": 0.2, "Krull": 0.3}
    rows = [
        r
        for game, (low, high) in games.items()
        for method, scores in (("cclf", ours), ("cclf-shuffled", theirs))
        for r in runs_of(
            method, [low + scores[game] * (high - low)] * 3, task=f"atari/{game}", repeat=4
        )
    ]
    about = claim("iqm", "cclf-shuffled", tasks=tuple(f"atari/{game}" for game in games))
    assert evaluate_claim(about, rows).estimate == pytest.approx((0.2 + 0.3) / 2 - (0.1 + 0.2) / 2)
    assert evaluate_claim(about, rows).state == "held"


def test_the_claims_of_this_package_say_that_they_are_its_own() -> None:
    own = {"curiosity": "cclf", "curiosity-toy": "cclf"}
    own |= {"curiosity-re3": "re3+cclf", "curiosity-drqv2": "drq-v2+cclf"}
    for table, method in own.items():
        for about in verdicts.claims(table):
            assert about.source.startswith("this package")
            assert about.method == method
            assert set(about.baselines) <= {f"{method}-shuffled", f"{method}-even", "re3+curl"}
    suites = {about.tasks[0].split("/")[0] for about in verdicts.claims("curiosity")}
    assert suites == {"minigrid", "dmc", "atari"}
    for table in set(verdicts.TABLES) - set(own):
        assert all(about.source.startswith("CCLF (IJCAI 2022)") for about in verdicts.claims(table))


def test_unknown_tables_are_refused() -> None:
    with pytest.raises(ConfigError, match="table2"):
        verdicts.claims("table2")


def test_the_committed_minigrid_results_say_what_the_docs_say() -> None:
    rows = load.read(Path(__file__).parents[2] / "results" / "minigrid")
    states = {
        (profile, about.name): evaluate_claim(
            about, [row for row in rows if row.profile == profile]
        ).state
        for profile in ("entropy-0.01", "entropy-0.001")
        for about in verdicts.claims("minigrid")
    }
    assert states["entropy-0.01", "doorkey6-re3"] == "held"
    assert states["entropy-0.001", "doorkey6-re3"] == "did not hold"
    assert states["entropy-0.01", "doorkey8-re3"] == "undecided"
    assert states["entropy-0.01", "doorkey8-a2c"] == "held"
    assert states["entropy-0.001", "doorkey8-a2c"] == "did not hold"
    assert states["entropy-0.01", "empty-steps-re3"] == "did not hold"
