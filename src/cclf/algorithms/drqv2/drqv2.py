"""DrQ-v2, learning from an appraisal: the update that trains.

It never asks which method is running: with every piece off the appraisal holds one shifted view of
each observation, and this is the published algorithm. There is no target encoder, so all views are
encoded by the same convolutions, once: what the belief, the target, the critic and the actor read
are the features from before this update's steps.
"""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from cclf.algorithms.common.custom_encoder import CustomEncoder, make_custom_encoder
from cclf.algorithms.common.optimizers import adam, backward_and_step, trainable_parameters
from cclf.algorithms.common.pixel_encoder import ConvEncoder
from cclf.algorithms.drqv2.equations import noise_std, noisy_action
from cclf.algorithms.drqv2.networks import Actor, Critic, initialise
from cclf.algorithms.drqv2.parts import Drqv2Kernels, Drqv2Noise, EncodedViews, make_kernels
from cclf.config import Config
from cclf.data.augmentations import LazyCrops, lazy_crop_pairs, sample_crop_corners
from cclf.framework import Appraisal, Framework
from cclf.training.cuda_graphs import run_concurrently
from cclf.types import Batch, Metrics, UpdateResult

PIXEL_OFFSET = 0.5  # pixels enter as x / 255 - 0.5


class DrQv2:
    """Encoder, actor, critic and the critic's target, with the optimisers that move them."""

    metric_names: tuple[str, ...] = (
        *("critic_loss", "q_mean", "target_mean", "actor_loss", "noise_std"),
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
        compute: Drqv2Kernels | None = None,
    ):
        settings = config.algorithm
        self.settings, self.method, self.env = settings, config.method, config.env
        self.action_dim = action_dim
        self.compute = compute or make_kernels(settings.precision)
        self.framework = Framework(settings.feature_dim, config.method)
        self.encoder = self._make_encoder()
        sizes = (self.encoder.out_dim, settings.feature_dim, action_dim, settings.hidden_dim)
        self.actor, self.critic = Actor(*sizes), Critic(*sizes)
        self.target = copy.deepcopy(self.critic).requires_grad_(False)
        parts = ("framework", "encoder", "actor", "critic", "target")
        self.networks = nn.ModuleDict({part: getattr(self, part) for part in parts}).to(device)
        self._valued: list[Tensor] = list(self.critic.parameters())  # learned from the value loss
        if config.method.contrastive:
            self._valued += self.framework.parameters()
        rate = self.settings.learning_rate
        self.optimisers = {
            "critic": adam([*trainable_parameters(self.encoder), *self._valued], lr=rate),
            "actor": adam(self.actor.parameters(), lr=rate),
        }
        self.updates = 0

    def _make_encoder(self) -> ConvEncoder | CustomEncoder:
        settings, shape = self.settings, (3 * self.env.frame_stack, self.env.frame_pixels)
        if settings.encoder:
            return make_custom_encoder(settings.encoder, *shape, PIXEL_OFFSET)
        layers = (settings.conv_layers, settings.conv_filters)
        kernel, split = self.compute.convolutions, self.compute.split_convolutions
        return ConvEncoder(*shape, *layers, kernel, PIXEL_OFFSET, split).apply(initialise)

    def draw_noise(
        self, batch_size: int, augment_generator: torch.Generator, policy_generator: torch.Generator
    ) -> Drqv2Noise:
        def origins() -> Tensor:
            pixels = self.env.frame_pixels
            padded = pixels + 2 * self.settings.shift_pixels
            views = self.method.num_augmented_views
            return sample_crop_corners(views, batch_size, padded, pixels, True, augment_generator)

        def normal(*shape: int) -> Tensor:
            shape = (*shape, self.action_dim)
            return torch.randn(shape, generator=policy_generator, device=policy_generator.device)

        now, following = origins(), origins()
        target, actor = normal(self.framework.num_loss_views, batch_size), normal(batch_size)
        order = self.framework.draw_order(batch_size, augment_generator)
        return Drqv2Noise(now, following, target, actor, order)

    def update(self, batch: Batch, noise: Drqv2Noise, env_steps: Tensor) -> UpdateResult:
        """One update: appraise, critic and encoder, actor, target."""
        std, encoded = self.noise_std(env_steps), self.encode(batch, noise)
        appraisal, priority, metrics = self.compute.appraise(self, encoded, batch, noise, env_steps)
        features, loss, more = self._value_loss(encoded, appraisal, batch, noise.target, std)
        # Convolutions on one side, all that is behind them on the other. Neither needs the other.
        *gradients, feature_gradient = torch.autograd.grad(loss, [*self._valued, features])
        anchors = encoded.first[: len(batch.reward)].detach()

        def move_encoder() -> None:
            convolutions = trainable_parameters(self.encoder)
            found = torch.autograd.grad(features, convolutions, feature_gradient)
            self.optimisers["critic"].step(convolutions, found, self.compute.move)

        def move_others() -> Metrics:
            self.optimisers["critic"].step(self._valued, gradients, self.compute.move)
            self._update_target()
            loss, metrics = self.compute.actor_loss(self, anchors, noise.actor, std)
            backward_and_step(loss, self.optimisers["actor"], move=self.compute.move)
            return metrics

        _, actor_metrics = run_concurrently(move_encoder, move_others)
        self.updates += 1
        return UpdateResult(metrics | more | actor_metrics | {"noise_std": std}, priority)

    def noise_std(self, env_steps: Tensor) -> Tensor:
        settings, agent_steps = self.settings, env_steps / self.env.action_repeat
        bounds = (settings.first_noise_std, settings.last_noise_std)
        return noise_std(agent_steps, *bounds, settings.noise_agent_steps)

    def encode(self, batch: Batch, noise: Drqv2Noise) -> EncodedViews:
        """K views of each o_t and o_(t+n); encodes those that are needed whatever is chosen, in one
        pass: large batches fill a GPU better."""
        crops = self.crops(batch, noise)
        views, batch_size = noise.origins.shape[:2]
        every = self.framework.selection == "all"
        known = batch_size * (self.framework.num_loss_views if every else 1)
        row = torch.arange(len(crops.sample), device=batch.reward.device).view(2, -1)
        if not self.framework.needs_curiosity:
            first, next_first = self.encoder.split(crops.rows(row[:, :known].flatten()), known)
            return EncodedViews(crops, first, next_first, None)
        first, others = self.encoder.split(crops, known)
        if known > batch_size:
            others = torch.cat([first[batch_size:].detach(), others])
        begin = (views - 1) * batch_size  # of the next anchors
        return EncodedViews(crops, first, others[begin : begin + known], others)

    def crops(self, batch: Batch, noise: Drqv2Noise) -> LazyCrops:
        """All views of the batch as rows, not yet cut out of their frames."""
        observations = (batch.observation, batch.next_observation)
        frames = self.compute.join_frames(self.settings.shift_pixels, *observations)
        return lazy_crop_pairs(frames, noise.origins, noise.next_origins, self.env.frame_pixels)

    def _value_loss(
        self, encoded: EncodedViews, appraisal: Appraisal, batch: Batch, noise: Tensor, std: Tensor
    ) -> tuple[Tensor, Tensor, Metrics]:
        """Features of the learned views, and over them Q loss (1), (7), with target (2), and
        contrastive loss (8)."""
        views, batch_size = appraisal.views.shape
        features, next_features = encoded.first, encoded.next_first
        if views * batch_size > len(features):  # a view that was not known before
            with torch.no_grad():
                rows = appraisal.next_views[1]
                chosen = (
                    self.encoder(encoded.crops.rows(rows))
                    if encoded.others is None
                    else encoded.others[rows - batch_size]
                )
                next_features = torch.cat([next_features, chosen])
            second = self.encoder(encoded.crops.rows(appraisal.views[1]))
            features = torch.cat([features, second])

        @torch.no_grad()
        def aims() -> tuple[Tensor, Tensor | None]:
            key = self._key(encoded, appraisal) if self.method.contrastive else None
            return self.compute.q_target(self, appraisal, batch, next_features, noise, std), key

        action = batch.action.repeat(views, 1)
        found, (target, key) = run_concurrently(
            lambda: self.compute.values(self, features, action), aims
        )
        loss, metrics = self.compute.critic_loss(
            self, *found, target, appraisal.weights, key, appraisal.curiosity
        )
        return features, loss, metrics

    def _key(self, encoded: EncodedViews, appraisal: Appraisal) -> Tensor:
        """Features of the key views by the target's trunk."""
        if appraisal.key is not None:
            return appraisal.key
        key: Tensor = self.target.trunk(self.encoder(encoded.crops.rows(appraisal.key_view)))
        return key

    def _update_target(self) -> None:
        ours: list[Tensor] = list(self.critic.parameters())
        theirs: list[Tensor] = list(self.target.parameters())
        self.compute.follow(theirs, ours, self.settings.q_ema_rate)

    def count_updates(self, value: int | None = None) -> int:
        """How many updates were made; sets it where a value is given."""
        if value is not None:
            self.updates = value
        return self.updates

    @torch.no_grad()
    def collection_action(
        self,
        observation: Tensor,
        env_steps: Tensor,
        augment_generator: torch.Generator,  # noqa: ARG002 (acting sees whole frames)
        policy_generator: torch.Generator,
    ) -> Tensor:
        """A noisy action for stacks of frames (B, C, H, W)."""
        shape = (observation.shape[0], self.action_dim)
        noise = torch.randn(shape, generator=policy_generator, device=policy_generator.device)
        return noisy_action(self.evaluation_action(observation), noise, self.noise_std(env_steps))

    @torch.no_grad()
    def evaluation_action(self, observation: Tensor) -> Tensor:
        """The mean action."""
        action: Tensor = self.actor(self.encoder(observation))
        return action

    def state_dict(self) -> dict[str, Any]:
        return {
            "networks": self.networks.state_dict(),
            "optimisers": {name: each.state_dict() for name, each in self.optimisers.items()},
            "updates": self.updates,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.networks.load_state_dict(state["networks"])
        for name, optimiser in self.optimisers.items():
            optimiser.load_state_dict(state["optimisers"].get(name, {}))
        self.updates = int(state["updates"])
