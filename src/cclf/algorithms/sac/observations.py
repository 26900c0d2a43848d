"""Views and encoders of SAC's observations: crops of pixels and convolutions, or states with noise
and a linear layer.

The environment's observation type selects one of the two; the rest of SAC is the same for both.
"""

from typing import Protocol

import torch
from torch import Tensor, nn

from cclf.algorithms.common.custom_encoder import CustomEncoder, make_custom_encoder
from cclf.algorithms.common.pixel_encoder import ConvEncoder, ConvFn
from cclf.config import Config
from cclf.data import augmentations
from cclf.data.augmentations import LazyCrops, LazyNoise

LazyViews = LazyCrops | LazyNoise  # views that are computed when they are encoded


class ObservationPipeline(Protocol):
    """An augmentation (K, B, ...) holds the random numbers of view k of sample b: corners of crops
    (K, B, 2), or noise (K, B, D)."""

    def make_encoder(self, convolutions: ConvFn) -> "ObservationEncoder": ...
    def sample(
        self, kind: str, num_views: int, batch: int, generator: torch.Generator
    ) -> Tensor: ...
    def deterministic_view(self, batch: int, device: torch.device) -> Tensor: ...  # K = 1
    def center_slice(self) -> slice | None: ...  # rows and columns of the centre crop
    def views(self, observations: Tensor, augmentation: Tensor) -> LazyViews: ...

    # of o_t and o_(t+1), (2 B, ...): rows (2 K B), see `cclf.data.augmentations.lazy_crop_pairs`
    def view_pairs(
        self, joined: Tensor, augmentation: Tensor, next_augmentation: Tensor
    ) -> LazyViews: ...


def make_observation_pipeline(config: Config, state_dim: int) -> ObservationPipeline:
    if config.env.observe == "state":
        return StateObservations(config, state_dim)
    return PixelObservations(config)


class PixelObservations:
    def __init__(self, config: Config):
        self.env, self.settings = config.env, config.algorithm
        self.pixels = (self.env.frame_pixels, self.env.crop_pixels)

    def make_encoder(self, convolutions: ConvFn) -> ConvEncoder | CustomEncoder:
        shape = (3 * self.env.frame_stack, self.env.crop_pixels)
        if self.settings.encoder:
            return make_custom_encoder(self.settings.encoder, *shape)
        layers = (self.settings.conv_layers, self.settings.conv_filters)
        return ConvEncoder(*shape, *layers, convolutions)

    def sample(self, kind: str, num_views: int, batch: int, generator: torch.Generator) -> Tensor:
        """Corners of crops (K, B, 2)."""
        shape = (num_views, batch, *self.pixels)
        if kind == "centre-crop":
            return augmentations.center_crop_corners(*shape, generator.device)
        last_offset = self.settings.last_crop_offset
        return augmentations.sample_crop_corners(*shape, last_offset, generator)

    def deterministic_view(self, batch: int, device: torch.device) -> Tensor:
        return augmentations.center_crop_corners(1, batch, *self.pixels, device)

    def center_slice(self) -> slice:
        frame_pixels, crop_pixels = self.pixels
        first = (frame_pixels - crop_pixels) // 2
        return slice(first, first + crop_pixels)

    def views(self, observations: Tensor, augmentation: Tensor) -> LazyCrops:
        return augmentations.lazy_crops(observations, augmentation, self.env.crop_pixels)

    def view_pairs(
        self, joined: Tensor, augmentation: Tensor, next_augmentation: Tensor
    ) -> LazyCrops:
        corners = (augmentation, next_augmentation)
        return augmentations.lazy_crop_pairs(joined, *corners, self.env.crop_pixels)


class StateObservations:
    def __init__(self, config: Config, state_dim: int):
        assert state_dim > 0, "a state has at least one number"
        self.hidden_dim, self.scale = config.algorithm.hidden_dim, config.algorithm.noise_scale
        self.stacked_dim = config.env.frame_stack * state_dim

    def make_encoder(self, convolutions: ConvFn) -> "StateEncoder":  # noqa: ARG002 (for pixels)
        return StateEncoder(self.stacked_dim, self.hidden_dim)

    def sample(self, kind: str, num_views: int, batch: int, generator: torch.Generator) -> Tensor:
        """Standard normal noise (K, B, D), or zeros without augmentation."""
        shape = (num_views, batch, self.stacked_dim)
        if kind != "noise":
            return torch.zeros(shape, device=generator.device)
        return torch.randn(shape, generator=generator, device=generator.device)

    def deterministic_view(self, batch: int, device: torch.device) -> Tensor:
        return torch.zeros(1, batch, self.stacked_dim, device=device)

    def center_slice(self) -> None:
        return None

    def views(self, observations: Tensor, augmentation: Tensor) -> LazyNoise:
        return augmentations.lazy_noise(observations, augmentation, self.scale)

    def view_pairs(
        self, joined: Tensor, augmentation: Tensor, next_augmentation: Tensor
    ) -> LazyNoise:
        return augmentations.lazy_noise_pairs(joined, augmentation, next_augmentation, self.scale)


class StateEncoder(nn.Module):
    """A linear layer in place of the convolutions: states (B, D) to features (B, H)."""

    def __init__(self, numbers: int, out_dim: int):
        super().__init__()
        self.fc, self.out_dim = nn.Linear(numbers, out_dim), out_dim

    def forward(self, states: Tensor | LazyNoise) -> Tensor:
        vectors = states.materialize() if isinstance(states, LazyNoise) else states
        return torch.relu(self.fc(vectors.to(self.fc.weight.dtype)))


ObservationEncoder = ConvEncoder | CustomEncoder | StateEncoder
