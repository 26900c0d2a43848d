"""DrQ-v2 (Yarats et al., 2021), learning from an appraisal.

This module does not know which method runs: with every piece off the appraisal holds one shifted
view of each observation, and the update is the published one. There is no target encoder, so one
encoder serves belief, target, critic and actor: each view is encoded once, before any step of the
update. `tests/reference_drqv2.py` is the same update in its plainest form.
"""

import copy
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from cclf import equations
from cclf.algorithms.common.custom_encoder import CustomEncoder, make_custom_encoder
from cclf.algorithms.common.export import GreedyPolicy
from cclf.algorithms.common.optimizers import (
    backward_and_step,
    polyak_update,
    trainable_parameters,
)
from cclf.algorithms.common.pixel_actor_critic import (
    PixelActorCritic,
    UpdateNoise,
    appraise_encoded,
)
from cclf.algorithms.common.pixel_encoder import ConvEncoder, ConvFn, SplitConvFn, select_kernels
from cclf.algorithms.drqv2.equations import noise_std, noisy_action
from cclf.algorithms.drqv2.networks import DrQv2Actor, DrQv2Critic, initialize
from cclf.config import Config, Precision
from cclf.data.augmentations import (
    LazyCrops,
    V,
    ViewIndex,
    lazy_crop_pairs,
    replicate_pad_indices,
    sample_crop_corners,
)
from cclf.framework import Appraisal, Framework
from cclf.kernels.first_convolution import pack
from cclf.training.cuda_graphs import Compiler, concurrent_streams, uncompiled
from cclf.training.seeding import seeded_weights
from cclf.types import Batch, Metrics, UpdateResult

PIXEL_OFFSET = 0.5  # pixels enter the encoder as x / 255 - 0.5


class DrQv2Features(NamedTuple):
    """Features of the views by the encoder before any step of this update. F views are fixed: they
    enter the losses whichever view is selected."""

    fixed: Tensor  # (F B, H) of o_t, with gradient
    next_fixed: Tensor  # (F B, H) of o_(t+n)
    others: Tensor | None  # (2 K B - B, H) all but the anchors of o_t, for curiosity


@torch.no_grad()
def appraise(
    agent: "DrQv2", features: DrQv2Features, batch: Batch, noise: UpdateNoise, env_steps: Tensor
) -> tuple[Appraisal[ViewIndex], Tensor | None, Metrics]:
    """See `appraise_encoded`. Queries are features of the anchors by the critic's trunk, keys by
    that of the target critic."""
    query = next_query = keys = None
    if features.others is not None:
        batch_size = len(batch.reward)
        # detached: under no_grad a slice would claim a gradient that it does not have
        query = agent.critic.trunk(features.fixed.detach()[:batch_size])
        next_query = agent.critic.trunk(features.next_fixed[:batch_size])
        keys = agent.target_critic.trunk(features.others)
    inputs = (batch, noise, env_steps, agent.env.frame_pixels)
    return appraise_encoded(agent.framework, *inputs, query, next_query, keys)


@torch.no_grad()
def q_target(
    agent: "DrQv2",
    appraisal: Appraisal[V],
    batch: Batch,
    features: Tensor,
    noise: Tensor,
    std: Tensor,
) -> Tensor:
    """y (B,) of Eq. (2) and (7) over n steps, from features (V B, H) of the next views."""
    settings, target = agent.settings, agent.target_critic
    noise_clip = settings.update_noise_clip
    action = noisy_action(agent.actor(features), noise.flatten(0, 1), std, noise_clip)
    q1, q2 = target.q_values(target.trunk(features), action)
    return equations.q_target(
        batch.n_step_return,
        appraisal.bonus,
        batch.continuation,
        settings.discount**settings.n_steps,
        torch.minimum(q1, q2).view_as(appraisal.next_weights),
        appraisal.next_weights,
    )


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
    """Eq. (1) with even weights, Eq. (7) with those of curiosity (V, B). With key features (B, D)
    the contrastive loss (8) is added: encoder, trunk and belief learn from both in one step."""
    q1, q2 = q1.view_as(weights), q2.view_as(weights)
    loss = equations.q_loss(q1, target, weights) + equations.q_loss(q2, target, weights)
    metrics = {"critic_loss": loss, "q_mean": q1.mean(), "target_mean": target.mean()}
    if key is not None:
        contrastive = agent.framework.contrastive_loss(z[: len(key)], key, curiosity)
        loss = loss + agent.settings.contrastive_coefficient * contrastive
        metrics["contrastive_loss"] = contrastive
    return loss, {name: value.detach() for name, value in metrics.items()}


def actor_loss(
    agent: "DrQv2", features: Tensor, noise: Tensor, std: Tensor
) -> tuple[Tensor, Metrics]:
    """On features (B, H) of the anchors from before the critic's step, by the critic after it."""
    action = noisy_action(agent.actor(features), noise, std, agent.settings.update_noise_clip)
    q1, q2 = agent.critic.q_values(agent.critic.trunk(features), action)
    loss = -torch.minimum(q1, q2).mean()
    return loss, {"actor_loss": loss.detach()}


def pad_and_concatenate(shift_pixels: int, *frames: Tensor) -> Tensor:
    """Batches of frames (B, C, H, W) as one, with borders replicated by `shift_pixels`."""
    joined = torch.cat(frames)
    index = replicate_pad_indices(joined.shape[-1], shift_pixels, joined.device)
    return joined[:, :, index][:, :, :, index]


def pad_and_pack(shift_pixels: int, *frames: Tensor) -> Tensor:
    """The same in the packed format of the bfloat16 kernels."""
    return pack(*frames, border=shift_pixels)


class DrQv2Kernels(NamedTuple):
    """The functions of an update, plain or compiled for a GPU."""

    convolutions: ConvFn
    split_convolutions: SplitConvFn
    pad_and_concatenate: Callable[..., Tensor]
    appraise: Callable[..., tuple[Appraisal[ViewIndex], Tensor | None, Metrics]]
    q_target: Callable[..., Tensor]
    q_values: Callable[..., tuple[Tensor, Tensor, Tensor]]
    critic_loss: Callable[..., tuple[Tensor, Metrics]]
    actor_loss: Callable[..., tuple[Tensor, Metrics]]
    polyak_update: Callable[[list[Tensor], list[Tensor], float], None]
    compiler: Compiler | None  # for the step of an optimizer


def make_kernels(precision: Precision, compiler: Compiler | None = None) -> DrQv2Kernels:
    """With bf16 the convolutions run in bfloat16 with float32 sums; all else is float32."""
    compiled = compiler or uncompiled
    convolutions, split_convolutions = select_kernels(precision, compiled)
    return DrQv2Kernels(
        convolutions=convolutions,
        split_convolutions=split_convolutions,
        pad_and_concatenate=(
            pad_and_pack if precision == "bf16" else compiled(pad_and_concatenate)
        ),
        appraise=compiled(appraise),
        q_target=compiled(q_target),
        q_values=compiled(q_values),
        critic_loss=compiled(critic_loss),
        actor_loss=compiled(actor_loss),
        polyak_update=compiled(polyak_update),
        compiler=compiler,
    )


class DrQv2(PixelActorCritic):
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
        config: Config,
        action_dim: int,
        device: torch.device,
        kernels: DrQv2Kernels | None = None,
    ):
        super().__init__(config, action_dim)
        settings = self.settings
        self.kernels = kernels or make_kernels(settings.precision)

        with seeded_weights(config.seed):
            self.framework = Framework(settings.feature_dim, config.method)
            self.encoder = self._make_encoder()
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
        learned = [*trainable_parameters(self.encoder), *self.critic_parameters]
        rate, compiler = settings.learning_rate, self.kernels.compiler
        self.optimizers = {
            "critic": self.optimizer_class(learned, rate, compiler=compiler),
            "actor": self.optimizer_class(self.actor.parameters(), rate, compiler=compiler),
        }

    def _make_encoder(self) -> ConvEncoder | CustomEncoder:
        settings, shape = self.settings, (3 * self.env.frame_stack, self.env.frame_pixels)
        if settings.encoder:
            return make_custom_encoder(settings.encoder, *shape, PIXEL_OFFSET)
        layers = (settings.conv_layers, settings.conv_filters)
        convolutions, split = self.kernels.convolutions, self.kernels.split_convolutions
        return ConvEncoder(*shape, *layers, convolutions, PIXEL_OFFSET, split).apply(initialize)

    def sample_augmentation(self, batch_size: int, generator: torch.Generator) -> Tensor:
        """Corners (K, B, 2) of the views in frames with replicated borders."""
        pixels = self.env.frame_pixels
        padded = pixels + 2 * self.settings.shift_pixels
        views = self.method.num_augmented_views
        return sample_crop_corners(views, batch_size, padded, pixels, True, generator)

    def update(self, batch: Batch, noise: UpdateNoise, env_steps: Tensor) -> UpdateResult:
        """One update: appraise the batch, then critic and encoder, target critic, actor."""
        std = self.noise_std(env_steps)
        views = self.make_views(batch, noise)  # 2 K B rows
        features = self.encode(views, len(batch.reward))
        appraisal, priority, metrics = self.kernels.appraise(
            self, features, batch, noise, env_steps
        )

        learned, next_features = self._loss_features(views, features, appraisal)  # (V B, H) each
        action = batch.action.repeat(len(appraisal.views.rows), 1)
        with concurrent_streams() as (critic_stream, target_stream):
            with critic_stream:
                z, q1, q2 = self.kernels.q_values(self.critic, learned, action)
            with target_stream, torch.no_grad():
                key = self._key_features(views, appraisal) if self.method.contrastive else None
                target = self.kernels.q_target(
                    self, appraisal, batch, next_features, noise.target, std
                )
        loss, critic_metrics = self.kernels.critic_loss(
            self, z, q1, q2, target, appraisal.weights, key, appraisal.curiosity
        )

        # The backward pass in two parts: once the gradient of the features is known, the encoder's
        # step and everything else are independent.
        *critic_gradients, feature_gradient = torch.autograd.grad(
            loss, [*self.critic_parameters, learned]
        )
        anchors = features.fixed[: len(batch.reward)].detach()
        encoder_parameters = trainable_parameters(self.encoder)
        with concurrent_streams() as (encoder_stream, actor_stream):
            with encoder_stream:
                encoder_gradients = torch.autograd.grad(
                    learned, encoder_parameters, feature_gradient
                )
                self.optimizers["critic"].step(encoder_parameters, encoder_gradients)
            with actor_stream:
                self.optimizers["critic"].step(self.critic_parameters, critic_gradients)
                self._update_target()
                loss, actor_metrics = self.kernels.actor_loss(self, anchors, noise.actor, std)
                backward_and_step(loss, self.optimizers["actor"])

        metrics |= critic_metrics | actor_metrics | {"noise_std": std}
        metrics["gradient_norm"] = get_total_norm([*encoder_gradients, *critic_gradients])
        self.updates += 1
        return UpdateResult(metrics, priority)

    def noise_std(self, env_steps: Tensor) -> Tensor:
        settings, agent_steps = self.settings, env_steps / self.env.action_repeat
        bounds = (settings.first_noise_std, settings.last_noise_std)
        return noise_std(agent_steps, *bounds, settings.noise_agent_steps)

    def make_views(self, batch: Batch, noise: UpdateNoise) -> LazyCrops:
        """All views of the batch as rows (2 K B), not yet cut out of their frames, unless a custom
        augmentation needs them."""
        observations = (batch.observation, batch.next_observation)
        corners = (noise.augmentation, noise.next_augmentation)
        shift, pixels = self.settings.shift_pixels, self.env.frame_pixels
        if self.augment is None:
            frames = self.kernels.pad_and_concatenate(shift, *observations)
            return lazy_crop_pairs(frames, *corners, pixels)
        frames = pad_and_concatenate(shift, *observations)
        crops = self.augment_crops(lazy_crop_pairs(frames, *corners, pixels), noise)
        return crops._replace(images=self.kernels.pad_and_concatenate(0, crops.images))

    def encode(self, views: LazyCrops, batch_size: int) -> DrQv2Features:
        """Encode the views that are needed whichever view is selected, in one pass: large batches
        use a GPU better."""
        num_fixed = self.num_fixed_views * batch_size
        if not self.framework.needs_curiosity:
            rows = torch.arange(len(views.sample), device=views.sample.device).view(2, -1)
            needed = views.select(rows[:, :num_fixed].flatten())
            return DrQv2Features(*self.encoder.encode_with_frozen(needed, num_fixed), None)
        fixed, others = self.encoder.encode_with_frozen(views, num_fixed)
        if num_fixed > batch_size:
            others = torch.cat([fixed[batch_size:].detach(), others])
        next_anchors = (self.method.num_augmented_views - 1) * batch_size
        return DrQv2Features(fixed, others[next_anchors:][:num_fixed], others)

    def _loss_features(
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

    def _key_features(self, views: LazyCrops, appraisal: Appraisal[ViewIndex]) -> Tensor:
        """Features (B, D) of the key views by the target critic's trunk."""
        if appraisal.key is not None:
            return appraisal.key
        key: Tensor = self.target_critic.trunk(self.encoder(views.select(appraisal.key_view.rows)))
        return key

    def _update_target(self) -> None:
        online: list[Tensor] = list(self.critic.parameters())
        target: list[Tensor] = list(self.target_critic.parameters())
        self.kernels.polyak_update(target, online, self.settings.q_ema_rate)

    @torch.no_grad()
    def collection_action(
        self,
        observation: Tensor,
        env_steps: Tensor,
        augment_generator: torch.Generator,  # noqa: ARG002 (acting uses whole frames)
        policy_generator: torch.Generator,
    ) -> Tensor:
        """A noisy action (B, A) for stacks of frames (B, C, H, W)."""
        noise = self.policy_noise(observation.shape[0], generator=policy_generator)
        return noisy_action(self.evaluation_action(observation), noise, self.noise_std(env_steps))

    @torch.no_grad()
    def evaluation_action(self, observation: Tensor) -> Tensor:
        """The mean action (B, A)."""
        action: Tensor = self.actor(self.encoder(observation))
        return action

    def greedy_policy(self) -> GreedyPolicy:
        return GreedyPolicy(self.encoder, self.actor)
