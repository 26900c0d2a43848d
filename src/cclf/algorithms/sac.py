"""Soft actor-critic from pixels, learning from an appraisal. Top to bottom it is the paper's Algorithm 1.

The update never asks which method is running: SAC, RAD, CURL, DrQ and CCLF differ only in what the appraisal holds.
"""

import copy
import math
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from cclf import augment, equations
from cclf.algorithms.optimisers import load_moments, moments
from cclf.augment import Views
from cclf.config import Precision
from cclf.framework import Appraisal, Framework
from cclf.kernels.first_convolution import pack
from cclf.kernels.paired_convolutions import paired_convolutions
from cclf.nets import Actor, Convolutions, Critic, Encoder, Head, PolicySample
from cclf.types import Batch, Metrics, UpdateResult


class SacNoise(NamedTuple):
    """Every random number of one update. K views are drawn, V of them enter the losses."""

    origins: Tensor  # (K, B, 2)  crop corners of o_t
    next_origins: Tensor  # (K, B, 2)
    target: Tensor  # (V, B, A)  policy noise in the target
    actor: Tensor  # (B, A)


class Sac:
    """Actor, critic, temperature and target, with the optimisers that move them."""

    metric_names: tuple[str, ...] = (
        *("critic_loss", "q_mean", "target_mean"),
        *("reward_mean", "reward_running_max", "bonus_mean", "bonus_max", "bonus_running_max"),
        *("actor_loss", "policy_entropy", "temperature", "temperature_loss", "contrastive_loss"),
        *("curiosity_mean", "curiosity_std", "next_curiosity_mean", "second_view_weight", "priority_mean"),
        *("chosen_view_1", "chosen_view_2", "chosen_view_3", "chosen_view_4"),
    )

    def __init__(
        self,
        framework: Framework,
        device: torch.device,
        *,
        channels: int,
        frame_pixels: int,
        crop_pixels: int,
        action_dim: int,
        augmentation: Literal["random-crop", "centre-crop"],
        drawn_views: int,
        contrastive: bool,
        discount: float,
        learning_rate: float,
        contrastive_learning_rate: float,
        contrastive_encoder_steps: int,
        temperature_learning_rate: float,
        temperature_beta1: float,
        initial_temperature: float,
        q_ema_rate: float,
        encoder_ema_rate: float,
        target_every_updates: int,
        actor_every_updates: int,
        conv_layers: int,
        conv_filters: int,
        feature_dim: int,
        hidden_dim: int,
        log_std_min: float,
        log_std_max: float,
        encoder_tanh: bool,
        precision: Precision,
        last_crop_offset: bool,
        collection_view: Literal["random-crop", "centre-crop"],
    ):
        self.framework = framework
        convolutions = Convolutions(channels, crop_pixels, conv_layers, conv_filters)
        if precision == "bf16":
            convolutions.kernel = paired_convolutions
        self.critic = Critic(Encoder(convolutions, feature_dim, encoder_tanh), feature_dim, action_dim, hidden_dim)
        head = Head(convolutions.out_dim, feature_dim, encoder_tanh)
        self.actor = Actor(head, feature_dim, action_dim, hidden_dim, log_std_min, log_std_max)
        self.target = copy.deepcopy(self.critic).requires_grad_(False)
        self.log_temperature = torch.tensor(math.log(initial_temperature), device=device, requires_grad=True)
        self.networks = nn.ModuleDict(
            {"framework": framework, "critic": self.critic, "actor": self.actor, "target": self.target}
        ).to(device)

        self.frame_pixels, self.crop_pixels, self.action_dim = frame_pixels, crop_pixels, action_dim
        self.augmentation, self.drawn_views, self.last_crop_offset = augmentation, drawn_views, last_crop_offset
        self.contrastive, self.collection_view = contrastive, collection_view
        self.discount, self.target_entropy = discount, -float(action_dim)
        self.q_ema_rate, self.encoder_ema_rate = q_ema_rate, encoder_ema_rate
        self.target_every_updates, self.actor_every_updates = target_every_updates, actor_every_updates
        self.join_frames: Callable[..., Tensor] = pack if precision == "bf16" else lambda *frames: torch.cat(frames)
        self.updates = 0

        encoder = list(self.critic.encoder.parameters())
        # On a GPU one kernel steps all parameters, and reads its step count there, so that a CUDA graph can hold it.
        adam = partial(torch.optim.Adam, fused=True, capturable=True) if device.type == "cuda" else torch.optim.Adam
        self.optimisers = {
            "critic": adam(self.critic.parameters(), lr=learning_rate),
            "actor": adam(self.actor.parameters(), lr=learning_rate),
            "temperature": adam([self.log_temperature], lr=temperature_learning_rate, betas=(temperature_beta1, 0.999)),
            "contrastive": adam([*encoder, framework.bilinear], lr=contrastive_learning_rate),
        }
        if contrastive_encoder_steps == 2:
            self.optimisers["encoder"] = adam(encoder, lr=contrastive_learning_rate)

    def draw_noise(self, batch_size: int, augment_generator: torch.Generator, policy_generator: torch.Generator) -> SacNoise:
        def origins() -> Tensor:
            return self._origins(self.augmentation, self.drawn_views, batch_size, augment_generator)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, self.action_dim, generator=policy_generator, device=policy_generator.device)

        return SacNoise(origins(), origins(), normal(self.framework.learned_views, batch_size), normal(batch_size))

    def update(self, batch: Batch, noise: SacNoise, env_steps: Tensor) -> UpdateResult:
        """One update in the paper's order: appraise, critic, actor and temperature, target, contrastive."""
        encoder, target_encoder = self.critic.encoder, self.target.encoder
        appraisal = self.appraise(*self.views(batch, noise), batch.reward, env_steps)
        priority = self.framework.priority(batch.priority, appraisal)
        metrics = self.appraisal_metrics(appraisal, batch.reward, priority)

        with torch.no_grad():
            next_images = appraisal.next_views.flatten(0, 1)
            target = self.q_target(appraisal, batch, encoder.convolutions(next_images), target_encoder(next_images), noise.target)
        metrics |= self.critic_step(encoder(appraisal.views.flatten(0, 1)), target, appraisal.weights, batch.action)
        anchor = appraisal.views[0]
        if self.updates % self.actor_every_updates == 0:
            with torch.no_grad():
                conv_features = encoder.convolutions(anchor)
                features = encoder.head(conv_features)
            metrics |= self.actor_step(conv_features, features, noise.actor)
        if self.updates % self.target_every_updates == 0:
            self.target_step()
        if self.contrastive:
            with torch.no_grad():
                key = target_encoder(appraisal.key_view)
            metrics |= self.contrastive_step(encoder(anchor), key, appraisal.curiosity)
        self.updates += 1
        return UpdateResult(metrics, priority)

    def views(self, batch: Batch, noise: SacNoise) -> tuple[Views, Views]:
        """K crops of each o_t and of each o_(t+1)."""
        pairs = ((batch.observation, noise.origins), (batch.next_observation, noise.next_origins))
        now, following = (augment.crop(frames, origins, self.crop_pixels) for frames, origins in pairs)
        return now, following

    def appraise(self, views: Views, next_views: Views, reward: Tensor, env_steps: Tensor) -> Appraisal:
        return self.framework.appraise(views, next_views, reward, env_steps, self.critic.encoder, self.target.encoder)

    def q_target(
        self, appraisal: Appraisal, batch: Batch, conv_features: Tensor, target_features: Tensor, noise: Tensor
    ) -> Tensor:
        """y of Eq. (2) and (7), (B,), from features of the next views: the policy's convolutions and the target's encoder."""
        policy = self.actor(conv_features, noise.flatten(0, 1))
        q1, q2 = self.target.values(target_features, policy.action)
        values = equations.soft_value(q1, q2, policy.log_prob, self.temperature).view_as(appraisal.next_weights)
        return equations.q_target(
            batch.reward, appraisal.bonus, batch.continuation, self.discount, values, appraisal.next_weights
        )

    def critic_step(self, features: Tensor, target: Tensor, weights: Tensor, action: Tensor) -> Metrics:
        """Eq. (1) with even weights, Eq. (7) with curiosity weights, on features (V B, D) of the views."""
        loss, metrics = self.critic_loss(features, target, weights, action)
        self._step(loss, "critic")
        return metrics

    def critic_loss(self, features: Tensor, target: Tensor, weights: Tensor, action: Tensor) -> tuple[Tensor, Metrics]:
        q1, q2 = (q.view_as(weights) for q in self.critic.values(features, action.repeat(weights.shape[0], 1)))
        loss = equations.q_loss(q1, target, weights) + equations.q_loss(q2, target, weights)
        return loss, {"critic_loss": loss.detach(), "q_mean": q1.detach().mean(), "target_mean": target.mean()}

    def actor_step(self, conv_features: Tensor, features: Tensor, noise: Tensor) -> Metrics:
        """Actor and temperature, on features of the anchor view through which nothing flows back: the encoder does not move."""
        loss, metrics = self.actor_loss(conv_features, features, noise)
        self._step(loss, "actor", "temperature")
        return metrics | {"temperature": self.temperature.detach()}

    def actor_loss(self, conv_features: Tensor, features: Tensor, noise: Tensor) -> tuple[Tensor, Metrics]:
        """Of actor and temperature together: neither's part reaches the other's parameters."""
        policy = self.actor(conv_features, noise)
        q1, q2 = self.critic.values(features, policy.action)
        actor_loss = -equations.soft_value(q1, q2, policy.log_prob, self.temperature.detach()).mean()
        temperature_loss = (self.temperature * (-policy.log_prob - self.target_entropy).detach()).mean()
        return actor_loss + temperature_loss, {
            "actor_loss": actor_loss.detach(),
            "policy_entropy": policy.entropy.detach().mean(),
            "temperature_loss": temperature_loss.detach(),
        }

    @torch.no_grad()
    def target_step(self) -> None:
        for part, rate in (("q1", self.q_ema_rate), ("q2", self.q_ema_rate), ("encoder", self.encoder_ema_rate)):
            ours, theirs = getattr(self.critic, part), getattr(self.target, part)
            torch._foreach_lerp_(list(theirs.parameters()), list(ours.parameters()), rate)

    def contrastive_step(self, query: Tensor, key: Tensor, curiosity: Tensor) -> Metrics:
        """Eq. (8): encoder and belief learn to match the anchor with its key view."""
        loss = self.framework.contrastive_loss(query, key, curiosity)
        self._step(loss, *(name for name in ("encoder", "contrastive") if name in self.optimisers))
        return {"contrastive_loss": loss.detach()}

    def _step(self, loss: Tensor, *names: str) -> None:
        """One backward; each named optimiser then moves its own parameters, and no gradient is left on any other."""
        lists = [group["params"] for name in names for group in self.optimisers[name].param_groups]
        moved = list(dict.fromkeys(parameter for parameters in lists for parameter in parameters))
        gradients = torch.autograd.grad(loss, moved)
        for parameter, gradient in zip(moved, gradients, strict=True):
            # Convolutions give gradients in a layout of their own; a fused step wants the parameter's.
            parameter.grad = gradient if gradient.stride() == parameter.stride() else torch.empty_like(parameter).copy_(gradient)
        for name in names:
            self.optimisers[name].step()
        for parameter in moved:
            parameter.grad = None

    def count_updates(self, value: int | None = None) -> int:
        """How many updates were made; sets it where a value is given."""
        if value is not None:
            self.updates = value
        return self.updates

    @property
    def temperature(self) -> Tensor:
        return self.log_temperature.exp()

    @torch.no_grad()
    def collection_action(
        self, observation: Tensor, augment_generator: torch.Generator, policy_generator: torch.Generator
    ) -> Tensor:
        """A sampled action for stacks of whole frames (B, C, H, W)."""
        shape = (observation.shape[0], self.action_dim)
        noise = torch.randn(shape, generator=policy_generator, device=policy_generator.device)
        origins = self._origins(self.collection_view, 1, observation.shape[0], augment_generator)
        return self._policy(observation, origins, noise).action

    @torch.no_grad()
    def evaluation_action(self, observation: Tensor) -> Tensor:
        """The mean action on the centre crop."""
        batch = observation.shape[0]
        origins = augment.centre_origins(1, batch, self.frame_pixels, self.crop_pixels, observation.device)
        return self._policy(observation, origins, torch.zeros(batch, self.action_dim, device=observation.device)).mean_action

    def _policy(self, observation: Tensor, origins: Tensor, noise: Tensor) -> PolicySample:
        crops = augment.uncut(observation, origins, self.crop_pixels)
        sample: PolicySample = self.actor(self.critic.encoder.convolutions(crops), noise)
        return sample

    def _origins(self, kind: str, views: int, batch: int, generator: torch.Generator) -> Tensor:
        if kind == "centre-crop":
            return augment.centre_origins(views, batch, self.frame_pixels, self.crop_pixels, generator.device)
        return augment.draw_origins(views, batch, self.frame_pixels, self.crop_pixels, self.last_crop_offset, generator)

    def appraisal_metrics(self, appraisal: Appraisal, reward: Tensor, priority: Tensor | None) -> Metrics:
        metrics = {"reward_mean": reward.mean()} | self.framework.metrics(appraisal, self.drawn_views)
        return metrics if priority is None else metrics | {"priority_mean": priority.mean()}

    def state_dict(self) -> dict[str, Any]:
        return {
            "networks": self.networks.state_dict(),
            "log_temperature": self.log_temperature.detach(),
            "optimisers": {name: moments(optimiser) for name, optimiser in self.optimisers.items()},
            "updates": self.updates,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.networks.load_state_dict(state["networks"])
        self.log_temperature.data.copy_(state["log_temperature"])
        for name, optimiser in self.optimisers.items():
            load_moments(optimiser, state["optimisers"].get(name, {}))
        self.updates = int(state["updates"])
