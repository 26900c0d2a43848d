"""DrQ-v2 (Yarats et al., 2021), learning from an appraisal.

The update is the same for all methods. With every piece of CCLF turned off, the appraisal holds one
shifted view of each observation, and the update is the published one. There is no target encoder:
belief, target, critic and actor share one encoder, so each view is encoded once, before any optimizer
step. `tests/reference_drqv2.py` is a simple, slow implementation of the same update.
"""

import copy
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from cclf import equations
from cclf.algorithms.common.observations import LazyViews, PixelObservations, UpdateNoise
from cclf.algorithms.common.optimizers import (
    backward_and_step,
    polyak_update,
    trainable_parameters,
)
from cclf.algorithms.common.pixel_actor_critic import (
    GreedyPolicy,
    PixelActorCritic,
    appraise_encoded,
    twin_q_loss,
)
from cclf.algorithms.common.pixel_encoder import ConvEncoder, make_pixel_encoder
from cclf.algorithms.drqv2.config import Drqv2Config
from cclf.algorithms.drqv2.networks import DrQv2Actor, DrQv2Critic, initialize
from cclf.config import Config
from cclf.data.augmentations import LazyCrops, ViewIndex
from cclf.framework import Appraisal, Framework
from cclf.training.cuda_graphs import Compiler, concurrent_streams, uncompiled
from cclf.training.seeding import seeded_weights
from cclf.types import Batch, Metrics, UpdateResult

PIXEL_OFFSET = 0.5  # the encoder's input is x / 255 - 0.5
ACTION_LIMIT = 1.0 - 1e-6  # actions are clamped to [-ACTION_LIMIT, ACTION_LIMIT]


def noise_std(agent_steps: Tensor, first: float, last: float, fade_agent_steps: int) -> Tensor:
    """Standard deviation of the noise on actions after `agent_steps`.

        σ(t) = σ_first + min(t / T, 1) (σ_last − σ_first)        T = fade_agent_steps

    >>> noise_std(torch.tensor([0.0, 50.0, 100.0, 200.0]), first=1.0, last=0.1, fade_agent_steps=100)
    tensor([1.0000, 0.5500, 0.1000, 0.1000])
    """
    share = torch.clamp(agent_steps / fade_agent_steps, 0.0, 1.0)
    return (1.0 - share) * first + share * last


def noisy_action(
    mean: Tensor, noise: Tensor, std: Tensor, noise_clip: float | None = None
) -> Tensor:
    """The policy's mean plus clipped noise, clamped to [-1, 1]. The clamping does not affect the gradient.

        a = clamp(μ + clip(σ ε, −c, c), −1, 1)        ∂a/∂μ = 1

    >>> noisy_action(torch.tensor([0.0, 0.5, 0.5]), torch.tensor([1.0, -1.0, 9.0]), torch.tensor(0.4), 0.25)
    tensor([0.2500, 0.2500, 0.7500])
    """
    offset = noise * std
    if noise_clip is not None:
        offset = offset.clamp(-noise_clip, noise_clip)
    action = mean + offset
    return action - action.detach() + action.detach().clamp(-ACTION_LIMIT, ACTION_LIMIT)


class DrQv2Features(NamedTuple):
    """Features of the views, encoded before any optimizer step of this update. F views are fixed: they
    enter the losses independently of the selection."""

    fixed: Tensor  # (F B, H) of o_t, with gradient
    next_fixed: Tensor  # (F B, H) of o_(t+n)
    others: Tensor | None  # (2 K B - B, H) all but the anchors of o_t, for curiosity


@torch.no_grad()
def appraise(
    agent: "DrQv2", features: DrQv2Features, batch: Batch, noise: UpdateNoise, env_steps: Tensor
) -> tuple[Appraisal[ViewIndex], Tensor | None, Metrics]:
    """See `appraise_encoded`. The critic's trunk maps the anchors' features to queries, the target
    critic's trunk maps features to keys."""
    query = next_query = keys = None
    if features.others is not None:
        batch_size = len(batch.reward)
        # Detached, because under no_grad a slice of `fixed` would still have requires_grad=True.
        query = agent.critic.trunk(features.fixed.detach()[:batch_size])
        next_query = agent.critic.trunk(features.next_fixed[:batch_size])
        keys = agent.target_critic.trunk(features.others)
    return appraise_encoded(agent, batch, noise, env_steps, query, next_query, keys)


@torch.no_grad()
def q_target(
    agent: "DrQv2",
    batch: Batch,
    bonus: Tensor,
    weights: Tensor,
    features: Tensor,
    noise: Tensor,
    std: Tensor,
) -> Tensor:
    """The n-step target y (B,) of Eq. (2) and (7), from features (V B, H) of the next views, `bonus` (B,),
    `weights` (V, B), and standard normal `noise` (V, B, A) that is multiplied by `std`."""
    settings, target = agent.settings, agent.target_critic
    mean = agent.actor(features)
    action = noisy_action(mean, noise.flatten(0, 1), std, settings.update_noise_clip)
    q1, q2 = target.q_values(target.trunk(features), action)
    values = torch.minimum(q1, q2).view_as(weights)
    discount = settings.discount**settings.n_steps
    rewards = (batch.n_step_return, bonus)
    return equations.q_target(*rewards, batch.continuation, discount, values, weights)


def q_values(
    critic: DrQv2Critic, features: Tensor, action: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The critic's trunk features (V B, D) and both Q-values (V B,), of features (V B, H) and actions
    (V B, A)."""
    z = critic.trunk(features)
    return z, *critic.q_values(z, action)


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
    """The loss of Eq. (1) or (7), from the results of `q_values`. If there are key features (B, D), the
    contrastive loss (8) is added, so that one step trains encoder, trunk and belief on both."""
    loss, metrics = twin_q_loss(q1, q2, target, weights)
    if key is not None:
        contrastive = agent.framework.contrastive_loss(z[: len(key)], key, curiosity)
        loss = loss + agent.settings.contrastive_coefficient * contrastive
        metrics["contrastive_loss"] = contrastive.detach()
    return loss, metrics


def actor_loss(
    agent: "DrQv2", features: Tensor, noise: Tensor, std: Tensor
) -> tuple[Tensor, Metrics]:
    """The actor's loss on features (B, H) of the anchors. The features were encoded before the critic's
    step; the critic is the one after its step."""
    action = noisy_action(agent.actor(features), noise, std, agent.settings.update_noise_clip)
    q1, q2 = agent.critic.q_values(agent.critic.trunk(features), action)
    loss = -torch.minimum(q1, q2).mean()
    return loss, {"actor_loss": loss.detach()}


class DrQv2(PixelActorCritic[Drqv2Config]):
    """Encoder, actor, critic and target critic, and their optimizers."""

    metric_names: tuple[str, ...] = (
        *("critic_loss", "gradient_norm", "q_mean", "target_mean", "actor_loss", "noise_std"),
        *("reward_mean", "reward_running_max", "bonus_mean", "bonus_max", "bonus_running_max"),
        *("contrastive_loss", "curiosity_mean", "curiosity_std", "next_curiosity_mean"),
        *("second_view_weight", "priority_mean"),
        *("chosen_view_1", "chosen_view_2", "chosen_view_3", "chosen_view_4"),
    )

    def __init__(
        self,
        config: Config[Drqv2Config],
        action_dim: int,
        device: torch.device,
        compiler: Compiler | None = None,
    ):
        """`compiler` compiles the functions of an update, for a GPU."""
        super().__init__(config, action_dim)
        settings, wrap = self.settings, compiler or uncompiled
        self.observations: PixelObservations = PixelObservations(
            config, border=settings.shift_pixels, compiler=wrap
        )

        with seeded_weights(config.seed):
            self.framework = Framework(settings.feature_dim, config.method)
            self.encoder = make_pixel_encoder(config, wrap, PIXEL_OFFSET)
            if isinstance(self.encoder, ConvEncoder):  # a custom encoder keeps its initial weights
                self.encoder.apply(initialize)
            sizes = (self.encoder.out_dim, settings.feature_dim, action_dim, settings.hidden_dim)
            self.actor, self.critic = DrQv2Actor(*sizes), DrQv2Critic(*sizes)
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
        self.networks = nn.ModuleDict(
            {
                "framework": self.framework,
                "encoder": self.encoder,
                "actor": self.actor,
                "critic": self.critic,
                "target": self.target_critic,
            }
        ).to(device)

        self.critic_parameters: list[Tensor] = list(self.critic.parameters())
        if config.method.contrastive:
            self.critic_parameters += self.framework.parameters()
        critic_and_encoder = [*trainable_parameters(self.encoder), *self.critic_parameters]
        rate = settings.learning_rate
        self.optimizers = {
            "critic": self.optimizer_class(critic_and_encoder, rate, compiler=compiler),
            "actor": self.optimizer_class(self.actor.parameters(), rate, compiler=compiler),
        }

        self._appraise, self._q_target = wrap(appraise), wrap(q_target)
        self._q_values, self._critic_loss = wrap(q_values), wrap(critic_loss)
        self._actor_loss, self._polyak_update = wrap(actor_loss), wrap(polyak_update)

    def update(self, batch: Batch, noise: UpdateNoise, env_steps: Tensor) -> UpdateResult:
        """Appraise the batch, then update critic and encoder, target critic, and actor."""
        std = self.noise_std(env_steps)
        views = self.observations.views(batch, noise)  # 2 K B rows
        features = self.encode(views, len(batch.reward))
        # Eq. (3) to (6), (9), and the weights of (7)
        appraisal, priority, metrics = self._appraise(self, features, batch, noise, env_steps)

        # (V B, H) each
        critic_features, next_features = self._critic_features(views, features, appraisal)
        action = batch.action.repeat(len(appraisal.views.rows), 1)
        with concurrent_streams() as (critic_stream, target_stream):
            with critic_stream:
                z, q1, q2 = self._q_values(self.critic, critic_features, action)  # (V B, D), (V B,)
            with target_stream, torch.no_grad():
                key = self.key_features(views, appraisal) if self.method.contrastive else None
                bonus, next_weights = appraisal.bonus, appraisal.next_weights
                target = self._q_target(  # (B,)
                    self, batch, bonus, next_weights, next_features, noise.target, std
                )
        loss, critic_metrics = self._critic_loss(  # Eq. (1), (7), (8)
            self, z, q1, q2, target, appraisal.weights, key, appraisal.curiosity
        )

        # The backward pass is split at the features: given their gradient, the encoder's step and the
        # other steps are independent.
        *critic_gradients, feature_gradient = torch.autograd.grad(
            loss, [*self.critic_parameters, critic_features]
        )
        anchors = features.fixed[: len(batch.reward)].detach()
        encoder_parameters = trainable_parameters(self.encoder)
        with concurrent_streams() as (encoder_stream, actor_stream):
            with encoder_stream:
                encoder_gradients = torch.autograd.grad(
                    critic_features, encoder_parameters, feature_gradient
                )
                self.optimizers["critic"].step(encoder_parameters, encoder_gradients)
            with actor_stream:
                self.optimizers["critic"].step(self.critic_parameters, critic_gradients)
                critic, target_critic = self.critic.parameters(), self.target_critic.parameters()
                rate = self.settings.q_ema_rate
                self._polyak_update(list(target_critic), list(critic), rate)
                loss, actor_metrics = self._actor_loss(self, anchors, noise.actor, std)
                backward_and_step(loss, self.optimizers["actor"])

        metrics |= critic_metrics | actor_metrics | {"noise_std": std}
        metrics["gradient_norm"] = get_total_norm([*encoder_gradients, *critic_gradients])
        self.updates += 1
        return UpdateResult(metrics, priority)

    def noise_std(self, env_steps: Tensor) -> Tensor:
        settings, agent_steps = self.settings, env_steps / self.env.action_repeat
        bounds = (settings.first_noise_std, settings.last_noise_std)
        return noise_std(agent_steps, *bounds, settings.noise_agent_steps)

    def encode(self, views: LazyCrops, batch_size: int) -> DrQv2Features:
        """Features of the fixed views and, if the method needs curiosity, of all views. All are encoded in
        one pass, because a GPU is faster on large batches."""
        num_fixed = self.num_fixed_views * batch_size
        if not self.framework.needs_curiosity:
            rows = torch.arange(len(views.corners), device=views.corners.device).view(2, -1)
            needed = views.select(rows[:, :num_fixed].flatten())
            return DrQv2Features(*self.encoder.encode_with_frozen(needed, num_fixed), None)
        fixed, others = self.encoder.encode_with_frozen(views, num_fixed)
        if num_fixed > batch_size:
            others = torch.cat([fixed[batch_size:].detach(), others])
        next_anchors = (self.method.num_augmented_views - 1) * batch_size
        return DrQv2Features(fixed, others[next_anchors:][:num_fixed], others)

    def _critic_features(
        self, views: LazyCrops, features: DrQv2Features, appraisal: Appraisal[ViewIndex]
    ) -> tuple[Tensor, Tensor]:
        """Features (V B, H) of the views in the critic loss, with gradient, and of those in the
        target."""
        fixed, next_fixed = features.fixed, features.next_fixed
        if appraisal.views.rows.numel() == len(fixed):
            return fixed, next_fixed
        with torch.no_grad():
            rows = appraisal.next_views.rows[1]
            if features.others is None:
                next_selected = self.encoder(views.select(rows))
            else:
                next_selected = features.others[rows - appraisal.views.rows.shape[1]]
            next_features = torch.cat([next_fixed, next_selected])
        selected = self.encoder(views.select(appraisal.views.rows[1]))
        return torch.cat([fixed, selected]), next_features

    @torch.no_grad()
    def collection_action(
        self,
        observation: Tensor,
        env_steps: Tensor,
        augment_generator: torch.Generator,  # noqa: ARG002 (the policy reads unshifted frames)
        policy_generator: torch.Generator,
    ) -> Tensor:
        """A noisy action (B, A) for stacks of frames (B, C, H, W)."""
        noise = self.policy_noise(observation.shape[0], generator=policy_generator)
        return noisy_action(self.evaluation_action(observation), noise, self.noise_std(env_steps))

    @torch.no_grad()
    def evaluation_action(self, observation: Tensor) -> Tensor:
        """The mean action (B, A)."""
        return self.actor(self.encoder(observation))

    def greedy_policy(self) -> GreedyPolicy:
        return GreedyPolicy(self.encoder, self.actor)

    def encode_query(self, views: Tensor | LazyViews) -> Tensor:
        return self.critic.trunk(self.encoder(views))

    def encode_key(self, views: Tensor | LazyViews) -> Tensor:
        return self.target_critic.trunk(self.encoder(views))

    @torch.no_grad()
    def td_errors(self, batch: Batch, noise: Tensor, env_steps: Tensor) -> Tensor:
        features = self.encode_query(batch.observation)
        next_features = self.encoder(batch.next_observation)
        bonus, weights = torch.zeros_like(batch.reward), torch.ones_like(batch.reward)[None]
        std = self.noise_std(env_steps)
        target = q_target(self, batch, bonus, weights, next_features, noise[None], std)
        return (torch.stack(self.critic.q_values(features, batch.action)) - target).abs()
