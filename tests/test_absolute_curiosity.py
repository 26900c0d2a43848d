"""Curiosity measures with an absolute belief, exp(-d^2 / s): by hand, by their properties, as controls,
and on A2C, where they add a bonus to A2C or replace CCLF's curiosity."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cclf import presets
from cclf.algorithms.a2c.a2c import A2C
from cclf.algorithms.a2c.inspect import sample_rollouts
from cclf.algorithms.registry import make_learner
from cclf.config import MethodConfig
from cclf.curiosity import (
    AbsoluteMeasure,
    CuriosityMeasure,
    ForwardPrediction,
    PredictedMeasure,
    RandomDistillation,
    Transitions,
    find_measure,
)
from cclf.errors import ConfigError
from cclf.presets import with_changes
from cclf.types import Rollout
from tiny_runs import CPU, differing, flat, tiny_config

TASK = "minigrid/DoorKey-6x6"
ACTIONS, FEATURES = 3, 4
NO_W = torch.zeros(0, 0)
ENV_STEPS = torch.tensor(0.0, dtype=torch.float64)


def built(name: str, seed: int = 0) -> PredictedMeasure:
    torch.manual_seed(seed)
    measure = find_measure(name)
    assert isinstance(measure, PredictedMeasure)
    measure.build(lambda: nn.Linear(5, FEATURES), FEATURES, ACTIONS)
    return measure


def transitions(observations: Tensor, ended: list[bool] | None = None) -> Transitions:
    """One environment: each observation follows the one before. The action is always the first."""
    steps = len(observations) - 1
    rows = torch.arange(steps)
    action = nn.functional.one_hot(torch.zeros(steps, dtype=torch.int64), ACTIONS).float()
    frequency = torch.full((steps + 1,), 1.0 / (steps + 1))
    was_last = torch.tensor(ended or [False] * steps)
    return Transitions(observations, frequency, rows, rows + 1, action, was_last)


@torch.no_grad()
def curiosity(measure: PredictedMeasure, given: Transitions) -> Tensor:
    measure.eval()
    query, key, _ = measure.predictions(given)
    found = 1.0 - torch.stack(
        [measure.beliefs(q, k[None], NO_W, None)[0] for q, k in zip(query, key, strict=True)]
    )
    measure.train()
    return found


# Numbers by hand


def test_absolute_belief_by_hand() -> None:
    # Mean squared differences: (1 + 9) / 2 = 5 and (0 + 4) / 2 = 2; their mean, s, is 3.5.
    measure = AbsoluteMeasure()
    query, key = torch.tensor([[1.0, 3.0], [0.0, 2.0]]), torch.zeros(2, 2)
    measure.observe(query, key)
    beliefs = measure.beliefs(query, key[None], NO_W, None)
    torch.testing.assert_close(beliefs, torch.exp(-torch.tensor([[5.0, 2.0]]) / 3.5))
    # Twice the distances, d^2 of 20 and 8: s = (0.99 * 0.01 * 3.5 + 0.01 * 14) / (0.99 * 0.01 + 0.01).
    measure.observe(2 * query, key)
    scale = (0.99 * 3.5 + 14.0) / 1.99
    torch.testing.assert_close(
        measure.beliefs(2 * query, key[None], NO_W, None),
        torch.exp(-torch.tensor([[20.0, 8.0]]) / scale),
    )


def test_keys_are_features_normalized_by_their_running_moments() -> None:
    measure = built("rnd")
    given = transitions(torch.randn(400, 5))
    for _ in range(3):
        keys = measure.normalized_features(given)
    torch.testing.assert_close(keys.mean(0), torch.zeros(FEATURES), atol=1e-4, rtol=0.0)
    torch.testing.assert_close(keys.std(0), torch.ones(FEATURES), atol=1e-2, rtol=0.0)


def test_rnd_uses_both_observations_and_forward_the_transition() -> None:
    given = transitions(torch.randn(4, 5), ended=[False, True, False])
    for measure in (built("rnd"), built("forward")):
        keys = measure.normalized_features(given)
        measure.eval()
        query, key, _ = measure.predictions(given)
        assert torch.equal(key[1], keys[1:])
        if isinstance(measure, RandomDistillation):
            assert torch.equal(key[0], keys[:3])
            own = measure.predictor(given.observations)
            torch.testing.assert_close(query[0], own[:3])
            torch.testing.assert_close(query[1, [0, 2]], own[[1, 3]])
        else:
            assert isinstance(measure, ForwardPrediction)
            known = torch.cat([keys[:3], given.action], dim=1)
            torch.testing.assert_close(query[1, [0, 2]], measure.predictor(known)[[0, 2]])
            assert torch.equal(query[0], query[1])
            assert torch.equal(key[0], key[1])
        # No transition crosses the end of an episode.
        assert torch.equal(query[1, 1], key[1, 1])
        assert float(curiosity(measure, given)[1, 1]) == 0.0


# Controls


class Mine(CuriosityMeasure):
    """A user-defined measure."""

    def bonus_signal(self, curiosity: Tensor, query: Tensor) -> Tensor:  # noqa: ARG002
        return curiosity**2


def test_a_measure_of_the_user_has_the_same_controls() -> None:
    name = "test_absolute_curiosity:Mine"
    assert MethodConfig(curiosity=f"{name}-shuffled").curiosity == f"{name}-shuffled"
    shuffled = find_measure(f"{name}-shuffled")
    assert shuffled.needs_permutation
    assert float(shuffled.bonus_signal(torch.tensor(0.5), NO_W)) == 0.25
    assert not find_measure(name).needs_permutation


@pytest.mark.parametrize(
    "name", ["belief-shuffled", "shuffled-even", "rnd-shuffled-even", "rnd-odd"]
)
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"curiosity={name} is unknown"):
        MethodConfig(curiosity=name)


# On A2C


def make_rollout(seed: int = 0, steps: int = 8, envs: int = 4) -> Rollout:
    random = np.random.default_rng(seed)
    pool = random.integers(0, 11, (12, 7, 7, 3)).astype(np.uint8)
    return Rollout(
        pool[random.integers(0, 12, (steps + 1, envs))],
        random.integers(0, 7, (steps, envs)),
        (random.random((steps, envs)) < 0.2).astype(np.float32),
        random.random((steps, envs)) < 0.15,
    )


def make_a2c(method: str, settings: dict[str, Any] | None = None, **overrides: Any) -> A2C:
    config = presets.resolve(TASK, method)
    config = replace(config, method=replace(config.method, **overrides))
    return A2C(config.with_settings(**settings or {}), 7)


def policy_after(a2c: A2C, rollouts: int = 4) -> dict[str, Tensor]:
    order = torch.arange(32).flip(0)
    for number in range(rollouts):
        a2c.update(make_rollout(number), ENV_STEPS, order if a2c.needs_permutation else None)
    return a2c.policy.state_dict()


@pytest.mark.parametrize("method", ["a2c+forward", "a2c+rnd-shuffled"])
def test_measure_with_coefficient_zero_is_bitwise_equal_to_a2c(method: str) -> None:
    plain = policy_after(make_a2c("a2c"))
    for place in ("reward", "centred-reward", "advantage"):
        unpaid = make_a2c(method, {"bonus_place": place}, bonus_temperature=0.0)
        paid = make_a2c(method, {"bonus_place": place})
        assert all(torch.equal(value, plain[name]) for name, value in policy_after(unpaid).items())
        assert not all(
            torch.equal(value, plain[name]) for name, value in policy_after(paid).items()
        )


@pytest.mark.parametrize("curiosity", ["absolute", "rnd", "forward"])
def test_initial_networks_of_cclf_are_the_same_with_every_measure(curiosity: str) -> None:
    plain = make_a2c("cclf").networks.state_dict()
    other = make_a2c("cclf", curiosity=curiosity).networks.state_dict()
    assert all(torch.equal(other[name], value) for name, value in plain.items())
    added = {name.split(".")[1] for name in other.keys() - plain.keys()}
    assert added == {"measure"}


def test_a2c_trains_the_predictor_with_an_optimizer_of_its_own() -> None:
    a2c = make_a2c("cclf+rnd")
    assert a2c.predicted is not None
    trained = {id(parameter) for parameter in a2c.parameters}
    assert not trained & {id(parameter) for parameter in a2c.predicted.parameters()}
    fixed = {name: value.clone() for name, value in a2c.predicted.encoder.state_dict().items()}
    losses = [float(a2c.update(make_rollout(0), ENV_STEPS)["prediction_loss"]) for _ in range(60)]
    assert losses[-1] < 0.5 * losses[5]
    for name, value in a2c.predicted.encoder.state_dict().items():
        assert torch.equal(value, fixed[name]), "a key stands still"


def test_bonus_minus_its_mean_is_added_to_the_reward_or_to_the_advantage() -> None:
    """With no rewards and a critic of zeros, one rollout of one step shows what is paid: the targets of
    the critic."""
    rollout = make_rollout(3, steps=1, envs=8)
    rollout = rollout._replace(
        reward=np.zeros_like(rollout.reward), ended=np.zeros_like(rollout.ended)
    )
    losses = {}
    for place in ("reward", "centred-reward", "advantage"):
        a2c = make_a2c("a2c+rnd", {"bonus_place": place}, bonus_temperature=1.0)
        for parameter in a2c.policy.critic.parameters():
            parameter.data.zero_()
        assert a2c.framework is not None
        with torch.no_grad():
            twin = make_a2c("a2c+rnd", {"bonus_place": place}, bonus_temperature=1.0)
            assert twin.framework is not None
            appraisal, *_ = twin.appraise(
                twin.framework, twin.features(rollout), rollout, torch.zeros(8), ENV_STEPS
            )
        losses[place] = float(a2c.update(rollout, ENV_STEPS)["value_loss"])
        bonus = appraisal.bonus
        torch.testing.assert_close(bonus, (appraisal.curiosity + appraisal.next_curiosity) / 2.0)
        expected = bonus - bonus.mean() if place == "centred-reward" else bonus
        assert losses[place] == pytest.approx(float((expected**2).mean()), rel=1e-5)
    assert losses["centred-reward"] < losses["reward"] == pytest.approx(losses["advantage"])


@pytest.mark.parametrize(
    ("method", "overrides", "settings", "message"),
    [
        ("a2c", {}, {"bonus_place": "advantage"}, "bonus_place=advantage conflicts with reward=False"),
        ("a2c+rnd", {"curiosity": "belief"}, {}, "contrastive=False conflicts with reward"),
        ("a2c+rnd", {"curiosity": "absolute"}, {}, "contrastive=False conflicts with reward"),
        ("a2c+rnd", {"regularisation": True}, {}, "regularisation=True conflicts with contrastive=False"),
        ("curl", {"curiosity": "rnd"}, {}, "curiosity=rnd conflicts with .*reward=False"),
    ],
)  # fmt: skip
def test_options_without_effect_are_refused(
    method: str, overrides: dict[str, Any], settings: dict[str, Any], message: str
) -> None:
    defaults = presets.resolve(TASK, method)
    with pytest.raises(ConfigError, match=message):
        with_changes(defaults, overrides | settings)


@pytest.mark.parametrize(
    ("task", "base"), [("toy/reach", "sac"), ("toy/catch", "rainbow"), ("toy/reach", "drqv2")]
)
def test_other_algorithms_refuse_a_measure_that_they_do_not_train(task: str, base: str) -> None:
    config = presets.resolve(task, "drq-v2+cclf" if base == "drqv2" else "cclf", base_name=base)
    for curiosity in ("absolute", "rnd", "forward-shuffled"):
        with pytest.raises(ConfigError, match=f"curiosity={curiosity} conflicts with {base}"):
            replace(config, method=replace(config.method, curiosity=curiosity))


def run_of(method: str, rollouts: range, state: Any = None, **overrides: Any) -> Any:
    config = tiny_config("minigrid/DoorKey-5x5", method)
    config = replace(config, method=replace(config.method, **overrides))
    learner = make_learner(config, CPU)
    if state is not None:
        learner.load_state_dict(state)
    for number in rollouts:
        learner.step(number * 16)
    state = learner.state_dict()
    learner.close()
    return state


@pytest.mark.parametrize(
    ("method", "overrides"),
    [
        ("a2c+rnd-shuffled", {}),
        ("cclf+forward", {}),
        ("cclf", {"curiosity": "absolute-even"}),
    ],
)
def test_resumed_run_is_bitwise_equal(method: str, overrides: dict[str, Any]) -> None:
    part = run_of(method, range(7), **overrides)
    resumed = run_of(method, range(7, 12), state=part, **overrides)
    assert differing(run_of(method, range(12), **overrides), resumed) == []


@pytest.mark.parametrize("method", ["a2c+rnd", "cclf+forward"])
def test_inspection_reads_the_curiosity_of_the_checkpoint_and_changes_nothing(method: str) -> None:
    config = tiny_config("minigrid/DoorKey-5x5", method)
    learner = make_learner(config, CPU)
    for number in range(5):
        learner.step(number * 16)
    before = flat(learner.algorithm.state_dict())
    before = {
        name: value.clone() if isinstance(value, Tensor) else value
        for name, value in before.items()
    }
    table = sample_rollouts(config, learner, 64, ENV_STEPS)
    assert len(table["curiosity"]) == 64
    assert 0.0 <= table["curiosity"].min() < table["curiosity"].max() <= 1.0
    if method == "cclf+forward":  # the curiosity of o_t and of o_(t+1) is that of the transition
        assert np.array_equal(table["curiosity"], table["next_curiosity"])
    assert not table["next_curiosity"][table["ended"]].any()
    for name, value in flat(learner.algorithm.state_dict()).items():
        assert not isinstance(value, Tensor) or torch.equal(value, before[name]), name
