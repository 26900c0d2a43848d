"""Soft actor-critic from pixels or state, learning from an appraisal: the paper's Algorithm 1, and
the update that trains.

It never asks which method is running: SAC, RAD, CURL, DrQ and CCLF differ only in what the
appraisal holds. No image is encoded twice under the same weights: features of the anchor serve
belief and critic loss, those of the keys serve belief, target and contrastive loss, and the next
anchor's convolutions serve belief and policy. `tests/reference_sac.py` is the same update without
that care, in the plainest words; a test holds the two together for every method.
"""

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn

from cclf.algorithms.common.optimizers import (
    Optimizer,
    adam,
    backward_and_step,
    trainable_parameters,
)
from cclf.algorithms.common.pixel_encoder import EncoderHead
from cclf.algorithms.sac.networks import Actor, Critic, Encoder, PolicySample
from cclf.algorithms.sac.observations import LazyViews, make_observation_pipeline
from cclf.algorithms.sac.parts import EncodedViews, SacKernels, SacNoise, make_kernels
from cclf.config import Config
from cclf.framework import Appraisal, Framework
from cclf.training.cuda_graphs import run_concurrently
from cclf.types import Batch, Metrics, UpdateResult


class SAC:
    """Actor, critic, temperature and target, with the optimisers that move them."""

    metric_names: tuple[str, ...] = (
        *("critic_loss", "q_mean", "target_mean"),
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
        compute: SacKernels | None = None,
        state_dim: int = 0,
    ):
        """`state_dim`: numbers in one observation of state, 0 of pixels."""
        settings = config.algorithm
        self.settings, self.method, self.env = settings, config.method, config.env
        self.sight = make_observation_pipeline(config, state_dim)
        self.action_dim, self.target_entropy = action_dim, -float(action_dim)
        self.compute = compute or make_kernels(settings.precision)
        self.framework = Framework(settings.feature_dim, config.method)
        convolutions = self.sight.trunk(self.compute.convolutions)
        encoder = Encoder(convolutions, settings.feature_dim, settings.encoder_tanh)
        sizes = (settings.feature_dim, action_dim, settings.hidden_dim)
        self.critic = Critic(encoder, *sizes)
        head = EncoderHead(convolutions.out_dim, settings.feature_dim, settings.encoder_tanh)
        self.actor = Actor(head, *sizes, settings.log_std_min, settings.log_std_max)
        self.target = copy.deepcopy(self.critic).requires_grad_(False)
        start = math.log(settings.initial_temperature)
        self.log_temperature = torch.tensor(start, device=device, requires_grad=True)
        parts = ("framework", "critic", "actor", "target")
        self.networks = nn.ModuleDict({part: getattr(self, part) for part in parts}).to(device)
        self.optimisers = self._make_optimisers()
        self.updates = 0

    def _make_optimisers(self) -> dict[str, Optimizer]:
        settings, encoder = self.settings, trainable_parameters(self.critic.encoder)
        belief = list(self.framework.parameters())
        betas = (settings.temperature_beta1, 0.999)
        slow = {"lr": settings.temperature_learning_rate, "betas": betas}
        optimisers = {
            "critic": adam(trainable_parameters(self.critic), lr=settings.learning_rate),
            "actor": adam(self.actor.parameters(), lr=settings.learning_rate),
            "temperature": adam([self.log_temperature], **slow),
            "contrastive": adam([*encoder, *belief], lr=settings.contrastive_learning_rate),
        }
        if settings.contrastive_encoder_steps == 2:
            optimisers["encoder"] = adam(encoder, lr=settings.contrastive_learning_rate)
        return optimisers

    def draw_noise(
        self, batch_size: int, augment_generator: torch.Generator, policy_generator: torch.Generator
    ) -> SacNoise:
        def origins() -> Tensor:
            kind, views = self.method.augmentation, self.method.num_augmented_views
            return self.sight.draw(kind, views, batch_size, augment_generator)

        def normal(*shape: int) -> Tensor:
            shape = (*shape, self.action_dim)
            return torch.randn(shape, generator=policy_generator, device=policy_generator.device)

        now, following = origins(), origins()
        target, actor = normal(self.framework.num_loss_views, batch_size), normal(batch_size)
        order = self.framework.draw_order(batch_size, augment_generator)
        return SacNoise(now, following, target, actor, order)

    def update(self, batch: Batch, noise: SacNoise, env_steps: Tensor) -> UpdateResult:
        """One update: appraise, critic, target, actor and temperature, contrastive."""
        encoded = self.encode(batch, noise)
        appraisal, priority, metrics = self.compute.appraise(self, encoded, batch, noise, env_steps)
        metrics |= self._update_critic(encoded, appraisal, batch, noise.target)
        moves_target = self.updates % self.settings.target_every_updates == 0
        if moves_target:  # the actor step neither reads nor moves it, so this may come first
            self._update_target()
        metrics |= self._update_actor_and_encoder(encoded, appraisal, noise.actor, moves_target)
        self.updates += 1
        return UpdateResult(metrics, priority)

    def encode(self, batch: Batch, noise: SacNoise) -> EncodedViews:
        """K views of each o_t and o_(t+1); encodes those that are needed whatever is chosen."""
        crops = self.crops(batch, noise)
        views, batch_size = noise.origins.shape[:2]
        learned = self.framework.num_loss_views if self.framework.selection == "all" else 1
        known = batch_size * learned
        next_known = slice(views * batch_size, views * batch_size + known)
        first = self.critic.encoder(crops.rows(slice(known)))
        with torch.no_grad():
            next_conv = self.critic.encoder.convolutions(crops.rows(next_known))
            if not self.framework.needs_curiosity:
                next_target = self.target.encoder(crops.rows(next_known))
                return EncodedViews(crops, first, next_conv, next_target, None)
            # One pass over all views but the anchors: large batches fill a GPU better.
            others = self.target.encoder(crops.rows(slice(batch_size, None)))
            keys = torch.cat([first[:batch_size].detach(), others])
            return EncodedViews(crops, first, next_conv, keys[next_known], keys)

    def crops(self, batch: Batch, noise: SacNoise) -> LazyViews:
        """All views of the batch as rows, not yet cut out of their frames."""
        frames = self.compute.join_frames(batch.observation, batch.next_observation)
        return self.sight.pairs(frames, noise.origins, noise.next_origins)

    def _update_critic(
        self, encoded: EncodedViews, appraisal: Appraisal, batch: Batch, noise: Tensor
    ) -> Metrics:
        """Target (2) and Q loss (1), (7), over the anchor and the other learned views."""
        views, batch_size = appraisal.views.shape
        chosen = views * batch_size > len(encoded.first)  # a view that was not known before
        encoder = self.critic.encoder

        def seen() -> Tensor:
            if not chosen:
                return encoded.first
            return torch.cat([encoded.first, encoder(encoded.crops.rows(appraisal.views[1]))])

        @torch.no_grad()
        def aim() -> Tensor:
            conv_features, target_features = [encoded.next_first_conv], encoded.next_first_target
            if chosen:
                row = appraisal.next_views[1]
                crops = encoded.crops.rows(row)
                conv_features.append(encoder.convolutions(crops))
                known = self.target.encoder(crops) if encoded.keys is None else encoded.keys[row]
                target_features = torch.cat([target_features, known])
            inputs = (batch, conv_features, target_features, noise)
            return self.compute.q_target(self, appraisal, *inputs)

        features, target = run_concurrently(seen, aim)
        weights, action = appraisal.weights, batch.action
        loss, metrics = self.compute.critic_loss(self, features, target, weights, action)
        backward_and_step(loss, self.optimisers["critic"], move=self.compute.move)
        return metrics

    def _update_target(self) -> None:
        q_rate, encoder_rate = self.settings.q_ema_rate, self.settings.encoder_ema_rate
        for part, rate in (("q1", q_rate), ("q2", q_rate), ("encoder", encoder_rate)):
            ours, theirs = getattr(self.critic, part), getattr(self.target, part)
            self.compute.follow(list(theirs.parameters()), list(ours.parameters()), rate)

    def _update_actor_and_encoder(
        self, encoded: EncodedViews, appraisal: Appraisal, noise: Tensor, target_moved: bool
    ) -> Metrics:
        """Actor and temperature, and the contrastive loss (8), on the anchors encoded anew. Neither
        reads what the other moves."""
        acts = self.updates % self.settings.actor_every_updates == 0
        contrasts = self.method.contrastive
        if not (acts or contrasts):
            return {}
        with torch.set_grad_enabled(contrasts):
            anchors = encoded.crops.rows(slice(len(appraisal.curiosity)))
            conv_features = self.critic.encoder.convolutions(anchors)
            query = self.critic.encoder.head(conv_features)

        def contrast() -> Metrics:
            if not contrasts:
                return {}
            key = self._key(encoded, appraisal, target_moved)
            loss = self.compute.contrastive_loss(self, query, key, appraisal.curiosity)
            names = [name for name in ("encoder", "contrastive") if name in self.optimisers]
            backward_and_step(
                loss, *(self.optimisers[name] for name in names), move=self.compute.move
            )
            return {"contrastive_loss": loss.detach()}

        detached = (conv_features.detach(), query.detach())

        def act() -> Metrics:
            if not acts:
                return {}
            loss, metrics = self.compute.actor_loss(self, *detached, noise)
            slow = self.optimisers["temperature"]
            backward_and_step(loss, self.optimisers["actor"], slow, move=self.compute.move)
            return metrics | {"temperature": self.temperature.detach()}

        contrastive_metrics, actor_metrics = run_concurrently(contrast, act)
        return actor_metrics | contrastive_metrics

    @torch.no_grad()
    def _key(self, encoded: EncodedViews, appraisal: Appraisal, target_moved: bool) -> Tensor:
        """Features of the key views by the target's encoder as it is now."""
        if encoded.keys is None or target_moved:
            key: Tensor = self.target.encoder(encoded.crops.rows(appraisal.key_view))
            return key
        return encoded.keys[appraisal.key_view]

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
        self,
        observation: Tensor,
        env_steps: Tensor,  # noqa: ARG002 (SAC explores alike at all times)
        augment_generator: torch.Generator,
        policy_generator: torch.Generator,
    ) -> Tensor:
        """A sampled action for stacks of whole frames (B, C, H, W), or of state (B, D)."""
        shape = (observation.shape[0], self.action_dim)
        noise = torch.randn(shape, generator=policy_generator, device=policy_generator.device)
        kind, batch = self.settings.collection_view, observation.shape[0]
        origins = self.sight.draw(kind, 1, batch, augment_generator)
        return self.policy(observation, origins, noise).action

    @torch.no_grad()
    def evaluation_action(self, observation: Tensor) -> Tensor:
        """The mean action on the centre crop, or on state as it is."""
        batch, device = observation.shape[0], observation.device
        nothing = torch.zeros(batch, self.action_dim, device=device)
        return self.policy(observation, self.sight.plain(batch, device), nothing).mean_action

    def policy(self, observation: Tensor, origins: Tensor, noise: Tensor) -> PolicySample:
        """The policy on one view of each observation."""
        crops = self.sight.views(observation, origins)
        sample: PolicySample = self.actor(self.critic.encoder.convolutions(crops), noise)
        return sample

    def state_dict(self) -> dict[str, Any]:
        return {
            "networks": self.networks.state_dict(),
            "log_temperature": self.log_temperature.detach(),
            "optimisers": {name: each.state_dict() for name, each in self.optimisers.items()},
            "updates": self.updates,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.networks.load_state_dict(state["networks"])
        self.log_temperature.data.copy_(state["log_temperature"])
        for name, optimiser in self.optimisers.items():
            optimiser.load_state_dict(state["optimisers"].get(name, {}))
        self.updates = int(state["updates"])
