"""The parts of SAC's update as functions of the agent, so that each can be compiled by itself:
appraisal, target and losses, and what goes in and out of them. `update.py` puts them together."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from cclf import equations
from cclf.algorithms.common.optimizers import AdamStep, polyak_update, select_adam_step
from cclf.algorithms.common.pixel_encoder import ConvFn, select_kernels
from cclf.algorithms.sac.observations import LazyViews
from cclf.config import Precision
from cclf.data.augmentations import Views
from cclf.framework import Appraisal
from cclf.kernels.first_convolution import pack
from cclf.types import Batch, Metrics

if TYPE_CHECKING:
    from cclf.algorithms.sac.sac import SAC

# with new priorities, None where replay is uniform
Appraised = tuple[Appraisal, Tensor | None, Metrics]


class SacNoise(NamedTuple):
    """Every random number of one update. K views are drawn, V of them enter the losses."""

    origins: Tensor  # (K, B, 2)  crop corners of o_t; of state the noise (K, B, D)
    next_origins: Tensor  # (K, B, 2)
    target: Tensor  # (V, B, A)  policy noise in the target
    actor: Tensor  # (B, A)
    order: Tensor | None = None  # (B,)  a permutation, where the framework needs one


class EncodedViews(NamedTuple):
    """Features of the views before any step of this update.

    A view is known by its row: v B + b is view v of o_t in sample b; K B further, of o_(t+1).
    """

    crops: LazyViews  # (2 K B)
    first: Tensor  # (F B, D)  views learned from whatever is chosen, by the critic, with gradient
    next_first_conv: Tensor  # (F B, H)  their successors, by the critic's convolutions
    next_first_target: Tensor  # (F B, D)  and by the target's encoder
    keys: Tensor | None  # (2 K B, D)  all but the anchors by the target, where curiosity asks


class SacKernels(NamedTuple):
    """How the parts of an update are computed: as written below, or compiled for a GPU."""

    convolutions: ConvFn
    join_frames: Callable[..., Tensor]
    appraise: "Callable[[SAC, EncodedViews, Batch, SacNoise, Tensor], Appraised]"
    q_target: Callable[..., Tensor]
    critic_loss: Callable[..., tuple[Tensor, Metrics]]
    actor_loss: Callable[..., tuple[Tensor, Metrics]]
    contrastive_loss: Callable[..., Tensor]
    move: AdamStep | None  # a step of Adam; None is PyTorch's own
    follow: Callable[[list[Tensor], list[Tensor], float], None]


def make_kernels(
    precision: Precision, wrap: Callable[[Any], Any] = lambda part: part
) -> SacKernels:
    """The parts for a precision, each wrapped, by a compiler for example.

    In bf16 the encoder's convolutions run in bfloat16 with float32 sums; all else is float32.
    """
    return SacKernels(
        select_kernels(precision, wrap)[0],
        pack if precision == "bf16" else lambda *frames: torch.cat(frames),
        wrap(appraise),
        wrap(q_target),
        wrap(critic_loss),
        wrap(actor_loss),
        wrap(contrastive_loss),
        select_adam_step(wrap),
        wrap(polyak_update),
    )


@torch.no_grad()
def appraise(
    sac: "SAC", encoded: EncodedViews, batch: Batch, noise: SacNoise, env_steps: Tensor
) -> Appraised:
    """Curiosity (3), selection (4), (5), priorities (6), weights (7) and bonus (9), over rows in
    place of pixels."""
    views, batch_size = noise.origins.shape[:2]
    rows = torch.arange(2 * views * batch_size, device=batch.reward.device)
    rows = rows.view(2, views, batch_size)
    query = next_query = None  # nobody asks for them without curiosity
    if encoded.keys is not None:
        query = encoded.first[:batch_size]
        next_query = sac.critic.encoder.head(encoded.next_first_conv[:batch_size])

    def look_up(key_rows: Tensor) -> Tensor:
        assert encoded.keys is not None, "features are looked up where curiosity asks"
        return encoded.keys[key_rows]

    appraisal = sac.framework.appraise(
        Views(rows[0], noise.origins, crop_pixels=sac.env.crop_pixels, query=query),
        Views(rows[1], noise.next_origins, crop_pixels=sac.env.crop_pixels, query=next_query),
        batch.reward,
        env_steps,
        look_up,
        look_up,
        noise.order,
    )
    priority = sac.framework.priority(batch.priority, appraisal)
    metrics = {"reward_mean": batch.reward.mean()}
    metrics |= sac.framework.metrics(appraisal, sac.method.num_augmented_views)
    if priority is not None:
        metrics["priority_mean"] = priority.mean()
    return appraisal, priority, metrics


def q_target(
    sac: "SAC",
    appraisal: Appraisal,
    batch: Batch,
    conv_features: Sequence[Tensor],
    target_features: Tensor,
    noise: Tensor,
) -> Tensor:
    """y of Eq. (2) and (7), (B,), from the next views: the critic's convolutions and the target's
    features of them."""
    # heads first: putting 80 MB of convolutions together would take longer than they do
    features = torch.cat([sac.actor.head(each) for each in conv_features])
    policy = sac.actor.policy(features, noise.flatten(0, 1))
    q1, q2 = sac.target.values(target_features, policy.action)
    weights, discount = appraisal.next_weights, sac.settings.discount
    values = equations.soft_value(q1, q2, policy.log_prob, sac.temperature).view_as(weights)
    rewards = (batch.reward, appraisal.bonus)
    return equations.q_target(*rewards, batch.continuation, discount, values, weights)


def critic_loss(
    sac: "SAC", features: Tensor, target: Tensor, weights: Tensor, action: Tensor
) -> tuple[Tensor, Metrics]:
    """Eq. (1) with even weights, Eq. (7) with curiosity's, on features (V B, D) of the views."""
    both = sac.critic.values(features, action.repeat(weights.shape[0], 1))
    q1, q2 = (q.view_as(weights) for q in both)
    loss = equations.q_loss(q1, target, weights) + equations.q_loss(q2, target, weights)
    return loss, {
        "critic_loss": loss.detach(),
        "q_mean": q1.detach().mean(),
        "target_mean": target.mean(),
    }


def actor_loss(
    sac: "SAC", conv_features: Tensor, features: Tensor, noise: Tensor
) -> tuple[Tensor, Metrics]:
    """Of actor and temperature together: neither's part reaches the other's parameters, nor the
    encoder."""
    policy = sac.actor(conv_features, noise)
    q1, q2 = sac.critic.values(features, policy.action)
    loss = -equations.soft_value(q1, q2, policy.log_prob, sac.temperature.detach()).mean()
    temperature_loss = (sac.temperature * (-policy.log_prob - sac.target_entropy).detach()).mean()
    return loss + temperature_loss, {
        "actor_loss": loss.detach(),
        "policy_entropy": policy.entropy.detach().mean(),
        "temperature_loss": temperature_loss.detach(),
    }


def contrastive_loss(sac: "SAC", query: Tensor, key: Tensor, curiosity: Tensor) -> Tensor:
    """Eq. (8): encoder and belief learn to match the anchor with its key view."""
    return sac.framework.contrastive_loss(query, key, curiosity)
