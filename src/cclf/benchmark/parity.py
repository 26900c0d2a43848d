"""Step parity: how much the steps of a fast update differ from those of the plain float32 update."""

import statistics
from dataclasses import replace

import torch
from torch import Tensor

from cclf.algorithms.common.off_policy import OffPolicyLearner
from cclf.algorithms.registry import algorithm_of
from cclf.config import Config
from cclf.training import devices
from cclf.types import OffPolicyAlgorithm

BATCHES_ON_GPU, BATCHES_ON_CPU = 8, 1  # a plain update takes seconds on a CPU
COMPARED = {"critic_loss", "target_mean", "curiosity_mean", "contrastive_loss"}


def step_parity(config: Config, learner: OffPolicyLearner) -> dict[str, float]:
    """Cosines between the steps of the two updates, and the largest relative differences of their
    metrics.

    Both start from the same weights and use the same batches. Several batches are needed: where two
    views have almost equal curiosity, rounding decides which of them is selected.
    """
    device = learner.device
    candidates = []
    for candidate in (config, float32_config(config)):
        devices.set_precision(candidate, device)
        make = algorithm_of(candidate).make_algorithm
        candidates.append((candidate, make(candidate, learner.env.spec, device)))
    env_steps = torch.zeros((), dtype=torch.float64, device=device)  # of Eq. (9)
    cosines: list[float] = []
    differences: dict[str, float] = {}
    for _ in range(BATCHES_ON_GPU if device.type == "cuda" else BATCHES_ON_CPU):
        sample, noise = learner.draw()
        batch, results = sample.to(device), []
        for candidate, algorithm in candidates:
            devices.set_precision(candidate, device)
            algorithm.load_state_dict(learner.algorithm.state_dict())
            before = _parameters(algorithm)
            metrics = algorithm.update(batch, noise, env_steps).metrics
            results.append((_parameters(algorithm) - before, metrics))
        (fast_step, fast), (plain_step, plain) = results
        cosines.append(float(torch.cosine_similarity(fast_step, plain_step, dim=0)))
        for name in plain.keys() & COMPARED:
            difference = float((fast[name] - plain[name]).abs() / plain[name].abs())
            differences[name] = max(difference, differences.get(name, 0.0))
    devices.set_precision(config, device)
    return {"step_cosine": statistics.median(cosines), "least_step_cosine": min(cosines)} | {
        f"{name}_relative_difference": value for name, value in sorted(differences.items())
    }


def _parameters(algorithm: OffPolicyAlgorithm) -> Tensor:
    # float64, because the cosine of two equal steps of millions of parameters is 0.9986 in float32
    return torch.cat([each.detach().double().flatten() for each in algorithm.networks.parameters()])


def float32_config(config: Config) -> Config:
    """The same run in float32 and not compiled."""
    config = config.with_settings(precision="fp32")
    return replace(config, run=replace(config.run, compile=False))
