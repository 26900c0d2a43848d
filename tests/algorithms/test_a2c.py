"""A2C: advantages by hand, comparison with the textbook update, and CCLF on duplicated views."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cclf import presets
from cclf.algorithms.a2c import a2c
from cclf.algorithms.a2c.a2c import A2C, first_duplicate, generalized_advantage
from cclf.algorithms.a2c.networks import GridPolicy, grid_windows
from cclf.algorithms.a2c.presets import METHODS as A2C_METHODS
from cclf.types import Rollout

STEPS, ENVS, ACTIONS = 8, 4, 7
ENV_STEPS = torch.tensor(1000.0, dtype=torch.float64)


def make_rollout(seed: int = 0, distinct: int = 12) -> Rollout:
    """A rollout with a few distinct observations that repeat, as on MiniGrid."""
    random = np.random.default_rng(seed)
    pool = random.integers(0, 11, (distinct, 7, 7, 3)).astype(np.uint8)
    return Rollout(
        pool[random.integers(0, distinct, (STEPS + 1, ENVS))],
        random.integers(0, ACTIONS, (STEPS, ENVS)),
        (random.random((STEPS, ENVS)) < 0.2).astype(np.float32),
        random.random((STEPS, ENVS)) < 0.15,
    )


def make_a2c(method: str = "a2c", seed: int = 1, **overrides: Any) -> A2C:
    config = presets.resolve("minigrid/DoorKey-6x6", method, seed=seed)
    return A2C(replace(config, algorithm=replace(config.algorithm, **overrides)), ACTIONS)


def parameters(a2c: A2C) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in a2c.policy.state_dict().items()}


def test_advantage_stops_at_the_end_of_an_episode() -> None:
    # gamma 0.9, lambda 0.5. Environment 0 ends after step 1; environment 1 does not.
    # deltas 0: step 2: 1 + 0.9*4 - 3 = 1.6; step 1 (ended): 2 - 2 = 0; step 0: 0 + 0.9*2 - 1 = 0.8.
    # A2 = 1.6; A1 = 0 (nothing from beyond the end); A0 = 0.8 + 0.45*0 = 0.8.
    # deltas 1: step 2: 1.6; step 1: 2 + 0.9*3 - 2 = 2.7; step 0: 0.8. A1 = 2.7 + 0.45*1.6 = 3.42;
    # A0 = 0.8 + 0.45*3.42 = 2.339.
    reward = torch.tensor([[0.0, 0.0], [2.0, 2.0], [1.0, 1.0]])
    value = torch.tensor([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0], [4.0, 4.0]])
    ended = torch.tensor([[False, False], [True, False], [False, False]])
    advantage = generalized_advantage(reward, value, ended, discount=0.9, gae_lambda=0.5)
    torch.testing.assert_close(advantage, torch.tensor([[0.8, 2.339], [0.0, 3.42], [1.6, 1.6]]))


class Textbook:
    """A2C written out, with the published constants."""

    def __init__(self, policy: GridPolicy):
        self.policy = GridPolicy(ACTIONS).to(next(policy.parameters()).dtype)
        self.policy.load_state_dict(policy.state_dict())
        self.optimiser = torch.optim.RMSprop(
            self.policy.parameters(), lr=1e-3, alpha=0.99, eps=1e-8
        )

    def update(self, rollout: Rollout) -> None:
        windows = torch.from_numpy(grid_windows(rollout.observation.reshape(-1, 7, 7, 3)))
        features = self.policy.encoder(windows.to(self.policy.actor[0].weight.dtype))
        values = self.policy.critic(features).view(STEPS + 1, ENVS)
        fixed = values.detach()
        advantage, later = torch.zeros_like(fixed[:-1]), torch.zeros_like(fixed[0])
        for t in reversed(range(STEPS)):
            mask = 1.0 - torch.from_numpy(rollout.ended[t]).to(fixed.dtype)
            delta = torch.from_numpy(rollout.reward[t]) + 0.99 * fixed[t + 1] * mask - fixed[t]
            later = delta + 0.99 * 0.95 * mask * later
            advantage[t] = later
        distribution = torch.distributions.Categorical(
            logits=self.policy.actor(features[: STEPS * ENVS])
        )
        action = torch.from_numpy(rollout.action).flatten()
        policy_loss = -(distribution.log_prob(action) * advantage.flatten()).mean()
        value_loss = ((values[:-1].flatten() - (fixed[:-1] + advantage).flatten()) ** 2).mean()
        loss = policy_loss - 0.01 * distribution.entropy().mean() + 0.5 * value_loss
        self.optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.policy.parameters(), 0.5)
        self.optimiser.step()


def test_a2c_equals_the_textbook_update(monkeypatch: pytest.MonkeyPatch) -> None:
    """In float64: RMSprop's first steps divide gradients by their own size, which in float32 makes
    rounding as large as the smallest of them."""
    monkeypatch.setattr(a2c, "grid_windows", lambda o: grid_windows(o).astype(np.float64))
    ours = make_a2c()
    ours.networks.double()
    textbook = Textbook(ours.policy)
    for number in range(4):
        rollout = make_rollout(number)
        rollout = rollout._replace(reward=rollout.reward.astype(np.float64))
        ours.update(rollout, ENV_STEPS)
        textbook.update(rollout)
    for name, value in textbook.policy.state_dict().items():
        torch.testing.assert_close(
            ours.policy.state_dict()[name], value, rtol=1e-10, atol=1e-12, msg=name
        )


def test_cclf_with_every_piece_off_is_bitwise_equal_to_a2c() -> None:
    """Except for the norm of the whole gradient, which is too small here to be clipped: a sum over
    more parameters may round differently, although the gradients of the further ones are zero."""
    plain, appraised = (
        make_a2c(method, max_gradient_norm=1e6, **changes)
        for method, changes in (("a2c", {}), ("cclf", {"contrastive_coefficient": 0.0}))
    )
    assert appraised.framework is not None
    appraised.framework.method = replace(
        appraised.framework.method, reward=False, regularisation=False
    )
    appraised.framework.needs_curiosity = False
    appraised.policy.load_state_dict(plain.policy.state_dict())
    for number in range(4):
        each = [a2c.update(make_rollout(number), ENV_STEPS) for a2c in (plain, appraised)]
        norms = [float(metrics["gradient_norm"]) for metrics in each]
        assert norms[0] == pytest.approx(norms[1], rel=1e-6)
    for name, value in parameters(plain).items():
        assert torch.equal(parameters(appraised)[name], value), name


def test_duplicates_in_a_batch_raise_curiosity_unless_negatives_are_distinct() -> None:
    # n copies of one observation are each other's negatives: belief <= 1/n. Among distinct keys, a
    # lone observation is certain.
    rollout = make_rollout(distinct=1)
    floor = 1.0 - 1.0 / (STEPS * ENVS)
    everything = make_a2c("cclf").update(rollout, ENV_STEPS)["curiosity_mean"]
    distinct = make_a2c("cclf-distinct").update(rollout, ENV_STEPS)["curiosity_mean"]
    assert float(everything) == pytest.approx(floor, abs=1e-6)
    assert float(distinct) == pytest.approx(0.0, abs=1e-6)


def test_first_duplicate_is_the_index_of_the_first_copy() -> None:
    observation = np.zeros((4, 147), np.uint8)
    observation[1, 5] = 1
    observation[3, 5] = 1
    assert first_duplicate(observation).tolist() == [0, 1, 0, 1]


def test_bonus_is_added_to_the_reward_and_decays() -> None:
    a2c = make_a2c("cclf")
    early = a2c.update(make_rollout(), torch.tensor(0.0, dtype=torch.float64))
    late = make_a2c("cclf").update(make_rollout(), torch.tensor(50_000.0, dtype=torch.float64))
    mean_curiosity = (early["curiosity_mean"] + early["next_curiosity_mean"]) / 2.0
    torch.testing.assert_close(early["bonus_mean"], 2e-4 * mean_curiosity)
    torch.testing.assert_close(
        late["bonus_mean"], early["bonus_mean"] * np.exp(-1.0).astype(np.float32)
    )


@pytest.mark.parametrize("method", ["curl", "cclf"])
def test_method_on_re3_differs_only_by_the_bonus(method: str) -> None:
    agents = [make_a2c(method), make_a2c(f"re3+{method}", re3_coefficient=0.0)]
    agents.append(make_a2c(f"re3+{method}"))
    for agent in agents:  # RE3 draws its random encoder before the other networks
        agent.networks.load_state_dict(agents[0].networks.state_dict())
    for number in range(2):
        for agent in agents:
            agent.update(make_rollout(number), ENV_STEPS)
    alone, unpaid, paid = map(parameters, agents)
    torch.testing.assert_close(alone, unpaid, rtol=0.0, atol=0.0)
    assert any(not torch.equal(alone[name], paid[name]) for name in alone)


def test_key_network_is_an_ema_of_the_query_network_without_gradient() -> None:
    a2c = make_a2c("cclf")
    before = {name: value.clone() for name, value in a2c.key.state_dict().items()}
    a2c.update(make_rollout(), ENV_STEPS)
    query = nn.Sequential(a2c.policy.encoder, a2c.head).state_dict()
    for name, value in a2c.key.state_dict().items():
        if value.is_floating_point():
            torch.testing.assert_close(value, 0.999 * before[name] + 0.001 * query[name], msg=name)
    assert all(parameter.grad is None for parameter in a2c.key.parameters())


def test_actions_are_sampled_from_the_policy() -> None:
    a2c = make_a2c()
    observation = np.repeat(make_rollout().observation[0, :1], 20_000, axis=0)
    actions = a2c.act(observation, np.random.default_rng(0).random((len(observation), ACTIONS)))
    with torch.no_grad():
        features = a2c.policy.encoder(torch.from_numpy(grid_windows(observation[:1])))
        expected = torch.softmax(a2c.policy.actor(features), dim=1)[0]
    shares = torch.from_numpy(np.bincount(actions, minlength=ACTIONS) / len(actions)).float()
    torch.testing.assert_close(shares, expected, atol=0.015, rtol=0.0)


@pytest.mark.quick("re3+cclf", "cclf-distinct", "a2c+rnd", "cclf+forward-shuffled")
@pytest.mark.parametrize("method", list(A2C_METHODS))
def test_every_method_gives_finite_declared_metrics_and_resumes_exactly(
    method: str,
) -> None:
    one, other = make_a2c(method), make_a2c(method, seed=2)
    order = torch.arange(make_rollout().action.size).flip(0) if one.needs_permutation else None
    one.update(make_rollout(0), ENV_STEPS, order)
    other.load_state_dict(one.state_dict())
    metrics, same = (a2c.update(make_rollout(1), ENV_STEPS, order) for a2c in (one, other))
    assert set(metrics) <= set(one.metric_names)
    assert all(torch.isfinite(value) for value in metrics.values())
    assert all(torch.equal(metrics[name], same[name]) for name in metrics)
    for name, value in parameters(one).items():
        assert torch.equal(parameters(other)[name], value), name
