"""Rainbow runs small enough for a test: games of a few pixels, networks of a few neurons, batches
made by hand."""

from dataclasses import replace
from functools import partial

import numpy as np
import torch

from cclf import presets
from cclf.algorithms.rainbow.learner import (
    make_game_stack,
    make_learner,
    make_rainbow_stack,
    num_game_workers,
)
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
    """The preset, its sizes cut down; a nature network needs more pixels."""
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


def game_stack(configs, device=CPU, games=None):
    """Learners of these runs, in this process; on their own games unless others are given."""
    own = [partial(make_env, config, derive(config.seed, "env")) for config in configs]
    workers = 0 if games else num_game_workers(len(configs), device)
    return make_game_stack(configs, device, games or own, workers)


def plain(config, game=None):
    """The learner of one run by itself, on its own game unless another is given."""
    return make_learner(config, CPU, game or partial(make_env, config, derive(config.seed, "env")))


def stack_of_one(config, game=None):
    """The same run as the only one of a stack."""
    return game_stack([config], CPU, [game] if game else None).runs[0]


def batch_of(config, runs=1, seed=0, num_actions=3, dtype=torch.float32, batch_size=None):
    """Random transitions for each of `runs` runs, of a shape that fits the config; run r's are the
    same in any stack."""
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


def stack_of(configs, num_actions=(3,), dtype=torch.float32):
    return make_rainbow_stack(configs, list(num_actions), CPU, dtype)


def update(stack, batch, moment=7, env_steps=100.0, beta=0.6):
    """One update of a stack with the numbers of `moment`."""
    clock = torch.tensor(moment)
    noise = stack.draw(clock)[1]
    return stack.update(
        batch,
        noise,
        torch.tensor(env_steps, dtype=torch.float64),
        torch.tensor(beta, dtype=torch.float64),
    )


def tiny_cclf(task="toy/catch", seed=1, **run):
    """CCLF as a command line may ask for it: no option that would do nothing in this method;
    keywords go to `run`."""
    idle = presets.resolve(task, "cclf").algorithm.importance_beta_agent_steps
    env = {"frame_stack": 4} if task.startswith("atari") else None
    config = tiny("cclf", seed, task, env, importance_beta_agent_steps=idle)
    return replace(config, run=replace(config.run, **{"final_eval_episodes": 2} | run))
