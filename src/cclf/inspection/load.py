"""A run folder becomes a gallery. Nothing is written there, and a run that is still going on is not
disturbed."""

from pathlib import Path
from typing import Any

import torch

from cclf.algorithms.registry import algorithm_of
from cclf.config import Config
from cclf.envs.make import make_env
from cclf.errors import ConfigError
from cclf.inspection.records import About, Gallery
from cclf.storage.run_folder import read_checkpoint, read_config, reject_imports
from cclf.storage.safe_loading import data_error_context


def curate(
    folder: Path, samples: int, device: torch.device, trust_imports: bool = False
) -> Gallery:
    """What the newest checkpoint of a run is curious about, from `samples` transitions or a few
    more, in whole batches."""
    return _curated(folder, _config_with_curiosity(folder, trust_imports), samples, device)


def _config_with_curiosity(folder: Path, trust_imports: bool) -> Config:
    config = read_config(folder)
    reject_imports(config, folder, trust_imports, makes_env=False)
    if not config.method.needs_curiosity:
        raise ConfigError(
            f"{config.method_name} has no curiosity to look at: none of its pieces uses one; "
            "inspect a run of cclf, or of one of "
            "its pieces (see: cclf methods)"
        )
    return config


def _curated(folder: Path, config: Config, samples: int, device: torch.device) -> Gallery:
    saved = read_checkpoint(folder)
    with data_error_context(f"the checkpoint in {folder} cannot be looked at"):
        return _gallery(folder, config, saved, samples, device)


def _gallery(
    folder: Path, config: Config, saved: dict[str, Any], samples: int, device: torch.device
) -> Gallery:
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
    heading = f"{config.task}, {config.method_name}, seed {config.seed}, after {env_steps:,} environment steps"
    clock = torch.tensor(float(env_steps), dtype=torch.float64, device=device)
    about = About(folder, heading, origin)
    return algorithm_of(config).inspect(about, config, saved["learner"], samples, clock, make_env)
