"""Encoders as users write them: two that learn, and others that are refused."""

import torch
from torch import Tensor, nn


class Published(nn.Sequential):
    """The published convolutions once more, in the plain words of a user."""

    def __init__(self, in_channels: int, pixels: int, filters: int = 4):
        del pixels
        layers: list[nn.Module] = []
        for number in range(4):
            stride = 2 if number == 0 else 1
            layers += [nn.Conv2d(filters if number else in_channels, filters, 3, stride), nn.ReLU()]
        super().__init__(*layers)

    def forward(self, images: Tensor) -> Tensor:
        assert images.is_contiguous(), "so that view() can be called"
        return super().forward(images).permute(0, 2, 3, 1).flatten(1)


class Mixed(nn.Module):
    """A frozen layer, a lazy one, one without bias used twice, a normalisation and a constant."""

    def __init__(self, in_channels: int, pixels: int):
        super().__init__()
        self.frozen = nn.Conv2d(in_channels, 4, 3, stride=2).requires_grad_(False)
        self.lazy = nn.LazyLinear(8)
        self.twice, self.norm = nn.Linear(8, 8, bias=False), nn.LayerNorm(8)
        self.register_buffer("scale", torch.tensor(float(pixels)))

    def forward(self, images: Tensor) -> Tensor:
        features = torch.relu(self.frozen(images) / self.scale)
        features = self.lazy(features.view(features.shape[0], -1))
        return self.norm(self.twice(self.twice(features)))


def small(in_channels: int, pixels: int) -> nn.Module:
    del pixels
    return nn.Sequential(nn.Conv2d(in_channels, 2, 5, stride=3), nn.ReLU(), nn.Flatten())


class Counted(nn.Module):
    """A trace of it takes one number of images alone."""

    def __init__(self, in_channels: int, pixels: int):
        super().__init__()
        self.layers = small(in_channels, pixels)

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.layers(images)
        return features.view(len(images), -1)


# --- refused

number = 3


def nothing(in_channels: int, pixels: int) -> None:
    del in_channels, pixels


def planes(in_channels: int, pixels: int) -> nn.Module:
    del pixels
    return nn.Conv2d(in_channels, 2, 3)


def infinite(in_channels: int, pixels: int) -> nn.Module:
    return nn.Sequential(small(in_channels, pixels), nn.Threshold(1e9, float("inf")))


def dropping(in_channels: int, pixels: int) -> nn.Module:
    return nn.Sequential(small(in_channels, pixels), nn.Dropout(0.1))


def normalised(in_channels: int, pixels: int) -> nn.Module:
    del pixels
    return nn.Sequential(nn.Conv2d(in_channels, 2, 3), nn.BatchNorm2d(2), nn.Flatten())


def half(in_channels: int, pixels: int) -> nn.Module:
    return small(in_channels, pixels).bfloat16()


def fixed(in_channels: int, pixels: int) -> nn.Module:
    return small(in_channels, pixels).requires_grad_(False)


class Idle(nn.Module):
    def __init__(self, in_channels: int, pixels: int):
        super().__init__()
        self.used, self.unused = small(in_channels, pixels), nn.Linear(1, 1)

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.used(images)
        return features


def of_more_channels(in_channels: int, pixels: int) -> nn.Module:
    return small(in_channels + 1, pixels)
