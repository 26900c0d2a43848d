"""Gymnasium environments that raise or return invalid values, in a module that an id can name:
`gym/hostile_envs:NAME-v0`."""

import errno
import os
import sys
import tempfile

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete

VECTOR = Box(-10.0, 10.0, (3,), np.float32)
IMAGE = Box(0, 255, (8, 8, 3), np.uint8)
LAYERS = Box(0, 1, (6, 6, 4), np.bool_)
NAMED = Dict({"goal": Box(-1.0, 1.0, (2,)), "at": Discrete(3)})
ACTIONS = Box(-1.0, 1.0, (1,), np.float32)


class ReliableEnv(gymnasium.Env):
    """Correct until call number `at_call` of the method `place`. From then on that method returns
    `fault(result)`."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}  # noqa: RUF012

    def __init__(
        self,
        render_mode=None,
        place="",
        fault=None,
        at_call=4,
        observation_space=VECTOR,
        action_space=ACTIONS,
    ):
        self.render_mode, self.place, self.fault, self.at_call = render_mode, place, fault, at_call
        self.observation_space, self.action_space = observation_space, action_space
        self.calls, self.steps = 0, 0
        self._result("make", None)

    def _result(self, place, result):
        if place != self.place:
            return result
        self.calls += 1
        return self.fault(result) if self.calls >= self.at_call else result

    def _observation(self):
        self.observation_space.seed(self.steps)
        return self.observation_space.sample()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        del options
        self.steps = 0
        return self._result("reset", (self._observation(), {}))

    def step(self, action):
        del action
        self.steps += 1
        result = self._observation(), float(self.steps), False, False, {}
        return self._result("step", result)

    def render(self):
        return self._result("render", np.full((12, 10, 3), self.steps % 255, np.uint8))

    def close(self):
        self._result("close", None)


def raises(error):
    def fault(result):
        del result
        raise error

    return fault


def returns(value):
    return lambda _: value


def observes(value):
    """Another observation, of a reset or of a step."""
    return lambda result: (value, *result[1:])


def replaces(place, value):
    """Another value at an index of the result of a step."""
    return lambda result: (*result[:place], value, *result[place + 1 :])


def exits(result):
    del result
    sys.exit(0)


def fails_in_worker(result):
    """A worker does not import torch."""
    if "torch" not in sys.modules:
        raise ValueError("boom")
    return result


def changes_dtype(result):
    sys.modules["torch"].set_default_dtype(sys.modules["torch"].float64)
    return result


def changes_directory(result):
    os.chdir(tempfile.gettempdir())
    return result


class UnprintableError(Exception):
    def __str__(self):
        raise RuntimeError("no text")


def register(name, place, fault, limit=20, **settings):
    settings |= {"place": place, "fault": fault}
    gymnasium.register(
        f"{name}-v0",
        entry_point=ReliableEnv,
        kwargs=settings,
        max_episode_steps=limit,
        disable_env_checker=True,
    )


boom = raises(ValueError("boom"))
register("Steady", "", None)
register("Raise", "step", boom, at_call=45)
register("Exit", "step", exits, at_call=45)
register("Full", "step", raises(OSError(errno.ENOSPC, "full")), at_call=45)
register("Scalar", "step", observes(7.0), at_call=45)
register("Dtype", "step", changes_dtype, at_call=45)
register("ChangesDirectory", "step", changes_directory, at_call=35)
register("ChangesDirectoryInMake", "make", changes_directory, at_call=1)
register("Early", "step", boom, at_call=5)
register("RaiseInReset", "reset", boom, at_call=2)
register("SteadyGame", "", None, action_space=Discrete(3))
register("RaiseInGame", "step", boom, at_call=45, action_space=Discrete(3))
# 30 steps of training, then two episodes
register("RaiseInEvaluation", "step", boom, limit=40, at_call=35)
# neither in 60 steps of training nor in two episodes of evaluation
register("Late", "step", boom, limit=5, at_call=65)
register("RaiseInWorker", "step", fails_in_worker, at_call=1)
register("Blind", "render", returns(None), at_call=1)
register("Words", "", None, observation_space=Dict({"at": VECTOR, "mission": gymnasium.Space()}))
