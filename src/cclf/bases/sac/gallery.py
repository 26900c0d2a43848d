"""What `cclf inspect` shows of SAC on pixels."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from cclf.bases import pixel_gallery
from cclf.bases.pixel_gallery import Looks, load_replay
from cclf.bases.sac.learner import make_sac
from cclf.bases.sac.update import Sac
from cclf.config import Config
from cclf.data.replay import Replay
from cclf.data.types import MakeEnv
from cclf.gallery.record import About, Gallery
from cclf.runtime.run_folder import load_part


def gallery(
    about: About,
    config: Config,
    learner: dict[str, Any],
    samples: int,
    env_steps: Tensor,
    make_env: MakeEnv,  # noqa: ARG001 (replay holds what is looked at)
) -> Gallery:
    sac, replay = load(config, learner, env_steps.device)
    return pixel_gallery.gallery(about, config, looks_of(sac), replay, samples, env_steps)


def load(config: Config, learner: dict[str, Any], device: torch.device) -> tuple[Sac, Replay]:
    """Networks and replay of a checkpoint; in float32, whatever the run trained with."""
    replay = load_replay(config, learner)
    config = replace(config, algorithm=replace(config.algorithm, precision="fp32"))
    sac = make_sac(config, replay.actions.shape[1], device)
    load_part(sac.networks, learner["algorithm"]["networks"], "networks")
    return sac, replay


def looks_of(sac: Sac) -> Looks:
    return Looks(
        framework=sac.framework,
        draw_noise=sac.draw_noise,
        frames=lambda frames: frames,
        view_pixels=sac.env.crop_pixels,
        encode_query=sac.critic.encoder,
        encode_key=sac.target.encoder,
        views_name="crops",
    )
