"""Every method learns a toy task with a known optimum from pixels."""

from dataclasses import replace

import numpy as np
import pytest

from cclf import presets
from cclf.config import EnvConfig
from cclf.envs.toy import CATCH_BALLS, STEP_LENGTH, make
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


def final_return(task, method, folder):
    base = "mrq" if method == "mr-q" else "drqv2" if method.startswith("drq-v2") else None
    config = presets.resolve(task, method, base_name=base)
    options = replace(
        config.run, device="cpu", threads=1, video=False, tensorboard=False, eval_episodes=EPISODES
    )
    if base:  # seed 1 of this method learns late: after 1,500 steps its return depends on rounding
        options = replace(options, env_steps=2_500)
    run(replace(config, run=options), folder)
    return float(rows(folder / "eval.csv")[-1]["return_mean"])


@pytest.mark.slow("algorithms/test_sac.py::test_six_updates_equal_those_of_the_released_code")
@pytest.mark.parametrize(("task", "method"), RUNS)
def test_method_solves_the_toy_from_pixels(tmp_path, task, method):
    reached, best = final_return(task, method, tmp_path), optimum(task)
    assert reached >= BAR * best, f"{method} on {task}: {reached:.1f} of {best:.1f}"


@pytest.mark.slow("algorithms/test_rainbow_step.py::test_training_equals_the_reference")
@pytest.mark.parametrize("method", CATCHERS)
def test_rainbow_learns_to_catch(tmp_path, method):
    """A game has three balls, most of which a random agent misses."""
    assert final_return("toy/catch", method, tmp_path) >= BAR * CATCH_BALLS


def pendulum_from_state(method, folder):
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
    run(replace(config, run=options), folder)
    return float(rows(folder / "eval.csv")[-1]["return_mean"])


PENDULUM_BAR = -500  # random actions get about -1,200, the best about -150


@pytest.mark.slow("algorithms/test_sac_state.py::test_update_equals_the_reference")
@pytest.mark.parametrize("method", ["sac-pixel", "cclf"])
def test_method_swings_the_pendulum_up_from_state(tmp_path, method):
    assert pendulum_from_state(method, tmp_path) >= PENDULUM_BAR
