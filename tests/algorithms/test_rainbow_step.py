"""One agent step of one run: its order, its transition in replay, its metrics; and training
compared with the plain reference."""

import copy
from dataclasses import replace

import pytest
import torch

from cclf.algorithms.rainbow.batched import BatchedRainbow
from cclf.algorithms.rainbow.game_workers import GameWorkers
from cclf.algorithms.rainbow.learner import BatchedLearner, make_replay, observation_shape
from cclf.algorithms.rainbow.presets import METHODS
from cclf.envs.make import make_env
from cclf.errors import ConfigError
from cclf.storage import machine
from rainbow_inputs import CPU, game_of, games_in, learner_of, tiny
from reference_rainbow import ReferenceRainbow

BY_CURIOSITY = [name for name, method in METHODS.items() if "curiosity" in method.overrides]


def longer(method="rainbow", env_steps=48):
    return replace(tiny(method), run=replace(tiny(method).run, env_steps=env_steps))


def record(events, owner, name, note=lambda *_: None):
    inner = getattr(owner, name)

    def call(*arguments, **named):
        events.append((name, note(*arguments)))
        return inner(*arguments, **named)

    setattr(owner, name, call)


@pytest.mark.parametrize("bug", [False, True])
def test_order_of_a_step(bug):
    """Act with the noise of this step, store, update with the same noise, step the game, update the
    target. With the bug an update reads the newest result, so it comes after the game."""
    config = tiny("rainbow", learn_start_agent_steps=12, target_every_agent_steps=5, n_step_bug=bug)
    learner, events = learner_of(config), []
    algorithm, replay = learner.batch.algorithm, learner.replay
    record(events, algorithm, "act")
    record(events, games_in(learner.batch)[0], "step")
    for name in ("add", "sample"):
        record(events, replay, name, lambda *_: replay.written)
    for owner, name in (
        (replay, "add_reward"),
        (algorithm, "update"),
        (replay, "set_priorities"),
        (algorithm, "update_target"),
    ):
        record(events, owner, name)
    for env_steps in range(15):
        learner.step(env_steps)
    game = [("step", None), ("add_reward", None)]
    assert events[40:44] == [("act", None), ("add", 10), *game], "no update before step 12"

    def events_of(step):
        learn = [("sample", step), ("update", None), ("set_priorities", None)]
        return [("act", None), ("add", step - 1), *(game + learn if bug else learn + game)]

    assert events[44:51] == events_of(12)
    assert events[-8:] == [*events_of(15), ("update_target", None)]
    assert (learner.batch.agent_steps, learner.updates) == (15, 4)


def test_replay_stores_the_transitions_of_the_game():
    learner = learner_of(longer())
    game, steps = games_in(learner.batch)[0].game, []
    inner = game.step

    def step(action):
        before = game.stack.copy()
        result = inner(action)
        steps.append((before[-1], action, result.reward, result.terminated))
        return result

    game.step = step
    finished = [learner.step(t).finished_returns for t in range(40)]
    replay = learner.replay
    assert replay.written == 40
    for slot, (frame, action, reward, ended) in enumerate(steps):
        assert type(action) is int
        assert (replay.frames[0, slot].numpy() == frame).all()
        assert (replay.actions[0, slot].item(), replay.rewards[0, slot].item()) == (action, reward)
        assert replay.ended[0, slot].item() == ended
    ends = [slot for slot, (*_, ended) in enumerate(steps) if ended]
    assert [slot for slot, returns in enumerate(finished) if returns] == ends
    first = [0, *(end + 1 for end in ends)]
    assert replay.ages[0, :40].tolist() == [
        slot - max(start for start in first if start <= slot) for slot in range(40)
    ]
    assert finished[ends[0]] == [sum(reward for _, _, reward, _ in steps[: ends[0] + 1])]


class Lives:
    """The toy as a game of several lives: each missed ball ends an episode, but not the game."""

    def __init__(self, game):
        self.game, self.spec = game, game.spec
        self.resets, self.life_lost, self.rewards = 0, False, []

    def __getattr__(self, name):
        return getattr(self.game, name)

    def reset(self, seed=None):
        self.resets += 1
        return self.frame if self.life_lost else self.game.reset(seed)

    def step(self, action):
        step = self.game.step(action)
        self.life_lost, self.frame = step.reward < 0 and not step.terminated, step.frame
        self.rewards.append(step.reward)
        return step._replace(
            reward=step.reward * 0.5,
            raw_reward=step.reward,
            terminated=step.terminated or self.life_lost,
            life_lost=self.life_lost,
        )


def test_a_lost_life_ends_an_episode_but_not_the_reported_return():
    """The return is that of the whole game, before clipping."""
    learner = learner_of(longer(), lambda: Lives(make_env(longer(), 1)))
    game, replay, finished = games_in(learner.batch)[0].game.env, learner.replay, []
    for t in range(36):
        finished += learner.step(t).finished_returns
    rewards = game.rewards
    assert finished == [sum(rewards[start : start + 12]) for start in (0, 12, 24)]
    ended = replay.ended[0, :36].nonzero().flatten().tolist()
    assert len(ended) > 3
    assert game.resets == len(ended) + 1
    assert all(replay.ages[0, slot + 1] == 0 for slot in ended if slot < 35)
    assert replay.rewards[0, :36].tolist() == [reward * 0.5 for reward in rewards]


def test_metrics_are_means_since_the_last_report():
    learner = learner_of(tiny("rainbow"))
    algorithm, losses = learner.batch.algorithm, []
    inner = algorithm.update

    def update(*arguments):
        metrics, priority = inner(*arguments)
        losses.append(metrics["q_loss"].item())
        return metrics, priority

    algorithm.update = update
    results = [learner.step(t) for t in range(30)]
    reports = {t + 1: each.metrics for t, each in enumerate(results) if each.metrics is not None}
    assert list(reports) == [20, 30]
    assert reports[20]["q_loss"].item() == pytest.approx(sum(losses[:9]) / 9)
    assert reports[30]["q_loss"].item() == pytest.approx(sum(losses[9:]) / 10)
    assert set(reports[20]) <= set(learner.metric_names)


def test_replay_larger_than_memory_is_refused(monkeypatch):
    with pytest.raises(ConfigError, match="replay_device=cuda conflicts with device=cpu"):
        learner_of(tiny("rainbow", replay_device="cuda"))
    monkeypatch.setattr(machine, "available_memory_bytes", lambda: 1000)
    with pytest.raises(ConfigError, match="main memory"):
        learner_of(tiny("rainbow"))


def test_a_state_with_unknown_actions_is_refused():
    learner = learner_of(tiny("rainbow"))
    learner.step(0)
    state = copy.deepcopy(learner.state_dict())
    state["replay"]["actions"][0] = 3
    with pytest.raises(ValueError, match="one of the 3 actions"):
        learner_of(tiny("rainbow")).load_state_dict(state)


@pytest.mark.quick("rainbow-settings0", "drq-settings3", "cclf-settings9")
@pytest.mark.parametrize(
    ("method", "settings"),
    [
        *((name, {}) for name in ("rainbow", "curl", "cclf", "drq", "otrainbow", "efficient-dqn")),
        *((name, {}) for name in BY_CURIOSITY),
        ("rainbow", {"n_step_bug": True}),
        ("cclf", {"updates_per_agent_step": 2, "max_gradient_norm": 0.5}),
    ],
)
def test_training_equals_the_reference(method, settings):
    """A batch of two runs in float64, 24 agent steps: actions and replay exactly, parameters and
    priorities to 1e-9."""
    configs = [tiny(method, seed=seed, **settings) for seed in (1, 2)]
    games = GameWorkers([game_of(config) for config in configs], observation_shape(configs[0]))
    rainbow = BatchedRainbow(configs, [3, 3], CPU, torch.float64)
    replay = make_replay(configs[0], 2, CPU)
    learner = BatchedLearner(games, rainbow, replay, log_every_agent_steps=10)
    references = [ReferenceRainbow(config, game_of(config)()) for config in configs]
    for env_steps in range(24):
        learner.step(env_steps)
        metrics = [reference.step(env_steps)[1] for reference in references]
    assert learner.updates == 13 * configs[0].algorithm.updates_per_agent_step
    assert metrics[0][0].keys() <= {*rainbow.metric_names}
    for run, reference in zip(learner.runs, references, strict=True):
        ours, theirs = run.replay.run_state(run.index), reference.replay.run_state(0)
        for name in ("frames", "actions", "rewards", "ended", "ages"):
            assert torch.equal(ours[name], theirs[name]), name
        torch.testing.assert_close(ours["priorities"], theirs["priorities"], rtol=1e-9, atol=1e-9)
        parameters = run.algorithm.networks.state_dict()
        for name, value in reference.module.named_parameters():
            torch.testing.assert_close(
                parameters[name], value.detach(), rtol=1e-9, atol=1e-9, msg=name
            )
