"""SAC's update in the plainest words: every image is encoded where its features are needed, in the
paper's order.

Slow, and read for its simplicity: tests hold the update that trains, `cclf.algorithms.sac.sac`, to
it.
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
    loss, found = critic_loss(sac.critic, features, batch.action, target, appraisal.weights)
    metrics |= found
    gradients = descend(sac, loss, "critic")
    squares = [gradient.square().sum() for gradient in gradients]
    metrics["gradient_norm"] = torch.stack(squares).sum().sqrt()

    anchor = appraisal.views[0]
    if sac.updates % sac.settings.actor_every_updates == 0:
        with torch.no_grad():
            conv_features = encoder.convolutions(anchor)
            features = encoder.head(conv_features)
        loss, found = actor_loss(sac, conv_features, features, noise.actor)
        descend(sac, loss, "actor", "temperature")
        metrics |= found | {"temperature": sac.temperature.detach()}
    if sac.updates % sac.settings.target_every_updates == 0:
        move_target(sac)
    if sac.method.contrastive:
        with torch.no_grad():
            key = target_encoder(appraisal.key_view)
        loss = sac.framework.contrastive_loss(encoder(anchor), key, appraisal.curiosity)
        descend(sac, loss, *(name for name in ("encoder", "contrastive") if name in sac.optimizers))
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
        seen = torch.cat([batch.observation, batch.next_observation])
        spread = sac.settings.noise_scale * seen.std(0, correction=0)
        one, other = (Views(state + spread * draws) for state, draws in pairs)
        return one, other
    now, following = (
        augmentations.crop(frames, origins, sac.env.crop_pixels) for frames, origins in pairs
    )
    return now, following


def appraise(sac: SAC, batch: Batch, noise: UpdateNoise, env_steps: Tensor) -> Appraisal:
    encoders = (sac.critic.encoder, sac.target_critic.encoder)
    return sac.framework.appraise(
        *views(sac, batch, noise), batch.reward, env_steps, *encoders, noise.permutation
    )


def descend(sac: SAC, loss: Tensor, *names: str) -> list[Tensor]:
    """One backward pass for all, then a step of each optimizer. Returns the gradients."""
    owned = {name: sac.optimizers[name].parameters for name in names}
    parameters = list(dict.fromkeys(one for some in owned.values() for one in some))
    gradients = dict(zip(parameters, torch.autograd.grad(loss, parameters), strict=True))
    for name, some in owned.items():
        sac.optimizers[name].step(some, [gradients[one] for one in some])
    return list(gradients.values())


@torch.no_grad()
def move_target(sac: SAC) -> None:
    for name, rate in (("q1", "q_ema_rate"), ("q2", "q_ema_rate"), ("encoder", "encoder_ema_rate")):
        pairs = zip(
            getattr(sac.target_critic, name).parameters(),
            getattr(sac.critic, name).parameters(),
            strict=True,
        )
        for slow, fast in pairs:
            slow.lerp_(fast, getattr(sac.settings, rate))
