"""How `cclf inspect` looks into DrQ-v2."""

from functools import partial

from torch import Tensor

from cclf.algorithms.common.inspection import InspectionAdapter, mean_distance
from cclf.algorithms.drqv2.drqv2 import DrQv2, pad_and_concatenate, q_target
from cclf.inspection.samples import without_curiosity
from cclf.types import Batch


def inspection_adapter(agent: DrQv2) -> InspectionAdapter:
    return InspectionAdapter(
        algorithm=agent,
        frames=partial(pad_and_concatenate, agent.settings.shift_pixels),
        encode_query=lambda views: agent.critic.trunk(agent.encoder(views)),
        encode_key=lambda views: agent.target_critic.trunk(agent.encoder(views)),
        views_name="shifts",
        td_error=partial(td_error, agent),
    )


def td_error(agent: DrQv2, batch: Batch, noise: Tensor, env_steps: Tensor) -> Tensor:
    """On whole frames, which evaluation uses."""
    appraisal = without_curiosity(batch.observation, batch.next_observation, batch.reward)
    next_features = agent.encoder(batch.next_observation)
    std = agent.noise_std(env_steps)
    target = q_target(agent, appraisal, batch, next_features, noise[None], std)
    features = agent.critic.trunk(agent.encoder(batch.observation))
    return mean_distance(target, agent.critic.q_values(features, batch.action))
