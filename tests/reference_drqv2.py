"""DrQ-v2's update with CCLF in its plainest form: each image is shifted and encoded where its
features are needed. Tests compare the update that trains with it."""

import torch
from torch import Tensor
from torch.nn import functional as F

from cclf.algorithms.common.observations import UpdateNoise
from cclf.algorithms.common.optimizers import Optimizer
from cclf.algorithms.drqv2.drqv2 import DrQv2
from cclf.data.augmentations import Views
from cclf.framework import Appraisal
from cclf.types import Batch


def shifts(agent: DrQv2, frames: Tensor, corners: Tensor) -> Tensor:
    """Views (K, B, C, H, W), float64 pixels 0..255: crops of frames with a replicated border."""
    pad, side = agent.settings.shift_pixels, frames.shape[-1]
    padded = F.pad(frames.double(), (pad,) * 4, mode="replicate")
    views, batch = corners.shape[:2]
    result = torch.empty(views, *frames.shape, dtype=torch.float64)
    for view in range(views):
        for sample in range(batch):
            y, x = corners[view, sample].tolist()
            result[view, sample] = padded[sample, :, y : y + side, x : x + side]
    return result


def encode(agent: DrQv2, views: Tensor) -> Tensor:
    """Features (B, H) of views (B, C, H, W): pixels in [-0.5, 0.5] through every convolution."""
    x = views / 255.0 - 0.5
    for number, layer in enumerate(agent.encoder.layers):
        x = torch.relu(F.conv2d(x, layer.weight, layer.bias, stride=1 if number else 2))
    return x.permute(0, 2, 3, 1).flatten(1)


def appraise(agent: DrQv2, batch: Batch, noise: UpdateNoise, env_steps: Tensor) -> Appraisal:
    now = shifts(agent, batch.observation, noise.augmentation)
    following = shifts(agent, batch.next_observation, noise.next_augmentation)
    pixels = agent.env.frame_pixels
    return agent.framework.appraise(
        Views(now, noise.augmentation, pixels),
        Views(following, noise.next_augmentation, pixels),
        batch.reward,
        env_steps,
        lambda views: agent.critic.trunk(encode(agent, views)),
        lambda views: agent.target_critic.trunk(encode(agent, views)),
        noise.permutation,
    )


def act(agent: DrQv2, features: Tensor, noise: Tensor, std: float) -> Tensor:
    clip = agent.settings.update_noise_clip
    mean = agent.actor(features)
    action = mean + (std * noise).clamp(-clip, clip)
    inside = action.detach().clamp(-1.0 + 1e-6, 1.0 - 1e-6)
    return mean + (inside - mean).detach()


def update(agent: DrQv2, batch: Batch, noise: UpdateNoise, env_steps: Tensor) -> dict[str, Tensor]:
    settings, method = agent.settings, agent.method
    share = min(1.0, float(env_steps) / agent.env.action_repeat / settings.noise_agent_steps)
    std = settings.first_noise_std + share * (settings.last_noise_std - settings.first_noise_std)
    appraisal = appraise(agent, batch, noise, env_steps)
    priority = agent.framework.priority(batch.priority, appraisal)

    value = torch.zeros_like(batch.reward)
    with torch.no_grad():
        for view, weight, eps in zip(
            appraisal.next_views, appraisal.next_weights, noise.target, strict=True
        ):
            features = encode(agent, view)
            action = act(agent, features, eps, std)
            q1, q2 = agent.target_critic.q_values(agent.target_critic.trunk(features), action)
            value += weight * torch.minimum(q1, q2)
        discount = settings.discount**settings.n_steps
        y = batch.n_step_return + appraisal.bonus + batch.continuation * discount * value
        key = agent.target_critic.trunk(encode(agent, appraisal.key_view))
        before = encode(agent, appraisal.views[0])

    loss = torch.zeros((), dtype=y.dtype)
    for view, weight in zip(appraisal.views, appraisal.weights, strict=True):
        z = agent.critic.trunk(encode(agent, view))
        for q in agent.critic.q_values(z, batch.action):
            loss = loss + (weight * (q - y) ** 2).mean()
    critic_loss = loss.detach()
    if method.contrastive:
        query = agent.critic.trunk(encode(agent, appraisal.views[0]))
        contrastive = agent.framework.contrastive_loss(query, key, appraisal.curiosity)
        loss = loss + settings.contrastive_coefficient * contrastive
    gradients = step(agent.optimizers["critic"], loss)
    gradient_norm = torch.stack([each.square().sum() for each in gradients]).sum().sqrt()

    q1, q2 = agent.critic.q_values(agent.critic.trunk(before), act(agent, before, noise.actor, std))
    actor_loss = -torch.minimum(q1, q2).mean()
    step(agent.optimizers["actor"], actor_loss)
    with torch.no_grad():
        for online, target in zip(
            agent.critic.parameters(), agent.target_critic.parameters(), strict=True
        ):
            target += settings.q_ema_rate * (online - target)
    agent.updates += 1
    metrics = {"critic_loss": critic_loss, "actor_loss": actor_loss.detach()}
    metrics["gradient_norm"] = gradient_norm
    return metrics if priority is None else metrics | {"priority": priority}


def step(optimizer: Optimizer, loss: Tensor) -> tuple[Tensor, ...]:
    gradients = torch.autograd.grad(loss, optimizer.parameters)
    optimizer.step(optimizer.parameters, gradients)
    return gradients
