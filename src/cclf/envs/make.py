"""Makes the environments of a config. torch is not imported, because worker processes make
environments too and do not need it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cclf.config import Config
from cclf.envs.env_errors import with_named_errors
from cclf.envs.registry import known_tasks, suite_of, task_kind, validate_observation

if TYPE_CHECKING:
    from cclf.types import Env, EnvFactory, VectorEnv


class TaskEnvs:
    """Makes the environments of the tasks of all suites."""

    def __call__(self, config: Config, seed: int, evaluation: bool = False) -> Env:
        validate_observation(config.task, config.env.observe)
        suite, name = suite_of(config.task), config.task.partition("/")[2]
        env: Env = suite.call(suite.factory, name, config.env, seed, evaluation)
        return with_named_errors(config.task, env)

    def vector(self, config: Config, num_envs: int, seed: int) -> VectorEnv:
        suite, name = suite_of(config.task), config.task.partition("/")[2]
        env: VectorEnv = suite.call(suite.factory, name, num_envs, seed)
        return with_named_errors(config.task, env)


make_env: EnvFactory = TaskEnvs()


def validate_task(config: Config) -> None:
    """Raise ConfigError if the task is in no suite's list and making its environment fails."""
    if config.task not in known_tasks():
        is_grid = task_kind(config.task) == "grid"
        env = make_env.vector(config, 1, 0) if is_grid else make_env(config, 0)
        env.close()
