"""What SAC sees of an observation: crops of pixels through convolutions, or state with noise
through a linear layer.

It is chosen once, by what the environment shows. All else of SAC is the same for both.
"""

from typing import Protocol

import torch
from torch import Tensor, nn

from cclf.algorithms.common.custom_encoder import OwnEncoder, own_encoder
from cclf.algorithms.common.pixel_encoder import Convolutions, Kernel
from cclf.config import Config
from cclf.data import augmentations
from cclf.data.augmentations import Crops, Noisy

Rows = Crops | Noisy  # views not yet made, of which rows can be chosen


class Sight(Protocol):
    """`draws` (K, B, ...) say what makes view k of sample b; they are the random numbers."""

    def trunk(self, kernel: Kernel) -> "Trunk": ...
    def draw(self, kind: str, views: int, batch: int, generator: torch.Generator) -> Tensor: ...
    # the same of one view that chance has no part in
    def plain(self, batch: int, device: torch.device) -> Tensor: ...
    def views(self, observations: Tensor, draws: Tensor) -> Rows: ...
    # of o_t and then of what followed, (2 B, ...), see `cclf.data.augmentations.uncut_pairs`
    def pairs(self, joined: Tensor, draws: Tensor, next_draws: Tensor) -> Rows: ...


def sight_of(config: Config, state_dim: int) -> Sight:
    return StateSight(config, state_dim) if config.env.observe == "state" else PixelSight(config)


class PixelSight:
    def __init__(self, config: Config):
        self.env, self.settings = config.env, config.algorithm
        self.pixels = (self.env.frame_pixels, self.env.crop_pixels)

    def trunk(self, kernel: Kernel) -> Convolutions | OwnEncoder:
        shape = (3 * self.env.frame_stack, self.env.crop_pixels)
        if self.settings.encoder:
            return own_encoder(self.settings.encoder, *shape)
        layers = (self.settings.conv_layers, self.settings.conv_filters)
        return Convolutions(*shape, *layers, kernel)

    def draw(self, kind: str, views: int, batch: int, generator: torch.Generator) -> Tensor:
        """Corners of crops (K, B, 2)."""
        if kind == "centre-crop":
            return augmentations.centre_origins(views, batch, *self.pixels, generator.device)
        last_offset = self.settings.last_crop_offset
        return augmentations.draw_origins(views, batch, *self.pixels, last_offset, generator)

    def plain(self, batch: int, device: torch.device) -> Tensor:
        return augmentations.centre_origins(1, batch, *self.pixels, device)

    def views(self, observations: Tensor, draws: Tensor) -> Crops:
        return augmentations.uncut(observations, draws, self.env.crop_pixels)

    def pairs(self, joined: Tensor, draws: Tensor, next_draws: Tensor) -> Crops:
        return augmentations.uncut_pairs(joined, draws, next_draws, self.env.crop_pixels)


class StateSight:
    def __init__(self, config: Config, state_dim: int):
        assert state_dim > 0, "state has at least one number"
        self.hidden_dim, self.scale = config.algorithm.hidden_dim, config.algorithm.noise_scale
        self.numbers = config.env.frame_stack * state_dim

    def trunk(self, kernel: Kernel) -> "StateLayer":  # noqa: ARG002 (it is for convolutions)
        return StateLayer(self.numbers, self.hidden_dim)

    def draw(self, kind: str, views: int, batch: int, generator: torch.Generator) -> Tensor:
        """Standard normal (K, B, D)."""
        if kind != "noise":
            return self._zeros(views, batch, generator.device)
        shape = (views, batch, self.numbers)
        return torch.randn(shape, generator=generator, device=generator.device)

    def plain(self, batch: int, device: torch.device) -> Tensor:
        return self._zeros(1, batch, device)

    def views(self, observations: Tensor, draws: Tensor) -> Noisy:
        return augmentations.noisy(observations, draws, self.scale)

    def pairs(self, joined: Tensor, draws: Tensor, next_draws: Tensor) -> Noisy:
        return augmentations.noisy_pairs(joined, draws, next_draws, self.scale)

    def _zeros(self, views: int, batch: int, device: torch.device) -> Tensor:
        return torch.zeros(views, batch, self.numbers, device=device)


class StateLayer(nn.Module):
    """Stands in the place of convolutions: vectors of state to a flat vector of features."""

    def __init__(self, numbers: int, out_dim: int):
        super().__init__()
        self.fc, self.out_dim = nn.Linear(numbers, out_dim), out_dim

    def forward(self, states: Tensor | Noisy) -> Tensor:
        vectors = states.made() if isinstance(states, Noisy) else states
        return torch.relu(self.fc(vectors.to(self.fc.weight.dtype)))


Trunk = Convolutions | OwnEncoder | StateLayer  # what sees an observation first
