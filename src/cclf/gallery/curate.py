"""A run folder becomes a gallery. Nothing is written there, and a run that is still going on is not disturbed."""

from pathlib import Path
from typing import Any

import torch

from cclf.analysis.gallery import About, Gallery
from cclf.config import A2cConfig, Config, ConfigError, RainbowConfig, SacConfig
from cclf.from_disk import refused_as
from cclf.gallery import a2c, rainbow, sac
from cclf.run_folder import read_checkpoint, read_config

# A new base algorithm is a line here: (which run, config, its learner's state, samples, clock) -> Gallery.
BASES = {SacConfig: sac.gallery, A2cConfig: a2c.gallery, RainbowConfig: rainbow.gallery}


def curate(folder: Path, samples: int, device: torch.device) -> Gallery:
    """What the newest checkpoint of a run is curious about, from `samples` transitions or a few more, in whole batches."""
    config = read_config(folder)
    kind = type(config.algorithm)
    if kind not in BASES:
        known = ", ".join(base.__name__.removesuffix("Config") for base in BASES)
        raise ConfigError(f"inspect does not know the base algorithm of {folder}, {kind.__name__}: it knows {known}")
    method = config.method
    if not (method.selection == "curiosity" or method.prioritisation or method.regularisation or method.reward):
        raise ConfigError(
            f"{config.method_name} has no curiosity to look at: none of its pieces uses one; inspect a run of cclf, or of one of "
            "its pieces (see: cclf methods)"
        )
    saved = read_checkpoint(folder)
    with refused_as(f"the checkpoint in {folder} cannot be looked at"):
        return _gallery(folder, config, saved, samples, device)


def _gallery(folder: Path, config: Config, saved: dict[str, Any], samples: int, device: torch.device) -> Gallery:
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
    return BASES[type(config.algorithm)](About(folder, heading, origin), config, saved["learner"], samples, clock)
