"""Makes views of observations: crops of frames, or state vectors with noise.

The random numbers of K views of B observations are crop corners (K, B, 2) or noise (K, B, D). Views
are lazy: they are computed when they are encoded (`cclf.data.augmentations.lazy_crops`).
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from cclf.algorithms.common.off_policy_base import OffPolicySettings
from cclf.config import Config
from cclf.data.augmentations import (
    LazyCrops,
    LazyNoise,
    center_crop_corners,
    full_frame_crops,
    lazy_crops,
    lazy_noise,
    replicate_pad_indices,
    sample_crop_corners,
)
from cclf.errors import ConfigError, short_error
from cclf.kernels.first_convolution import pack
from cclf.plugins import import_function
from cclf.training.cuda_graphs import Compiler, uncompiled
from cclf.types import Batch

LazyViews = LazyCrops | LazyNoise
Augmentation = Callable[[Tensor, torch.Generator], Tensor]
"""Maps uint8 crops (N, C, h, w) to augmented views of the same shape and type."""


class UpdateNoise(NamedTuple):
    """All random numbers of one update. K views are augmented, V of them enter the losses."""

    augmentation: Tensor  # (K, B, 2) crop corners of o_t; normal noise (K, B, D) for states
    next_augmentation: Tensor  # the same of o_(t+1)
    target: Tensor  # (V, B, A) policy noise in the target, standard normal
    actor: Tensor  # (B, A) policy noise in the actor loss, standard normal
    permutation: Tensor | None = None  # (B,) if the curiosity measure needs one
    generator: torch.Generator | None = None  # of a custom augmentation


def concatenate(*frames: Tensor, border: int = 0) -> Tensor:
    """Batches of frames (B, C, H, W) joined into one, with a replicated border of `border` pixels."""
    joined = torch.cat(frames)
    if border == 0:
        return joined
    index = replicate_pad_indices(joined.shape[-1], border, joined.device)
    return joined[:, :, index][:, :, :, index]


class PixelObservations:
    """Makes crops of frames. With a replicated border they are the random shifts of DrQ-v2."""

    def __init__(
        self,
        config: Config[OffPolicySettings],
        last_offset: bool = True,
        border: int = 0,
        compiler: Compiler = uncompiled,
    ):
        """Without `last_offset` the last crop position is never sampled. `compiler` compiles the
        replication of the border, which is `border` pixels wide."""
        env, method = config.env, config.method
        self.crop_pixels, self.last_offset, self.border = env.crop_pixels, last_offset, border
        self.padded_pixels = env.frame_pixels + 2 * border
        # The bfloat16 kernels read packed frames.
        self._join = pack if config.algorithm.precision == "bf16" else compiler(concatenate)
        self.augment: Augmentation | None = None
        if method.has_custom_augmentation:
            channels = 3 * env.frame_stack
            self.augment = make_custom_augmentation(method.augmentation, channels, env.crop_pixels)

    def sample(self, kind: str, views: int, batch: int, generator: torch.Generator) -> Tensor:
        """Corners (K, B, 2) of centre crops if `kind` is centre-crop, otherwise of random crops."""
        shape = (views, batch, self.padded_pixels, self.crop_pixels)
        if kind == "centre-crop":
            return center_crop_corners(*shape, generator.device)
        return sample_crop_corners(*shape, self.last_offset, generator)

    def views(self, batch: Batch, noise: UpdateNoise) -> LazyCrops:
        """K views of each o_t, then K views of each o_(t+1): 2 K B rows."""
        frames = (batch.observation, batch.next_observation)
        corners = (noise.augmentation, noise.next_augmentation)
        if self.augment is None:
            return self.augmented(self._join(*frames, border=self.border), torch.cat(corners))
        assert noise.generator is not None, "a custom augmentation needs a generator"
        crops = self.augmented(concatenate(*frames, border=self.border), torch.cat(corners))
        views = full_frame_crops(self.augment(crops.materialize(), noise.generator))
        return views._replace(images=self._join(views.images))

    def augmented(self, frames: Tensor, corners: Tensor) -> LazyCrops:
        """Crops of frames to which the border has been added."""
        return lazy_crops(frames, corners, self.crop_pixels)

    def evaluation_view(self, frames: Tensor) -> LazyCrops:
        """The centre crop of frames without border."""
        size = (len(frames), frames.shape[-1], self.crop_pixels)
        return self.augmented(frames, center_crop_corners(1, *size, frames.device))


class StateObservations:
    """Makes views of state vectors, with or without noise."""

    def __init__(self, state_dim: int, noise_scale: float):
        self.state_dim, self.noise_scale = state_dim, noise_scale

    def sample(self, kind: str, views: int, batch: int, generator: torch.Generator) -> Tensor:
        """Standard normal noise (K, B, D) if `kind` is noise, otherwise zeros."""
        shape = (views, batch, self.state_dim)
        if kind != "noise":
            return torch.zeros(shape, device=generator.device)
        return torch.randn(shape, generator=generator, device=generator.device)

    def views(self, batch: Batch, noise: UpdateNoise) -> LazyNoise:
        """As `PixelObservations.views`."""
        states = torch.cat([batch.observation, batch.next_observation])
        return self.augmented(states, torch.cat([noise.augmentation, noise.next_augmentation]))

    def augmented(self, states: Tensor, noise: Tensor) -> LazyNoise:
        return lazy_noise(states, noise, self.noise_scale)

    def evaluation_view(self, states: Tensor) -> Tensor:
        """The states without noise."""
        return states


def make_custom_augmentation(name: str, channels: int, pixels: int) -> Augmentation:
    """The function `name` (MODULE:FUNCTION); ConfigError if it cannot augment uint8 views of this
    shape."""
    augment: Augmentation = import_function("augmentation", name)
    shape = (4, channels, pixels, pixels)
    random = torch.Generator().manual_seed(0)
    images = torch.randint(256, shape, dtype=torch.uint8, generator=random)
    try:
        views, repeated = (augment(images.clone(), random.manual_seed(1)) for _ in range(2))
    except Exception as error:  # the user's code may raise anything
        called = f"augmentation={name} of images of shape {shape}"
        raise ConfigError(f"{called} failed: {short_error(error)}") from error
    if not isinstance(views, Tensor):
        raise ConfigError(f"augmentation={name} returns no torch.Tensor but {type(views).__name__}")
    if views.shape != images.shape or views.dtype != images.dtype:
        raise ConfigError(
            f"augmentation={name} returns {views.dtype} of shape {tuple(views.shape)} for "
            f"{images.dtype} of shape {shape}: it must return the same type and shape"
        )
    if not views.equal(repeated):
        raise ConfigError(
            f"augmentation={name} returns different images for the same state of its generator, so a "
            "run would not be reproducible: draw all its random numbers from the generator"
        )
    return augment
