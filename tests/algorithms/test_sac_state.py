"""SAC from state: the same update as from pixels, with noise instead of crops and a linear layer
instead of convolutions."""

import dataclasses

import pytest
import torch
from test_sac import ACTIONS, BATCH, CPU, STEPS, as_double, draw_noise, make_batch, snapshot
from test_sac import to_double as doubled

import reference_sac
from cclf.algorithms.sac.presets import METHODS
from cclf.algorithms.sac.sac import SAC
from cclf.data.augmentations import lazy_noise
from cclf.errors import ConfigError
from cclf.presets import resolve

NUMBERS = 3
PENDULUM = "gym/Pendulum-v1"
pytest.importorskip("gymnasium")


def tiny(method, **settings):
    config = resolve(PENDULUM, method, observe="state")
    sizes = {"hidden_dim": 32, "feature_dim": 10} | settings
    return dataclasses.replace(config, algorithm=dataclasses.replace(config.algorithm, **sizes))


def make_sac(method, **settings):
    return SAC(tiny(method, **settings), ACTIONS, CPU, state_dim=NUMBERS)


def make_state_batch(number=0):
    """A batch of states whose entries have very different scales."""
    generator = torch.Generator().manual_seed(number)
    scale = torch.tensor([1e-2, 1.0, 1e2])
    now, following = (scale * torch.randn(BATCH, NUMBERS, generator=generator) for _ in range(2))
    return make_batch(number)._replace(observation=now, next_observation=following)


STATE_METHODS = [name for name in METHODS if name != "select"]


@pytest.mark.quick("sac-pixel", "curl", "drq", "cclf")
@pytest.mark.parametrize("method", STATE_METHODS)
def test_update_equals_the_reference(method):
    plain, lean = (doubled(make_sac(method)) for _ in range(2))
    for number in range(4):
        noise = as_double(draw_noise(plain, number))
        noise = noise._replace(
            augmentation=noise.augmentation.double(),
            next_augmentation=noise.next_augmentation.double(),
        )
        batch = type(make_state_batch())(
            *(x.double() if x.is_floating_point() else x for x in make_state_batch(number))
        )
        one = reference_sac.update(plain, batch, noise, STEPS)
        other = lean.update(batch, noise, STEPS)
        torch.testing.assert_close(one.metrics, other.metrics, rtol=1e-9, atol=1e-9)
        assert (one.priority is None) == (other.priority is None)
        if one.priority is not None:
            torch.testing.assert_close(one.priority, other.priority, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(snapshot(plain), snapshot(lean), rtol=1e-9, atol=1e-9)


def test_noise_scales_with_the_standard_deviation_of_each_entry():
    generator = torch.Generator().manual_seed(0)
    vectors = torch.tensor([5.0, 0.0, -3.0]) + torch.tensor([1e-2, 0.0, 1e2]) * torch.randn(
        4_000, 3, generator=generator
    )
    draws = torch.randn(2, 4_000, 3, generator=generator)
    views = lazy_noise(vectors, draws, scale=0.1).materialize().view(2, 4_000, 3)
    added = (views - vectors).std((0, 1))
    torch.testing.assert_close(added, torch.tensor([1e-3, 0.0, 10.0]), rtol=0.03, atol=1e-6)
    assert not torch.equal(views[0], views[1])


def test_actions_are_computed_from_states_without_noise():
    """Neither evaluation nor data collection adds noise, not even in the paper's profile."""
    for profile in ("released", "paper"):
        config = resolve(PENDULUM, "cclf", profile=profile, observe="state")
        sac = SAC(config, ACTIONS, CPU, state_dim=NUMBERS)
        state = make_state_batch().observation[:2]
        layer = sac.critic.encoder.convolutions
        mean = sac.actor(layer(state))
        assert torch.equal(sac.evaluation_action(state), mean)
        generators = [torch.Generator().manual_seed(seed) for seed in (1, 2)]
        noise = torch.randn(2, ACTIONS, generator=torch.Generator().manual_seed(2))
        action = sac.collection_action(state, STEPS, *generators)
        assert torch.equal(action, sac.actor.sample(sac.actor.head(layer(state)), noise).action)


# --- configs


def test_state_presets_replace_crops_by_noise_and_centre_crops_by_nothing():
    for name in STATE_METHODS:
        pixels, state = resolve(PENDULUM, name), resolve(PENDULUM, name, observe="state")
        crops = pixels.method.augmentation
        expected = {"random-crop": "noise", "centre-crop": "none"}[crops]
        assert state.method == dataclasses.replace(pixels.method, augmentation=expected)
        assert state.env.observe == "state"
        assert state.run_name() != pixels.run_name()


@pytest.mark.parametrize(
    ("task", "method", "base", "said"),
    [
        (PENDULUM, "select", None, "selection=overlap conflicts with SAC on observe=state"),
        (PENDULUM, None, "drqv2", "observe=state conflicts with drqv2, which learns from pixels"),
        ("gym/CartPole-v1", None, "rainbow", "observe=state conflicts with rainbow, which learns"),
        ("dmc/cartpole-swingup", None, None, "observe=state conflicts with dmc/cartpole-swingup"),
        ("toy/reach", None, None, "tasks of toy/ have pixels; remove it"),
        ("minigrid/Empty-16x16", None, None, "observe=state conflicts with minigrid/Empty-16x16"),
    ],
)
def test_tasks_and_algorithms_without_state_are_rejected(task, method, base, said):
    with pytest.raises(ConfigError, match=said):
        resolve(task, method, base_name=base, observe="state")


def test_contrastive_learning_without_noise_is_rejected():
    curl = resolve(PENDULUM, "curl", observe="state")
    with pytest.raises(ConfigError, match="augmentation=none conflicts with contrastive=True"):
        dataclasses.replace(curl, method=dataclasses.replace(curl.method, augmentation="none"))
    rad = resolve(PENDULUM, "rad", observe="state")
    plain = dataclasses.replace(rad, method=dataclasses.replace(rad.method, augmentation="none"))
    assert plain.method == resolve(PENDULUM, "sac-pixel", observe="state").method
    pixels = resolve(PENDULUM, "rad")
    with pytest.raises(ConfigError, match="noise conflicts with SAC on observe=pixels"):
        dataclasses.replace(pixels, method=dataclasses.replace(pixels.method, augmentation="noise"))
