"""What is printed before a run begins."""

from typing import Any

import torch

from cclf.algorithms.registry import algorithm_of
from cclf.config import Config
from cclf.envs.registry import task_note


def run_summary(config: Config, learner: Any, device: torch.device) -> list[str]:
    """The lines that are printed before a run begins."""
    precision = config.precision
    note = task_note(config.task, config.env)
    lines = [f"{config.task} {note}"] if note else []
    lines += [
        f"{option} {config.imported_names[option]} imports the Python module {module}"
        for option, module in config.imported_modules.items()
        if option != "task"
    ]
    lines += [
        f"{config.task}  {config.method_name}  base {config.base}  seed {config.seed}  profile "
        f"{config.profile}  on {device}{'' if precision == 'fp32' else f' in {precision}'}",
        f"budget {config.run.env_steps:,} env steps = {config.planned_agent_steps:,} agent steps x "
        f"{config.env.action_repeat}, "
        f"{config.planned_updates:,} updates",
    ]
    algorithm = algorithm_of(config)
    if algorithm.uses_replay:
        if learner.env.spec.max_episode_agent_steps is None:
            lines.append(
                f"{config.task} has no time limit: an evaluation lasts until its episodes end"
            )
        transitions, num_bytes = algorithm.replay_size(config, learner.env.spec)
        lines.append(
            f"replay {transitions:,} transitions, {num_bytes / 1e9:.2f} GB on "
            f"{learner.replay.device}"
        )
    return lines
