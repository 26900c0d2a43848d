"""What `cclf inspect` shows of SAC on pixels."""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from cclf.bases import pixel_gallery
from cclf.bases.pixel_gallery import Looks
from cclf.bases.sac.learner import make_sac
from cclf.bases.sac.update import Sac
from cclf.config import Config
from cclf.data.replay import Replay
from cclf.data.types import MakeEnv
from cclf.errors import ConfigError
from cclf.gallery.record import About, Gallery


def gallery(
    about: About,
    config: Config,
    learner: dict[str, Any],
    samples: int,
    env_steps: Tensor,
    make_env: MakeEnv,  # noqa: ARG001 (replay holds what is looked at)
) -> Gallery:
    if config.env.observe != "pixels":
        raise ConfigError(
            f"{config.task} was learned with observe={config.env.observe}: the gallery shows "
            "pictures of what an agent saw, and there are none"
        )
    sac, replay = load(config, learner, env_steps.device)
    return pixel_gallery.gallery(about, config, looks_of(sac), replay, samples, env_steps)


def load(config: Config, learner: dict[str, Any], device: torch.device) -> tuple[Sac, Replay]:
    make = partial(make_sac, device=device)
    return pixel_gallery.load(config, learner, make)


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
