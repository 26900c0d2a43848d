"""Advantage actor-critic as the RE3 study ran it on MiniGrid, learning from an appraisal, with
RE3's bonus where asked for.

On-policy: there is no replay to prioritise, and a grid observation is not augmented but duplicated,
so its two views are the same and both terms of Eq. (7) are one number. What curiosity still drives
is the contrastive loss (8) and the intrinsic reward (9).
"""

import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cclf.algorithms.a2c.config import A2cConfig
from cclf.algorithms.a2c.networks import ContrastiveHead, GridPolicy, grid_windows
from cclf.algorithms.a2c.re3 import StateEntropyBonus
from cclf.algorithms.common.optimizers import RMSprop
from cclf.config import Config
from cclf.data.augmentations import Views
from cclf.framework import Appraisal, Framework
from cclf.types import Metrics, Rollout


def generalised_advantage(
    reward: Tensor, value: Tensor, ended: Tensor, discount: float, gae_lambda: float
) -> Tensor:
    """GAE (Schulman et al., 2016) over (T, N) rewards and (T + 1, N) values; nothing flows back
    across the end of an episode.

    >>> generalised_advantage(torch.tensor([[1.0], [1.0]]), torch.tensor([[0.5], [0.5], [0.5]]),
    ...                       torch.tensor([[False], [True]]), 0.9, 0.5)
    tensor([[1.1750],
            [0.5000]])
    """
    going_on = 1.0 - ended.to(reward.dtype)
    deltas = reward + discount * value[1:] * going_on - value[:-1]
    advantage = torch.empty_like(reward)
    later = torch.zeros_like(reward[0])
    for t in range(len(reward) - 1, -1, -1):
        later = deltas[t] + discount * gae_lambda * going_on[t] * later
        advantage[t] = later
    return advantage


class A2C:
    """One gradient step per rollout: policy, value and entropy, plus the contrastive loss where a
    framework is given."""

    metric_names: tuple[str, ...] = (
        *(
            "policy_loss",
            "value_loss",
            "policy_entropy",
            "value_mean",
            "gradient_norm",
            "reward_mean",
        ),
        *(
            "contrastive_loss",
            "curiosity_mean",
            "curiosity_std",
            "next_curiosity_mean",
            "bonus_mean",
            "bonus_max",
        ),
        *("re3_bonus_mean", "re3_bonus_share_above_0", "re3_distance_std"),
    )

    def __init__(self, config: Config, num_actions: int):
        settings: A2cConfig = config.algorithm
        self.settings, hidden = settings, settings.contrastive_hidden_dim
        batch = settings.num_envs * settings.rollout_steps
        self.state_entropy = None
        if settings.re3:
            self.state_entropy = StateEntropyBonus(
                settings.re3_window_observations, settings.re3_running_mean_bug, batch
            )
        self.framework = Framework(hidden, config.method) if config.method.contrastive else None
        self.policy = GridPolicy(num_actions)
        self.networks = nn.ModuleDict({"policy": self.policy})
        if self.framework is not None:
            self.head = ContrastiveHead(64, hidden)
            self.key = nn.Sequential(
                copy.deepcopy(self.policy.encoder), copy.deepcopy(self.head)
            ).requires_grad_(False)
            self.networks.update({"framework": self.framework, "head": self.head, "key": self.key})
        self.parameters = [p for p in self.networks.parameters() if p.requires_grad]
        rates = (settings.learning_rate, settings.rmsprop_alpha, settings.rmsprop_epsilon)
        self.optimiser = RMSprop(self.parameters, *rates)

    @torch.inference_mode()
    def act(self, observation: np.ndarray, uniform: np.ndarray) -> np.ndarray:
        """Actions sampled from the policy for grids (N, 7, 7, 3), by the Gumbel trick on uniform
        numbers (N, A)."""
        logits = self.policy.actor(
            self.policy.encoder(torch.from_numpy(grid_windows(observation)))
        ).numpy()
        return (logits - np.log(-np.log(uniform))).argmax(1)  # type: ignore[no-any-return]

    @property
    def needs_permutation(self) -> bool:
        """Whether an update must be given a permutation of its batch."""
        return self.framework is not None and self.framework.needs_permutation

    def update(self, rollout: Rollout, env_steps: Tensor, order: Tensor | None = None) -> Metrics:
        steps, environments = rollout.action.shape
        batch = steps * environments
        features = self.features(rollout)
        values = self.policy.critic(features).view(steps + 1, environments)
        reward, ended = torch.from_numpy(rollout.reward), torch.from_numpy(rollout.ended)

        metrics: Metrics = {"reward_mean": reward.mean()}
        paid, contrastive = reward, None
        if self.framework is not None:
            appraisal, contrastive = self.appraise(
                self.framework, features, rollout, reward.flatten(), env_steps, order
            )
            paid = reward + appraisal.bonus.view_as(reward)
            metrics["contrastive_loss"] = contrastive.detach()
            metrics |= _curiosity_metrics(appraisal) if self.framework.needs_curiosity else {}

        # The learning target, fixed before any gradient: r + bonus before GAE, RE3's bonus after it
        # as published.
        baseline = values.detach()
        advantage = generalised_advantage(
            paid, baseline, ended, self.settings.discount, self.settings.gae_lambda
        ).flatten()
        if self.state_entropy is not None:
            bonus, re3_metrics = self.state_entropy.bonus(
                rollout.observation[:-1].reshape(batch, 147)
            )
            advantage = advantage + self.settings.re3_coefficient * bonus
            metrics |= re3_metrics
        returns = baseline[:-1].flatten() + advantage

        log_policy = torch.log_softmax(self.policy.actor(features[:batch]), dim=1)
        taken = log_policy.gather(1, torch.from_numpy(rollout.action).view(batch, 1)).squeeze(1)
        entropy = -(log_policy.exp() * log_policy).sum(1).mean()
        policy_loss = -(taken * advantage).mean()
        value_loss = ((values[:-1].flatten() - returns) ** 2).mean()
        loss = (
            policy_loss
            - self.settings.entropy_coefficient * entropy
            + self.settings.value_coefficient * value_loss
        )
        if contrastive is not None:
            loss = loss + self.settings.contrastive_coefficient * contrastive
        norm = self._step(loss)
        return metrics | {
            "policy_loss": policy_loss.detach(),
            "value_loss": value_loss.detach(),
            "policy_entropy": entropy.detach(),
            "value_mean": baseline.mean(),
            "gradient_norm": norm,
        }

    def features(self, rollout: Rollout) -> Tensor:
        """Of each observation, row after row, ((T + 1) N, 64)."""
        features: Tensor = self.policy.encoder(
            torch.from_numpy(grid_windows(rollout.observation.reshape(-1, 7, 7, 3)))
        )
        return features

    def appraise(
        self,
        framework: Framework,
        features: Tensor,
        rollout: Rollout,
        reward: Tensor,
        env_steps: Tensor,
        order: Tensor | None = None,
    ) -> tuple[Appraisal, Tensor]:
        """Curiosity about each observation and the next, and the contrastive loss that trains the
        belief.

        A "view" is a row number of the rollout: o_t and o_(t+1) share all rows but N, so each is
        encoded once.
        """
        batch = reward.shape[0]
        rows = torch.arange(features.shape[0])
        now, following = rows[:batch], rows[features.shape[0] - batch :]
        query = self.head(features)
        with torch.no_grad():
            key = self.key(torch.from_numpy(grid_windows(rollout.observation.reshape(-1, 7, 7, 3))))
        same: tuple[Tensor | None, Tensor | None] = (None, None)
        if framework.method.negatives == "distinct":
            flat = rollout.observation.reshape(-1, 147)
            same = (first_duplicate(flat[:batch]), first_duplicate(flat[-batch:]))
        detached = query.detach()
        appraisal = framework.appraise(
            Views(now.expand(2, -1), same=same[0]),
            Views(following.expand(2, -1), same=same[1]),
            reward,
            env_steps,
            encode_query=lambda row: detached[row],
            encode_key=lambda row: key[row],
            order=order,
        )
        return appraisal, framework.contrastive_loss(
            query[:batch], key[:batch], appraisal.curiosity, same[0]
        )

    def _step(self, loss: Tensor) -> Tensor:
        loss.backward()  # type: ignore[no-untyped-call]
        norm = nn.utils.clip_grad_norm_(
            self.parameters, self.settings.max_gradient_norm, foreach=True
        )
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        self.optimiser.step(self.parameters, gradients)  # each has one
        for parameter in self.parameters:
            parameter.grad = None
        if self.framework is not None:
            query: list[Tensor] = [*self.policy.encoder.parameters(), *self.head.parameters()]
            with torch.no_grad():
                torch._foreach_lerp_(list(self.key.parameters()), query, self.settings.key_ema_rate)
        return norm

    def state_dict(self) -> dict[str, Any]:
        state = {"networks": self.networks.state_dict(), "optimiser": self.optimiser.state_dict()}
        return state | (
            {"state_entropy": self.state_entropy.state_dict()}
            if self.state_entropy is not None
            else {}
        )

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.networks.load_state_dict(state["networks"])
        self.optimiser.load_state_dict(state["optimiser"])
        if self.state_entropy is not None:
            self.state_entropy.load_state_dict(state["state_entropy"])


def first_duplicate(observation: np.ndarray) -> Tensor:
    """For each row of (B, 147), the number of the first row equal to it."""
    keys = np.ascontiguousarray(observation).view("V147").ravel().tolist()
    first: dict[bytes, int] = {}
    return torch.tensor([first.setdefault(key, row) for row, key in enumerate(keys)])


def _curiosity_metrics(appraisal: Appraisal) -> Metrics:
    return {
        "curiosity_mean": appraisal.curiosity.mean(),
        "curiosity_std": appraisal.curiosity.std(),
        "next_curiosity_mean": appraisal.next_curiosity.mean(),
        "bonus_mean": appraisal.bonus.mean(),
        "bonus_max": appraisal.bonus.max(),
    }
