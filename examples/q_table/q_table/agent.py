import zlib

import numpy as np
import torch
from torch import nn

from cclf.algorithms.common.online import OnlineLearner
from cclf.training.seeding import derive


class QTable(nn.Module):
    metric_names = ("td_error",)  # columns of train.csv

    def __init__(self, config, num_actions):
        super().__init__()
        self.settings, self.num_actions = config.algorithm, num_actions
        self.register_buffer("values", torch.zeros(self.settings.rows, num_actions))

    def row(self, observation):  # (F, H, W) uint8, the newest frame last
        return self.values[zlib.crc32(observation[-1].numpy().tobytes()) % self.settings.rows]

    def act(self, observation, random):  # in training
        if random.random() < self.settings.epsilon:
            return int(random.integers(self.num_actions))
        return int(self.row(observation).argmax())

    def evaluation_action(self, observations):  # (1, F, H, W)
        return self.row(observations[0]).argmax()

    def update(self, transition):  # a `cclf.algorithms.common.online.Transition`
        next_value = 0.0 if transition.terminated else self.row(transition.next_observation).max()
        values = self.row(transition.observation)
        target = transition.reward + self.settings.discount * next_value
        error = target - values[transition.action]
        values[transition.action] += self.settings.learning_rate * error
        return {"td_error": error.abs()}


def make_learner(algorithm, config, device, make_env):
    env = make_env(config, derive(config.seed, "env"))
    random = np.random.default_rng(derive(config.seed, "act"))
    table = algorithm.make_algorithm(config, env.spec, device)
    return OnlineLearner(env, table, random, config.env.frame_stack)
