"""What SAC sees of an observation: crops of pixels through convolutions, or state with noise
through a linear layer.

It is chosen once, by what the environment shows. All else of SAC is the same for both.
"""

from typing import Protocol

import torch
from torch import Tensor, nn

from cclf.algorithms.common.custom_encoder import CustomEncoder, make_custom_encoder
from cclf.algorithms.common.pixel_encoder import ConvEncoder, ConvFn
from cclf.config import Config
from cclf.data import augmentations
from cclf.data.augmentations import LazyCrops, LazyNoise

LazyViews = LazyCrops | LazyNoise  # views not yet made, of which rows can be chosen


class ObservationPipeline(Protocol):
    """`draws` (K, B, ...) say what makes view k of sample b; they are the random numbers."""

    def trunk(self, kernel: ConvFn) -> "ObservationEncoder": ...
    def draw(self, kind: str, views: int, batch: int, generator: torch.Generator) -> Tensor: ...
    # the same of one view that chance has no part in
    def plain(self, batch: int, device: torch.device) -> Tensor: ...
    def views(self, observations: Tensor, draws: Tensor) -> LazyViews: ...
    # of o_t and then of what followed, (2 B, ...), see `cclf.data.augmentations.lazy_crop_pairs`
    def pairs(self, joined: Tensor, draws: Tensor, next_draws: Tensor) -> LazyViews: ...


def make_observation_pipeline(config: Config, state_dim: int) -> ObservationPipeline:
    return (
        StateObservations(config, state_dim)
        if config.env.observe == "state"
        else PixelObservations(config)
    )


class PixelObservations:
    def __init__(self, config: Config):
        self.env, self.settings = config.env, config.algorithm
        self.pixels = (self.env.frame_pixels, self.env.crop_pixels)

    def trunk(self, kernel: ConvFn) -> ConvEncoder | CustomEncoder:
        shape = (3 * self.env.frame_stack, self.env.crop_pixels)
        if self.settings.encoder:
            return make_custom_encoder(self.settings.encoder, *shape)
        layers = (self.settings.conv_layers, self.settings.conv_filters)
        return ConvEncoder(*shape, *layers, kernel)

    def draw(self, kind: str, views: int, batch: int, generator: torch.Generator) -> Tensor:
        """Corners of crops (K, B, 2)."""
        if kind == "centre-crop":
            return augmentations.center_crop_corners(views, batch, *self.pixels, generator.device)
        last_offset = self.settings.last_crop_offset
        return augmentations.sample_crop_corners(views, batch, *self.pixels, last_offset, generator)

    def plain(self, batch: int, device: torch.device) -> Tensor:
        return augmentations.center_crop_corners(1, batch, *self.pixels, device)

    def views(self, observations: Tensor, draws: Tensor) -> LazyCrops:
        return augmentations.lazy_crops(observations, draws, self.env.crop_pixels)

    def pairs(self, joined: Tensor, draws: Tensor, next_draws: Tensor) -> LazyCrops:
        return augmentations.lazy_crop_pairs(joined, draws, next_draws, self.env.crop_pixels)


class StateObservations:
    def __init__(self, config: Config, state_dim: int):
        assert state_dim > 0, "state has at least one number"
        self.hidden_dim, self.scale = config.algorithm.hidden_dim, config.algorithm.noise_scale
        self.numbers = config.env.frame_stack * state_dim

    def trunk(self, kernel: ConvFn) -> "StateEncoder":  # noqa: ARG002 (it is for convolutions)
        return StateEncoder(self.numbers, self.hidden_dim)

    def draw(self, kind: str, views: int, batch: int, generator: torch.Generator) -> Tensor:
        """Standard normal (K, B, D)."""
        if kind != "noise":
            return self._zeros(views, batch, generator.device)
        shape = (views, batch, self.numbers)
        return torch.randn(shape, generator=generator, device=generator.device)

    def plain(self, batch: int, device: torch.device) -> Tensor:
        return self._zeros(1, batch, device)

    def views(self, observations: Tensor, draws: Tensor) -> LazyNoise:
        return augmentations.lazy_noise(observations, draws, self.scale)

    def pairs(self, joined: Tensor, draws: Tensor, next_draws: Tensor) -> LazyNoise:
        return augmentations.lazy_noise_pairs(joined, draws, next_draws, self.scale)

    def _zeros(self, views: int, batch: int, device: torch.device) -> Tensor:
        return torch.zeros(views, batch, self.numbers, device=device)


class StateEncoder(nn.Module):
    """Stands in the place of convolutions: vectors of state to a flat vector of features."""

    def __init__(self, numbers: int, out_dim: int):
        super().__init__()
        self.fc, self.out_dim = nn.Linear(numbers, out_dim), out_dim

    def forward(self, states: Tensor | LazyNoise) -> Tensor:
        vectors = states.made() if isinstance(states, LazyNoise) else states
        return torch.relu(self.fc(vectors.to(self.fc.weight.dtype)))


ObservationEncoder = ConvEncoder | CustomEncoder | StateEncoder  # what sees an observation first
