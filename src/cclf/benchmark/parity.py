"""No speed without parity: how far the steps of a fast update are from those of the plain float32
one."""

import statistics
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cclf.config import Config

if TYPE_CHECKING:
    import torch

    from cclf.algorithms.common.off_policy import OffPolicyLearner

BATCHES_ON_GPU, BATCHES_ELSEWHERE = 8, 1  # where a plain update takes seconds
COMPARED = {"critic_loss", "target_mean", "curiosity_mean", "contrastive_loss"}


def step_parity(config: Config, learner: "OffPolicyLearner") -> dict[str, float]:
    """The same batches from the same weights through the fast update and the plain float32 one: how
    far apart their steps are. Of several batches, since where two views are almost equally curious,
    rounding decides which one is learned from: the median cosine and the least, and the largest
    difference of each figure."""
    import torch

    from cclf.algorithms.registry import algorithm_of
    from cclf.training import devices

    device = learner.device
    ways = []
    for candidate in (config, plainly(config)):
        devices.set_precision(candidate, device)
        make = algorithm_of(candidate).make_algorithm
        ways.append((candidate, make(candidate, learner.env.spec, device)))
    cosines: list[float] = []
    differences: dict[str, float] = {}
    for _ in range(BATCHES_ON_GPU if device.type == "cuda" else BATCHES_ELSEWHERE):
        drawn, noise = learner.draw()
        batch, results = drawn.to(device), []
        for candidate, algorithm in ways:
            devices.set_precision(candidate, device)
            algorithm.load_state_dict(learner.algorithm.state_dict())
            before = _parameters(algorithm)
            metrics = algorithm.update(batch, noise, no_steps(device)).metrics
            results.append((_parameters(algorithm) - before, metrics))
        (fast_step, fast), (plain_step, plain) = results
        cosines.append(float(torch.cosine_similarity(fast_step, plain_step, dim=0)))
        for name in plain.keys() & COMPARED:
            found = float((fast[name] - plain[name]).abs() / plain[name].abs())
            differences[name] = max(found, differences.get(name, 0.0))
    devices.set_precision(config, device)
    return {"step_cosine": statistics.median(cosines), "least_step_cosine": min(cosines)} | {
        f"{name}_relative_difference": found for name, found in sorted(differences.items())
    }


def _parameters(algorithm: Any) -> "torch.Tensor":
    import torch

    # in float64: over millions of float32 numbers a cosine of equal steps came out as 0.9986
    return torch.cat([each.detach().double().flatten() for each in algorithm.networks.parameters()])


def no_steps(device: "torch.device") -> "torch.Tensor":
    """The clock of Eq. (9) at the beginning."""
    import torch

    return torch.zeros((), dtype=torch.float64, device=device)


def plainly(config: Config) -> Config:
    """The same run in float32 and not compiled."""
    config = config.with_settings(precision="fp32")
    return replace(config, run=replace(config.run, compile=False))
