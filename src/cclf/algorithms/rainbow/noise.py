"""All random numbers of a turn: which transitions to replay, exploration, noisy layers, views."""

from collections.abc import Sequence

import torch
from torch import Tensor

from cclf.algorithms.rainbow import equations
from cclf.algorithms.rainbow.counter_random import CounterBasedRNG, normal
from cclf.algorithms.rainbow.networks import HeadNoise, LayerNoise
from cclf.algorithms.rainbow.rainbow import RainbowLoss, RainbowNoise

UniformNumbers = dict[str, Tensor]


class NoiseSampler:
    """The numbers of S runs, each with a key of its own; `module` says how many a run needs."""

    def __init__(
        self, module: RainbowLoss, keys: Sequence[int], device: torch.device, dtype: torch.dtype
    ):
        self.dtype, self.device = dtype, device
        self.noisy_layers = len(module.online.head.layers) if module.settings.noisy else 0
        self.keys = torch.tensor(keys, dtype=torch.int64, device=device)
        self.random = CounterBasedRNG(_shapes(module), device)

    def at(self, moment: Tensor) -> tuple[UniformNumbers, RainbowNoise]:
        """Of a moment: uniform numbers by name (S, ...), and what an update needs."""
        numbers = self.random.uniform(self.keys, moment)
        gauss = normal(numbers)  # of all at once: a kernel for each of them would cost more
        factors = self.random.named(equations.noise_factor(gauss).to(self.dtype))
        uniform, normals = self.random.named(numbers), self.random.named(gauss.to(self.dtype))
        none = numbers[:, :1]  # where a method needs none
        return uniform, RainbowNoise(
            online=self._head_noise("online", factors),
            target=self._head_noise("target", factors),
            shifts=uniform.get("shifts", none),
            next_shifts=uniform.get("next_shifts", none),
            intensity=normals.get("intensity", none),
            next_intensity=normals.get("next_intensity", none),
            order=uniform["order"].argsort() if "order" in uniform else none,
        )

    def of_first(self, moment: int) -> tuple[UniformNumbers, RainbowNoise]:
        """The same of the first run alone, without the axis of runs."""
        uniform, noise = self.at(torch.tensor(moment, device=self.device))

        def first(head: HeadNoise) -> HeadNoise:
            return tuple(LayerNoise(layer.inputs[0], layer.outputs[0]) for layer in head)

        own = RainbowNoise(
            first(noise.online), first(noise.target), *(numbers[0] for numbers in noise[2:])
        )
        return {name: numbers[0] for name, numbers in uniform.items()}, own

    def _head_noise(self, network: str, factors: dict[str, Tensor]) -> HeadNoise:
        names = [f"{network}_{number}" for number in range(self.noisy_layers)]
        return tuple(LayerNoise(factors[f"{n}_inputs"], factors[f"{n}_outputs"]) for n in names)


def _shapes(module: RainbowLoss) -> dict[str, tuple[int, ...]]:
    """Uniform numbers of one turn of one run, by name.

    Those of the views, and after them an order, come last: methods share the others.
    """
    settings, method, batch = module.settings, module.method, module.settings.batch_size
    shapes: dict[str, tuple[int, ...]] = {"replay": (batch,), "explore": (2,)}
    if settings.noisy:
        for network in ("online", "target"):
            for number, (inputs, outputs) in enumerate(module.online.head.noise_shapes()):
                name = f"{network}_{number}"
                shapes |= {f"{name}_inputs": (inputs,), f"{name}_outputs": (outputs,)}
    if method.augmentation != "none":
        axes = (
            method.num_augmented_views,
            batch,
            2,
            2 if method.augmentation == "crop-pad-crop" else 1,
        )
        shapes |= {"shifts": axes, "next_shifts": axes}
        if settings.intensity_scale:
            shapes |= {"intensity": axes[:2], "next_intensity": axes[:2]}
    if module.framework.needs_permutation:
        shapes |= {"order": (batch,)}
    return shapes
