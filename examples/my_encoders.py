from torch import nn


def strided(in_channels: int, pixels: int) -> nn.Module:
    layers: list[nn.Module] = []
    for _ in range(3):
        layers += [nn.Conv2d(in_channels, 32, 3, stride=2, padding=1), nn.ReLU()]
        in_channels = 32
    return nn.Sequential(*layers, nn.Flatten())
