"""What `cclf inspect` shows of DrQ-v2."""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from cclf.algorithms.common import pixel_inspection
from cclf.algorithms.common.pixel_inspection import InspectionAdapter
from cclf.algorithms.drqv2.drqv2 import DrQv2, pad_and_concatenate, q_target
from cclf.algorithms.drqv2.learner import make_drqv2
from cclf.config import Config
from cclf.data.replay import Replay
from cclf.inspection.records import About, Gallery
from cclf.inspection.samples import without_curiosity
from cclf.types import Batch, EnvFactory


def gallery(
    about: About,
    config: Config,
    learner: dict[str, Any],
    samples: int,
    env_steps: Tensor,
    make_env: EnvFactory,  # noqa: ARG001 (replay holds what is looked at)
) -> Gallery:
    agent, replay = load(config, learner, env_steps.device)
    return pixel_inspection.gallery(
        about, config, inspection_adapter(agent), replay, samples, env_steps
    )


def load(config: Config, learner: dict[str, Any], device: torch.device) -> tuple[DrQv2, Replay]:
    make = partial(make_drqv2, device=device)
    return pixel_inspection.load(config, learner, make, config.algorithm.n_steps)


def inspection_adapter(agent: DrQv2) -> InspectionAdapter:
    return InspectionAdapter(
        framework=agent.framework,
        draw_noise=agent.draw_noise,
        frames=partial(pad_and_concatenate, agent.settings.shift_pixels),
        view_pixels=agent.env.frame_pixels,
        encode_query=lambda views: agent.critic.trunk(agent.encoder(views)),
        encode_key=lambda views: agent.target_critic.trunk(agent.encoder(views)),
        views_name="shifts",
        td_error=partial(td_error, agent),
    )


def td_error(agent: DrQv2, batch: Batch, noise: Tensor, env_steps: Tensor) -> Tensor:
    """On the frames as they are, which acting sees."""
    alone = without_curiosity(batch.observation, batch.next_observation, batch.reward)
    features, following = map(agent.encoder, (batch.observation, batch.next_observation))
    std = agent.noise_std(env_steps)
    target = q_target(agent, alone, batch, following, noise[None], std)
    values = agent.critic.q_values(agent.critic.trunk(features), batch.action)
    return pixel_inspection.distance_to(target, values)
