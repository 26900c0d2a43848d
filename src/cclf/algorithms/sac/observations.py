"""Views and encoders of SAC's observations: crops of pixels and convolutions, or states with noise
and a linear layer.

The environment's observation type selects one of the two; the rest of SAC is the same for both. An
augmentation (K, B, ...) holds the random numbers of view k of sample b: corners of crops (K, B, 2),
or noise (K, B, D). Rows of view pairs: see `cclf.data.augmentations.lazy_crop_pairs`.
"""

import torch
from torch import Tensor, nn

from cclf.algorithms.common.custom_encoder import CustomEncoder, make_pixel_encoder
from cclf.algorithms.common.pixel_encoder import ConvEncoder
from cclf.algorithms.sac.config import SacConfig
from cclf.config import Config
from cclf.data import augmentations
from cclf.data.augmentations import LazyCrops, LazyNoise
from cclf.training.cuda_graphs import Compiler

LazyViews = LazyCrops | LazyNoise  # views that are computed when they are encoded


class PixelObservations:
    """Random or centre crops."""

    def __init__(self, config: Config[SacConfig]):
        self.config, self.last_offset = config, config.algorithm.last_crop_offset
        self.pixels = (config.env.frame_pixels, config.env.crop_pixels)

    def make_encoder(self, wrap: Compiler) -> ConvEncoder | CustomEncoder:
        return make_pixel_encoder(self.config, wrap)

    def sample(self, kind: str, num_views: int, batch: int, generator: torch.Generator) -> Tensor:
        """Corners of crops (K, B, 2)."""
        shape = (num_views, batch, *self.pixels)
        if kind == "centre-crop":
            return augmentations.center_crop_corners(*shape, generator.device)
        return augmentations.sample_crop_corners(*shape, self.last_offset, generator)

    def deterministic_view(self, batch: int, device: torch.device) -> Tensor:
        return augmentations.center_crop_corners(1, batch, *self.pixels, device)

    def views(self, observations: Tensor, augmentation: Tensor) -> LazyCrops:
        return augmentations.lazy_crops(observations, augmentation, self.pixels[1])

    def view_pairs(
        self, joined: Tensor, augmentation: Tensor, next_augmentation: Tensor
    ) -> LazyCrops:
        corners = (augmentation, next_augmentation)
        return augmentations.lazy_crop_pairs(joined, *corners, self.pixels[1])


class StateObservations:
    """States with or without noise."""

    def __init__(self, config: Config[SacConfig], state_dim: int):
        assert state_dim > 0, "a state has at least one number"
        self.hidden_dim, self.scale = config.algorithm.hidden_dim, config.algorithm.noise_scale
        self.stacked_dim = config.env.frame_stack * state_dim

    def make_encoder(self, wrap: Compiler) -> "StateEncoder":  # noqa: ARG002 (for pixels)
        return StateEncoder(self.stacked_dim, self.hidden_dim)

    def sample(self, kind: str, num_views: int, batch: int, generator: torch.Generator) -> Tensor:
        """Standard normal noise (K, B, D), or zeros without augmentation."""
        shape = (num_views, batch, self.stacked_dim)
        if kind != "noise":
            return torch.zeros(shape, device=generator.device)
        return torch.randn(shape, generator=generator, device=generator.device)

    def deterministic_view(self, batch: int, device: torch.device) -> Tensor:
        return torch.zeros(1, batch, self.stacked_dim, device=device)

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
ObservationPipeline = PixelObservations | StateObservations
