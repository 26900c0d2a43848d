"""The evaluation of the final agent of a finished run, in final.csv."""

import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import torch

from cclf.storage.failure import check_finite
from cclf.storage.run_folder import read_config
from cclf.storage.tables import rows_until, write_final_table
from cclf.training.agent import load_agent
from cclf.training.evaluation import EvaluationStoppedError, StepCounters, evaluation_row
from cclf.training.evaluation_workers import EvaluationWorkers
from cclf.training.seeding import derive


def final_evaluation(
    folder: Path,
    device: torch.device,
    stopped: Callable[[], bool],
    workers: EvaluationWorkers | None = None,
) -> bool:
    """Evaluate the final agent of a finished run and append the result to final.csv. Returns whether
    the row exists afterwards: not if `stopped()` became true.

    It reads the last checkpoint, so it can be called at any later time.
    """
    episodes = read_config(folder).run.final_eval_episodes
    if not episodes:
        return True
    # The user of this command has chosen the modules that the run imports.
    agent, config, env_steps = load_agent(folder, device, episodes, workers, trust_imports=True)
    with closing(agent):
        rows = rows_until(folder, "final", env_steps)
        if rows and int(rows[-1]["env_steps"]) == env_steps:
            return True
        started = time.monotonic()
        seeds = [derive(config.seed, "final", episode) for episode in range(episodes)]
        try:
            result = agent.evaluate(seeds, False, stopped)
        except EvaluationStoppedError:
            return False
    agent_steps = env_steps // config.env.action_repeat
    counters = StepCounters(env_steps, agent_steps, config.algorithm.updates_at(agent_steps))
    row = evaluation_row(counters, result, time.monotonic() - started)
    check_finite(folder, row)
    write_final_table(folder, rows, row)
    return True
