"""The TD errors that `cclf inspect` correlates with curiosity, by hand for every base algorithm."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import test_gallery
from cclf.algorithms.rainbow import inspect as gallery_rainbow
from cclf.algorithms.rainbow.rainbow import make_rainbow
from cclf.config import Config
from cclf.inspection.load import inspect_run
from cclf.inspection.records import Gallery
from cclf.storage import checkpoint
from cclf.training.seeding import Generators, derive
from rainbow_inputs import tiny
from test_gallery import A2C, RAINBOW, SAC
from tiny_runs import CPU, tiny_config

CONFIGS = {
    "sac": SAC,
    "a2c": A2C,
    "drqv2": tiny_config("toy/reach-1d", "drq-v2+cclf", base="drqv2", algorithm={"batch_size": 8}),
    "rainbow": RAINBOW,
}
SAMPLES = 64


@pytest.fixture(scope="module")
def runs(trained: Callable[[Config], Path]) -> dict[str, Path]:
    return {name: trained(config) for name, config in CONFIGS.items()}


def restored(config: Config, folder: Path) -> tuple[Any, torch.Tensor]:
    learner, clock = test_gallery.restore_learner(config, folder)
    return learner, torch.tensor(float(clock), dtype=torch.float64)


def td_errors(gallery: Gallery) -> np.ndarray:
    (found,) = (measure for measure in gallery.measures if measure.name == "TD error")
    return found.values


@pytest.mark.parametrize("base", ["sac", "drqv2"])
def test_td_error_of_twin_critics_is_the_mean_distance_to_the_target(
    runs: dict[str, Path], base: str
) -> None:
    config = CONFIGS[base]
    learner, clock = restored(config, runs[base])
    agent, size = learner.algorithm, config.algorithm.batch_size
    generators = Generators(derive(config.seed, "inspect"), CPU, CPU)
    actions = torch.Generator().manual_seed(derive(config.seed, "inspect", "td-error"))
    expected: list[float] = []
    for _ in range(SAMPLES // size):
        batch = learner.replay.sample(size, generators["replay"])
        noise = torch.randn(batch.action.shape, generator=actions)
        with torch.no_grad():
            if base == "sac":
                edge = (config.env.frame_pixels - config.env.crop_pixels) // 2
                middle = slice(edge, edge + config.env.crop_pixels)
                seen, later = (
                    frames[:, :, middle, middle]
                    for frames in (batch.observation, batch.next_observation)
                )
                policy = agent.actor.sample(
                    agent.actor.head(agent.critic.encoder.convolutions(later)), noise
                )
                q1, q2 = agent.target_critic.q_values(
                    agent.target_critic.encoder(later), policy.action
                )
                value = torch.min(q1, q2) - agent.log_temperature.exp() * policy.log_prob
                y = batch.reward + 0.99 * batch.continuation * value
                values = agent.critic.q_values(agent.critic.encoder(seen), batch.action)
            else:
                later = agent.encoder(batch.next_observation)
                offset = (agent.noise_std(clock) * noise).clamp(-0.3, 0.3)
                action = (agent.actor(later) + offset).clamp(-1 + 1e-6, 1 - 1e-6)
                q1, q2 = agent.target_critic.q_values(agent.target_critic.trunk(later), action)
                steps = config.algorithm.n_steps
                y = batch.n_step_return + 0.99**steps * batch.continuation * torch.min(q1, q2)
                features = agent.critic.trunk(agent.encoder(batch.observation))
                values = agent.critic.q_values(features, batch.action)
        expected += ((values[0] - y).abs() / 2 + (values[1] - y).abs() / 2).tolist()
    assert config.algorithm.discount == 0.99
    found = td_errors(inspect_run(runs[base], SAMPLES, CPU))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
    assert np.ptp(found) > 0.0


def test_td_error_of_rainbow_is_the_loss_of_plain_rainbow(runs: dict[str, Path]) -> None:
    """An update of the method without views and pieces, with the same weights, has its mean."""
    config = CONFIGS["rainbow"]
    saved = checkpoint.load(runs["rainbow"] / "checkpoint")
    draws, rainbow, replay = gallery_rainbow.load(config, saved["learner"], CPU)
    plain_config = tiny("rainbow-uniform")
    settings = replace(plain_config.algorithm, batch_size=config.algorithm.batch_size)
    plain = make_rainbow(replace(plain_config, algorithm=settings), 3)
    shared = {name: rainbow.state_dict()[name] for name in plain.state_dict()}
    plain.load_state_dict(shared)
    batch, noise = gallery_rainbow.sample(draws, replay, 0)
    error = gallery_rainbow.td_error(rainbow, batch, noise)
    step = plain(batch, noise, torch.tensor(60.0), torch.tensor(0.4), torch.ones(3))
    assert float(error.mean()) == pytest.approx(float(step.metrics["q_loss"]), rel=1e-5)
    size = config.algorithm.batch_size
    np.testing.assert_allclose(td_errors(inspect_run(runs["rainbow"], SAMPLES, CPU))[:size], error)


def test_td_error_of_a2c_is_the_size_of_the_advantage(runs: dict[str, Path]) -> None:
    config = CONFIGS["a2c"]
    learner, _ = restored(config, runs["a2c"])
    a2c, settings = learner.algorithm, config.algorithm
    rollout, _ = learner.collect()
    steps, envs = rollout.action.shape
    with torch.no_grad():
        values = a2c.policy.critic(a2c.features(rollout)).view(steps + 1, envs).numpy()
    expected = np.zeros((steps, envs))
    for env in range(envs):
        for t in range(steps):
            fade = 1.0
            for later in range(t, steps):
                goes_on = not rollout.ended[later, env]
                ahead = settings.discount * values[later + 1, env] * goes_on
                expected[t, env] += fade * (rollout.reward[later, env] + ahead - values[later, env])
                fade *= settings.discount * settings.gae_lambda * goes_on
    found = td_errors(inspect_run(runs["a2c"], SAMPLES, CPU))
    np.testing.assert_allclose(
        found[: steps * envs], np.abs(expected).ravel(), rtol=1e-4, atol=1e-6
    )
    learner.close()
