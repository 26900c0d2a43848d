"""How `cclf inspect` looks into SAC on pixels."""

from functools import partial

from torch import Tensor

from cclf.algorithms.common.inspection import InspectionAdapter, mean_distance
from cclf.algorithms.sac.sac import SAC, q_target
from cclf.data.augmentations import center_crop_corners, crop
from cclf.inspection.samples import without_curiosity
from cclf.types import Batch


def inspection_adapter(sac: SAC) -> InspectionAdapter:
    return InspectionAdapter(
        algorithm=sac,
        frames=lambda frames: frames,
        encode_query=sac.critic.encoder,
        encode_key=sac.target_critic.encoder,
        views_name="crops",
        td_error=partial(td_error, sac),
    )


def td_error(sac: SAC, batch: Batch, noise: Tensor, env_steps: Tensor) -> Tensor:  # noqa: ARG001
    """On the centre crops, which evaluation uses."""
    crop_pixels = sac.env.crop_pixels
    size = (len(batch.reward), sac.env.frame_pixels, crop_pixels)
    corners = center_crop_corners(1, *size, batch.reward.device)
    observation = crop(batch.observation, corners, crop_pixels).inputs[0]
    next_observation = crop(batch.next_observation, corners, crop_pixels).inputs[0]
    appraisal = without_curiosity(observation, next_observation, batch.reward)
    conv_features = sac.critic.encoder.convolutions(next_observation)
    target_features = sac.target_critic.encoder(next_observation)
    target = q_target(sac, appraisal, batch, [conv_features], target_features, noise[None])
    q_values = sac.critic.q_values(sac.critic.encoder(observation), batch.action)
    return mean_distance(target, q_values)
