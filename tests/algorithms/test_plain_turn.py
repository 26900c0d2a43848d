"""One run of Rainbow: the order of its turn and what reaches replay, alone and as the only run of a
stack; and that the two are the same run, to the last bit, also where one goes on with the other's
checkpoint."""

import copy
from dataclasses import replace

import pytest
import torch

from cclf.algorithms.rainbow.games import RunHandle
from cclf.algorithms.rainbow.learner import make_rainbow_run, make_rainbow_stack
from cclf.algorithms.rainbow.presets import METHODS
from cclf.algorithms.rainbow.turn import RainbowLearner
from cclf.algorithms.registry import make_learner
from cclf.envs.make import make_env
from cclf.errors import ConfigError
from cclf.storage import machine
from cclf.storage.checkpoint import Checkpoints
from cclf.types import GameBatch
from rainbow_inputs import CPU, batch_of, game_stack, plain, stack_of_one, tiny
from tiny_runs import differing, flat, make_learners

MAKERS = (plain, stack_of_one)
BY_CURIOSITY = [name for name, method in METHODS.items() if "curiosity" in method.overrides]


def longer(method="rainbow", env_steps=48):
    return replace(tiny(method), run=replace(tiny(method).run, env_steps=env_steps))


def player_of(learner):
    return (
        learner.env
        if isinstance(learner, RainbowLearner)
        else learner.env.tables.pool.envs[0].players[0]
    )


def algorithm_of(learner):
    return learner.algorithm if isinstance(learner, RainbowLearner) else learner.stack.algorithm


def spy(events, owner, name, note=lambda *_: None):
    inner = getattr(owner, name)

    def call(*arguments, **named):
        events.append((name, note(*arguments)))
        return inner(*arguments, **named)

    setattr(owner, name, call)


# The turn


@pytest.mark.parametrize("slip", [False, True])
@pytest.mark.parametrize("make", MAKERS)
def test_a_turn_in_the_order_of_the_sheet(make, slip):
    """Act with this step's noise, store, update with the same noise, play, then copy the target.

    With the slip an update looks at what the game answered, so it comes after that."""
    config = tiny(
        "rainbow", learn_start_agent_steps=12, target_every_agent_steps=5, n_step_bug=slip
    )
    learner, events = make(config), []
    algorithm, replay = algorithm_of(learner), learner.replay
    for owner, name in ((algorithm, "act"), (player_of(learner), "play"), (replay, "add_outcome")):
        spy(events, owner, name)
    for name in ("add", "sample"):
        spy(events, replay, name, lambda *_: replay.written)
    for owner, name in (
        (algorithm, "update"),
        (replay, "set_priorities"),
        (algorithm, "copy_target"),
    ):
        spy(events, owner, name)
    for env_steps in range(15):
        learner.step(env_steps)
    game = [("play", None), ("add_outcome", None)]
    assert events[40:44] == [("act", None), ("add", 10), *game], (
        "step 11 learns nothing yet, and copies nothing at step 10"
    )

    def turn(step):
        learn = [("sample", step), ("update", None), ("set_priorities", None)]
        return [("act", None), ("add", step - 1), *(game + learn if slip else learn + game)]

    assert events[44:51] == turn(12)
    assert events[-8:] == [*turn(15), ("copy_target", None)]
    assert (learner.agent_steps, learner.updates) == (15, 4)


@pytest.mark.parametrize("make", MAKERS)
def test_several_updates_a_step_draw_different_numbers(make):
    learner, moments = make(tiny("rainbow", updates_per_agent_step=3)), []
    spy(moments, algorithm_of(learner), "draw", int)
    for env_steps in range(13):
        learner.step(env_steps)
    assert learner.updates == 6
    found = [moment for _, moment in moments]
    assert found[-4:] == [39, 39, 40, 41], "acting and the first update share theirs"
    assert len(set(found)) == len(found) - 2


@pytest.mark.parametrize("make", MAKERS)
def test_frames_actions_and_rewards_reach_replay_as_they_were(make):
    learner = make(longer())
    game, seen = player_of(learner).game, []
    inner = game.step

    def step(action):
        before = game.stack.copy()
        result = inner(action)
        seen.append((before[-1], action, result.reward, result.terminated))
        return result

    game.step = step
    finished = [advance.finished_returns for advance in (learner.step(t) for t in range(40))]
    replay = learner.replay
    assert replay.written == 40
    for slot, (frame, action, reward, ended) in enumerate(seen):
        assert type(action) is int
        assert (replay.frames[0, slot].numpy() == frame).all()
        assert (replay.actions[0, slot].item(), replay.rewards[0, slot].item()) == (action, reward)
        assert replay.ended[0, slot].item() == ended
    ends = [slot for slot, (*_, ended) in enumerate(seen) if ended]
    assert [slot for slot, returns in enumerate(finished) if returns] == ends
    first = [0, *(end + 1 for end in ends)]
    assert replay.ages[0, :40].tolist() == [
        slot - max(start for start in first if start <= slot) for slot in range(40)
    ]
    assert finished[ends[0]] == [sum(reward for _, _, reward, _ in seen[: ends[0] + 1])]


class Lives:
    """The toy as a game of several lives: each ball missed ends an episode, the game goes on."""

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


@pytest.mark.parametrize("make", MAKERS)
def test_a_lost_life_ends_an_episode_of_replay_but_no_game(make):
    """The return that is reported is the whole game's, before any clipping."""
    learner = make(longer(), lambda: Lives(make_env(longer(), 1)))
    game, replay, finished = player_of(learner).game.env, learner.replay, []
    for t in range(36):
        finished += learner.step(t).finished_returns
    rewards = game.rewards
    assert finished == [sum(rewards[start : start + 12]) for start in (0, 12, 24)]
    ended = replay.ended[0, :36].nonzero().flatten().tolist()
    assert len(ended) > 3
    assert game.resets == len(ended) + 1
    assert all(replay.ages[0, slot + 1] == 0 for slot in ended if slot < 35)
    assert replay.rewards[0, :36].tolist() == [reward * 0.5 for reward in rewards]


@pytest.mark.parametrize("make", MAKERS)
def test_metrics_are_means_since_the_last_report(make):
    learner = make(tiny("rainbow"))
    algorithm, losses = algorithm_of(learner), []
    inner = algorithm.update

    def update(*arguments, **named):
        metrics, priority = inner(*arguments, **named)
        losses.append(metrics["q_loss"].item())
        return metrics, priority

    algorithm.update = update
    reports = {
        t + 1: advance.metrics
        for t in range(30)
        if (advance := learner.step(t)).metrics is not None
    }
    assert list(reports) == [20, 30]
    assert reports[20]["q_loss"].item() == pytest.approx(sum(losses[:9]) / 9)
    assert reports[30]["q_loss"].item() == pytest.approx(sum(losses[9:]) / 10)
    assert set(reports[20]) <= set(learner.metric_names)


# One run alone and in a stack


def test_a_run_alone_on_a_cpu_is_a_plain_one():
    configs = [tiny("rainbow", seed=seed) for seed in (1, 2)]
    assert type(make_learner(configs[0], CPU)) is RainbowLearner
    assert {type(learner) for learner in make_learners(configs, CPU)} == {RunHandle}
    assert {type(learner) for learner in make_learners(configs, CPU, [3, 5])} == {RainbowLearner}


@pytest.mark.parametrize("make", MAKERS)
def test_a_replay_that_fits_nowhere_is_refused(monkeypatch, make):
    with pytest.raises(ConfigError, match="replay_device=cuda conflicts with device=cpu"):
        make(tiny("rainbow", replay_device="cuda"))
    monkeypatch.setattr(machine, "available_memory_bytes", lambda: 1000)
    with pytest.raises(ConfigError, match="main memory"):
        make(tiny("rainbow"))


def exactly_alike(one, two):
    """Which parts differ in any bit; their names, order, types and shapes must not."""
    shapes = [
        {name: (type(leaf), getattr(leaf, "shape", None)) for name, leaf in flat(state).items()}
        for state in (one, two)
    ]
    assert list(shapes[0].items()) == list(shapes[1].items())
    return differing(one, two)


@pytest.mark.parametrize("hidden", [8, 64])
@pytest.mark.parametrize("method", ["rainbow", "curl", "cclf", "cclf-shuffled", "drq", "otrainbow"])
def test_a_plain_turn_is_that_of_a_stack_of_one_to_the_last_bit(method, hidden):
    """`drq` has products of few columns, where a plain one rounds otherwise than a batched one."""
    config = tiny(method, hidden_dim=hidden)
    alone, stacked = plain(config), stack_of_one(config)
    for t in range(20):
        one, other = alone.step(t), stacked.step(t)
        assert one.finished_returns == other.finished_returns
        assert differing(one.metrics or {}, other.metrics or {}) == []
    assert alone.updates == 9
    assert exactly_alike(alone.state_dict(), stacked.state_dict()) == []
    assert alone.metric_names == stacked.metric_names
    assert alone.replay_metrics() == stacked.replay_metrics()


@pytest.mark.parametrize(
    "method",
    ["rainbow", "curl", "cclf", *BY_CURIOSITY, "drq", "otrainbow", "efficient-dqn"],
)
def test_a_stack_learns_what_plain_runs_learn(method):
    """Four updates in float64, games of 3, 18 and 6 actions: all that is saved to 1e-9."""
    configs, actions = [tiny(method, seed=seed) for seed in (1, 2, 3)], (3, 18, 6)
    stack = make_rainbow_stack(configs, actions, CPU, torch.float64)
    runs = [
        make_rainbow_run(*pair, CPU, torch.float64) for pair in zip(configs, actions, strict=True)
    ]
    env_steps, beta = (torch.tensor(value, dtype=torch.float64) for value in (8.0, 0.6))
    for moment in range(4):
        batch = batch_of(configs[0], runs=3, seed=moment, dtype=torch.float64)
        metrics, priority = stack.update(
            batch, stack.draw(torch.tensor(moment))[1], env_steps, beta
        )
        for number, run in enumerate(runs):
            own = GameBatch(*(part[number : number + 1] for part in batch))
            found, own_priority = run.update(own, run.draw(moment)[1], env_steps, beta)
            assert found.keys() == metrics.keys()
            torch.testing.assert_close(
                priority[number : number + 1], own_priority, rtol=1e-9, atol=1e-9
            )
        if moment == 2:
            for each in (stack, *runs):
                each.copy_target()
    for one, two in zip(stack.runs, runs, strict=True):
        ours, theirs = flat(one.state_dict()), flat(two.state_dict())
        assert ours.keys() == theirs.keys()
        for name, value in theirs.items():
            torch.testing.assert_close(ours[name], value, rtol=1e-9, atol=1e-9, msg=name)


def test_actions_are_those_of_a_stack():
    config = tiny("rainbow")
    stack, run = make_rainbow_stack([config], [3], CPU), make_rainbow_run(config, 3, CPU)
    images = batch_of(config).observation[:, 0]
    for epsilon in (0.0, 0.5, 1.0):
        for moment in range(30):
            expected = stack.act(images, torch.tensor(moment), torch.tensor(epsilon))
            assert run.act(images[0], *run.draw(moment), epsilon) == expected.item()


def saved(learner, folder):
    """The state of a learner, as a checkpoint gives it back."""
    checkpoints = Checkpoints(folder)
    checkpoints.save({"learner": learner.state_dict(), "agent_steps": learner.agent_steps})
    return checkpoints.load()["learner"]


@pytest.mark.parametrize("first", MAKERS)
def test_a_run_goes_on_from_the_checkpoint_of_the_other_kind_exactly(tmp_path, first):
    second = stack_of_one if first is plain else plain
    config = tiny("cclf")
    straight, begun, resumed = first(config), first(config), second(config)
    for t in range(16):
        straight.step(t)
        begun.step(t)
    resumed.load_state_dict(saved(begun, tmp_path))
    for t in range(16, 22):
        one, other = straight.step(t), resumed.step(t)
        assert differing(one.metrics or {}, other.metrics or {}) == []
    assert exactly_alike(straight.state_dict(), resumed.state_dict()) == []


def test_plain_runs_go_on_as_a_stack_of_two_and_apart_again():
    configs = [tiny("cclf", seed=seed) for seed in (1, 2)]
    straight, runs = [plain(config) for config in configs], [plain(config) for config in configs]
    stack, apart = game_stack(configs), [plain(config) for config in configs]

    def advance(learners, steps):
        for t in steps:
            for learner in learners:
                learner.step(t)

    def hand_over(olds, news):
        for old, new in zip(olds, news, strict=True):
            new.load_state_dict(copy.deepcopy(old.state_dict()))

    advance(straight, range(24))
    advance(runs, range(16))
    hand_over(runs, stack.runs)
    advance(stack.runs, range(16, 20))
    hand_over(stack.runs, apart)
    advance(apart, range(20, 24))
    for one, two in zip(straight, apart, strict=True):
        ours, theirs = one.state_dict(), two.state_dict()
        assert torch.equal(ours["replay"]["frames"], theirs["replay"]["frames"])
        for name, value in ours["algorithm"]["networks"].items():
            torch.testing.assert_close(
                theirs["algorithm"]["networks"][name], value, rtol=1e-4, atol=1e-5
            )
        assert (two.agent_steps, two.updates) == (24, 13)


def test_a_plain_run_refuses_actions_that_its_game_has_not():
    learner = plain(tiny("rainbow"))
    learner.step(0)
    state = copy.deepcopy(learner.state_dict())
    state["replay"]["actions"][0] = 3
    with pytest.raises(ValueError, match="none of 3"):
        plain(tiny("rainbow")).load_state_dict(state)


def test_all_parameters_of_a_plain_run_move_with_its_rows():
    """They are views, so a step of Adam on the row is one of the network."""
    run = make_rainbow_run(tiny("cclf"), 3, CPU)
    for row in (run.online, run.target, run.momentum):
        row.fill_(0.5)
    assert all((parameter == 0.5).all() for parameter in run.rainbow.parameters())
    assert run.online.requires_grad is False
