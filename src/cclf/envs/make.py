"""From a config to its environment. Without torch, so that worker processes can do it too."""

from typing import Any

from cclf.config import Config
from cclf.envs.named_calls import NamedEnv
from cclf.envs.registry import known_tasks, suite_of, validate_observation


def make_env(config: Config, seed: int, evaluation: bool = False) -> Any:
    """One environment, an `Env` or a `Game`; in evaluation a suite may play by other rules."""
    validate_observation(config.task, config.env.observe)
    suite, name = suite_of(config.task), config.task.partition("/")[2]
    return NamedEnv(config.task, suite.make(name, config.env, seed, evaluation))


def make_grids(config: Config, num_envs: int, seed: int) -> Any:
    """Several grid worlds stepped as one, a `VectorEnv`."""
    name = config.task.partition("/")[2]
    return NamedEnv(config.task, suite_of(config.task).make(name, num_envs, seed))


def refuse_unknown(config: Config) -> None:
    """Refuse a task that no environment can be made of. What this package lists is not made."""
    suite = suite_of(config.task)
    if suite.check and config.task not in known_tasks():
        suite.call(suite.check, config.task.partition("/")[2], config.env)
