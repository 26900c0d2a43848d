"""Advantage actor-critic (A2C) on MiniGrid, as in the RE3 paper, with CCLF and RE3 as options.

A2C is on-policy, so there is no replay to prioritise. A grid observation is duplicated rather than
augmented, so its two views are equal and so are both terms of Eq. (7). Curiosity therefore acts through
the contrastive loss (8) and the intrinsic reward (9).
"""

import copy

import numpy as np
import torch
from torch import Tensor, nn

from cclf.algorithms.a2c.config import A2cConfig
from cclf.algorithms.a2c.networks import ContrastiveHead, GridPolicy, grid_windows
from cclf.algorithms.a2c.re3 import StateEntropyBonus
from cclf.algorithms.common.optimizers import RMSprop
from cclf.config import Config
from cclf.data.augmentations import ViewIndex, Views
from cclf.framework import Appraisal, Framework
from cclf.training.seeding import seeded_weights
from cclf.types import Metrics, Rollout, StateDict


def generalized_advantage(
    reward: Tensor, value: Tensor, ended: Tensor, discount: float, gae_lambda: float
) -> Tensor:
    """GAE (Schulman et al., 2016), (T, N), of rewards (T, N), values (T + 1, N) and the steps that ended
    an episode (T, N).

    >>> generalized_advantage(torch.tensor([[1.0], [1.0]]), torch.tensor([[0.5], [0.5], [0.5]]),
    ...                       torch.tensor([[False], [True]]), 0.9, 0.5)
    tensor([[1.1750],
            [0.5000]])
    """
    continuation = 1.0 - ended.to(reward.dtype)
    delta = reward + discount * value[1:] * continuation - value[:-1]
    advantage = torch.empty_like(reward)
    last = torch.zeros_like(reward[0])
    for t in reversed(range(len(reward))):
        last = delta[t] + discount * gae_lambda * continuation[t] * last
        advantage[t] = last
    return advantage


class A2C:
    """Networks, optimizer and update. `framework` is None without CCLF, `re3` without RE3."""

    metric_names: tuple[str, ...] = (
        "policy_loss", "value_loss", "policy_entropy", "value_mean", "gradient_norm", "reward_mean",
        "contrastive_loss", "curiosity_mean", "curiosity_std", "next_curiosity_mean",
        "bonus_mean", "bonus_max",
        "re3_bonus_mean", "re3_bonus_share_above_0", "re3_distance_std",
    )  # fmt: skip

    def __init__(self, config: Config, num_actions: int):
        settings: A2cConfig = config.algorithm
        self.settings, hidden = settings, settings.contrastive_hidden_dim
        self.re3 = self.framework = None
        with seeded_weights(config.seed):
            if settings.re3:
                self.re3 = StateEntropyBonus(
                    settings.re3_window_observations,
                    settings.re3_running_mean_bug,
                    settings.num_envs * settings.rollout_steps,
                )
            if config.method.contrastive:
                self.framework = Framework(hidden, config.method)
            self.policy = GridPolicy(num_actions)
            self.networks = nn.ModuleDict({"policy": self.policy})
            if self.framework is not None:
                self.head = ContrastiveHead(64, hidden)
                query = nn.Sequential(self.policy.encoder, self.head)
                self.key = copy.deepcopy(query).requires_grad_(False)
                modules = {"framework": self.framework, "head": self.head, "key": self.key}
                self.networks.update(modules)
        self.parameters = [p for p in self.networks.parameters() if p.requires_grad]
        self.optimizer = RMSprop(
            self.parameters,
            settings.learning_rate,
            settings.rmsprop_alpha,
            settings.rmsprop_epsilon,
        )

    @torch.inference_mode()
    def act(self, observation: np.ndarray, uniform: np.ndarray) -> np.ndarray:
        """Actions (N,) sampled from the policy for grids (N, 7, 7, 3), by the Gumbel-max trick with
        uniform numbers (N, A)."""
        logits = self.policy.actor(
            self.policy.encoder(torch.from_numpy(grid_windows(observation)))
        ).numpy()
        return (logits - np.log(-np.log(uniform))).argmax(1)  # type: ignore[no-any-return]

    @property
    def needs_permutation(self) -> bool:
        """Whether `update` needs a random permutation of its batch."""
        return self.framework is not None and self.framework.needs_permutation

    def update(
        self, rollout: Rollout, env_steps: Tensor, permutation: Tensor | None = None
    ) -> Metrics:
        """One gradient step on a rollout of T steps in N environments."""
        num_steps, num_envs = rollout.action.shape
        batch_size = num_steps * num_envs
        features = self.features(rollout)  # ((T + 1) N, 64)
        values = self.policy.critic(features).view(num_steps + 1, num_envs)
        reward = torch.from_numpy(rollout.reward)  # (T, N)

        metrics: Metrics = {"reward_mean": reward.mean()}
        contrastive_loss = None
        if self.framework is not None:
            appraisal, contrastive_loss = self.appraise(
                self.framework, features, rollout, reward.flatten(), env_steps, permutation
            )
            reward = reward + appraisal.bonus.view_as(reward)
            metrics["contrastive_loss"] = contrastive_loss.detach()
            if self.framework.needs_curiosity:
                metrics |= _curiosity_metrics(appraisal)

        baseline = values.detach()
        advantage = generalized_advantage(
            reward,
            baseline,
            torch.from_numpy(rollout.ended),
            self.settings.discount,
            self.settings.gae_lambda,
        ).flatten()
        if self.re3 is not None:  # added to the advantage instead of the reward, as published
            bonus, re3_metrics = self.re3.bonus(rollout.observation[:-1].reshape(batch_size, 147))
            advantage = advantage + self.settings.re3_coefficient * bonus
            metrics |= re3_metrics
        returns = baseline[:-1].flatten() + advantage

        log_probs = torch.log_softmax(self.policy.actor(features[:batch_size]), dim=1)
        action = torch.from_numpy(rollout.action).view(batch_size, 1)
        policy_loss = -(log_probs.gather(1, action).squeeze(1) * advantage).mean()
        entropy = -(log_probs.exp() * log_probs).sum(1).mean()
        value_loss = ((values[:-1].flatten() - returns) ** 2).mean()
        loss = (
            policy_loss
            - self.settings.entropy_coefficient * entropy
            + self.settings.value_coefficient * value_loss
        )
        if contrastive_loss is not None:
            loss = loss + self.settings.contrastive_coefficient * contrastive_loss
        gradient_norm = self._optimizer_step(loss)
        return metrics | {
            "policy_loss": policy_loss.detach(),
            "value_loss": value_loss.detach(),
            "policy_entropy": entropy.detach(),
            "value_mean": baseline.mean(),
            "gradient_norm": gradient_norm,
        }

    def features(self, rollout: Rollout) -> Tensor:
        """Encoder features ((T + 1) N, 64) of all observations of a rollout."""
        features: Tensor = self.policy.encoder(_windows(rollout))
        return features

    def appraise(
        self,
        framework: Framework,
        features: Tensor,
        rollout: Rollout,
        reward: Tensor,
        env_steps: Tensor,
        permutation: Tensor | None = None,
    ) -> tuple[Appraisal[ViewIndex], Tensor]:
        """The appraisal of a rollout, and the contrastive loss. A view is the index of a row of
        `features`: o_t and o_(t+1) share all rows but N, so each observation is encoded once."""
        batch_size = len(reward)
        rows = torch.arange(len(features))
        current, following = rows[:batch_size], rows[-batch_size:]
        query = self.head(features)
        with torch.no_grad():
            key = self.key(_windows(rollout))
        duplicates: tuple[Tensor | None, Tensor | None] = (None, None)
        if framework.method.negatives == "distinct":
            flat = rollout.observation.reshape(-1, 147)
            duplicates = first_duplicate(flat[:batch_size]), first_duplicate(flat[-batch_size:])
        detached = query.detach()
        appraisal = framework.appraise(
            Views(ViewIndex(current.expand(2, -1)), first_duplicate=duplicates[0]),
            Views(ViewIndex(following.expand(2, -1)), first_duplicate=duplicates[1]),
            reward,
            env_steps,
            encode_query=lambda view: detached[view.rows],
            encode_key=lambda view: key[view.rows],
            permutation=permutation,
        )
        return appraisal, framework.contrastive_loss(
            query[:batch_size], key[:batch_size], appraisal.curiosity, duplicates[0]
        )

    def _optimizer_step(self, loss: Tensor) -> Tensor:
        """Step the optimizer and update the key network. Returns the norm of the gradient."""
        loss.backward()  # type: ignore[no-untyped-call]
        norm = nn.utils.clip_grad_norm_(
            self.parameters, self.settings.max_gradient_norm, foreach=True
        )
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        self.optimizer.step(self.parameters, gradients)
        for parameter in self.parameters:
            parameter.grad = None
        if self.framework is not None:
            query: list[Tensor] = [*self.policy.encoder.parameters(), *self.head.parameters()]
            with torch.no_grad():
                torch._foreach_lerp_(list(self.key.parameters()), query, self.settings.key_ema_rate)
        return norm

    def state_dict(self) -> StateDict:
        state: StateDict = {
            "networks": self.networks.state_dict(),
            "optimiser": self.optimizer.state_dict(),
        }
        if self.re3 is not None:
            state["state_entropy"] = self.re3.state_dict()
        return state

    def load_state_dict(self, state: StateDict) -> None:
        self.networks.load_state_dict(state["networks"])
        self.optimizer.load_state_dict(state["optimiser"])
        if self.re3 is not None:
            self.re3.load_state_dict(state["state_entropy"])


def _windows(rollout: Rollout) -> Tensor:
    """Input ((T + 1) N, 9, 4, 12) of the encoder."""
    return torch.from_numpy(grid_windows(rollout.observation.reshape(-1, 7, 7, 3)))


def first_duplicate(observation: np.ndarray) -> Tensor:
    """For each row of (B, 147), the index of the first row equal to it."""
    keys = np.ascontiguousarray(observation).view("V147").ravel().tolist()
    first: dict[bytes, int] = {}
    return torch.tensor([first.setdefault(key, row) for row, key in enumerate(keys)])


def _curiosity_metrics(appraisal: Appraisal[ViewIndex]) -> Metrics:
    return {
        "curiosity_mean": appraisal.curiosity.mean(),
        "curiosity_std": appraisal.curiosity.std(),
        "next_curiosity_mean": appraisal.next_curiosity.mean(),
        "bonus_mean": appraisal.bonus.mean(),
        "bonus_max": appraisal.bonus.max(),
    }
