"""The training loop: step counters, rows of the tables, and exact resume after a stop at any
step."""

from functools import partial

import numpy as np
import pytest
import torch

from cclf.algorithms.common import off_policy
from cclf.algorithms.registry import make_learner
from cclf.errors import ConfigError
from cclf.storage import checkpoint
from cclf.training.evaluation import Evaluation
from cclf.training.loop import TrainingRun, train_loop
from cclf.types import StepResult
from tiny_runs import (
    CPU,
    StopAt,
    differing,
    rows,
    run,
    start,
    tables,
    tiny_config,
)


@pytest.mark.quick("3")
@pytest.mark.parametrize("repeat", [1, 2, 3])
def test_step_counters_agree_in_every_row(tmp_path, repeat):
    often = {"eval_every_env_steps": 20, "eval_episodes": 1}
    env = {"action_repeat": repeat}
    config = tiny_config(method="rad", env=env, env_steps=61 * repeat, **often)
    learner, finished = run(config, tmp_path)
    assert finished
    train, evaluation = tables(tmp_path)
    for row in (*train, *evaluation):
        names = ("env_steps", "agent_steps", "updates")
        env_steps, agent_steps, updates = (int(row[name]) for name in names)
        assert env_steps == agent_steps * repeat
        assert updates == max(0, agent_steps - 20), "one per agent step after the warm-up of 20"
    assert [int(row["agent_steps"]) for row in train] == list(range(10, 61, 10))
    steps = range(repeat, 61 * repeat + 1, repeat)
    crossings = [step for step in steps if step // 20 != (step - repeat) // 20]
    assert [int(row["env_steps"]) for row in evaluation] == sorted({*crossings, 61 * repeat})
    assert (learner.agent_steps, learner.updates) == (61, 41)
    assert (config.planned_agent_steps, config.planned_updates) == (61, 41)


def test_metric_that_is_not_declared_is_an_error_at_the_first_update(tmp_path):
    def forget(learner):
        update = learner.algorithm.update

        def with_metric(*given):
            result = update(*given)
            return result._replace(metrics={**result.metrics, "forgotten": torch.ones(())})

        learner.algorithm.update = with_metric

    with pytest.raises(
        ConfigError, match=r"return the metrics \['forgotten'\], which its metric_names"
    ):
        run(tiny_config(), tmp_path, prepare=forget)


def test_budget_is_rounded_up_to_whole_agent_steps(tmp_path):
    config = tiny_config(env={"action_repeat": 4}, env_steps=61)
    run(config, tmp_path)
    assert rows(tmp_path / "eval.csv")[-1]["env_steps"] == "64"


def test_rows_hold_returns_of_finished_episodes_and_means_of_metrics(tmp_path):
    run(tiny_config(env_steps=100), tmp_path)
    train = rows(tmp_path / "train.csv")
    # 25 steps each
    assert [row["episodes"] for row in train] == ["0", "0", "1", "1", "2", "2", "2", "3", "3", "4"]
    assert [bool(row["episode_return"]) for row in train] == [n in (2, 4, 7, 9) for n in range(10)]
    assert [bool(row["critic_loss"]) for row in train] == [False, False, *[True] * 8], (
        "no update in the warm-up"
    )
    assert all(np.isfinite(float(value)) for row in train for value in row.values() if value)
    walls = [float(row["wall_seconds"]) for row in rows(tmp_path / "eval.csv")]
    assert walls == sorted(walls)
    assert walls[0] > 0


class Scripted:
    """A learner without networks: each step is `stride` agent steps, and its metric is the number
    of steps so far."""

    metric_names = ("step_number",)

    def __init__(self, stride):
        self.stride, self.updates, self.env_steps = stride, 0, []

    def step(self, env_steps):
        self.env_steps.append(env_steps)
        self.updates += 1
        metrics = {"step_number": torch.tensor(float(self.updates))}
        return StepResult(self.stride, metrics, [float(env_steps)])

    def replay_metrics(self):
        return {}

    def state_dict(self):
        return {"updates": self.updates}


def mean(*_):
    yield ()
    return Evaluation([1.0], [])


def test_long_steps_are_logged_and_evaluated_when_a_multiple_is_crossed(tmp_path):
    evaluated = []

    def evaluate(env_steps, record):
        evaluated.append((env_steps, record))
        return mean()

    learner = Scripted(stride=16)
    config = tiny_config(
        env={"action_repeat": 2},
        env_steps=100,
        eval_every_env_steps=50,
        log_every_agent_steps=30,
        video=True,
    )
    training = TrainingRun(config, learner, None, tmp_path)
    training.evaluate = evaluate
    stop = StopAt()
    start(config, training, stop)
    assert not train_loop([training], stop)
    assert training.finished
    assert learner.env_steps == [0, 32, 64, 96], "t of Eq. (9) counts environment steps"
    assert evaluated == [(64, False), (128, True)], "only the last evaluation is recorded"
    train = rows(tmp_path / "train.csv")
    assert [(row["agent_steps"], row["step_number"], row["episode_return"]) for row in train] == [
        ("32", "1.5", "16"),
        ("64", "3.5", "80"),
    ]


def run_with_stops(config, folder, stops):
    for stop in stops:
        assert not run(config, folder, stop_at=stop)[1]
    learner, finished = run(config, folder)
    assert finished
    return learner


@pytest.fixture(scope="module")
def uninterrupted(trained):
    folder = trained(tiny_config())
    return checkpoint.load(folder / "checkpoint")["learner"], tables(folder)


@pytest.mark.quick("21", "5+6+25+31+58")
@pytest.mark.parametrize(
    "stops",
    [[1], [13], [20], [21], [30], [44], [59], [5, 6, 25, 31, 58]],
    ids=lambda stops: "+".join(map(str, stops)),
)
def test_resume_after_a_stop_at_any_step_is_bitwise_equal(uninterrupted, tmp_path, stops):
    """During and after the warm-up, at an evaluation, in an episode, between two rows, and five
    times in one run."""
    learner = run_with_stops(tiny_config(), tmp_path, stops)
    assert differing(learner.state_dict(), uninterrupted[0]) == []
    assert tables(tmp_path) == uninterrupted[1]


SHORT = {"env_steps": 45}
MINIGRID = {"env_steps": 320, "eval_every_env_steps": 160}
DMC = {"env_steps": 120, "eval_every_env_steps": 10_000, "eval_episodes": 1}
RESUMED = {
    **{method: ("toy/reach-1d", method, [33], SHORT) for method in ("drq", "curl", "select")},
    "cclf-shuffled": ("toy/reach-1d", "cclf-shuffled", [33], SHORT),
    "full replay": (
        *("toy/reach-1d", "cclf", [21, 38]),
        {
            "env": {"frame_stack": 3},
            "algorithm": {"replay_capacity_transitions": 9},
            "env_steps": 45,
        },
    ),
    "dmc": (
        *("dmc/reacher-easy", "cclf", [68, 100]),
        {"env": {"frame_pixels": 32, "crop_pixels": 28}, **DMC},
    ),
    **{
        method: ("minigrid/Empty-16x16", method, [48, 160, 200], MINIGRID)
        for method in ("a2c", "re3+cclf", "a2c+rnd", "cclf+forward-shuffled")
    },
}


@pytest.mark.quick("cclf-shuffled", "full replay", "re3+cclf")
@pytest.mark.parametrize("name", RESUMED)
def test_other_runs_resume_exactly(tmp_path, monkeypatch, name):
    task, method, stops, options = RESUMED[name]
    if name == "dmc":
        monkeypatch.setattr(off_policy, "evaluate", mean)  # it would render 250 frames
    config = tiny_config(task, method, **options)
    whole = run(config, tmp_path / "whole")[0]
    parts = run_with_stops(config, tmp_path / "parts", stops)
    if name == "full replay":
        assert whole.replay.written > 3 * whole.replay.slots
    assert differing(whole.state_dict(), parts.state_dict()) == []
    assert tables(tmp_path / "whole") == tables(tmp_path / "parts")


class Unsaved:
    """The toy environment without a state, like most environments of Gymnasium."""

    def __init__(self, env):
        self.env, self.spec, self.resets = env, env.spec, 0

    def reset(self, seed=None):
        self.resets += 1
        return self.env.reset(seed)

    def __getattr__(self, name):
        return getattr(self.env, name)

    def state_dict(self):
        return {}

    def load_state_dict(self, _):
        raise AssertionError("there is nothing to load")


def test_environment_without_state_starts_a_new_episode_on_resume(tmp_path):
    def prepare(learner):
        learner.env = Unsaved(learner.env)

    config = tiny_config(env_steps=60)
    run(config, tmp_path, stop_at=35, prepare=prepare)  # ten steps into the second episode
    learner, finished = run(config, tmp_path, prepare=prepare)
    assert finished
    assert (learner.agent_steps, learner.updates, learner.replay.size) == (60, 40, 60)
    assert learner.env.resets == 1
    ages = learner.replay.ages[: learner.replay.head + 1].tolist()
    assert ages == [*range(26), *range(11), *range(26)], "whole, cut off after ten steps, new"
    assert not learner.replay.valid[[25, 36]].any(), (
        "no transition leads from one episode into the next"
    )


def test_raised_budget_equals_the_larger_budget_from_the_start(uninterrupted, tmp_path):
    run(tiny_config(env_steps=30), tmp_path)
    learner, _ = run(tiny_config(env_steps=60), tmp_path)
    assert differing(learner.state_dict(), uninterrupted[0]) == []
    assert tables(tmp_path) == uninterrupted[1]


def test_update_does_not_use_the_transition_of_its_step():
    """Its batch is sampled before the environment is stepped, so that the two may overlap."""
    learner = make_learner(tiny_config(), CPU)
    sizes = []
    original = learner.replay.sample
    learner.replay.sample = lambda *args: sizes.append(learner.replay.size) or original(*args)
    for agent_steps in range(40):
        learner.step(agent_steps)
    assert sizes == list(range(20, 40))


def test_evaluation_between_steps_has_the_same_results(uninterrupted, tmp_path, monkeypatch):
    """As SAC on a GPU without workers: episodes continue while the agent learns, with the weights
    at their start."""
    during_evaluation, original = [], TrainingRun._step_learner
    monkeypatch.setattr(
        TrainingRun,
        "_step_learner",
        lambda self: (
            during_evaluation.append(self.pending_evaluation is not None) or original(self)
        ),
    )
    monkeypatch.setattr(off_policy, "evaluates_between_steps", lambda *_: True)
    between, finished = run(tiny_config(), tmp_path)
    assert finished
    assert sum(during_evaluation) > 20, "training went on during the evaluations"
    assert tables(tmp_path) == uninterrupted[1]
    assert differing(between.state_dict(), uninterrupted[0]) == []


def test_final_evaluations_of_several_runs_overlap(tmp_path):
    """The runs share workers, so no run waits until the evaluation of another has finished."""
    events, runs, stop = [], [], StopAt()

    def evaluation(name, env_steps, _record):
        events.append(("begins", name, env_steps))
        for _ in range(5):
            yield ()
        events.append(("ends", name, env_steps))
        return Evaluation([1.0], [])

    for name in ("a", "b"):
        config = tiny_config(env_steps=60, eval_every_env_steps=40, log_every_agent_steps=30)
        learner, folder = Scripted(stride=20), tmp_path / name
        folder.mkdir()
        training = TrainingRun(config, learner, None, folder, evaluates_asynchronously=True)
        training.evaluate = partial(evaluation, name)
        start(config, training, stop)
        runs.append(training)
    assert not train_loop(runs, stop)
    assert [event for event, _, env_steps in events if env_steps == 60] == [
        "begins",
        "begins",
        "ends",
        "ends",
    ]
    assert events.index(("ends", "a", 40)) < events.index(("begins", "a", 60)), (
        "a run has one evaluation at a time"
    )
    for training in runs:
        training.log.close()
        assert training.finished
        assert training.checkpoints.load()["evaluation_due"] is False
        assert [row["env_steps"] for row in rows(training.folder / "eval.csv")] == ["40", "60"]
