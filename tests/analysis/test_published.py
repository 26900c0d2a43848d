"""Published numbers: completeness, step units, and agreement with the aggregates and claims of the
paper."""

import numpy as np
import pytest

from cclf import presets
from cclf.algorithms.base import ABLATIONS
from cclf.algorithms.sac.presets import METHODS as SAC_METHODS
from cclf.analysis import verdicts
from cclf.analysis.published import Published, published, rows_of, score_range
from cclf.analysis.statistics import iqm, mean, median
from cclf.envs.registry import known_tasks

FILES = (
    "dmc",
    "drqv2",
    "ablation",
    "atari",
    "atari_reruns",
    "atari_aggregates",
    "minigrid",
    "cost",
)
GAMES = sorted({row.task for row in published("atari")})


def by_task(file: str, method: str, steps: int) -> dict[str, float]:
    found = [
        row
        for row in published(file)
        if row.method == method and (row.budget is None or row.budget.steps == steps)
    ]
    return {row.task: row.mean for row in found}


def test_tables_are_complete() -> None:
    counts = {name: len(published(name)) for name in FILES}
    assert counts == {
        "dmc": 6 * 8 * 2,
        "drqv2": 304,
        "ablation": (5 + 7 + 5) * 2,
        "atari": 26 * 9,
        "atari_reruns": 26 * 7,
        "atari_aggregates": 55,
        "minigrid": 6,
        "cost": 6,
    }


@pytest.mark.parametrize("file", FILES)
def test_every_number_has_a_source_and_no_row_is_duplicated(file: str) -> None:
    rows = published(file)
    assert all(row.source for row in rows)
    assert len(
        {(row.table, row.task, row.method, row.quantity, row.budget) for row in rows}
    ) == len(rows)


def test_a_game_without_a_human_score_has_no_scale() -> None:
    assert score_range("atari/Pong") == (-20.7, 14.6)
    assert score_range("atari/SpaceInvaders") is None
    assert score_range("dmc/walker-walk") == (0.0, 1000.0)


def test_budgets_are_env_steps_on_control_and_agent_steps_on_atari() -> None:
    assert {row.budget and row.budget.unit for row in published("dmc")} == {"env_steps"}
    assert {
        (row.budget.unit, row.budget.steps) for row in published("atari_reruns") if row.budget
    } == {("agent_steps", 100_000)}
    without_budget = {row.method for row in published("atari") if row.budget is None}
    assert without_budget == {"human", "random"}


def test_names_are_those_of_the_presets() -> None:
    assert {row.method for row in published("dmc")} < set(SAC_METHODS)
    assert {row.method for row in published("ablation")} == {*(m.name for m in ABLATIONS), "cclf"}
    assert {row.task for row in published("dmc")} <= set(known_tasks())
    for table in ("table1", "ablation", "minigrid", "curiosity"):
        for claim in verdicts.claims(table):
            assert set(claim.tasks) <= set(known_tasks()), claim.name
            for method in claim.methods:
                presets.resolve(claim.tasks[0], method)


def test_single_numbers_as_read_in_the_paper() -> None:
    def one(file: str, task: str, method: str, steps: int) -> Published:
        (row,) = (
            r
            for r in published(file)
            if (r.task, r.method) == (task, method) and r.budget and r.budget.steps == steps
        )
        return row

    swingup = one("dmc", "dmc/cartpole-swingup", "cclf", 100_000)
    assert (swingup.mean, swingup.std, swingup.seeds) == (799, 61, 6)
    assert one("dmc", "dmc/ball_in_cup-catch", "select+", 500_000)[5:7] == (949, 24)
    assert one("atari", "atari/Pong", "cclf", 100_000).mean == -17.3
    assert one("atari_reruns", "atari/Freeway", "curl-rliable-final", 100_000)[5:8] == (
        28.3,
        1.4,
        100,
    )
    assert (
        one(
            "ablation", "dmc/cartpole-swingup", "prioritisation+regularisation+reward", 100_000
        ).mean
        == 536
    )


def normalised(file: str, method: str) -> np.ndarray:
    """(1, 26): a published mean per game, as one run."""
    table = by_task(file, method, 100_000)
    low, high = np.transpose([score_range(game) or (np.nan, np.nan) for game in GAMES])
    return ((np.array([table[game] for game in GAMES]) - low) / (high - low))[None]


PAPER = ("simple", "otrainbow", "rainbow", "efficient-dqn", "curl", "drq", "cclf")
RE_RUNS = (
    "curl-rliable-final",
    "drq-eps-rliable",
    "spr-rliable",
    "efficientzero",
    "dreamerv3",
    "bbf",
)


@pytest.mark.parametrize("method", [*PAPER, *RE_RUNS])
def test_human_normalised_aggregates_follow_from_the_games(method: str) -> None:
    stated = {
        row.quantity: row.mean for row in published("atari_aggregates") if row.method == method
    }
    file, error = ("atari", 6e-4) if method in PAPER else ("atari_reruns", 2e-3)
    scores = normalised(file, method)
    assert float(mean(scores)) == pytest.approx(stated["hns-mean"], abs=error)
    assert float(median(scores)) == pytest.approx(stated["hns-median"], abs=error)
    assert method in RE_RUNS or float(iqm(scores)) == pytest.approx(stated["hns-iqm"], abs=error)


@pytest.mark.parametrize(
    "claim",
    [c for table in ("table1", "ablation", "atari") for c in verdicts.claims(table)],
    ids=lambda c: c.name,
)
def test_claims_follow_from_the_papers_own_tables(claim: verdicts.Claim) -> None:
    """The paper rounds down: 1.149 becomes 1.14."""
    file = {"table1": "dmc"}.get(claim.table, claim.table)
    means = {
        m: np.array([by_task(file, m, claim.budget.steps)[task] for task in claim.tasks])
        for m in claim.methods
    }
    ours, theirs = means[claim.method], [means[baseline] for baseline in claim.baselines]
    if claim.measure == "above":
        assert ours.mean() > claim.threshold
    elif claim.measure == "wins":
        assert (ours > np.max(theirs, axis=0)).sum() >= claim.factor
    elif claim.factor is None:
        assert ours.mean() > max(t.mean() for t in theirs)
    else:
        assert ours.mean() / max(t.mean() for t in theirs) == pytest.approx(claim.factor, abs=0.011)


def test_summaries_of_drqv2_equal_those_of_its_seeds() -> None:
    lines = rows_of("drqv2")
    assert len({line["task"] for line in lines}) == 23
    for line in lines:
        returns = np.array([float(text) for text in line["returns"].split()])
        assert len(returns) == int(line["seeds"]) >= 8
        summary = (returns.mean(), returns.std(ddof=1), returns.min(), returns.max())
        stated = [float(line[column]) for column in ("mean", "std", "min", "max")]
        assert stated == pytest.approx(summary, abs=0.11), (line["task"], line["steps"])
    at_500k = by_task("drqv2", "drq-v2", 500_000)
    assert at_500k["dmc/cartpole-swingup"] == pytest.approx(846, abs=0.5)
    assert at_500k["dmc/ball_in_cup-catch"] == pytest.approx(844, abs=0.5)
