"""Rainbow runs small enough for a test: frames of a few pixels, networks of a few neurons, random
batches."""

from dataclasses import replace
from functools import partial

import numpy as np
import torch

from cclf import presets
from cclf.algorithms.rainbow.batched import BatchedRainbow
from cclf.algorithms.rainbow.learner import make_batched_learner
from cclf.envs.make import make_env
from cclf.training.seeding import derive
from cclf.types import GameBatch

CPU = torch.device("cpu")
SIZES = {
    "batch_size": 4,
    "hidden_dim": 8,
    "atoms": 5,
    "contrastive_hidden_dim": 8,
    "contrastive_dim": 6,
}
SCHEDULE = {
    "learn_start_agent_steps": 12,
    "n_steps": 3,
    "target_every_agent_steps": 5,
    "importance_beta_agent_steps": 30,
}
TINY = SIZES | SCHEDULE | {"epsilon_decay_agent_steps": 0, "updates_per_agent_step": 1}
ENV = {"frame_pixels": 25, "crop_pixels": 25, "frame_stack": 2}
RUN = {
    "env_steps": 24,
    "eval_every_env_steps": 12,
    "eval_episodes": 2,
    "final_eval_episodes": 0,
    "log_every_agent_steps": 10,
}
RUN |= {"device": "cpu", "threads": 1, "video": False, "tensorboard": False}


def tiny(method="cclf", seed=1, task="toy/catch", env=None, **algorithm):
    """The preset with small sizes; a nature network needs more pixels."""
    config = presets.resolve(task, method, seed=seed)
    pixels = (
        {"frame_pixels": 36, "crop_pixels": 36} if config.algorithm.convolutions == "nature" else {}
    )
    return replace(
        config,
        env=replace(config.env, **ENV | pixels | (env or {})),
        algorithm=replace(config.algorithm, **TINY | algorithm),
        run=replace(config.run, **RUN),
    )


def game_of(config):
    """A factory of the training game of a run."""
    return partial(make_env, config, derive(config.seed, "env"))


def batched_learner(configs, device=CPU, workers=0):
    """One learner of these runs, on their own games."""
    return make_batched_learner(configs, device, [game_of(config) for config in configs], workers)


def learner_of(config, make_game=None):
    """The learner of one run, on its own game unless another is given."""
    return make_batched_learner([config], CPU, [make_game or game_of(config)]).runs[0]


def games_in(learner):
    """The `EpisodicGame`s of a batch in this process."""
    return learner.games.pool.objects[0].games


def step_all(learner, steps, start=0):
    """Step every run of a batch."""
    for step in range(start, start + steps):
        for run in learner.runs:
            run.step(step)


def batch_of(config, runs=1, seed=0, num_actions=3, dtype=torch.float32, batch_size=None):
    """Random transitions for each of `runs` runs, of a shape that fits the config. Those of run r do
    not depend on `runs`."""
    size, env = batch_size or config.algorithm.batch_size, config.env
    rows = []
    for run in range(runs):
        random = np.random.default_rng([seed, run])
        frames = random.integers(
            0, 256, (2, size, env.frame_stack, env.frame_pixels, env.frame_pixels), dtype=np.uint8
        )
        rows.append(
            (
                torch.from_numpy(frames[0]),
                torch.from_numpy(random.integers(0, num_actions, size)),
                torch.from_numpy(random.integers(-1, 2, size)).to(dtype),
                torch.from_numpy(random.normal(size=size)).to(dtype),
                torch.from_numpy(random.integers(0, 2, size)).to(dtype),
                torch.from_numpy(frames[1]),
                torch.from_numpy(random.uniform(0.2, 1.0, size)).to(dtype),
                torch.arange(size),
            )
        )
    return GameBatch(*(torch.stack(parts) for parts in zip(*rows, strict=True)))


def rainbow_of(configs, num_actions=(3,), dtype=torch.float32):
    return BatchedRainbow(configs, list(num_actions), CPU, dtype)


def update(rainbow, batch, update_index=7, env_steps=100.0, beta=0.6):
    """One update of a batch of runs with the random numbers of this index."""
    noise = rainbow.noise.sample(torch.tensor(update_index))[1]
    clocks = (torch.tensor(value, dtype=torch.float64) for value in (env_steps, beta))
    return rainbow.update(batch, noise, *clocks)


def tiny_cclf(task="toy/catch", seed=1, **run):
    """CCLF without options that have no effect in it; keywords go to `run`."""
    idle = presets.resolve(task, "cclf").algorithm.importance_beta_agent_steps
    env = {"frame_stack": 4} if task.startswith("atari") else None
    config = tiny("cclf", seed, task, env, importance_beta_agent_steps=idle)
    return replace(config, run=replace(config.run, **{"final_eval_episodes": 2} | run))
