"""From a config to the objects that train it: look the base algorithm up and ask it."""

import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from cclf.algorithms.base import BaseAlgorithm
from cclf.algorithms.registry import find_base
from cclf.config import Config
from cclf.envs.make import make_env, make_grids
from cclf.envs.registry import task_kind
from cclf.errors import ConfigError
from cclf.storage import checkpoint
from cclf.storage.failure import check_finite
from cclf.storage.run_folder import (
    WEIGHTS,
    load_config_for_playing,
    read_checkpoint,
    read_config,
    read_weights,
)
from cclf.storage.safe_loading import data_error_context, load_state
from cclf.storage.tables import EVAL_COLUMNS, CsvTable, final_rows, write_final_record
from cclf.training.agent import Agent, plain_agent
from cclf.training.evaluation import EvaluationSteps, EvaluationStoppedError
from cclf.training.evaluation_workers import EvaluationWorkers
from cclf.training.loop import Schedule, TrainingRun
from cclf.training.seeding import derive
from cclf.types import EnvSpec, Learner


def base_of(config: Config) -> BaseAlgorithm:
    return find_base(config.base)


def env_factory(config: Config) -> Any:
    """How its environments are made: one by one, or several grid worlds as one."""
    plays = base_of(config).plays
    # Only of a base that plays other tasks too is the task asked, which may not be known here.
    grids = "grid" in plays and (len(plays) == 1 or task_kind(config.task) == "grid")
    return make_grids if grids else make_env


def learner_module(config: Config) -> Any:
    """The module of its base algorithm that learns; `cclf.algorithms.base` lists its functions."""
    base = base_of(config)
    module = base.part("learner")
    needed = {"make_learner": "make_learners", "make_algorithm": "make_agent"}
    for name, instead in needed.items():
        if not hasattr(module, name) and not hasattr(module, instead):
            where = f"{module.__name__} of the base algorithm {base.name}"
            raise ConfigError(f"{where} lacks {name} (see docs/extending.md)")
    return module


def make_learners(
    configs: Sequence[Config],
    device: torch.device,
    resume_points: Sequence[int | None] | None = None,
    make: Any = None,
) -> list[Any]:
    """Of runs that take turns in one process and differ in task and seed alone; `make` may make
    other environments."""
    module, make = learner_module(configs[0]), make or env_factory(configs[0])
    if not hasattr(module, "make_learners"):
        return [module.make_learner(config, device, make) for config in configs]
    learners: list[Any] = module.make_learners(
        configs, device, make, resume_points or [None] * len(configs)
    )
    return learners


def make_learner(config: Config, device: torch.device, make: Any = None) -> Any:
    return make_learners([config], device, make=make)[0]


def make_algorithm(config: Config, spec: EnvSpec, device: torch.device) -> Any:
    """The algorithm of a run alone, as its learner has it."""
    return learner_module(config).make_algorithm(config, spec, device)


def make_agent(
    config: Config, device: torch.device, runs: int = 1, evaluators: EvaluationWorkers | None = None
) -> Agent:
    """`runs`: how many share this machine's cores, and perhaps `evaluators`."""
    module = learner_module(config)
    if hasattr(module, "make_agent"):
        agent: Agent = module.make_agent(config, device, env_factory(config), runs, evaluators)
        return agent
    env = env_factory(config)(config, 0, True)
    algorithm = module.make_algorithm(config, env.spec, device)
    return plain_agent(env, algorithm, config.env.frame_stack, device)


def make_evaluators(config: Config, device: torch.device, runs: int) -> EvaluationWorkers | None:
    """Processes that play evaluation episodes of all `runs`, where the base algorithm has such."""
    module = learner_module(config)
    if not hasattr(module, "make_evaluators"):
        return None
    evaluators: EvaluationWorkers | None = module.make_evaluators(
        config, device, env_factory(config), runs
    )
    return evaluators


def evaluates_asynchronously(
    config: Config, device: torch.device, runs: int, evaluators: EvaluationWorkers | None
) -> bool:
    """Whether training goes on while an evaluation is under way."""
    module = learner_module(config)
    if not hasattr(module, "evaluates_asynchronously"):
        return evaluators is not None
    beside: bool = module.evaluates_asynchronously(config, device, runs, evaluators)
    return beside


def make_training(
    config: Config,
    folder: Path,
    device: torch.device,
    runs: int = 1,
    learner: Learner | None = None,
    evaluators: EvaluationWorkers | None = None,
) -> tuple[TrainingRun, Any, Agent]:
    """One of `runs` in this process, with a learner of its own unless it is given one."""
    made: Any = learner or make_learner(config, device)
    agent = make_agent(config, device, runs, evaluators)

    def evaluate_now(env_steps: int, record: bool) -> EvaluationSteps:
        # As they are now, while training goes on.
        evaluation_networks(agent.policy).load_state_dict(
            evaluation_networks(made.algorithm).state_dict()
        )
        # Seeds depend on the moment and the episode alone: another schedule evaluates the same
        # episodes at the same moment.
        seeds = [
            derive(config.seed, "eval", env_steps, episode)
            for episode in range(config.run.eval_episodes)
        ]
        return agent.rounds(seeds, record)

    plan = Schedule(
        env_steps=config.run.env_steps,
        action_repeat=config.env.action_repeat,
        eval_every_env_steps=config.run.eval_every_env_steps,
        log_every_agent_steps=config.run.log_every_agent_steps,
        video=config.run.video,
        evaluate_beside_training=evaluates_asynchronously(config, device, runs, evaluators),
        keep_replay=config.run.keep_replay,
    )
    return TrainingRun(plan, made, evaluate_now, folder), made, agent


def evaluation_networks(algorithm: Any) -> Any:
    """What evaluation takes a copy of: the networks, or all of an algorithm that names none."""
    return getattr(algorithm, "networks", algorithm)


def replay_size(config: Config, spec: EnvSpec | None = None) -> tuple[int, int]:
    """Transitions the replay of a run can ever hold, and their bytes.

    Without `spec` an environment is made to ask for it.
    """
    if not base_of(config).uses_replay:
        return 0, 0
    if spec is None:
        with closing(env_factory(config)(config, 0)) as env:
            spec = env.spec
    forecast: tuple[int, int] = learner_module(config).replay_size(config, spec)
    return forecast


def checkpoint_size(config: Config, spec: EnvSpec) -> int:
    """What the replay of a run takes in its checkpoints; a little more once its ring comes round."""
    transitions, size = replay_size(config, spec)
    run, kept = config.run, config.planned_agent_steps
    if not run.keep_replay:  # the last evaluation before the end
        evaluations = (run.env_steps - 1) // run.eval_every_env_steps
        kept = evaluations * run.eval_every_env_steps // config.env.action_repeat
    return size * min(kept, transitions) // max(transitions, 1)


def common_checkpoint_steps(configs: Sequence[Config], out: Path) -> list[int | None]:
    """The agent steps from which runs that take turns in one process go on; None is the newest
    there is."""
    if len(configs) == 1 or not base_of(configs[0]).batches_runs:
        return [None] * len(configs)
    return [
        *checkpoint.common_checkpoint_steps(
            [out / config.run_name() / "checkpoint" for config in configs]
        )
    ]


def load_agent(
    folder: Path,
    device: torch.device,
    episodes: int,
    evaluators: EvaluationWorkers | None = None,
    trust_imports: bool = False,
) -> tuple[Agent, Config, int]:
    """The trained agent of a run folder, its config, and the environment steps it has seen;
    evaluates `episodes` at a time. Also of a folder that holds its weights alone."""
    config = load_config_for_playing(folder, trust_imports)
    config = replace(config, run=replace(config.run, eval_episodes=episodes))
    shared = (folder / WEIGHTS).exists() and not os.path.lexists(folder / "checkpoint")
    if shared:
        state, env_steps = read_weights(folder)
    else:
        saved = read_checkpoint(folder, frames=False)
        state, env_steps = saved["learner"], saved["agent_steps"] * config.env.action_repeat
    with ExitStack() as made, data_error_context(f"cannot make the agent of {folder}"):
        agent = made.enter_context(closing(make_agent(config, device, evaluators=evaluators)))
        if shared:
            load_state(evaluation_networks(agent.policy), state, "networks")
        else:
            load_state(agent.policy, state["algorithm"], "learner/algorithm")
        made.pop_all()
    return agent, config, env_steps


def final_evaluation(
    folder: Path,
    device: torch.device,
    stopped: Callable[[], bool],
    evaluators: EvaluationWorkers | None = None,
) -> bool:
    """The last word on a finished run: its final agent in many episodes, a row of final.csv.
    Whether that is there now.

    It reads the last checkpoint, so it may come at any time later, and leaves nothing behind when
    `stopped()`.
    """
    episodes = read_config(folder).run.final_eval_episodes
    if not episodes:
        return True
    # The command that trained it named the modules.
    agent, config, env_steps = load_agent(folder, device, episodes, evaluators, trust_imports=True)
    with closing(agent):
        if str(env_steps) in [row["env_steps"] for row in final_rows(folder, env_steps)]:
            return True
        started = time.monotonic()
        try:
            result = agent.evaluate(
                [derive(config.seed, "final", episode) for episode in range(episodes)],
                False,
                stopped,
            )
        except EvaluationStoppedError:
            return False
    row = {
        "env_steps": env_steps,
        "agent_steps": env_steps // config.env.action_repeat,
        "updates": config.updates_at(env_steps // config.env.action_repeat),
        "return_mean": result.mean,
        "return_std": result.std,
        "episodes": episodes,
        "wall_seconds": round(time.monotonic() - started, 3),
        "returns": " ".join(f"{value:.8g}" for value in result.returns),
    }
    check_finite(folder, row)
    with closing(CsvTable(folder / "final.csv", EVAL_COLUMNS, env_steps - 1)) as table:
        table.write(row)
        table.sync()
        write_final_record(folder, table.known())
    return True
