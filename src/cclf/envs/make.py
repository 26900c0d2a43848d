"""From a config to its environment. Without torch, so that worker processes can do it too."""

from typing import Any

from cclf.config import Config
from cclf.envs.registry import refuse_unseen, suite_of


def make_env(config: Config, seed: int, evaluation: bool = False) -> Any:
    """One environment, an `Env` or a `Game`; in evaluation a suite may play by other rules."""
    refuse_unseen(config.task, config.env.observe)
    return suite_of(config.task).make(config.task.partition("/")[2], config.env, seed, evaluation)


def make_grids(config: Config, num_envs: int, seed: int) -> Any:
    """Several grid worlds stepped as one, a `VectorEnv`."""
    return suite_of(config.task).make(config.task.partition("/")[2], num_envs, seed)
