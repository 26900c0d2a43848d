"""The update of `cclf.algorithms.sac`, number for number, with each pair of weights and image encoded once.

`Sac.update` is the one to read; this is the one to run. It knows which features stay valid across steps: the anchor's
serve belief and critic loss, the keys serve belief, target and contrastive loss, the next anchor's convolutions serve
belief and policy. Encoder passes over a batch fall from 18 and 20 (odd and even updates of the released code) to 14
and 15. A test holds both to the same parameters for every method.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from cclf.algorithms.sac import Sac, SacNoise
from cclf.augment import Views
from cclf.framework import Appraisal
from cclf.types import Batch, Metrics, UpdateResult


class Looks(NamedTuple):
    """Features of views before any step, by row: row v B + b is view v of sample b."""

    crops: Tensor  # (K B, C, h, w)
    next_crops: Tensor  # (K B, C, h, w)
    first: Tensor  # (F B, D)  views that are learned from whatever is chosen, under the critic's encoder, with gradient
    next_first_conv: Tensor  # (F B, H)  their successors, under the critic's convolutions
    keys: Tensor  # (K B, D)  views of o_t under the target's encoder, where curiosity asks for them; the anchor's rows are unused
    next_target: Tensor  # (K B, D) or (F B, D)  views of o_(t+1) under the target's encoder


def lean_update(sac: Sac, batch: Batch, noise: SacNoise, env_steps: Tensor) -> UpdateResult:
    """`Sac.update`, without encoding anything twice."""
    looks = _look(sac, batch, noise)
    appraisal = _appraise(sac, looks, batch, noise, env_steps)
    priority = sac.framework.priority(batch.priority, appraisal)
    metrics = sac.appraisal_metrics(appraisal, batch.reward, priority)
    chosen_key = looks.keys[appraisal.key_view] if sac.framework.needs_curiosity else None
    metrics |= _critic_step(sac, looks, appraisal, batch, noise.target)

    acts = sac.updates % sac.actor_every_updates == 0
    moves_target = sac.updates % sac.target_every_updates == 0
    if moves_target:  # the actor step neither reads nor moves the target, so this may come first
        sac.target_step()
    if sac.contrastive or acts:
        batch_size = batch.reward.shape[0]
        with torch.set_grad_enabled(sac.contrastive):
            conv_features = sac.critic.encoder.convolutions(looks.crops[:batch_size])
            query = sac.critic.encoder.head(conv_features)
        if acts:
            metrics |= sac.actor_step(conv_features.detach(), query.detach(), noise.actor)
        if sac.contrastive:
            with torch.no_grad():
                moved = moves_target or chosen_key is None
                key = sac.target.encoder(looks.crops[appraisal.key_view]) if moved else chosen_key
            assert key is not None, "a key is either kept from the appraisal or encoded now"
            metrics |= sac.contrastive_step(query, key, appraisal.curiosity)
    sac.updates += 1
    return UpdateResult(metrics, priority)


def _look(sac: Sac, batch: Batch, noise: SacNoise) -> Looks:
    crops = sac.crop(batch.observation, noise.origins, sac.crop_pixels).images.flatten(0, 1)
    next_crops = sac.crop(batch.next_observation, noise.next_origins, sac.crop_pixels).images.flatten(0, 1)
    batch_size, curious = batch.reward.shape[0], sac.framework.needs_curiosity
    known = batch_size * (sac.framework.learned_views if sac.framework.selection == "all" else 1)
    first = sac.critic.encoder(crops[:known])
    with torch.no_grad():
        next_conv = sac.critic.encoder.convolutions(next_crops[:known])
        keys = first.detach()
        if curious:
            # One pass over both: a large batch fills a GPU better than two.
            both = sac.target.encoder(torch.cat([crops[batch_size:], next_crops]))
            others = len(crops) - batch_size
            keys, next_target = torch.cat([keys[:batch_size], both[:others]]), both[others:]
        else:
            next_target = sac.target.encoder(next_crops[:known])
    return Looks(crops, next_crops, first, next_conv, keys, next_target)


def _appraise(sac: Sac, looks: Looks, batch: Batch, noise: SacNoise, env_steps: Tensor) -> Appraisal:
    """The framework's appraisal over row numbers in place of images: it chooses rows, and their features are looked up."""
    views, batch_size = noise.origins.shape[:2]
    rows = torch.arange(2 * views * batch_size, device=batch.reward.device).view(2, views, batch_size)
    if sac.framework.needs_curiosity:
        next_query = sac.critic.encoder.head(looks.next_first_conv[:batch_size]).detach()
        queries = torch.cat([looks.first[:batch_size].detach(), next_query])
        keys = torch.cat([looks.keys, looks.next_target])
    else:
        queries = keys = looks.first.detach()  # never asked for

    def encode_query(anchor_rows: Tensor) -> Tensor:  # anchors are the first B of each half
        return queries[anchor_rows % batch_size + batch_size * (anchor_rows // (views * batch_size))]

    appraisal = sac.framework.appraise(
        Views(rows[0], noise.origins, crop_pixels=sac.crop_pixels),
        Views(rows[1], noise.next_origins, crop_pixels=sac.crop_pixels),
        batch.reward,
        env_steps,
        encode_query,
        lambda key_rows: keys[key_rows],
    )
    return appraisal._replace(next_views=appraisal.next_views - views * batch_size)


def _critic_step(sac: Sac, looks: Looks, appraisal: Appraisal, batch: Batch, noise: Tensor) -> Metrics:
    views, batch_size = appraisal.views.shape
    first = len(looks.first) // batch_size
    with torch.no_grad():
        conv_features, target_features = looks.next_first_conv, looks.next_target
        if first < views:  # the chosen view comes after the anchor
            chosen = appraisal.next_views[1]
            conv_features = torch.cat([conv_features, sac.critic.encoder.convolutions(looks.next_crops[chosen])])
            if sac.framework.needs_curiosity:
                target_features = torch.cat([target_features[:batch_size], target_features[chosen]])
            else:
                target_features = torch.cat([target_features, sac.target.encoder(looks.next_crops[chosen])])
        else:
            target_features = target_features[: views * batch_size]
        target = sac.q_target(appraisal, batch, conv_features, target_features, noise)
    features = looks.first
    if first < views:
        features = torch.cat([features, sac.critic.encoder(looks.crops[appraisal.views[1]])])
    return sac.critic_step(features, target, appraisal.weights, batch.action)
