"""What `cclf inspect` shows of SAC on pixels."""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from cclf.algorithms.common import pixel_inspection
from cclf.algorithms.common.pixel_inspection import InspectionAdapter
from cclf.algorithms.sac.learner import make_sac
from cclf.algorithms.sac.sac import SAC, q_target
from cclf.config import Config
from cclf.data.augmentations import center_crop_corners, crop
from cclf.data.replay import Replay
from cclf.errors import ConfigError
from cclf.inspection.records import About, Gallery
from cclf.inspection.samples import without_curiosity
from cclf.storage.safe_loading import check_same_structure
from cclf.types import Batch, EnvFactory


def gallery(
    about: About,
    config: Config,
    learner: dict[str, Any],
    samples: int,
    env_steps: Tensor,
    make_env: EnvFactory,  # noqa: ARG001 (replay holds what is looked at)
) -> Gallery:
    if config.env.observe != "pixels":
        raise ConfigError(
            f"{config.task} was learned with observe={config.env.observe}: the gallery shows "
            "pictures of what an agent saw, and there are none"
        )
    sac, replay = load(config, learner, env_steps.device)
    return pixel_inspection.gallery(
        about, config, inspection_adapter(sac), replay, samples, env_steps
    )


def load(config: Config, learner: dict[str, Any], device: torch.device) -> tuple[SAC, Replay]:
    make = partial(make_sac, device=device)
    sac, replay = pixel_inspection.load(config, learner, make)
    saved = learner["algorithm"]["log_temperature"]  # no network, and part of the target
    check_same_structure(sac.log_temperature.detach(), saved, "log_temperature")
    sac.log_temperature.data.copy_(saved)
    return sac, replay


def inspection_adapter(sac: SAC) -> InspectionAdapter:
    return InspectionAdapter(
        framework=sac.framework,
        draw_noise=sac.draw_noise,
        frames=lambda frames: frames,
        view_pixels=sac.env.crop_pixels,
        encode_query=sac.critic.encoder,
        encode_key=sac.target_critic.encoder,
        views_name="crops",
        td_error=partial(td_error, sac),
    )


def td_error(sac: SAC, batch: Batch, noise: Tensor, _: Tensor) -> Tensor:
    """On the crops that evaluation sees; the clock changes nothing here."""
    pixels = sac.env.crop_pixels
    size = (len(batch.reward), sac.env.frame_pixels, pixels)
    origins = center_crop_corners(1, *size, batch.reward.device)
    seen, following = (
        crop(frames, origins, pixels).inputs[0]
        for frames in (batch.observation, batch.next_observation)
    )
    alone, encoder = without_curiosity(seen, following, batch.reward), sac.critic.encoder
    features = ([encoder.convolutions(following)], sac.target_critic.encoder(following))
    target = q_target(sac, alone, batch, *features, noise[None])
    return pixel_inspection.distance_to(target, sac.critic.q_values(encoder(seen), batch.action))
