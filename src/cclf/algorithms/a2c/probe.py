"""`cclf inspect --curiosity`: what several measures of curiosity would follow on one run of A2C.

The run goes on in memory with a policy that does not learn. A measure that it was trained with is that
of its checkpoint; the predictions of any other are trained on rollouts of the same policy first.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from cclf import equations
from cclf.algorithms.a2c.a2c import A2C, first_duplicate
from cclf.algorithms.a2c.config import A2cConfig
from cclf.algorithms.a2c.inspect import columns
from cclf.algorithms.a2c.rollout import RolloutLearner
from cclf.algorithms.common.optimizers import backward_and_step
from cclf.config import PREDICTED_CURIOSITIES, Config
from cclf.curiosity import AbsoluteMeasure
from cclf.errors import ConfigError
from cclf.inspection.probe import Batches
from cclf.types import Rollout

TRAINING_ROLLOUTS = 1_000
FORWARD = "forward"  # the measure whose prediction error `error` means
QUANTITIES = ("rarity", "error", "td", "step")


def probe(
    config: Config[A2cConfig],
    learner: RolloutLearner,
    measures: Sequence[str],
    quantities: Sequence[str],
    num_batches: int,
    env_steps: Tensor,
) -> tuple[Batches, Batches]:
    """Curiosity by measure, and the quantities by name, of the next rollouts."""
    for name in quantities:
        if name not in QUANTITIES:
            raise ConfigError(
                f"--follow {name} conflicts with a2c, which has no replay: use {', '.join(QUANTITIES)}"
            )
    names = dict.fromkeys([*measures, *([FORWARD] if "error" in quantities else [])])
    algorithms = {name: _with_measure(config, learner, name) for name in names}
    _train(
        [each for each in algorithms.values() if each is not learner.algorithm], learner, env_steps
    )
    curiosity: dict[str, list[np.ndarray]] = {name: [] for name in measures}
    found: dict[str, list[np.ndarray]] = {name: [] for name in QUANTITIES}
    observations, episode_steps = [], np.full(learner.env.num_envs, np.nan)
    for _ in range(num_batches):
        rollout, _ = learner.collect()
        steps = episode_steps.copy()
        for name, a2c in algorithms.items():
            episode_steps[:] = steps
            table = columns(a2c, rollout, env_steps, episode_steps)
            if name in curiosity:
                curiosity[name].append(table["curiosity"])
        observations.append(table["observation"])
        found["td"].append(table["td_error"])
        found["step"].append(table["step"])
        if "error" in quantities:
            found["error"].append(_forward_error(algorithms[FORWARD], rollout))
    learner.close()
    same = first_duplicate(np.concatenate(observations)).numpy()
    sightings = np.bincount(same, minlength=len(same))[same].astype(float)
    found["rarity"] = np.split(-sightings, num_batches)
    return curiosity, {name: found[name] for name in quantities}


def _with_measure(config: Config[A2cConfig], learner: RolloutLearner, name: str) -> A2C:
    """The run's own algorithm if this is its measure; else one with the same policy and encoders."""
    own = learner.algorithm
    if name == config.method.curiosity and config.method.needs_curiosity:
        return own
    changes: dict[str, object] = {"curiosity": name, "reward": True}
    if name in PREDICTED_CURIOSITIES:
        changes |= {"contrastive": False, "regularisation": False}
    elif not config.method.contrastive:
        raise ConfigError(
            f"--curiosity {name} conflicts with {config.method_name}: this run has no contrastive "
            f"loss, which alone trains it; use {', '.join(PREDICTED_CURIOSITIES)}"
        )
    method = replace(config.method, **changes)  # type: ignore[arg-type]
    a2c = A2C(replace(config, method=method), learner.env.num_actions)
    shapes = {key: value.shape for key, value in a2c.networks.state_dict().items()}
    weights = {
        key: value
        for key, value in own.networks.state_dict().items()
        if shapes.get(key) == value.shape  # without contrastive loss there is no W
    }
    a2c.networks.load_state_dict(weights, strict=False)
    return a2c


def _train(algorithms: Sequence[A2C], learner: RolloutLearner, env_steps: Tensor) -> None:
    if not any(_has_state(a2c) for a2c in algorithms):
        return
    for _ in range(TRAINING_ROLLOUTS):
        rollout, _ = learner.collect()
        reward = torch.from_numpy(rollout.reward).flatten()
        for a2c in filter(_has_state, algorithms):
            assert a2c.framework is not None, "a measure with a state belongs to a framework"
            with torch.no_grad():
                features = a2c.features(rollout)
            *_, loss = a2c.appraise(a2c.framework, features, rollout, reward, env_steps)
            if loss is not None:
                backward_and_step(loss, a2c.prediction_optimizer)


def _has_state(a2c: A2C) -> bool:
    return a2c.framework is not None and isinstance(a2c.framework.measure, AbsoluteMeasure)


@torch.no_grad()
def _forward_error(a2c: A2C, rollout: Rollout) -> np.ndarray:
    assert a2c.predicted is not None, "the forward measure predicts"
    found = a2c.predicted.answers(a2c.transitions(rollout))
    return np.asarray(equations.squared_distance(found.query, found.key)[1])
