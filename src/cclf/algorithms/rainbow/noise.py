"""Random numbers of a training step: replay sampling, exploration, noisy layers, augmentations.

They are counter-based: a number depends only on the key of its run, the index of the update, its
name and its position. There is no generator state to save, and the numbers do not depend on the
other runs of a batch or on the device. With `torch.Generator`, 104 runs would need hundreds of
generators, each of which launches a kernel and is registered with every CUDA graph.

The hash function is SplitMix64 (Steele, Lea and Flood, 2014): a Weyl sequence followed by shifts and
products.
"""

from collections.abc import Mapping, Sequence
from math import prod

import torch
from torch import Tensor

from cclf.algorithms.rainbow import equations
from cclf.algorithms.rainbow.config import RainbowConfig
from cclf.algorithms.rainbow.networks import HeadNoise, LayerNoise
from cclf.algorithms.rainbow.rainbow import RainbowLoss, RainbowNoise
from cclf.config import Config
from cclf.training.seeding import derive

_WEYL, _FACTOR_1, _FACTOR_2 = (
    value - (1 << 64) for value in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)
_MAX_POSITIONS = 1 << 24  # most random numbers of one name in one update
_MAX_NAMES = 1 << 8  # most names in one update


def mix(state: Tensor) -> Tensor:
    """The output function of SplitMix64 on int64. Products wrap around; the right shift of torch
    copies the sign bit, so the copies are masked.

    >>> [value % 2**64 for value in mix(torch.tensor([0, _WEYL])).tolist()]
    [0, 16294208416658607535]
    """
    state = (state ^ ((state >> 30) & 0x3FFFFFFFF)) * _FACTOR_1
    state = (state ^ ((state >> 27) & 0x1FFFFFFFFF)) * _FACTOR_2
    return state ^ ((state >> 31) & 0x1FFFFFFFF)


class CounterBasedRNG:
    """Named uniform numbers in (0, 1) for S runs at a time.

    Each name has a separate range of positions. If a batch contains a game with more actions, some names
    have more numbers, but the numbers of the other games' actions do not change.
    """

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], device: torch.device):
        """`shapes`: the shape of the numbers of each name, for one run."""
        self.shapes = dict(shapes)
        self.sizes = [prod(shape) for shape in self.shapes.values()]
        assert max(self.sizes) < _MAX_POSITIONS, "too many numbers of one name"
        positions = [
            torch.arange(size) + index * _MAX_POSITIONS for index, size in enumerate(self.sizes)
        ]
        self._positions = torch.cat(positions).to(device)

    def uniform(self, keys: Tensor, update_index: Tensor) -> Tensor:
        """From keys (S,) and the index (), both int64, to float64 numbers (S, n) of 32 bits, never 0
        or 1; n counts all names."""
        counter = update_index * (_MAX_POSITIONS * _MAX_NAMES) + self._positions
        bits = mix(keys[:, None] + (counter + 1) * _WEYL)
        return (((bits >> 32) & 0xFFFFFFFF).double() + 0.5) * 2.0**-32

    def split(self, numbers: Tensor) -> dict[str, Tensor]:
        """Views (S, *shape), by name, of numbers (S, n)."""
        parts = torch.split(numbers, self.sizes, dim=1)
        return {
            name: part.view(-1, *shape)
            for (name, shape), part in zip(self.shapes.items(), parts, strict=True)
        }


def noise_key(config: Config[RainbowConfig]) -> int:
    """The key of a run's random numbers."""
    return derive(config.seed, "rainbow", config.task)


class NoiseSampler:
    """The random numbers of S runs, each of which has a key."""

    def __init__(
        self, module: RainbowLoss, keys: Sequence[int], device: torch.device, dtype: torch.dtype
    ):
        """`module` determines the names and shapes."""
        self.dtype, self.device = dtype, device
        self.noisy_layers = len(module.online.head.layers) if module.settings.noisy else 0
        self.keys = torch.tensor(keys, dtype=torch.int64, device=device)
        self.random = CounterBasedRNG(_shapes(module), device)

    def sample(self, update_index: Tensor) -> tuple[dict[str, Tensor], RainbowNoise]:
        """Uniform numbers (S, ...) by name, and the noise of one update of each run."""
        numbers = self.random.uniform(self.keys, update_index)
        # Standard normal numbers of all names in one kernel, by the inverse distribution function.
        gauss = torch.special.ndtri(numbers)
        factors = self.random.split(equations.noise_factor(gauss).to(self.dtype))
        uniform, normals = self.random.split(numbers), self.random.split(gauss.to(self.dtype))
        unused = numbers[:, :1]  # in place of numbers that the method does not need
        return uniform, RainbowNoise(
            online=self._head_noise("online", factors),
            target=self._head_noise("target", factors),
            shifts=uniform.get("shifts", unused),
            next_shifts=uniform.get("next_shifts", unused),
            intensity=normals.get("intensity", unused),
            next_intensity=normals.get("next_intensity", unused),
            permutation=uniform["permutation"].argsort() if "permutation" in uniform else unused,
        )

    def sample_single(self, update_index: int) -> tuple[dict[str, Tensor], RainbowNoise]:
        """The numbers of the first run, without the axis of runs."""
        uniform, noise = self.sample(torch.tensor(update_index, device=self.device))

        def first(head: HeadNoise) -> HeadNoise:
            return tuple(LayerNoise(layer.inputs[0], layer.outputs[0]) for layer in head)

        single = RainbowNoise(
            first(noise.online), first(noise.target), *(numbers[0] for numbers in noise[2:])
        )
        return {name: numbers[0] for name, numbers in uniform.items()}, single

    def _head_noise(self, network: str, factors: dict[str, Tensor]) -> HeadNoise:
        names = [f"{network}_{layer}" for layer in range(self.noisy_layers)]
        return tuple(
            LayerNoise(factors[f"{name}_inputs"], factors[f"{name}_outputs"]) for name in names
        )


def _shapes(module: RainbowLoss) -> dict[str, tuple[int, ...]]:
    """Shapes of the uniform numbers of one run, by name. The position of a name in this dict determines
    its numbers, so names that only some methods use come last."""
    settings, method, batch = module.settings, module.method, module.settings.batch_size
    shapes: dict[str, tuple[int, ...]] = {"replay": (batch,), "explore": (2,)}
    if settings.noisy:
        for network in ("online", "target"):
            for layer, (inputs, outputs) in enumerate(module.online.head.layer_sizes):
                shapes[f"{network}_{layer}_inputs"] = (inputs,)
                shapes[f"{network}_{layer}_outputs"] = (outputs,)
    if method.augmentation != "none":
        per_axis = 2 if method.augmentation == "crop-pad-crop" else 1
        views = (method.num_augmented_views, batch)
        shapes |= dict.fromkeys(("shifts", "next_shifts"), (*views, 2, per_axis))
        if settings.intensity_scale:
            shapes |= {"intensity": views, "next_intensity": views}
    if module.framework.needs_permutation:
        shapes["permutation"] = (batch,)
    return shapes
