"""MR.Q (Fujimoto et al., 2025): Q-functions and a policy on features that are trained to predict the
next features, reward and termination. DR.Q (Lyu et al., 2026) is a preset of it.

Every `target_every_updates` updates the networks are copied to the target networks, and the encoder is
trained on `target_every_updates` batches of subsequences. Between these times the encoder is fixed, and
only Q-functions and policy are trained, on n-step transitions.
"""

import copy
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import get_total_norm

from cclf.algorithms.common.optimizers import Adam, backward_and_step, trainable_parameters
from cclf.algorithms.mrq.config import MrqConfig
from cclf.algorithms.mrq.networks import (
    Critic,
    MlpStateEncoder,
    Model,
    NormalizedMlp,
    PixelEncoder,
    initialize,
)
from cclf.config import Config
from cclf.data.augmentations import lazy_crops, replicate_pad_indices, sample_crop_corners
from cclf.data.replay import Replay, SequenceBatch
from cclf.training.seeding import Generators, seeded_weights
from cclf.types import Batch, EnvSpec, Metrics, StateDict, UpdateResult

MIN_REWARD_SCALE = 1e-8
ENCODER_METRICS = (
    "encoder_loss",
    "dynamics_loss",
    "reward_loss",
    "termination_loss",
    "infonce_loss",
)


def symexp_bins(count: int, limit: float, device: torch.device) -> Tensor:
    """The values of the reward bins, (count,).

        b = sign(x) (exp |x| - 1)        x equally spaced from -limit to limit

    >>> symexp_bins(3, 1.0, torch.device("cpu"))
    tensor([-1.7183,  0.0000,  1.7183])
    """
    x = torch.linspace(-limit, limit, count, device=device)
    return x.sign() * (x.abs().exp() - 1.0)


def two_hot(values: Tensor, bins: Tensor) -> Tensor:
    """Each value (...) as weights (..., bins) of its two neighboring bins, whose weighted mean is the
    value. Values outside the range of the bins count as the outermost bin.

    >>> two_hot(torch.tensor([0.25, 9.0]), torch.tensor([-1.0, 0.0, 1.0]))
    tensor([[0.0000, 0.7500, 0.2500],
            [0.0000, 0.0000, 1.0000]])
    """
    values = values.clamp(bins[0], bins[-1])
    upper = torch.searchsorted(bins, values, right=True).clamp(1, len(bins) - 1)
    weight = (values - bins[upper - 1]) / (bins[upper] - bins[upper - 1])
    weights = values.new_zeros(*values.shape, len(bins))
    weights.scatter_(-1, upper[..., None] - 1, 1.0 - weight[..., None])
    return weights.scatter_(-1, upper[..., None], weight[..., None])


def reward_loss(logits: Tensor, reward: Tensor, bins: Tensor) -> Tensor:
    """The cross-entropy (B,) of predicted reward bins (B, bins) and the two-hot reward (B,)."""
    return -(two_hot(reward, bins) * logits.log_softmax(-1)).sum(-1)


def infonce_loss(predicted: Tensor, true: Tensor, temperature: float) -> Tensor:
    """The InfoNCE loss (B,): the cross-entropy of classifying which of the `true` next features (B, D) of
    the batch belong to each sample, with cosine similarities / temperature as logits."""
    predicted, true = F.normalize(predicted, dim=1), F.normalize(true, dim=1)
    return -(predicted @ true.T / temperature).log_softmax(1).diagonal()


def gumbel_softmax(logits: Tensor, gumbel: Tensor, temperature: float) -> Tensor:
    """A differentiable sample (B, A) of the categorical distribution with these logits, from Gumbel
    noise (B, A)."""
    return ((logits + gumbel) / temperature).softmax(-1)


def lap_priority(td_errors: Tensor, exponent: float) -> Tensor:
    """Replay priorities (B,) of absolute TD errors (2, B) of two Q-functions (LAP, Fujimoto et al.,
    2020).

        p = max(|delta_1|, |delta_2|, 1)^exponent

    >>> lap_priority(torch.tensor([[0.1, 4.0], [0.2, 2.0]]), 0.5)
    tensor([1., 2.])
    """
    return td_errors.amax(0).clamp_min(1.0) ** exponent


class MrqNoise(NamedTuple):
    """All random numbers of one update of value and policy."""

    target: Tensor  # (B, A) standard normal noise on the target's actions
    corners: Tensor | None = None  # (2, B, 2) shifts of o_t and o_(t+n); None for state vectors
    target_gumbel: Tensor | None = None  # (B, A) if actions are discrete
    policy_gumbel: Tensor | None = None  # (B, A)


def encoder_losses(
    agent: "MrQ", z_s: Tensor, next_z_s: Tensor, batch: SequenceBatch, has_termination: Tensor
) -> Metrics:
    """The encoder loss and its four terms, from features z_s (B, D) of the first observation and
    the target encoder's features (T, B, D) of the following T observations.

    The model is unrolled from the first observation. Steps after a termination do not count.
    `has_termination` is 1 if the replay contains a termination, otherwise 0: then the prediction of
    terminations is not trained.
    """
    settings = agent.settings
    dynamics = reward = termination = infonce = z_s.new_zeros(())
    mask = torch.ones_like(batch.reward[:, 0])  # (B,) 1 until the episode terminates
    for t in range(settings.horizon_steps):
        predicted_end, z_s, logits = agent.model.predict(z_s, batch.action[:, t])
        continuation = batch.continuation[:, t]
        dynamics = dynamics + ((z_s - next_z_s[t]) ** 2 * mask[:, None]).mean()
        reward = reward + (reward_loss(logits, batch.reward[:, t], agent.bins) * mask).mean()
        termination = termination + ((predicted_end - (1.0 - continuation)) ** 2 * mask).mean()
        if settings.infonce_coefficient:
            similarity = infonce_loss(z_s, next_z_s[t], settings.infonce_temperature)
            infonce = infonce + (similarity * mask).mean()
        mask = mask * continuation
    loss = (
        settings.dynamics_coefficient * dynamics
        + settings.reward_coefficient * reward
        + settings.termination_coefficient * has_termination * termination
        + settings.infonce_coefficient * infonce
    )
    return dict(zip(ENCODER_METRICS, (loss, dynamics, reward, termination, infonce), strict=True))


@torch.no_grad()
def q_target(agent: "MrQ", batch: Batch, next_z_s: Tensor, noise: MrqNoise) -> Tensor:
    """The target y (B,), from the target encoder's features (B, D) of the observation n steps later.

        y = (sum_i gamma^i r_i + gamma^n (1 - d) s' min_k Q'_k(z_sa')) / s

    s is the mean absolute reward of the replay at the latest copy to the target networks, s' that at
    the copy before it, and d is 1 after a termination.
    """
    settings, targets = agent.settings, agent.targets
    clip = settings.target_noise_clip * agent.noise_scale
    action_noise = noise.target * settings.target_noise_std * agent.noise_scale
    action = agent.action(targets["policy"](next_z_s), noise.target_gumbel)
    action = agent.to_valid_action(action + action_noise.clamp(-clip, clip))
    value = targets["critic"](targets["model"](next_z_s, action)).amin(0)
    value = value * agent.target_reward_scale * settings.discount**settings.n_steps
    y: Tensor = (batch.n_step_return + batch.continuation * value) / agent.reward_scale
    return y


def policy_loss(agent: "MrQ", z_s: Tensor, gumbel: Tensor | None) -> Tensor:
    """The negative mean of both Q-values, and a penalty on large outputs of the policy network."""
    preactivation = agent.policy(z_s)
    q = agent.critic(agent.model(z_s, agent.action(preactivation, gumbel)))
    penalty = agent.settings.preactivation_coefficient * (preactivation**2).mean()
    loss: Tensor = penalty - q.mean()
    return loss


class MrQ:
    """Encoder, model, policy and critic, their target networks and optimizers."""

    metric_names: tuple[str, ...] = (
        *("critic_loss", "gradient_norm", "q_mean", "target_mean", "policy_loss"),
        *("td_error_mean", "reward_scale", *ENCODER_METRICS),
    )

    def __init__(self, config: Config[MrqConfig], spec: EnvSpec, device: torch.device):
        self.settings, settings = config.algorithm, config.algorithm
        self.is_discrete = spec.num_actions is not None
        self.action_dim = spec.num_actions or spec.action_dim
        # The range of one-hot actions, [0, 1], is half that of continuous ones, [-1, 1].
        self.noise_scale = 0.5 if self.is_discrete else 1.0
        self.pixels = None if spec.state_dim else config.env.frame_pixels
        stack, features = config.env.frame_stack, settings.feature_dim
        with seeded_weights(config.seed):
            if self.pixels is None:
                inputs = spec.state_dim * stack
                self.encoder: nn.Module = MlpStateEncoder(
                    inputs, settings.encoder_hidden_dim, features
                )
            else:
                channels = spec.frame_shape[0] * stack
                self.encoder = PixelEncoder(channels, self.pixels, settings.conv_filters, features)
            self.model = Model(
                features,
                self.action_dim,
                settings.action_feature_dim,
                settings.encoder_hidden_dim,
                settings.reward_bins,
            )
            self.policy = NormalizedMlp(features, settings.hidden_dim, self.action_dim, F.relu)
            self.critic = Critic(features, settings.hidden_dim)
            self.networks = nn.ModuleDict(
                {
                    "encoder": self.encoder,
                    "model": self.model,
                    "policy": self.policy,
                    "critic": self.critic,
                }
            )
            self.networks.apply(initialize)
        self.networks.to(device)
        self.targets = copy.deepcopy(self.networks).requires_grad_(False)
        rates = (settings.encoder_learning_rate, settings.learning_rate, settings.learning_rate)
        decays = (settings.encoder_weight_decay, settings.weight_decay, settings.weight_decay)
        trained = (nn.ModuleList([self.encoder, self.model]), self.policy, self.critic)
        self.optimizers = {
            name: Adam(trainable_parameters(network), lr, weight_decay=weight_decay)
            for name, network, lr, weight_decay in zip(
                ("encoder", "policy", "critic"), trained, rates, decays, strict=True
            )
        }
        self.bins = symexp_bins(settings.reward_bins, settings.reward_bin_limit, device)
        self.reward_scale = torch.ones((), device=device)
        # 0 as in the authors' code, until the targets are copied before the first update
        self.target_reward_scale = torch.full((), float(not settings.scale_rewards), device=device)
        self.encoder_metrics = torch.zeros(len(ENCODER_METRICS), device=device)
        self.updates = 0

    # --- actions

    def action(self, preactivation: Tensor, gumbel: Tensor | None) -> Tensor:
        """Actions (B, A) from the policy network's output: its tanh, or a Gumbel-softmax sample."""
        if gumbel is None:
            return preactivation.tanh()
        return gumbel_softmax(preactivation, gumbel, self.settings.gumbel_temperature)

    def to_valid_action(self, action: Tensor) -> Tensor:
        """Actions (B, A) within [-1, 1], or one-hot."""
        if self.is_discrete:
            return F.one_hot(action.argmax(1), self.action_dim).to(action.dtype)
        return action.clamp(-1.0, 1.0)

    @torch.no_grad()
    def evaluation_action(self, observation: Tensor) -> Tensor:
        """The greedy action for stacks of frames or for states: (B, A), or indices (B,)."""
        preactivation = self.policy(self.encoder(observation))
        action: Tensor = preactivation.argmax(1) if self.is_discrete else preactivation.tanh()
        return action

    @torch.no_grad()
    def collection_action(
        self,
        observation: Tensor,
        env_steps: Tensor,  # noqa: ARG002 (the noise does not decay)
        augment_generator: torch.Generator,  # noqa: ARG002 (acting does not augment)
        policy_generator: torch.Generator,
    ) -> Tensor:
        """Actions with noise (B, A), one-hot if they are discrete."""
        preactivation = self.policy(self.encoder(observation))
        gumbel = self._gumbel(len(observation), policy_generator)
        noise = self._normal(len(observation), policy_generator)
        noise = noise * self.settings.exploration_noise_std * self.noise_scale
        return self.to_valid_action(self.action(preactivation, gumbel) + noise)

    # --- updates

    def draw_noise(
        self, batch_size: int, augment_generator: torch.Generator, policy_generator: torch.Generator
    ) -> MrqNoise:
        return MrqNoise(
            self._normal(batch_size, policy_generator),
            self._corners(2, batch_size, augment_generator),
            self._gumbel(batch_size, policy_generator),
            self._gumbel(batch_size, policy_generator),
        )

    def update(self, batch: Batch, noise: MrqNoise, env_steps: Tensor) -> UpdateResult:  # noqa: ARG002
        """One step of Q-functions and policy on a batch of n-step transitions."""
        with torch.no_grad():
            frames = torch.stack([batch.observation, batch.next_observation])
            observation, next_observation = self.shift(frames, noise.corners)
            z_s = self.encoder(observation)
            z_sa = self.model(z_s, batch.action)
        target = q_target(self, batch, self.targets["encoder"](next_observation), noise)

        q = self.critic(z_sa)  # (2, B)
        critic_loss = F.smooth_l1_loss(q, target.expand_as(q))
        gradient_norm = self._critic_step(critic_loss)

        loss = policy_loss(self, z_s, noise.policy_gumbel)
        backward_and_step(loss, self.optimizers["policy"])

        td_errors = (q.detach() - target).abs()
        self.updates += 1
        metrics = {
            "critic_loss": critic_loss.detach(),
            "gradient_norm": gradient_norm,
            "q_mean": q.detach().mean(),
            "target_mean": target.mean(),
            "policy_loss": loss.detach(),
            "td_error_mean": td_errors.mean(),
            "reward_scale": self.reward_scale,
            **dict(zip(ENCODER_METRICS, self.encoder_metrics, strict=True)),
        }
        return UpdateResult(metrics, lap_priority(td_errors, self.settings.priority_exponent))

    def before_update(self, replay: Replay, generators: Generators) -> None:
        """Every `target_every_updates` updates: copy the networks to the targets, and train the encoder."""
        settings = self.settings
        if self.updates % settings.target_every_updates:
            return
        self.copy_targets(replay.mean_absolute_reward())
        has_termination = replay.has_termination()
        total = torch.zeros_like(self.encoder_metrics)
        for _ in range(settings.target_every_updates):
            batch = replay.sample_sequences(
                settings.batch_size, settings.horizon_steps, generators["replay"]
            )
            corners = self._corners(
                1 + settings.horizon_steps, settings.batch_size, generators["augment"]
            )
            metrics = self.update_encoder(batch.to(self.bins.device), corners, has_termination)
            total += torch.stack([metrics[name].detach() for name in ENCODER_METRICS])
        self.encoder_metrics = total / settings.target_every_updates

    def copy_targets(self, mean_absolute_reward: Tensor) -> None:
        self.targets.load_state_dict(self.networks.state_dict())
        if self.settings.scale_rewards:
            self.target_reward_scale = self.reward_scale
            self.reward_scale = mean_absolute_reward.clamp_min(MIN_REWARD_SCALE)

    def update_encoder(
        self, batch: SequenceBatch, corners: Tensor | None, has_termination: Tensor
    ) -> Metrics:
        """One step of encoder and model on a batch of subsequences."""
        observations = self.shift(batch.observations, corners)
        with torch.no_grad():
            following = observations[1:]
            next_z_s = self.targets["encoder"](following.flatten(0, 1))
            next_z_s = next_z_s.view(*following.shape[:2], -1)  # (T, B, D)
        z_s = self.encoder(observations[0])
        metrics = encoder_losses(self, z_s, next_z_s, batch, has_termination)
        backward_and_step(metrics["encoder_loss"], self.optimizers["encoder"])
        return metrics

    def shift(self, observations: Tensor, corners: Tensor | None) -> Tensor:
        """Images (N, B, C, H, W) shifted, with a replicated border; states (N, B, S) are not changed."""
        if corners is None or self.pixels is None:
            return observations
        images = observations.flatten(0, 1)
        index = replicate_pad_indices(self.pixels, self.settings.shift_pixels, images.device)
        padded = images[:, :, index][:, :, :, index]
        shifted = lazy_crops(padded, corners.flatten(0, 1)[None], self.pixels).materialize()
        return shifted.view(observations.shape)

    def _critic_step(self, loss: Tensor) -> Tensor:
        """Step the critic with clipped gradients. Returns the norm before clipping."""
        optimizer, limit = self.optimizers["critic"], self.settings.max_gradient_norm
        gradients = torch.autograd.grad(loss, optimizer.parameters)
        norm = get_total_norm(gradients)
        if limit:
            factor = (limit / (norm + 1e-6)).clamp_max(1.0)
            gradients = tuple(gradient * factor for gradient in gradients)
        optimizer.step(optimizer.parameters, gradients)
        return norm

    # --- random numbers

    def _normal(self, batch_size: int, generator: torch.Generator) -> Tensor:
        device = generator.device
        return torch.randn(batch_size, self.action_dim, generator=generator, device=device)

    def _gumbel(self, batch_size: int, generator: torch.Generator) -> Tensor | None:
        if not self.is_discrete:
            return None
        numbers = torch.empty(batch_size, self.action_dim, device=generator.device)
        return -numbers.exponential_(generator=generator).log()

    def _corners(self, count: int, batch_size: int, generator: torch.Generator) -> Tensor | None:
        """Top-left corners of `count` shifted views in the padded image, (count, B, 2)."""
        if self.pixels is None:
            return None
        padded = self.pixels + 2 * self.settings.shift_pixels
        return sample_crop_corners(count, batch_size, padded, self.pixels, True, generator)

    # --- state

    def state_dict(self) -> StateDict:
        return {
            "networks": self.networks.state_dict(),
            "targets": self.targets.state_dict(),
            "optimizers": {name: each.state_dict() for name, each in self.optimizers.items()},
            "reward_scale": self.reward_scale,
            "target_reward_scale": self.target_reward_scale,
            "encoder_metrics": self.encoder_metrics,
            "updates": self.updates,
        }

    def load_state_dict(self, state: StateDict) -> None:
        self.networks.load_state_dict(state["networks"])
        self.targets.load_state_dict(state["targets"])
        for name, optimizer in self.optimizers.items():
            optimizer.load_state_dict(state["optimizers"].get(name, {}))
        device = self.bins.device
        self.reward_scale = state["reward_scale"].to(device)
        self.target_reward_scale = state["target_reward_scale"].to(device)
        self.encoder_metrics = state["encoder_metrics"].to(device)
        self.updates = int(state["updates"])
