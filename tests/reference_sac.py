"""SAC's update in its plainest form: every image is encoded where its features are needed, in the
paper's order.

It is slow and simple. Tests compare the update that trains, `cclf.algorithms.sac.sac`, with it.
"""

import torch
from torch import Tensor

from cclf.algorithms.common.observations import UpdateNoise
from cclf.algorithms.sac.sac import SAC, actor_loss, critic_loss, q_target
from cclf.data import augmentations
from cclf.data.augmentations import Views
from cclf.framework import Appraisal
from cclf.types import Batch, Metrics, UpdateResult


def update(sac: SAC, batch: Batch, noise: UpdateNoise, env_steps: Tensor) -> UpdateResult:
    """Appraise, critic, actor and temperature, target, contrastive."""
    encoder, target_encoder = sac.critic.encoder, sac.target_critic.encoder
    appraisal = appraise(sac, batch, noise, env_steps)
    priority = sac.framework.priority(batch.priority, appraisal)
    metrics: Metrics = {"reward_mean": batch.reward.mean()}
    metrics |= sac.framework.metrics(appraisal, sac.method.num_augmented_views)
    metrics |= {} if priority is None else {"priority_mean": priority.mean()}

    with torch.no_grad():
        images = appraisal.next_views.flatten(0, 1)
        target = q_target(
            sac,
            batch,
            appraisal.bonus,
            appraisal.next_weights,
            [encoder.convolutions(images)],
            target_encoder(images),
            noise.target,
        )
    features = encoder(appraisal.views.flatten(0, 1))
    loss, critic_metrics = critic_loss(
        sac.critic, features, batch.action, target, appraisal.weights
    )
    metrics |= critic_metrics
    gradients = backward_and_step(sac, loss, "critic")
    squares = [gradient.square().sum() for gradient in gradients]
    metrics["gradient_norm"] = torch.stack(squares).sum().sqrt()

    anchor = appraisal.views[0]
    if sac.updates % sac.settings.actor_every_updates == 0:
        with torch.no_grad():
            conv_features = encoder.convolutions(anchor)
            features = encoder.head(conv_features)
        loss, actor_metrics = actor_loss(sac, conv_features, features, noise.actor)
        backward_and_step(sac, loss, "actor", "temperature")
        metrics |= actor_metrics | {"temperature": sac.temperature.detach()}
    if sac.updates % sac.settings.target_every_updates == 0:
        update_target(sac)
    if sac.method.contrastive:
        with torch.no_grad():
            key = target_encoder(appraisal.key_view)
        loss = sac.framework.contrastive_loss(encoder(anchor), key, appraisal.curiosity)
        backward_and_step(
            sac, loss, *(name for name in ("encoder", "contrastive") if name in sac.optimizers)
        )
        metrics["contrastive_loss"] = loss.detach()
    sac.updates += 1
    return UpdateResult(metrics, priority)


def views(sac: SAC, batch: Batch, noise: UpdateNoise) -> tuple[Views, Views]:
    """K crops of each o_t and of each o_(t+1), as pixels; or state with noise."""
    pairs = (
        (batch.observation, noise.augmentation),
        (batch.next_observation, noise.next_augmentation),
    )
    if sac.env.observe == "state":
        states = torch.cat([batch.observation, batch.next_observation])
        std = sac.settings.noise_scale * states.std(0, correction=0)
        views, next_views = (Views(state + std * noise) for state, noise in pairs)
        return views, next_views
    views, next_views = (
        augmentations.crop(frames, corners, sac.env.crop_pixels) for frames, corners in pairs
    )
    return views, next_views


def appraise(sac: SAC, batch: Batch, noise: UpdateNoise, env_steps: Tensor) -> Appraisal:
    encoders = (sac.critic.encoder, sac.target_critic.encoder)
    return sac.framework.appraise(
        *views(sac, batch, noise), batch.reward, env_steps, *encoders, noise.permutation
    )


def backward_and_step(sac: SAC, loss: Tensor, *names: str) -> list[Tensor]:
    """One backward pass for all, then a step of each optimizer. Returns the gradients."""
    groups = {name: sac.optimizers[name].parameters for name in names}
    parameters = list(dict.fromkeys(parameter for group in groups.values() for parameter in group))
    gradients = dict(zip(parameters, torch.autograd.grad(loss, parameters), strict=True))
    for name, group in groups.items():
        sac.optimizers[name].step(group, [gradients[parameter] for parameter in group])
    return list(gradients.values())


@torch.no_grad()
def update_target(sac: SAC) -> None:
    for name, rate in (("q1", "q_ema_rate"), ("q2", "q_ema_rate"), ("encoder", "encoder_ema_rate")):
        pairs = zip(
            getattr(sac.target_critic, name).parameters(),
            getattr(sac.critic, name).parameters(),
            strict=True,
        )
        for slow, fast in pairs:
            slow.lerp_(fast, getattr(sac.settings, rate))
