"""Inspect the newest checkpoint of a run. Run folders are only read, so a run in progress is not
disturbed."""

from collections.abc import Sequence
from pathlib import Path

import torch

from cclf.algorithms.registry import algorithm_of
from cclf.envs.make import make_env
from cclf.errors import ConfigError
from cclf.inspection.probe import RankCorrelation, rank_correlations
from cclf.inspection.records import About, Gallery
from cclf.storage.run_folder import read_checkpoint, read_config, reject_imports
from cclf.storage.safe_loading import data_error_context


def inspect_run(
    folder: Path, samples: int, device: torch.device, trust_imports: bool = False
) -> Gallery:
    """Curiosity of at least `samples` transitions, in whole batches."""
    config = read_config(folder)
    reject_imports(config, folder, trust_imports, makes_env=False)
    if not config.method.needs_curiosity:
        raise ConfigError(
            f"{config.method_name} has no curiosity: none of its pieces uses it; inspect a run of "
            "cclf, or of one of its pieces (see: cclf methods)"
        )
    saved = read_checkpoint(folder)
    with data_error_context(f"the checkpoint in {folder} cannot be inspected"):
        env_steps = saved["agent_steps"] * config.env.action_repeat
        origin = {
            "task": config.task,
            "method": config.method_name,
            "profile": config.profile,
            "seed": config.seed,
            "env_steps": env_steps,
            "updates": saved["learner"]["updates"],
            "folder": folder.resolve().name,
        }
        heading = (
            f"{config.task}, {config.method_name}, seed {config.seed}, after {env_steps:,} "
            "environment steps"
        )
        about = About(folder, heading, origin)
        env_steps_tensor = torch.tensor(float(env_steps), dtype=torch.float64, device=device)
        return algorithm_of(config).inspect(
            about, config, saved["learner"], samples, env_steps_tensor, make_env
        )


def probe_run(
    folder: Path,
    measures: Sequence[str],
    quantities: Sequence[str],
    num_batches: int,
    device: torch.device,
    trust_imports: bool = False,
) -> dict[str, dict[str, RankCorrelation]]:
    """Rank correlations by measure and quantity, over batches of the newest checkpoint of a run."""
    config = read_config(folder)
    reject_imports(config, folder, trust_imports, makes_env=False)
    saved = read_checkpoint(folder)
    with data_error_context(f"the checkpoint in {folder} cannot be inspected"):
        env_steps = saved["agent_steps"] * config.env.action_repeat
        env_steps_tensor = torch.tensor(float(env_steps), dtype=torch.float64, device=device)
        curiosity, found = algorithm_of(config).probe(
            config, saved["learner"], measures, quantities, num_batches, env_steps_tensor, make_env
        )
    return rank_correlations(curiosity, found)
