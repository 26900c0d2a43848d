"""What SAC and DrQ-v2 share: the random numbers of an update, the appraisal of encoded views, and
state."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from cclf.algorithms.common.custom_augmentation import Augmentation, make_custom_augmentation
from cclf.algorithms.common.optimizers import Adam, Optimizer, OptimizerFactory
from cclf.config import Config
from cclf.data.augmentations import LazyCrops, ViewIndex, Views, full_frame_crops
from cclf.framework import Appraisal, Framework
from cclf.types import Batch, Metrics, StateDict, UpdateResult


class UpdateNoise(NamedTuple):
    """All random numbers of one update. K views are augmented, V of them enter the losses."""

    augmentation: Tensor  # (K, B, 2) crop corners of o_t; normal noise (K, B, D) for states
    next_augmentation: Tensor  # the same of o_(t+1)
    target: Tensor  # (V, B, A) policy noise in the target, standard normal
    actor: Tensor  # (B, A) policy noise in the actor loss, standard normal
    permutation: Tensor | None = None  # (B,) where the curiosity measure needs one
    generator: torch.Generator | None = None  # of a custom augmentation


class PixelActorCritic(ABC):
    """An actor-critic that learns from an appraisal whose views are indices into encoded views.

    Its K views of each o_t and of each o_(t+1) are rows: row k B + b is view k of o_t in sample b,
    and the rows of o_(t+1) follow K B further.
    """

    optimizer_class: ClassVar[OptimizerFactory] = Adam
    """The optimizer of all networks; see "Another optimizer" in docs/design.md."""
    metric_names: tuple[str, ...]
    networks: nn.ModuleDict
    framework: Framework
    optimizers: Mapping[str, Optimizer]

    def __init__(self, config: Config, action_dim: int):
        self.settings, self.method, self.env = config.algorithm, config.method, config.env
        self.action_dim = action_dim
        self.updates = 0
        self.augment: Augmentation | None = None
        if self.method.has_custom_augmentation:
            shape = (3 * self.env.frame_stack, self.env.crop_pixels)
            self.augment = make_custom_augmentation(self.method.augmentation, *shape)

    @abstractmethod
    def update(self, batch: Batch, noise: UpdateNoise, env_steps: Tensor) -> UpdateResult: ...

    @abstractmethod
    def evaluation_action(self, observation: Tensor) -> Tensor:
        """The mean action (B, A) for stacks of frames (B, C, H, W) or of states (B, D)."""

    @abstractmethod
    def greedy_policy(self) -> nn.Module:
        """`evaluation_action` as a module that other programs can run."""

    @abstractmethod
    def sample_augmentation(self, batch_size: int, generator: torch.Generator) -> Tensor:
        """Random numbers (K, B, ...) of K views of each observation."""

    @property
    def num_fixed_views(self) -> int:
        """How many views enter the losses whichever view is selected: they are encoded first."""
        return self.framework.num_loss_views if self.framework.selection == "all" else 1

    def draw_noise(
        self, batch_size: int, augment_generator: torch.Generator, policy_generator: torch.Generator
    ) -> UpdateNoise:
        num_views = self.framework.num_loss_views
        return UpdateNoise(
            self.sample_augmentation(batch_size, augment_generator),
            self.sample_augmentation(batch_size, augment_generator),
            self.policy_noise(num_views, batch_size, generator=policy_generator),
            self.policy_noise(batch_size, generator=policy_generator),
            self.framework.sample_permutation(batch_size, augment_generator),
            augment_generator if self.augment else None,
        )

    def augment_crops(self, crops: LazyCrops, noise: UpdateNoise) -> LazyCrops:
        """The crops, cut out of their frames and put through the custom augmentation, as crops of
        whole images. Rows stay as they are."""
        assert self.augment is not None, "there is a custom augmentation"
        assert noise.generator is not None, "a custom augmentation needs a generator"
        return full_frame_crops(self.augment(crops.materialize(), noise.generator))

    def policy_noise(self, *shape: int, generator: torch.Generator) -> Tensor:
        """Standard normal numbers (*shape, A)."""
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
    framework: Framework,
    batch: Batch,
    noise: UpdateNoise,
    env_steps: Tensor,
    crop_pixels: int,
    query: Tensor | None,
    next_query: Tensor | None,
    keys: Tensor | None,
) -> tuple[Appraisal[ViewIndex], Tensor | None, Metrics]:
    """Curiosity (3), selection (4), (5), priorities (6), weights (7) and bonus (9), over row indices
    in place of images: the appraisal, new priorities (B,) or None, and metrics.

    With curiosity `query` and `next_query` (B, D) are features of the anchors, and `keys`
    (2 K B - B, D) those of all rows but the first B, the anchors of o_t.
    """
    num_views, batch_size = noise.augmentation.shape[:2]
    rows = torch.arange(2 * num_views * batch_size, device=batch.reward.device)
    rows = rows.view(2, num_views, batch_size)

    def key_features(key_views: ViewIndex) -> Tensor:
        assert keys is not None, "only curiosity asks for features"
        return keys[key_views.rows - batch_size]

    appraisal = framework.appraise(
        Views(ViewIndex(rows[0]), noise.augmentation, crop_pixels=crop_pixels, query=query),
        Views(
            ViewIndex(rows[1]), noise.next_augmentation, crop_pixels=crop_pixels, query=next_query
        ),
        batch.reward,
        env_steps,
        key_features,
        key_features,
        noise.permutation,
    )
    priority = framework.priority(batch.priority, appraisal)
    metrics = {"reward_mean": batch.reward.mean()}
    metrics |= framework.metrics(appraisal, framework.method.num_augmented_views)
    if priority is not None:
        metrics["priority_mean"] = priority.mean()
    return appraisal, priority, metrics
