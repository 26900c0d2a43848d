"""The common base class of SAC and DrQ-v2, and functions that both use: the appraisal of encoded views,
the loss of the Q-functions, and the export of the policy."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping
from typing import ClassVar, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from cclf import equations
from cclf.algorithms.common.observations import (
    LazyViews,
    PixelObservations,
    StateObservations,
    UpdateNoise,
)
from cclf.algorithms.common.optimizers import Adam, Optimizer, OptimizerFactory
from cclf.config import AlgorithmSettings, Config
from cclf.data.augmentations import ViewIndex, Views
from cclf.data.replay import Replay
from cclf.framework import Appraisal, Framework
from cclf.training.seeding import Generators
from cclf.types import Batch, Env, ExportedPolicy, Metrics, StateDict, UpdateResult

S = TypeVar("S", bound=AlgorithmSettings, covariant=True)


class PixelActorCritic(ABC, Generic[S]):
    """An actor-critic that learns from an appraisal in which views are row indices instead of images.

    There are K views of each o_t and of each o_(t+1): row k B + b is view k of o_t in sample b, and
    row K B + k B + b is view k of o_(t+1).
    """

    optimizer_class: ClassVar[OptimizerFactory] = Adam
    """The optimizer of all networks; see "Another optimizer" in docs/design.md."""
    metric_names: tuple[str, ...]
    networks: nn.ModuleDict
    framework: Framework
    observations: PixelObservations | StateObservations
    optimizers: Mapping[str, Optimizer]

    def __init__(self, config: Config[S], action_dim: int):
        self.settings, self.method, self.env = config.algorithm, config.method, config.env
        self.action_dim = action_dim
        self.updates = 0

    def before_update(self, replay: Replay, generators: Generators) -> None:
        """Called before each update. Does nothing: all training is in `update`."""

    @abstractmethod
    def update(self, batch: Batch, noise: UpdateNoise, env_steps: Tensor) -> UpdateResult: ...

    @abstractmethod
    def collection_action(
        self,
        observation: Tensor,
        env_steps: Tensor,
        augment_generator: torch.Generator,
        policy_generator: torch.Generator,
    ) -> Tensor:
        """An exploring action (B, A) for stacks of frames (B, C, H, W) or for states (B, D)."""

    @abstractmethod
    def evaluation_action(self, observation: Tensor) -> Tensor:
        """The mean action (B, A) for observations as in `collection_action`."""

    @abstractmethod
    def greedy_policy(self) -> "GreedyPolicy":
        """`evaluation_action` as a module that other programs can run."""

    @abstractmethod
    def encode_query(self, views: Tensor | LazyViews) -> Tensor:
        """Features (B, D) of views, as queries of the belief (3)."""

    @abstractmethod
    def encode_key(self, views: Tensor | LazyViews) -> Tensor:
        """Features (B, D) of views, as keys of the belief (3)."""

    @abstractmethod
    def td_errors(self, batch: Batch, noise: Tensor, env_steps: Tensor) -> Tensor:
        """|y - Q| (2, B) of both Q-functions on the views used in evaluation, without the bonus. `noise`
        (B, A) is the policy noise in the target y."""

    @property
    def num_fixed_views(self) -> int:
        """The number of views that enter the losses independently of the selection. They are encoded
        before the appraisal."""
        return self.framework.num_loss_views if self.framework.selection == "all" else 1

    def draw_noise(
        self, batch_size: int, augment_generator: torch.Generator, policy_generator: torch.Generator
    ) -> UpdateNoise:
        method, num_views = self.method, self.framework.num_loss_views
        views = (method.augmentation, method.num_augmented_views, batch_size, augment_generator)
        return UpdateNoise(
            self.observations.sample(*views),
            self.observations.sample(*views),
            self.policy_noise(num_views, batch_size, generator=policy_generator),
            self.policy_noise(batch_size, generator=policy_generator),
            self.framework.sample_permutation(batch_size, augment_generator),
            augment_generator if method.has_custom_augmentation else None,
        )

    @torch.no_grad()
    def key_features(
        self, views: LazyViews, appraisal: Appraisal[ViewIndex], reuse: bool = True
    ) -> Tensor:
        """Features (B, D) of the key views of the contrastive loss (8). With `reuse` they are taken from
        the appraisal if it has computed them."""
        if reuse and appraisal.key is not None:
            return appraisal.key
        return self.encode_key(views.select(appraisal.key_view.rows))

    def policy_noise(self, *shape: int, generator: torch.Generator) -> Tensor:
        """Standard normal noise (*shape, A)."""
        size = (*shape, self.action_dim)
        return torch.randn(size, generator=generator, device=generator.device)

    def state_dict(self) -> StateDict:
        return {
            "networks": self.networks.state_dict(),
            "optimisers": {name: each.state_dict() for name, each in self.optimizers.items()},
            "updates": self.updates,
        }

    def load_state_dict(self, state: StateDict) -> None:
        self.networks.load_state_dict(state["networks"])
        for name, optimizer in self.optimizers.items():
            optimizer.load_state_dict(state["optimisers"].get(name, {}))
        self.updates = int(state["updates"])


def appraise_encoded(
    algorithm: PixelActorCritic[AlgorithmSettings],
    batch: Batch,
    noise: UpdateNoise,
    env_steps: Tensor,
    query: Tensor | None,
    next_query: Tensor | None,
    keys: Tensor | None,
) -> tuple[Appraisal[ViewIndex], Tensor | None, Metrics]:
    """Eq. (3) to (7) and (9), with views as row indices instead of images. Returns the appraisal, new
    priorities (B,) or None, and metrics.

    If the method needs curiosity, `query` and `next_query` (B, D) are features of the anchors of o_t
    and o_(t+1), and `keys` (2 K B - B, D) are those of all rows except the anchors of o_t.
    """
    num_views, batch_size = noise.augmentation.shape[:2]
    rows = torch.arange(2 * num_views * batch_size, device=batch.reward.device)
    rows = rows.view(2, num_views, batch_size)

    def key_features(key_views: ViewIndex) -> Tensor:
        assert keys is not None, "features are only needed for curiosity"
        return keys[key_views.rows - batch_size]

    framework, crop_pixels = algorithm.framework, algorithm.env.crop_pixels
    appraisal = framework.appraise(
        Views(ViewIndex(rows[0]), noise.augmentation, crop_pixels, query=query),
        Views(ViewIndex(rows[1]), noise.next_augmentation, crop_pixels, query=next_query),
        batch.reward,
        env_steps,
        encode_query=key_features,  # not called: the queries are given
        encode_key=key_features,
        permutation=noise.permutation,
    )
    priority = framework.priority(batch.priority, appraisal)
    metrics = {"reward_mean": batch.reward.mean()}
    metrics |= framework.metrics(appraisal, framework.method.num_augmented_views)
    if priority is not None:
        metrics["priority_mean"] = priority.mean()
    return appraisal, priority, metrics


def twin_q_loss(q1: Tensor, q2: Tensor, target: Tensor, weights: Tensor) -> tuple[Tensor, Metrics]:
    """The summed loss of both Q-functions, `q1` and `q2` (V B,), for the target (B,): Eq. (1) if the
    weights (V, B) are uniform, Eq. (7) if they come from curiosity."""
    q1, q2 = q1.view_as(weights), q2.view_as(weights)
    loss = equations.q_loss(q1, target, weights) + equations.q_loss(q2, target, weights)
    metrics = {"critic_loss": loss, "q_mean": q1.mean(), "target_mean": target.mean()}
    return loss, detached(metrics)


def detached(metrics: Metrics) -> Metrics:
    return {name: value.detach() for name, value in metrics.items()}


class GreedyPolicy(nn.Module):
    """The mean action (B, A), each in [-1, 1], for stacks of uncropped uint8 frames (B, C, H, W) or
    for float32 states (B, D)."""

    def __init__(self, encoder: nn.Module, actor: nn.Module, crop: slice | None = None):
        """`crop`: the rows and columns of a frame that the encoder reads, by default all."""
        super().__init__()
        self.encoder, self.actor, self.crop = encoder, actor, crop

    def forward(self, observations: Tensor) -> Tensor:
        if self.crop is not None:
            observations = observations[:, :, self.crop, self.crop]
        action: Tensor = self.actor(self.encoder(observations))
        return action


def export_policy(
    policy: PixelActorCritic[AlgorithmSettings],
    env: Env,
    frame_stack: int,
    seed: int,
    num_steps: int,
) -> ExportedPolicy:
    """The policy as a module, and its actions on a rollout. The environment executes random actions
    instead, so that observations vary even if the policy's actions have no effect."""
    random = np.random.default_rng(seed)
    frames = deque([env.reset(seed)] * frame_stack, frame_stack)
    stacks, actions = [], []
    for _ in range(num_steps):
        stacks.append(np.concatenate(frames))
        actions.append(policy.evaluation_action(torch.from_numpy(stacks[-1])[None])[0].numpy())
        step = env.step(random.uniform(-1.0, 1.0, env.spec.action_dim).astype(np.float32))
        frames.append(step.frame)
        if step.terminated or step.truncated:
            break
    env.close()
    module = policy.greedy_policy().eval()
    return ExportedPolicy(module, np.stack(stacks), np.stack(actions), "action")
