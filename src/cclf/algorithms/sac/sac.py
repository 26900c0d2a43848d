"""Soft actor-critic from pixels or states, learning from an appraisal: the paper's Algorithm 1.

SAC, RAD, CURL, DrQ and CCLF differ only in the appraisal; this module does not know which of them
runs. No view is encoded twice with the same weights. `tests/reference_sac.py` is the same update
without reuse of features; a test compares the two for every method.
"""

import copy
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from cclf import equations
from cclf.algorithms.common.export import GreedyPolicy
from cclf.algorithms.common.optimizers import (
    Optimizer,
    backward_and_step,
    polyak_update,
    trainable_parameters,
)
from cclf.algorithms.common.pixel_actor_critic import (
    PixelActorCritic,
    UpdateNoise,
    appraise_encoded,
)
from cclf.algorithms.common.pixel_encoder import ConvFn, EncoderHead, select_kernels
from cclf.algorithms.sac.networks import Encoder, MeanAction, PolicySample, SacActor, SacCritic
from cclf.algorithms.sac.observations import LazyViews, make_observation_pipeline
from cclf.config import Config, Precision
from cclf.data.augmentations import LazyCrops, V, ViewIndex
from cclf.framework import Appraisal, Framework
from cclf.kernels.first_convolution import pack
from cclf.training.cuda_graphs import Compiler, concurrent_streams, uncompiled
from cclf.training.seeding import seeded_weights
from cclf.types import Batch, Metrics, StateDict, UpdateResult


class SacFeatures(NamedTuple):
    """Features of the views before any step of this update. F views are fixed: they enter the
    losses whichever view is selected."""

    fixed: Tensor  # (F B, D) of o_t by the critic's encoder, with gradient
    next_fixed_conv: Tensor  # (F B, H) of o_(t+1) by the critic's convolutions
    next_fixed_target: Tensor  # (F B, D) of o_(t+1) by the target encoder
    keys: Tensor | None  # (2 K B - B, D) all but the anchors by the target encoder, for curiosity


@torch.no_grad()
def appraise(
    sac: "SAC", features: SacFeatures, batch: Batch, noise: UpdateNoise, env_steps: Tensor
) -> tuple[Appraisal[ViewIndex], Tensor | None, Metrics]:
    """See `appraise_encoded`. Queries are features of the anchors by the critic's encoder, keys by
    the target encoder."""
    query = next_query = None
    if features.keys is not None:
        batch_size = len(batch.reward)
        query = features.fixed.detach()[:batch_size]
        next_query = sac.critic.encoder.head(features.next_fixed_conv[:batch_size])
    inputs = (batch, noise, env_steps, sac.env.crop_pixels)
    return appraise_encoded(sac.framework, *inputs, query, next_query, features.keys)


@torch.no_grad()
def q_target(
    sac: "SAC",
    appraisal: Appraisal[V],
    batch: Batch,
    conv_features: Sequence[Tensor],
    target_features: Tensor,
    noise: Tensor,
) -> Tensor:
    """y (B,) of Eq. (2) and (7), from features of the next views (V B in all): `conv_features` by
    the critic's convolutions, in one or two parts, `target_features` (V B, D) by the target
    encoder."""
    # concatenated behind the heads, where features are small
    features = torch.cat([sac.actor.head(part) for part in conv_features])
    policy = sac.actor.policy(features, noise.flatten(0, 1))
    q1, q2 = sac.target_critic.q_values(target_features, policy.action)
    values = equations.soft_value(q1, q2, policy.log_prob, sac.temperature)
    return equations.q_target(
        batch.reward,
        appraisal.bonus,
        batch.continuation,
        sac.settings.discount,
        values.view_as(appraisal.next_weights),
        appraisal.next_weights,
    )


def critic_loss(
    critic: SacCritic, features: Tensor, action: Tensor, target: Tensor, weights: Tensor
) -> tuple[Tensor, Metrics]:
    """Eq. (1) with even weights, Eq. (7) with those of curiosity (V, B), over features (V B, D)."""
    q1, q2 = critic.q_values(features, action.repeat(weights.shape[0], 1))
    q1, q2 = q1.view_as(weights), q2.view_as(weights)
    loss = equations.q_loss(q1, target, weights) + equations.q_loss(q2, target, weights)
    metrics = {"critic_loss": loss, "q_mean": q1.mean(), "target_mean": target.mean()}
    return loss, {name: value.detach() for name, value in metrics.items()}


def actor_loss(
    sac: "SAC", conv_features: Tensor, features: Tensor, noise: Tensor
) -> tuple[Tensor, Metrics]:
    """The losses of actor and temperature, summed: neither has a gradient in the other's
    parameters, nor in the encoder, whose features (B, H) and (B, D) are detached."""
    policy = sac.actor(conv_features, noise)
    q1, q2 = sac.critic.q_values(features, policy.action)
    loss = -equations.soft_value(q1, q2, policy.log_prob, sac.temperature.detach()).mean()
    entropy_gap = (-policy.log_prob - sac.target_entropy).detach()
    temperature_loss = (sac.temperature * entropy_gap).mean()
    metrics = {
        "actor_loss": loss,
        "policy_entropy": policy.entropy.mean(),
        "temperature_loss": temperature_loss,
    }
    return loss + temperature_loss, {name: value.detach() for name, value in metrics.items()}


class SacKernels(NamedTuple):
    """The functions of an update, plain or compiled for a GPU."""

    convolutions: ConvFn
    concatenate: Callable[..., Tensor]  # batches of observations as one
    appraise: Callable[..., tuple[Appraisal[ViewIndex], Tensor | None, Metrics]]
    q_target: Callable[..., Tensor]
    critic_loss: Callable[..., tuple[Tensor, Metrics]]
    actor_loss: Callable[..., tuple[Tensor, Metrics]]
    contrastive_loss: Callable[..., Tensor]
    polyak_update: Callable[[list[Tensor], list[Tensor], float], None]
    compiler: Compiler | None  # for the step of an optimizer


def make_kernels(precision: Precision, compiler: Compiler | None = None) -> SacKernels:
    """With bf16 the encoder's convolutions run in bfloat16 with float32 sums; all else is
    float32."""
    compiled = compiler or uncompiled
    return SacKernels(
        convolutions=select_kernels(precision, compiled)[0],
        concatenate=pack if precision == "bf16" else _concatenate,
        appraise=compiled(appraise),
        q_target=compiled(q_target),
        critic_loss=compiled(critic_loss),
        actor_loss=compiled(actor_loss),
        contrastive_loss=compiled(Framework.contrastive_loss),
        polyak_update=compiled(polyak_update),
        compiler=compiler,
    )


def _concatenate(*batches: Tensor) -> Tensor:
    return torch.cat(batches)


class SAC(PixelActorCritic):
    """Actor, critic, temperature and target networks, and their optimizers."""

    metric_names: tuple[str, ...] = (
        *("critic_loss", "gradient_norm", "q_mean", "target_mean"),
        *("reward_mean", "reward_running_max", "bonus_mean", "bonus_max", "bonus_running_max"),
        *("actor_loss", "policy_entropy", "temperature", "temperature_loss", "contrastive_loss"),
        *("curiosity_mean", "curiosity_std", "next_curiosity_mean"),
        *("second_view_weight", "priority_mean"),
        *("chosen_view_1", "chosen_view_2", "chosen_view_3", "chosen_view_4"),
    )

    def __init__(
        self,
        config: Config,
        action_dim: int,
        device: torch.device,
        kernels: SacKernels | None = None,
        state_dim: int = 0,
    ):
        """`state_dim`: numbers in one observation of state, 0 for pixels."""
        super().__init__(config, action_dim)
        settings = self.settings
        self.target_entropy = -float(action_dim)
        self.kernels = kernels or make_kernels(settings.precision)
        self.observations = make_observation_pipeline(config, state_dim)

        with seeded_weights(config.seed):
            self.framework = Framework(settings.feature_dim, config.method)
            convolutions = self.observations.make_encoder(self.kernels.convolutions)
            encoder = Encoder(convolutions, settings.feature_dim, settings.encoder_tanh)
            sizes = (settings.feature_dim, action_dim, settings.hidden_dim)
            self.critic = SacCritic(encoder, *sizes)
            head = EncoderHead(convolutions.out_dim, settings.feature_dim, settings.encoder_tanh)
            self.actor = SacActor(head, *sizes, settings.log_std_min, settings.log_std_max)
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
        self.networks = nn.ModuleDict(
            {
                "framework": self.framework,
                "critic": self.critic,
                "actor": self.actor,
                "target": self.target_critic,
            }
        ).to(device)
        log_temperature = math.log(settings.initial_temperature)
        self.log_temperature = torch.tensor(log_temperature, device=device, requires_grad=True)
        self.optimizers = self._make_optimizers()

    def _make_optimizers(self) -> dict[str, Optimizer]:
        settings, compiler = self.settings, self.kernels.compiler
        encoder = trainable_parameters(self.critic.encoder)
        rate, contrastive_rate = settings.learning_rate, settings.contrastive_learning_rate
        optimizer = self.optimizer_class
        optimizers = {
            "critic": optimizer(trainable_parameters(self.critic), rate, compiler=compiler),
            "actor": optimizer(self.actor.parameters(), rate, compiler=compiler),
            "temperature": optimizer(
                [self.log_temperature],
                settings.temperature_learning_rate,
                betas=(settings.temperature_beta1, 0.999),
                compiler=compiler,
            ),
            "contrastive": optimizer(
                [*encoder, *self.framework.parameters()], contrastive_rate, compiler=compiler
            ),
        }
        if settings.contrastive_encoder_steps == 2:
            optimizers["encoder"] = optimizer(encoder, contrastive_rate, compiler=compiler)
        return optimizers

    def sample_augmentation(self, batch_size: int, generator: torch.Generator) -> Tensor:
        kind, num_views = self.method.augmentation, self.method.num_augmented_views
        return self.observations.sample(kind, num_views, batch_size, generator)

    def update(self, batch: Batch, noise: UpdateNoise, env_steps: Tensor) -> UpdateResult:
        """One step of Algorithm 1: appraise the batch, then critic, target networks, actor and
        temperature, and contrastive loss."""
        views = self.make_views(batch, noise)  # 2 K B rows
        features = self.encode(views, len(batch.reward))
        appraisal, priority, metrics = self.kernels.appraise(
            self, features, batch, noise, env_steps
        )

        with concurrent_streams() as (critic_stream, target_stream):
            with critic_stream:
                learned = self._loss_features(views, features, appraisal)  # (V B, D)
            with target_stream:
                target = self._q_target(views, features, appraisal, batch, noise.target)  # (B,)
        loss, critic_metrics = self.kernels.critic_loss(
            self.critic, learned, batch.action, target, appraisal.weights
        )
        gradients = backward_and_step(loss, self.optimizers["critic"])
        metrics |= critic_metrics | {"gradient_norm": get_total_norm(gradients)}

        updates_target = self.updates % self.settings.target_every_updates == 0
        if updates_target:  # before the actor's step, which neither reads nor changes the target
            self._update_target()
        metrics |= self._update_actor_and_encoder(views, appraisal, noise.actor, updates_target)
        self.updates += 1
        return UpdateResult(metrics, priority)

    def make_views(self, batch: Batch, noise: UpdateNoise) -> LazyViews:
        """All views of the batch as rows (2 K B). Crops are not yet cut out of their frames, unless
        a custom augmentation needs them."""
        observations = (batch.observation, batch.next_observation)
        augmentations = (noise.augmentation, noise.next_augmentation)
        if self.augment is None:
            joined = self.kernels.concatenate(*observations)
            return self.observations.view_pairs(joined, *augmentations)
        crops = self.observations.view_pairs(torch.cat(observations), *augmentations)
        assert isinstance(crops, LazyCrops), "a custom augmentation needs pixels"
        crops = self.augment_crops(crops, noise)
        return crops._replace(images=self.kernels.concatenate(crops.images))

    def encode(self, views: LazyViews, batch_size: int) -> SacFeatures:
        """Encode the views that are needed whichever view is selected."""
        encoder, target_encoder = self.critic.encoder, self.target_critic.encoder
        num_fixed = self.num_fixed_views * batch_size
        first_next = self.method.num_augmented_views * batch_size
        next_fixed = slice(first_next, first_next + num_fixed)
        fixed = encoder(views.select(slice(num_fixed)))
        with torch.no_grad():
            next_conv = encoder.convolutions(views.select(next_fixed))
            if not self.framework.needs_curiosity:
                return SacFeatures(fixed, next_conv, target_encoder(views.select(next_fixed)), None)
            # one pass over all views but the anchors of o_t: large batches use a GPU better
            keys = target_encoder(views.select(slice(batch_size, None)))
            next_target = keys[first_next - batch_size :][:num_fixed]
            return SacFeatures(fixed, next_conv, next_target, keys)

    def _loss_features(
        self, views: LazyViews, features: SacFeatures, appraisal: Appraisal[ViewIndex]
    ) -> Tensor:
        """Features (V B, D) of the views in the critic loss, with gradient."""
        if appraisal.views.rows.numel() == len(features.fixed):
            return features.fixed
        selected = self.critic.encoder(views.select(appraisal.views.rows[1]))
        return torch.cat([features.fixed, selected])

    @torch.no_grad()
    def _q_target(
        self,
        views: LazyViews,
        features: SacFeatures,
        appraisal: Appraisal[ViewIndex],
        batch: Batch,
        noise: Tensor,
    ) -> Tensor:
        """The target (B,) of the Q-functions."""
        conv_features, target_features = [features.next_fixed_conv], features.next_fixed_target
        if appraisal.next_views.rows.numel() > len(target_features):  # a view was selected
            row = appraisal.next_views.rows[1]
            selected = views.select(row)
            conv_features.append(self.critic.encoder.convolutions(selected))
            if features.keys is None:
                selected_target = self.target_critic.encoder(selected)
            else:
                selected_target = features.keys[row - len(batch.reward)]
            target_features = torch.cat([target_features, selected_target])
        return self.kernels.q_target(self, appraisal, batch, conv_features, target_features, noise)

    def _update_target(self) -> None:
        critic, target = self.critic, self.target_critic
        q_rate, encoder_rate = self.settings.q_ema_rate, self.settings.encoder_ema_rate
        for online, slow, rate in (
            (critic.q1, target.q1, q_rate),
            (critic.q2, target.q2, q_rate),
            (critic.encoder, target.encoder, encoder_rate),
        ):
            self.kernels.polyak_update(list(slow.parameters()), list(online.parameters()), rate)

    def _update_actor_and_encoder(
        self, views: LazyViews, appraisal: Appraisal[ViewIndex], noise: Tensor, target_updated: bool
    ) -> Metrics:
        """Actor and temperature, and the contrastive loss (8), on the anchors, encoded anew. Neither
        reads what the other updates."""
        updates_actor = self.updates % self.settings.actor_every_updates == 0
        contrastive = self.method.contrastive
        if not (updates_actor or contrastive):
            return {}
        with torch.set_grad_enabled(contrastive):
            anchors = views.select(slice(len(appraisal.curiosity)))
            conv_features = self.critic.encoder.convolutions(anchors)  # (B, H)
            query = self.critic.encoder.head(conv_features)  # (B, D)

        actor_metrics: Metrics = {}
        contrastive_metrics: Metrics = {}
        with concurrent_streams() as (encoder_stream, actor_stream):
            with encoder_stream:
                if contrastive:
                    key = self._key_features(views, appraisal, target_updated)  # (B, D)
                    contrastive_metrics = self._update_encoder(query, key, appraisal.curiosity)
            with actor_stream:
                if updates_actor:
                    detached = (conv_features.detach(), query.detach())
                    actor_metrics = self._update_actor(*detached, noise)
        return actor_metrics | contrastive_metrics

    def _update_encoder(self, query: Tensor, key: Tensor, curiosity: Tensor) -> Metrics:
        loss = self.kernels.contrastive_loss(self.framework, query, key, curiosity)
        steps = [name for name in ("encoder", "contrastive") if name in self.optimizers]
        backward_and_step(loss, *(self.optimizers[name] for name in steps))
        return {"contrastive_loss": loss.detach()}

    def _update_actor(self, conv_features: Tensor, features: Tensor, noise: Tensor) -> Metrics:
        loss, metrics = self.kernels.actor_loss(self, conv_features, features, noise)
        backward_and_step(loss, self.optimizers["actor"], self.optimizers["temperature"])
        return metrics | {"temperature": self.temperature.detach()}

    @torch.no_grad()
    def _key_features(
        self, views: LazyViews, appraisal: Appraisal[ViewIndex], target_updated: bool
    ) -> Tensor:
        """Features (B, D) of the key views by the target encoder as it is now."""
        if appraisal.key is not None and not target_updated:
            return appraisal.key
        key: Tensor = self.target_critic.encoder(views.select(appraisal.key_view.rows))
        return key

    @property
    def temperature(self) -> Tensor:
        return self.log_temperature.exp()

    @torch.no_grad()
    def collection_action(
        self,
        observation: Tensor,
        env_steps: Tensor,  # noqa: ARG002 (the exploration of SAC has no schedule)
        augment_generator: torch.Generator,
        policy_generator: torch.Generator,
    ) -> Tensor:
        """A sampled action (B, A) for stacks of whole frames (B, C, H, W) or states (B, D)."""
        batch_size = observation.shape[0]
        noise = self.policy_noise(batch_size, generator=policy_generator)
        view = self.settings.collection_view
        augmentation = self.observations.sample(view, 1, batch_size, augment_generator)
        return self.policy(observation, augmentation, noise).action

    @torch.no_grad()
    def evaluation_action(self, observation: Tensor) -> Tensor:
        """The mean action (B, A) on the centre crop, or on the state as it is."""
        batch_size, device = observation.shape[0], observation.device
        noise = torch.zeros(batch_size, self.action_dim, device=device)
        view = self.observations.deterministic_view(batch_size, device)
        return self.policy(observation, view, noise).mean_action

    def policy(self, observation: Tensor, augmentation: Tensor, noise: Tensor) -> PolicySample:
        """The policy on one view of each observation."""
        views = self.observations.views(observation, augmentation)
        sample: PolicySample = self.actor(self.critic.encoder.convolutions(views), noise)
        return sample

    def greedy_policy(self) -> GreedyPolicy:
        actor = nn.Sequential(self.actor.head, self.actor.trunk, MeanAction())
        crop = self.observations.center_slice()
        return GreedyPolicy(self.critic.encoder.convolutions, actor, crop)

    def state_dict(self) -> StateDict:
        return super().state_dict() | {"log_temperature": self.log_temperature.detach()}

    def load_state_dict(self, state: StateDict) -> None:
        super().load_state_dict(state)
        self.log_temperature.data.copy_(state["log_temperature"])
