"""The parts of DrQ-v2's update as functions of the agent, so that each can be compiled by itself:
appraisal, target and losses, and what goes in and out of them. `update.py` puts them together."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from cclf import equations
from cclf.algorithms.common.optimizers import AdamStep, polyak_update, select_adam_step
from cclf.algorithms.common.pixel_encoder import ConvFn, SplitConvFn, select_kernels
from cclf.algorithms.drqv2.equations import noisy_action
from cclf.config import Precision
from cclf.data.augmentations import LazyCrops, Views, replicate_pad_indices
from cclf.framework import Appraisal
from cclf.kernels.first_convolution import pack
from cclf.types import Batch, Metrics

if TYPE_CHECKING:
    from cclf.algorithms.drqv2.drqv2 import DrQv2

# with new priorities, None where replay is uniform
Appraised = tuple[Appraisal, Tensor | None, Metrics]


class Drqv2Noise(NamedTuple):
    """Every random number of one update. K views are drawn, V of them enter the losses."""

    origins: Tensor  # (K, B, 2)  corners of the views of o_t in its frame with repeated borders
    next_origins: Tensor  # (K, B, 2)
    target: Tensor  # (V, B, A)  standard normal: noise on actions in the target
    actor: Tensor  # (B, A)
    order: Tensor | None = None  # (B,)  a permutation, where the framework needs one


class EncodedViews(NamedTuple):
    """Convolution features of the views before any step of this update.

    A view is known by its row: v B + b is view v of o_t in sample b; K B further, of o_(t+n).
    """

    crops: LazyCrops  # (2 K B)
    first: Tensor  # (F B, H)  views learned from whatever is chosen, with gradient
    next_first: Tensor  # (F B, H)  their successors
    others: Tensor | None  # (2 K B - B, H)  all but the anchors of o_t, where curiosity asks


class Drqv2Kernels(NamedTuple):
    """How the parts of an update are computed: as written below, or compiled for a GPU."""

    convolutions: ConvFn
    split_convolutions: SplitConvFn
    join_frames: Callable[..., Tensor]
    appraise: "Callable[[DrQv2, EncodedViews, Batch, Drqv2Noise, Tensor], Appraised]"
    q_target: Callable[..., Tensor]
    values: Callable[..., tuple[Tensor, Tensor, Tensor]]
    critic_loss: Callable[..., tuple[Tensor, Metrics]]
    actor_loss: Callable[..., tuple[Tensor, Metrics]]
    move: AdamStep | None  # a step of Adam; None is PyTorch's own
    follow: Callable[[list[Tensor], list[Tensor], float], None]


def make_kernels(
    precision: Precision, wrap: Callable[[Any], Any] = lambda part: part
) -> Drqv2Kernels:
    """The parts for a precision, each wrapped, by a compiler for example.

    In bf16 the convolutions run in bfloat16 with float32 sums; all else is float32.
    """
    return Drqv2Kernels(
        *select_kernels(precision, wrap),
        pad_and_pack if precision == "bf16" else wrap(pad_and_concat),
        wrap(appraise),
        wrap(q_target),
        wrap(q_values),
        wrap(critic_loss),
        wrap(actor_loss),
        select_adam_step(wrap),
        wrap(polyak_update),
    )


def pad_and_concat(shift_pixels: int, *frames: Tensor) -> Tensor:
    """Batches of frames (B, C, H, W) as one, with repeated borders."""
    joined = torch.cat(frames)
    place = replicate_pad_indices(joined.shape[-1], shift_pixels, joined.device)
    return joined[:, :, place][:, :, :, place]


def pad_and_pack(shift_pixels: int, *frames: Tensor) -> Tensor:
    """The same packed, as the fast first convolution wants them."""
    return pack(*frames, border=shift_pixels)


@torch.no_grad()
def appraise(
    agent: "DrQv2", encoded: EncodedViews, batch: Batch, noise: Drqv2Noise, env_steps: Tensor
) -> Appraised:
    """Curiosity (3), selection (4), (5), priorities (6), weights (7) and bonus (9), over rows in
    place of pixels. Queries are by the critic's trunk, keys by its target's."""
    views, batch_size = noise.origins.shape[:2]
    rows = torch.arange(2 * views * batch_size, device=batch.reward.device)
    rows = rows.view(2, views, batch_size)
    query = next_query = keys = None  # nobody asks for them without curiosity
    if encoded.others is not None:
        # detached: a slice made here would say that it has a gradient, and have none
        anchors = (encoded.first.detach()[:batch_size], encoded.next_first[:batch_size])
        query, next_query = (agent.critic.trunk(features) for features in anchors)
        keys = agent.target.trunk(encoded.others)

    def look_up(key_rows: Tensor) -> Tensor:
        assert keys is not None, "features are looked up where curiosity asks"
        found: Tensor = keys[key_rows - batch_size]
        return found

    pixels = agent.env.frame_pixels
    appraisal = agent.framework.appraise(
        Views(rows[0], noise.origins, crop_pixels=pixels, query=query),
        Views(rows[1], noise.next_origins, crop_pixels=pixels, query=next_query),
        batch.reward,
        env_steps,
        look_up,
        look_up,
        noise.order,
    )
    priority = agent.framework.priority(batch.priority, appraisal)
    metrics = {"reward_mean": batch.reward.mean()} | agent.framework.metrics(
        appraisal, agent.method.num_augmented_views
    )
    if priority is not None:
        metrics["priority_mean"] = priority.mean()
    return appraisal, priority, metrics


def q_target(
    agent: "DrQv2",
    appraisal: Appraisal,
    batch: Batch,
    features: Tensor,
    noise: Tensor,
    std: Tensor,
) -> Tensor:
    """y of Eq. (2) and (7) over n steps, (B,), from features (V B, H) of the next views."""
    settings = agent.settings
    mean = agent.actor(features)
    action = noisy_action(mean, noise.flatten(0, 1), std, settings.update_noise_clip)
    q1, q2 = agent.target.values(agent.target.trunk(features), action)
    return equations.q_target(
        batch.n_step_return,
        appraisal.bonus,
        batch.continuation,
        settings.discount**settings.n_steps,
        torch.minimum(q1, q2).view_as(appraisal.next_weights),
        appraisal.next_weights,
    )


def q_values(agent: "DrQv2", features: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The critic's features (V B, D) and both of its values (V B,), of views and actions."""
    z = agent.critic.trunk(features)
    return z, *agent.critic.values(z, action)


def critic_loss(
    agent: "DrQv2",
    z: Tensor,
    q1: Tensor,
    q2: Tensor,
    target: Tensor,
    weights: Tensor,
    key: Tensor | None,
    curiosity: Tensor,
) -> tuple[Tensor, Metrics]:
    """Eq. (1) with even weights, Eq. (7) with curiosity's, on the values of the views; and with a
    key Eq. (8), which moves encoder, trunk and belief in the same step."""
    q1, q2 = q1.view_as(weights), q2.view_as(weights)
    loss = equations.q_loss(q1, target, weights) + equations.q_loss(q2, target, weights)
    metrics = {
        "critic_loss": loss.detach(),
        "q_mean": q1.detach().mean(),
        "target_mean": target.mean(),
    }
    if key is not None:
        contrastive = agent.framework.contrastive_loss(z[: len(key)], key, curiosity)
        loss = loss + agent.settings.contrastive_coefficient * contrastive
        metrics["contrastive_loss"] = contrastive.detach()
    return loss, metrics


def actor_loss(
    agent: "DrQv2", features: Tensor, noise: Tensor, std: Tensor
) -> tuple[Tensor, Metrics]:
    """On the anchors' features (B, H) from before the critic's step; the critic is the one after
    it."""
    action = noisy_action(agent.actor(features), noise, std, agent.settings.update_noise_clip)
    q1, q2 = agent.critic.values(agent.critic.trunk(features), action)
    loss = -torch.minimum(q1, q2).mean()
    return loss, {"actor_loss": loss.detach()}
