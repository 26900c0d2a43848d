"""DrQ-v2, learning from an appraisal: the update that trains.

It never asks which method is running: with every piece off the appraisal holds one shifted view of
each observation, and this is the published algorithm. There is no target encoder, so all views are
encoded by the same convolutions, once: what the belief, the target, the critic and the actor read
are the features from before this update's steps.
"""

import copy
from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from cclf import equations
from cclf.bases.drqv2.equations import noise_std, noisy_action
from cclf.bases.drqv2.networks import Actor, Critic, initialise
from cclf.bases.own_encoder import OwnEncoder, own_encoder
from cclf.bases.pixel_encoder import (
    Convolutions,
    Kernel,
    SplitKernel,
    kernels_for,
)
from cclf.config import Config, Precision
from cclf.data.augment import Crops, Views, draw_origins, repeated_border, uncut_pairs
from cclf.data.optimisers import (
    Move,
    adam_on,
    descend,
    follow,
    learned_parameters,
    load_moments,
    moments,
    move_by,
    step,
)
from cclf.data.types import Batch, Metrics, UpdateResult
from cclf.framework import Appraisal, Framework
from cclf.kernels.first_convolution import pack
from cclf.runtime.compile import at_once

PIXEL_CENTRE = 0.5  # pixels enter as x / 255 - 0.5


class Drqv2Noise(NamedTuple):
    """Every random number of one update. K views are drawn, V of them enter the losses."""

    origins: Tensor  # (K, B, 2)  corners of the views of o_t in its frame with repeated borders
    next_origins: Tensor  # (K, B, 2)
    target: Tensor  # (V, B, A)  standard normal: noise on actions in the target
    actor: Tensor  # (B, A)
    order: Tensor | None = None  # (B,)  a permutation, where the framework needs one


class Encoded(NamedTuple):
    """Convolution features of the views before any step of this update.

    A view is known by its row: v B + b is view v of o_t in sample b; K B further, of o_(t+n).
    """

    crops: Crops  # (2 K B)
    first: Tensor  # (F B, H)  views learned from whatever is chosen, with gradient
    next_first: Tensor  # (F B, H)  their successors
    others: Tensor | None  # (2 K B - B, H)  all but the anchors of o_t, where curiosity asks


class Compute(NamedTuple):
    """How the parts of an update are computed: as written below, or compiled for a GPU."""

    convolutions: Kernel
    split_convolutions: SplitKernel
    join_frames: Callable[..., Tensor]
    appraise: "Callable[[Drqv2, Encoded, Batch, Drqv2Noise, Tensor], Appraised]"
    q_target: Callable[..., Tensor]
    values: Callable[..., tuple[Tensor, Tensor, Tensor]]
    critic_loss: Callable[..., tuple[Tensor, Metrics]]
    actor_loss: Callable[..., tuple[Tensor, Metrics]]
    move: Move | None  # a step of Adam; None is PyTorch's own
    follow: Callable[[list[Tensor], list[Tensor], float], None]


def compute_with(precision: Precision, wrap: Callable[[Any], Any] = lambda part: part) -> Compute:
    """The parts for a precision, each wrapped, by a compiler for example.

    In bf16 the convolutions run in bfloat16 with float32 sums; all else is float32.
    """
    return Compute(
        *kernels_for(precision, wrap),
        join_packed if precision == "bf16" else wrap(join_planes),
        wrap(appraise),
        wrap(q_target),
        wrap(values),
        wrap(critic_loss),
        wrap(actor_loss),
        move_by(wrap),
        wrap(follow),
    )


class Drqv2:
    """Encoder, actor, critic and the critic's target, with the optimisers that move them."""

    metric_names: tuple[str, ...] = (
        *("critic_loss", "q_mean", "target_mean", "actor_loss", "noise_std"),
        *("reward_mean", "reward_running_max", "bonus_mean", "bonus_max", "bonus_running_max"),
        *("contrastive_loss", "curiosity_mean", "curiosity_std", "next_curiosity_mean"),
        *("second_view_weight", "priority_mean"),
        *("chosen_view_1", "chosen_view_2", "chosen_view_3", "chosen_view_4"),
    )

    def __init__(
        self, config: Config, action_dim: int, device: torch.device, compute: Compute | None = None
    ):
        settings = config.algorithm
        self.settings, self.method, self.env = settings, config.method, config.env
        self.action_dim = action_dim
        self.compute = compute or compute_with(settings.precision)
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
        self.updates = 0

    @cached_property
    def optimisers(self) -> dict[str, torch.optim.Adam]:
        """Made by the first update: PyTorch's import its compiler, which takes seconds."""
        learned, rate = learned_parameters(self.encoder), self.settings.learning_rate
        adam = adam_on(learned[0].device)
        return {
            "critic": adam([*learned, *self._valued], lr=rate),
            "actor": adam(self.actor.parameters(), lr=rate),
        }

    def _make_encoder(self) -> Convolutions | OwnEncoder:
        settings, shape = self.settings, (3 * self.env.frame_stack, self.env.frame_pixels)
        if settings.encoder:
            return own_encoder(settings.encoder, *shape, PIXEL_CENTRE)
        layers = (settings.conv_layers, settings.conv_filters)
        kernel, split = self.compute.convolutions, self.compute.split_convolutions
        return Convolutions(*shape, *layers, kernel, PIXEL_CENTRE, split).apply(initialise)

    def draw_noise(
        self, batch_size: int, augment_generator: torch.Generator, policy_generator: torch.Generator
    ) -> Drqv2Noise:
        def origins() -> Tensor:
            pixels = self.env.frame_pixels
            padded = pixels + 2 * self.settings.shift_pixels
            views = self.method.drawn_views
            return draw_origins(views, batch_size, padded, pixels, True, augment_generator)

        def normal(*shape: int) -> Tensor:
            shape = (*shape, self.action_dim)
            return torch.randn(shape, generator=policy_generator, device=policy_generator.device)

        now, following = origins(), origins()
        target, actor = normal(self.framework.learned_views, batch_size), normal(batch_size)
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
            convolutions = learned_parameters(self.encoder)
            found = torch.autograd.grad(features, convolutions, feature_gradient)
            step(self.optimisers["critic"], convolutions, found, self.compute.move)

        def move_others() -> Metrics:
            step(self.optimisers["critic"], self._valued, gradients, self.compute.move)
            self._move_target()
            loss, metrics = self.compute.actor_loss(self, anchors, noise.actor, std)
            descend(loss, self.optimisers["actor"], move=self.compute.move)
            return metrics

        _, actor_metrics = at_once(move_encoder, move_others)
        self.updates += 1
        return UpdateResult(metrics | more | actor_metrics | {"noise_std": std}, priority)

    def noise_std(self, env_steps: Tensor) -> Tensor:
        settings, agent_steps = self.settings, env_steps / self.env.action_repeat
        bounds = (settings.first_noise_std, settings.last_noise_std)
        return noise_std(agent_steps, *bounds, settings.noise_agent_steps)

    def encode(self, batch: Batch, noise: Drqv2Noise) -> Encoded:
        """K views of each o_t and o_(t+n); encodes those that are needed whatever is chosen, in one
        pass: large batches fill a GPU better."""
        crops = self.crops(batch, noise)
        views, batch_size = noise.origins.shape[:2]
        every = self.framework.selection == "all"
        known = batch_size * (self.framework.learned_views if every else 1)
        row = torch.arange(len(crops.sample), device=batch.reward.device).view(2, -1)
        if not self.framework.needs_curiosity:
            first, next_first = self.encoder.split(crops.rows(row[:, :known].flatten()), known)
            return Encoded(crops, first, next_first, None)
        first, others = self.encoder.split(crops, known)
        if known > batch_size:
            others = torch.cat([first[batch_size:].detach(), others])
        begin = (views - 1) * batch_size  # of the next anchors
        return Encoded(crops, first, others[begin : begin + known], others)

    def crops(self, batch: Batch, noise: Drqv2Noise) -> Crops:
        """All views of the batch as rows, not yet cut out of their frames."""
        observations = (batch.observation, batch.next_observation)
        frames = self.compute.join_frames(self.settings.shift_pixels, *observations)
        return uncut_pairs(frames, noise.origins, noise.next_origins, self.env.frame_pixels)

    def _value_loss(
        self, encoded: Encoded, appraisal: Appraisal, batch: Batch, noise: Tensor, std: Tensor
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
        found, (target, key) = at_once(lambda: self.compute.values(self, features, action), aims)
        loss, metrics = self.compute.critic_loss(
            self, *found, target, appraisal.weights, key, appraisal.curiosity
        )
        return features, loss, metrics

    def _key(self, encoded: Encoded, appraisal: Appraisal) -> Tensor:
        """Features of the key views by the target's trunk."""
        if appraisal.key is not None:
            return appraisal.key
        key: Tensor = self.target.trunk(self.encoder(encoded.crops.rows(appraisal.key_view)))
        return key

    def _move_target(self) -> None:
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
            "optimisers": {name: moments(optimiser) for name, optimiser in self.optimisers.items()},
            "updates": self.updates,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.networks.load_state_dict(state["networks"])
        for name, optimiser in self.optimisers.items():
            load_moments(optimiser, state["optimisers"].get(name, {}))
        self.updates = int(state["updates"])


# The parts of an update, as functions of the agent, so that each can be compiled by itself.

# with new priorities, None where replay is uniform
Appraised = tuple[Appraisal, Tensor | None, Metrics]


def join_planes(shift_pixels: int, *frames: Tensor) -> Tensor:
    """Batches of frames (B, C, H, W) as one, with repeated borders."""
    joined = torch.cat(frames)
    place = repeated_border(joined.shape[-1], shift_pixels, joined.device)
    return joined[:, :, place][:, :, :, place]


def join_packed(shift_pixels: int, *frames: Tensor) -> Tensor:
    """The same packed, as the fast first convolution wants them."""
    return pack(*frames, border=shift_pixels)


def appraise(
    agent: Drqv2, encoded: Encoded, batch: Batch, noise: Drqv2Noise, env_steps: Tensor
) -> Appraised:
    """Curiosity (3), selection (4), (5), priorities (6), weights (7) and bonus (9), over rows in
    place of pixels. Queries are by the critic's trunk, keys by its target's."""
    views, batch_size = noise.origins.shape[:2]
    rows = torch.arange(2 * views * batch_size, device=batch.reward.device)
    rows = rows.view(2, views, batch_size)
    query = next_query = keys = None  # nobody asks for them without curiosity
    if encoded.others is not None:
        anchors = (encoded.first[:batch_size].detach(), encoded.next_first[:batch_size])
        with torch.no_grad():
            query, next_query = (agent.critic.trunk(features) for features in anchors)
            keys = agent.target.trunk(encoded.others)

    def look_up(key_rows: Tensor) -> Tensor:
        assert keys is not None, "features are looked up where curiosity asks"
        found: Tensor = keys[key_rows - batch_size]
        return found

    pixels = agent.env.frame_pixels
    appraisal = agent.framework.appraise(
        Views(rows[0], noise.origins, crop_pixels=pixels, query=query),
        Views(rows[1], noise.next_origins, crop_pixels=pixels, query=next_query),
        batch.reward,
        env_steps,
        look_up,
        look_up,
        noise.order,
    )
    priority = agent.framework.priority(batch.priority, appraisal)
    metrics = {"reward_mean": batch.reward.mean()} | agent.framework.metrics(
        appraisal, agent.method.drawn_views
    )
    if priority is not None:
        metrics["priority_mean"] = priority.mean()
    return appraisal, priority, metrics


def q_target(
    agent: Drqv2,
    appraisal: Appraisal,
    batch: Batch,
    features: Tensor,
    noise: Tensor,
    std: Tensor,
) -> Tensor:
    """y of Eq. (2) and (7) over n steps, (B,), from features (V B, H) of the next views."""
    settings = agent.settings
    mean = agent.actor(features)
    action = noisy_action(mean, noise.flatten(0, 1), std, settings.update_noise_clip)
    q1, q2 = agent.target.values(agent.target.trunk(features), action)
    return equations.q_target(
        batch.n_step_return,
        appraisal.bonus,
        batch.continuation,
        settings.discount**settings.n_steps,
        torch.minimum(q1, q2).view_as(appraisal.next_weights),
        appraisal.next_weights,
    )


def values(agent: Drqv2, features: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The critic's features (V B, D) and both of its values (V B,), of views and actions."""
    z = agent.critic.trunk(features)
    return z, *agent.critic.values(z, action)


def critic_loss(
    agent: Drqv2,
    z: Tensor,
    q1: Tensor,
    q2: Tensor,
    target: Tensor,
    weights: Tensor,
    key: Tensor | None,
    curiosity: Tensor,
) -> tuple[Tensor, Metrics]:
    """Eq. (1) with even weights, Eq. (7) with curiosity's, on the values of the views; and with a
    key Eq. (8), which moves encoder, trunk and belief in the same step."""
    q1, q2 = q1.view_as(weights), q2.view_as(weights)
    loss = equations.q_loss(q1, target, weights) + equations.q_loss(q2, target, weights)
    metrics = {
        "critic_loss": loss.detach(),
        "q_mean": q1.detach().mean(),
        "target_mean": target.mean(),
    }
    if key is not None:
        contrastive = agent.framework.contrastive_loss(z[: len(key)], key, curiosity)
        loss = loss + agent.settings.contrastive_coefficient * contrastive
        metrics["contrastive_loss"] = contrastive.detach()
    return loss, metrics


def actor_loss(
    agent: Drqv2, features: Tensor, noise: Tensor, std: Tensor
) -> tuple[Tensor, Metrics]:
    """On the anchors' features (B, H) from before the critic's step; the critic is the one after
    it."""
    action = noisy_action(agent.actor(features), noise, std, agent.settings.update_noise_clip)
    q1, q2 = agent.critic.values(agent.critic.trunk(features), action)
    loss = -torch.minimum(q1, q2).mean()
    return loss, {"actor_loss": loss.detach()}
