"""Does it learn? Every method from pixels, on a toy with a known optimum; with shuffled rewards
none may pass the same bar."""

from dataclasses import replace

import numpy as np
import pytest

from cclf import presets
from cclf.algorithms.rainbow.learner import RunHandle
from cclf.config import EnvConfig
from cclf.envs.toy import CATCH_BALLS, STEP_LENGTH, make
from rainbow_inputs import games_in
from tiny_runs import rows, run

NINE = ("sac-pixel", "rad", "curl", "drq", "curl+", "curl++", "select", "select+", "cclf")
FOUR = ("cclf", "drq", "curl", "rad")
RUNS = [*(("toy/reach-1d", method) for method in NINE), *(("toy/reach", method) for method in FOUR)]
RUNS += [("toy/reach-1d", "drq-v2"), ("toy/reach-1d", "drq-v2+cclf"), ("toy/reach-1d", "mr-q")]
BAR = 0.85
EPISODES = 50

TOY_ENV = EnvConfig(frame_pixels=20, crop_pixels=16, frame_stack=1, action_repeat=1)


def optimum(task):
    """Mean return of going straight to the goal."""
    env = make(task.partition("/")[2], TOY_ENV, seed=0)
    returns = []
    for seed in range(400):
        env.reset(seed)
        total, ended = 0.0, False
        while not ended:
            step = env.step((env.goal - env.agent) / STEP_LENGTH)
            total, ended = total + step.reward, step.truncated
        returns.append(total)
    return np.mean(returns)


CATCHERS = ("rainbow", "curl", "cclf")


class ShuffledReward:
    """Pays rewards of the task, each at a moment that has nothing to do with it: drawn from all
    that were earned so far."""

    def __init__(self, env):
        self.env, self.spec = env, env.spec
        self.earned, self.random = [], np.random.default_rng(0)

    def __getattr__(self, name):
        return getattr(self.env, name)

    def step(self, action):
        step = self.env.step(action)
        self.earned.append(step.reward)
        return step._replace(reward=float(self.random.choice(self.earned)))


def shuffle(learner):
    if isinstance(learner, RunHandle):
        (game,) = games_in(learner.batch)
        game.game.env = ShuffledReward(game.game.env)
    else:
        learner.env = ShuffledReward(learner.env)


def final_return(task, method, folder, prepare=lambda _: None):
    base = "mrq" if method == "mr-q" else "drqv2" if method.startswith("drq-v2") else None
    config = presets.resolve(task, method, base_name=base)
    options = replace(
        config.run, device="cpu", threads=1, video=False, tensorboard=False, eval_episodes=EPISODES
    )
    if base:  # its seed 1 begins to learn late: after 1,500 steps rounding decides
        options = replace(options, env_steps=2_500)
    run(replace(config, run=options), folder, prepare=prepare)
    return float(rows(folder / "eval.csv")[-1]["return_mean"])


@pytest.mark.slow("algorithms/test_sac.py::test_six_updates_equal_those_of_the_released_code")
@pytest.mark.parametrize(("task", "method"), RUNS)
def test_a_method_solves_the_toy_from_pixels(tmp_path, task, method):
    reached, best = final_return(task, method, tmp_path), optimum(task)
    assert reached >= BAR * best, f"{method} on {task}: {reached:.1f} of {best:.1f}"


@pytest.mark.slow("algorithms/test_sac.py::test_six_updates_equal_those_of_the_released_code")
@pytest.mark.parametrize(("task", "method"), RUNS)
def test_with_shuffled_rewards_it_does_not(tmp_path, task, method):
    reached, best = final_return(task, method, tmp_path, shuffle), optimum(task)
    assert reached < BAR * best, (
        f"{method} on {task} learned from nothing: {reached:.1f} of {best:.1f}"
    )


@pytest.mark.slow("algorithms/test_rainbow_step.py::test_training_equals_the_reference")
@pytest.mark.parametrize("method", CATCHERS)
def test_rainbow_learns_to_catch(tmp_path, method):
    """Three balls a game; a random agent misses most."""
    assert final_return("toy/catch", method, tmp_path) >= BAR * CATCH_BALLS


@pytest.mark.slow("algorithms/test_rainbow_step.py::test_training_equals_the_reference")
@pytest.mark.parametrize("method", CATCHERS)
def test_with_shuffled_rewards_it_does_not_catch(tmp_path, method):
    assert final_return("toy/catch", method, tmp_path, shuffle) < BAR * CATCH_BALLS


def pendulum_from_state(method, folder, prepare=lambda _: None):
    pytest.importorskip("gymnasium")
    config = presets.resolve("gym/Pendulum-v1", method, observe="state")
    options = replace(
        config.run,
        env_steps=5_000,
        eval_every_env_steps=5_000,
        eval_episodes=20,
        device="cpu",
        threads=1,
        video=False,
        tensorboard=False,
    )
    run(replace(config, run=options), folder, prepare=prepare)
    return float(rows(folder / "eval.csv")[-1]["return_mean"])


PENDULUM_BAR = -500  # random actions get about -1,200, the best about -150


@pytest.mark.slow("algorithms/test_sac_state.py::test_update_equals_the_reference")
@pytest.mark.parametrize("method", ["sac-pixel", "cclf"])
def test_a_method_swings_the_pendulum_up_from_state(tmp_path, method):
    assert pendulum_from_state(method, tmp_path) >= PENDULUM_BAR


@pytest.mark.slow("algorithms/test_sac_state.py::test_update_equals_the_reference")
def test_with_shuffled_rewards_it_does_not_swing_up(tmp_path):
    assert pendulum_from_state("cclf", tmp_path, shuffle) < PENDULUM_BAR
