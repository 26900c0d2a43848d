"""Advantage actor-critic (A2C) on MiniGrid, as in the RE3 paper, with CCLF and RE3 as options.

A2C is on-policy, so there is no replay to prioritise. A grid observation is duplicated rather than
augmented, so its two views are equal and so are both terms of Eq. (7). Curiosity therefore acts through
the contrastive loss (8) and the intrinsic reward (9). The measures `rnd` and `forward`, which learn
their own predictions, need no contrastive loss: they can add the intrinsic reward alone to A2C.
"""

import copy

import numpy as np
import torch
from torch import Tensor, nn

from cclf.algorithms.a2c.config import A2cConfig
from cclf.algorithms.a2c.networks import ContrastiveHead, GridEncoder, GridPolicy, grid_windows
from cclf.algorithms.a2c.re3 import StateEntropyBonus
from cclf.algorithms.common.optimizers import Adam, RMSprop, backward_and_step
from cclf.config import Config
from cclf.curiosity import AbsoluteMeasure, PredictedMeasure, RunningMean, Transitions
from cclf.data.augmentations import ViewIndex, Views
from cclf.framework import Appraisal, Framework
from cclf.training.seeding import derive, seeded_weights
from cclf.types import HasState, Metrics, Rollout, StateDict

PREDICTION_METRICS = ("prediction_loss",)  # of runs with a `PredictedMeasure`


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


def actor_critic_loss(
    logits: Tensor,  # (B, A)
    values: Tensor,  # (B,)
    action: Tensor,  # (B,)
    advantage: Tensor,  # (B,)
    returns: Tensor,  # (B,)
    settings: A2cConfig,
) -> tuple[Tensor, Metrics]:
    """Policy loss, entropy bonus and value loss, summed with their coefficients."""
    log_probs = torch.log_softmax(logits, dim=1)
    policy_loss = -(log_probs.gather(1, action[:, None]).squeeze(1) * advantage).mean()
    entropy = -(log_probs.exp() * log_probs).sum(1).mean()
    value_loss = ((values - returns) ** 2).mean()
    loss = (
        policy_loss
        - settings.entropy_coefficient * entropy
        + settings.value_coefficient * value_loss
    )
    metrics = {"policy_loss": policy_loss, "value_loss": value_loss, "policy_entropy": entropy}
    return loss, {name: value.detach() for name, value in metrics.items()}


class A2C:
    """Networks, optimizers and update. Parts that the method does not use are None: `framework` (CCLF),
    `re3`, and `predicted` (the curiosity measure if it is a `PredictedMeasure`)."""

    metric_names: tuple[str, ...] = (
        "policy_loss", "value_loss", "policy_entropy", "value_mean", "gradient_norm", "reward_mean",
        "contrastive_loss", "curiosity_mean", "curiosity_std", "next_curiosity_mean",
        "bonus_mean", "bonus_max",
        "re3_bonus_mean", "re3_bonus_share_above_0", "re3_distance_std",
    )  # fmt: skip

    def __init__(self, config: Config[A2cConfig], num_actions: int):
        settings = config.algorithm
        self.settings, hidden = settings, settings.contrastive_hidden_dim
        self.num_actions = num_actions
        self.re3: StateEntropyBonus | None = None
        self.framework: Framework | None = None
        self.predicted: PredictedMeasure | None = None
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
        if self.framework is None and config.method.needs_curiosity:
            self.framework = Framework(0, config.method)  # without the matrix W of the belief (3)
            self.networks["framework"] = self.framework
        self.parameters = [p for p in self.networks.parameters() if p.requires_grad and p.numel()]
        self.optimizer = RMSprop(
            self.parameters,
            settings.learning_rate,
            settings.rmsprop_alpha,
            settings.rmsprop_epsilon,
        )
        self.needs_permutation = self.framework is not None and self.framework.needs_permutation
        """Whether `update` needs a random permutation of its batch."""
        # The objects whose state is saved in a checkpoint, by name.
        self.parts: dict[str, HasState] = {"networks": self.networks, "optimiser": self.optimizer}
        if self.re3 is not None:
            self.parts["state_entropy"] = self.re3
        if self.framework is not None and self.framework.needs_curiosity:
            self._add_curiosity(self.framework, config.seed)

    def _add_curiosity(self, framework: Framework, seed: int) -> None:
        """Add the networks and metrics that the curiosity measure and `bonus_place` need. The weights are
        drawn from a separate seed, so that the policy's weights do not depend on the measure."""
        measure = framework.measure
        if isinstance(measure, PredictedMeasure):
            with seeded_weights(derive(seed, "curiosity")):
                measure.build(GridEncoder, 64, self.num_actions)
            self.predicted = measure
            self.prediction_optimizer = Adam(measure.predictor.parameters(), measure.learning_rate)
            self.parts["prediction_optimiser"] = self.prediction_optimizer
            self.metric_names += PREDICTION_METRICS
        if self.settings.bonus_place == "centred-reward":
            self.bonus_mean = RunningMean()
            self.networks["bonus_mean"] = self.bonus_mean

    @torch.inference_mode()
    def act(self, observation: np.ndarray, uniform: np.ndarray) -> np.ndarray:
        """Actions (N,) sampled from the policy for grids (N, 7, 7, 3), by the Gumbel-max trick with
        uniform numbers (N, A)."""
        logits = self.policy.actor(
            self.policy.encoder(torch.from_numpy(grid_windows(observation)))
        ).numpy()
        return (logits - np.log(-np.log(uniform))).argmax(1)  # type: ignore[no-any-return]

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
        advantage_bonus, contrastive_loss = None, None
        if self.framework is not None:
            appraisal, contrastive_loss, prediction_loss = self.appraise(
                self.framework, features, rollout, reward.flatten(), env_steps, permutation
            )
            bonus = appraisal.bonus
            if self.settings.bonus_place == "centred-reward":
                # A bonus with a positive mean would reward long episodes, whatever is observed.
                self.bonus_mean.update(bonus.mean())
                bonus = bonus - self.bonus_mean.value
            if self.settings.bonus_place == "advantage":
                advantage_bonus = bonus
            else:
                reward = reward + bonus.view_as(reward)
            if contrastive_loss is not None:
                metrics["contrastive_loss"] = contrastive_loss.detach()
            if prediction_loss is not None:
                metrics["prediction_loss"] = prediction_loss.detach()
                backward_and_step(prediction_loss, self.prediction_optimizer)
            if self.framework.needs_curiosity:
                metrics |= {
                    "curiosity_mean": appraisal.curiosity.mean(),
                    "curiosity_std": appraisal.curiosity.std(),
                    "next_curiosity_mean": appraisal.next_curiosity.mean(),
                    "bonus_mean": appraisal.bonus.mean(),
                    "bonus_max": appraisal.bonus.max(),
                }

        baseline, ended = values.detach(), torch.from_numpy(rollout.ended)
        discounts = (self.settings.discount, self.settings.gae_lambda)
        advantage = generalized_advantage(reward, baseline, ended, *discounts).flatten()  # (T N,)
        if advantage_bonus is not None:
            advantage = advantage + advantage_bonus
        if self.re3 is not None:  # added to the advantage instead of the reward, as published
            bonus, re3_metrics = self.re3.bonus(rollout.observation[:-1].reshape(batch_size, 147))
            advantage = advantage + self.settings.re3_coefficient * bonus
            metrics |= re3_metrics
        returns = baseline[:-1].flatten() + advantage

        logits = self.policy.actor(features[:batch_size])
        action = torch.from_numpy(rollout.action).flatten()
        loss, loss_metrics = actor_critic_loss(
            logits, values[:-1].flatten(), action, advantage, returns, self.settings
        )
        if contrastive_loss is not None:
            loss = loss + self.settings.contrastive_coefficient * contrastive_loss
        metrics |= loss_metrics | {"value_mean": baseline.mean()}
        return metrics | {"gradient_norm": self._optimizer_step(loss)}

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
    ) -> tuple[Appraisal[ViewIndex], Tensor | None, Tensor | None]:
        """The appraisal of a rollout, the contrastive loss, and the loss of the curiosity measure's own
        predictions. Views are row indices into `features`, so that each observation is encoded once:
        except for N rows, the observations o_t and o_(t+1) are the same."""
        batch_size = len(reward)
        rows = torch.arange(len(features))
        current, following = rows[:batch_size], rows[-batch_size:]
        query = key = features
        if framework.method.contrastive:
            query = self.head(features)
            with torch.no_grad():
                key = self.key(_windows(rollout))
        duplicates: tuple[Tensor | None, Tensor | None] = (None, None)
        if framework.method.negatives == "distinct":
            flat = rollout.observation.reshape(-1, 147)
            duplicates = first_duplicate(flat[:batch_size]), first_duplicate(flat[-batch_size:])
        # The measure compares these: by default the query and the key of the contrastive loss.
        queries, keys, prediction_loss = query.detach(), key, None
        views, next_views = current, following
        if self.predicted is not None:
            prediction = self.predicted.predictions(self.transitions(rollout))
            queries, keys = prediction.query.flatten(0, 1), prediction.key.flatten(0, 1)
            prediction_loss = prediction.loss
            views, next_views = torch.arange(2 * batch_size).chunk(2)
        if isinstance(framework.measure, AbsoluteMeasure):
            framework.measure.observe(queries[batch_size:], keys[batch_size:])
        appraisal = framework.appraise(
            Views(ViewIndex(views.expand(2, -1)), first_duplicate=duplicates[0]),
            Views(ViewIndex(next_views.expand(2, -1)), first_duplicate=duplicates[1]),
            reward,
            env_steps,
            encode_query=lambda view: queries[view.rows],
            encode_key=lambda view: keys[view.rows],
            permutation=permutation,
        )
        if not framework.method.contrastive:
            return appraisal, None, prediction_loss
        contrastive_loss = framework.contrastive_loss(
            query[:batch_size], key[:batch_size], appraisal.curiosity, duplicates[0]
        )
        return appraisal, contrastive_loss, prediction_loss

    def transitions(self, rollout: Rollout) -> Transitions:
        """The T N transitions of a rollout. Only about 50 of its (T + 1) N observations are distinct, so
        each distinct one is encoded once."""
        keys = np.ascontiguousarray(rollout.observation).reshape(-1, 147).view("V147").ravel()
        distinct: dict[bytes, int] = {}
        rows = torch.tensor([distinct.setdefault(key, len(distinct)) for key in keys.tolist()])
        grids = np.frombuffer(b"".join(distinct), np.uint8).reshape(-1, 7, 7, 3)
        action = torch.from_numpy(rollout.action).flatten()
        return Transitions(
            observations=torch.from_numpy(grid_windows(grids)),
            frequency=torch.bincount(rows).float() / len(rows),
            current=rows[: len(action)],
            following=rows[-len(action) :],
            action=nn.functional.one_hot(action, self.num_actions).float(),
            ended=torch.from_numpy(rollout.ended).flatten(),
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
        if self.framework is not None and self.framework.method.contrastive:
            query: list[Tensor] = [*self.policy.encoder.parameters(), *self.head.parameters()]
            with torch.no_grad():
                torch._foreach_lerp_(list(self.key.parameters()), query, self.settings.key_ema_rate)
        return norm

    def state_dict(self) -> StateDict:
        return {name: part.state_dict() for name, part in self.parts.items()}

    def load_state_dict(self, state: StateDict) -> None:
        for name, part in self.parts.items():
            part.load_state_dict(state[name])


def _windows(rollout: Rollout) -> Tensor:
    """Input ((T + 1) N, 9, 4, 12) of the encoder."""
    return torch.from_numpy(grid_windows(rollout.observation.reshape(-1, 7, 7, 3)))


def first_duplicate(observation: np.ndarray) -> Tensor:
    """For each row of (B, 147), the index of the first row equal to it."""
    keys = np.ascontiguousarray(observation).view("V147").ravel().tolist()
    first: dict[bytes, int] = {}
    return torch.tensor([first.setdefault(key, row) for row, key in enumerate(keys)])
