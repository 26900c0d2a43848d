"""Soft actor-critic from pixels or states, learning from an appraisal: the paper's Algorithm 1.

SAC, RAD, CURL, DrQ and CCLF differ only in the appraisal; this module does not know which of them
runs. No view is encoded twice with the same weights. `tests/reference_sac.py` is the same update
without reuse of features; a test compares the two for every method.
"""

import copy
import math
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from cclf import equations
from cclf.algorithms.common.observations import (
    LazyViews,
    PixelObservations,
    StateObservations,
    UpdateNoise,
)
from cclf.algorithms.common.optimizers import (
    backward_and_step,
    polyak_update,
    trainable_parameters,
)
from cclf.algorithms.common.pixel_actor_critic import (
    GreedyPolicy,
    PixelActorCritic,
    appraise_encoded,
    detached,
    twin_q_loss,
)
from cclf.algorithms.common.pixel_encoder import EncoderHead, make_pixel_encoder
from cclf.algorithms.sac.config import SacConfig
from cclf.algorithms.sac.networks import Encoder, LinearStateEncoder, SacActor, SacCritic
from cclf.config import Config
from cclf.data.augmentations import ViewIndex
from cclf.framework import Appraisal, Framework
from cclf.training.cuda_graphs import Compiler, concurrent_streams, uncompiled
from cclf.training.seeding import seeded_weights
from cclf.types import Batch, Metrics, StateDict, UpdateResult


class SacFeatures(NamedTuple):
    """Features of the views before any optimizer step of this update. F views are fixed: they enter
    the losses whichever view is selected."""

    fixed: Tensor  # (F B, D) of o_t by the critic's encoder, with gradient
    next_fixed_conv: Tensor  # (F B, H) of o_(t+1) by the critic's convolutions
    next_fixed_target: Tensor  # (F B, D) of o_(t+1) by the target encoder
    keys: Tensor | None  # (2 K B - B, D) by the target encoder, of all rows after the first B


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
    return appraise_encoded(sac, batch, noise, env_steps, query, next_query, features.keys)


@torch.no_grad()
def q_target(
    sac: "SAC",
    batch: Batch,
    bonus: Tensor,
    weights: Tensor,
    conv_features: Sequence[Tensor],
    target_features: Tensor,
    noise: Tensor,
) -> Tensor:
    """y (B,) of Eq. (2) and (7), from features of the V next views in the target: `conv_features`
    (V B, H) by the critic's convolutions, in one or two parts, and `target_features` (V B, D) by the
    target encoder. `bonus` is (B,), `weights` (V, B), and `noise` (V, B, A) is standard normal."""
    # The parts are concatenated after the head, where features are small.
    features = torch.cat([sac.actor.head(part) for part in conv_features])
    policy = sac.actor.sample(features, noise.flatten(0, 1))
    q1, q2 = sac.target_critic.q_values(target_features, policy.action)
    values = equations.soft_value(q1, q2, policy.log_prob, sac.temperature).view_as(weights)
    discount = sac.settings.discount
    return equations.q_target(batch.reward, bonus, batch.continuation, discount, values, weights)


def critic_loss(
    critic: SacCritic, features: Tensor, action: Tensor, target: Tensor, weights: Tensor
) -> tuple[Tensor, Metrics]:
    """Eq. (1) and (7): features (V B, D) of V views, actions (B, A), target (B,), weights (V, B)."""
    q1, q2 = critic.q_values(features, action.repeat(len(weights), 1))
    return twin_q_loss(q1, q2, target, weights)


def actor_loss(
    sac: "SAC", conv_features: Tensor, features: Tensor, noise: Tensor
) -> tuple[Tensor, Metrics]:
    """The sum of the losses of the actor and of the temperature. Neither loss has a gradient with
    respect to the parameters of the other, nor of the encoder: its features (B, H) and (B, D) are
    detached."""
    policy = sac.actor.sample(sac.actor.head(conv_features), noise)
    q1, q2 = sac.critic.q_values(features, policy.action)
    loss = -equations.soft_value(q1, q2, policy.log_prob, sac.temperature.detach()).mean()
    entropy_gap = (-policy.log_prob - sac.target_entropy).detach()
    temperature_loss = (sac.temperature * entropy_gap).mean()
    metrics = {
        "actor_loss": loss,
        "policy_entropy": policy.entropy.mean(),
        "temperature_loss": temperature_loss,
    }
    return loss + temperature_loss, detached(metrics)


class SAC(PixelActorCritic[SacConfig]):
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
        config: Config[SacConfig],
        action_dim: int,
        device: torch.device,
        compiler: Compiler | None = None,
        state_dim: int = 0,
    ):
        """`compiler` compiles the functions of an update, for a GPU. `state_dim` is the length of one
        state vector, 0 for pixels."""
        super().__init__(config, action_dim)
        settings, maybe_compile = self.settings, compiler or uncompiled
        self.target_entropy = -float(action_dim)
        stacked_dim = config.env.frame_stack * state_dim
        self.observations: PixelObservations | StateObservations = (
            StateObservations(stacked_dim, settings.noise_scale)
            if state_dim
            else PixelObservations(config, settings.last_crop_offset)
        )

        with seeded_weights(config.seed):
            self.framework = Framework(settings.feature_dim, config.method)
            convolutions = (
                LinearStateEncoder(stacked_dim, settings.hidden_dim)
                if state_dim
                else make_pixel_encoder(config, maybe_compile)
            )
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

        make_optimizer = partial(self.optimizer_class, compiler=compiler)
        encoder_parameters = trainable_parameters(encoder)
        contrastive_parameters = [*encoder_parameters, *self.framework.parameters()]
        contrastive_rate = settings.contrastive_learning_rate
        betas = (settings.temperature_beta1, 0.999)
        self.optimizers = {
            "critic": make_optimizer(trainable_parameters(self.critic), settings.learning_rate),
            "actor": make_optimizer(self.actor.parameters(), settings.learning_rate),
            "temperature": make_optimizer(
                [self.log_temperature], settings.temperature_learning_rate, betas
            ),
            "contrastive": make_optimizer(contrastive_parameters, contrastive_rate),
        }
        if settings.contrastive_encoder_steps == 2:
            self.optimizers["encoder"] = make_optimizer(encoder_parameters, contrastive_rate)

        self._appraise, self._q_target = maybe_compile(appraise), maybe_compile(q_target)
        self._critic_loss, self._actor_loss = maybe_compile(critic_loss), maybe_compile(actor_loss)
        self._contrastive_loss = maybe_compile(Framework.contrastive_loss)
        self._polyak_update = maybe_compile(polyak_update)

    def update(self, batch: Batch, noise: UpdateNoise, env_steps: Tensor) -> UpdateResult:
        """One step of Algorithm 1: appraise the batch, then update critic, target networks, actor and
        temperature, and encoder and belief by the contrastive loss."""
        batch_size, contrastive = len(batch.reward), self.method.contrastive
        views = self.observations.views(batch, noise)  # 2 K B rows
        features = self.encode(views, batch_size)
        # Eq. (3) to (6), (9), and the weights of (7)
        appraisal, priority, metrics = self._appraise(self, features, batch, noise, env_steps)

        with concurrent_streams() as (critic_stream, target_stream):
            with critic_stream:
                critic_features = self._critic_features(views, features, appraisal)  # (V B, D)
            with target_stream:
                target = self._td_target(views, features, appraisal, batch, noise.target)  # (B,)
        loss, critic_metrics = self._critic_loss(  # Eq. (1), (7)
            self.critic, critic_features, batch.action, target, appraisal.weights
        )
        gradients = self._step(loss, "critic")
        metrics |= critic_metrics | {"gradient_norm": get_total_norm(gradients)}

        target_is_due = self.updates % self.settings.target_every_updates == 0
        if target_is_due:  # the actor's step neither reads nor changes the target networks
            self._update_target()

        actor_is_due = self.updates % self.settings.actor_every_updates == 0
        if actor_is_due or contrastive:
            # The critic's step has changed the encoder, so the anchors are encoded again.
            anchors = views.select(slice(batch_size))
            with torch.set_grad_enabled(contrastive):
                conv_features = self.critic.encoder.convolutions(anchors)  # (B, H)
                query = self.critic.encoder.head(conv_features)  # (B, D)
            with concurrent_streams() as (encoder_stream, actor_stream):
                with encoder_stream:
                    if contrastive:
                        key = self.key_features(views, appraisal, reuse=not target_is_due)  # (B, D)
                        loss = self._contrastive_loss(  # Eq. (8)
                            self.framework, query, key, appraisal.curiosity
                        )
                        self._step(loss, "encoder", "contrastive")
                        metrics["contrastive_loss"] = loss.detach()
                with actor_stream:
                    if actor_is_due:
                        loss, actor_metrics = self._actor_loss(
                            self, conv_features.detach(), query.detach(), noise.actor
                        )
                        self._step(loss, "actor", "temperature")
                        metrics |= actor_metrics | {"temperature": self.temperature.detach()}
        self.updates += 1
        return UpdateResult(metrics, priority)

    def _step(self, loss: Tensor, *names: str) -> list[Tensor]:
        """Step those of the named optimizers that this method has. Returns the gradients."""
        optimizers = [self.optimizers[name] for name in names if name in self.optimizers]
        return backward_and_step(loss, *optimizers)

    def encode(self, views: LazyViews, batch_size: int) -> SacFeatures:
        """Features of the fixed views, and with curiosity those of all views by the target encoder."""
        encoder, target_encoder = self.critic.encoder, self.target_critic.encoder
        num_fixed = self.num_fixed_views * batch_size
        first_next = self.method.num_augmented_views * batch_size
        next_fixed = slice(first_next, first_next + num_fixed)
        fixed = encoder(views.select(slice(num_fixed)))
        with torch.no_grad():
            next_conv = encoder.convolutions(views.select(next_fixed))
            if not self.framework.needs_curiosity:
                return SacFeatures(fixed, next_conv, target_encoder(views.select(next_fixed)), None)
            # One pass over all views but the anchors of o_t: a GPU is faster on large batches.
            keys = target_encoder(views.select(slice(batch_size, None)))
            next_target = keys[first_next - batch_size :][:num_fixed]
            return SacFeatures(fixed, next_conv, next_target, keys)

    def _critic_features(
        self, views: LazyViews, features: SacFeatures, appraisal: Appraisal[ViewIndex]
    ) -> Tensor:
        """Features (V B, D) of the V views in the critic loss, with gradient."""
        if appraisal.views.rows.numel() == len(features.fixed):  # no view was selected
            return features.fixed
        selected = self.critic.encoder(views.select(appraisal.views.rows[1]))
        return torch.cat([features.fixed, selected])

    @torch.no_grad()
    def _td_target(
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
        bonus, weights = appraisal.bonus, appraisal.next_weights
        return self._q_target(self, batch, bonus, weights, conv_features, target_features, noise)

    def _update_target(self) -> None:
        critic, target = self.critic, self.target_critic
        q_rate, encoder_rate = self.settings.q_ema_rate, self.settings.encoder_ema_rate
        for online, average, rate in (
            (critic.q1, target.q1, q_rate),
            (critic.q2, target.q2, q_rate),
            (critic.encoder, target.encoder, encoder_rate),
        ):
            self._polyak_update(list(average.parameters()), list(online.parameters()), rate)

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
        """A sampled action (B, A) for stacks of whole frames (B, C, H, W) or for states (B, D)."""
        batch_size, augmentation_kind = len(observation), self.settings.collection_view
        noise = self.policy_noise(batch_size, generator=policy_generator)
        augmentation = self.observations.sample(augmentation_kind, 1, batch_size, augment_generator)
        view = self.observations.augmented(observation, augmentation)
        features = self.actor.head(self.critic.encoder.convolutions(view))
        return self.actor.sample(features, noise).action

    @torch.no_grad()
    def evaluation_action(self, observation: Tensor) -> Tensor:
        """The mean action (B, A) on the centre crop, or on the state without noise."""
        view = self.observations.evaluation_view(observation)
        return self.actor(self.critic.encoder.convolutions(view))

    def greedy_policy(self) -> GreedyPolicy:
        crop = None
        if self.env.observe == "pixels":
            first = (self.env.frame_pixels - self.env.crop_pixels) // 2
            crop = slice(first, first + self.env.crop_pixels)
        return GreedyPolicy(self.critic.encoder.convolutions, self.actor, crop)

    def encode_query(self, views: Tensor | LazyViews) -> Tensor:
        return self.critic.encoder(views)

    def encode_key(self, views: Tensor | LazyViews) -> Tensor:
        return self.target_critic.encoder(views)

    @torch.no_grad()
    def td_errors(self, batch: Batch, noise: Tensor, env_steps: Tensor) -> Tensor:  # noqa: ARG002
        view = self.observations.evaluation_view(batch.observation)
        next_view = self.observations.evaluation_view(batch.next_observation)
        features, target_features = self.critic.encoder(view), self.target_critic.encoder(next_view)
        bonus, weights = torch.zeros_like(batch.reward), torch.ones_like(batch.reward)[None]
        conv_features = [self.critic.encoder.convolutions(next_view)]
        noise = noise[None]
        target = q_target(self, batch, bonus, weights, conv_features, target_features, noise)
        return (torch.stack(self.critic.q_values(features, batch.action)) - target).abs()

    def state_dict(self) -> StateDict:
        return super().state_dict() | {"log_temperature": self.log_temperature.detach()}

    def load_state_dict(self, state: StateDict) -> None:
        super().load_state_dict(state)
        self.log_temperature.data.copy_(state["log_temperature"])
