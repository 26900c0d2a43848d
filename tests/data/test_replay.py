"""Frame-once replay against the usual buffer, which stores every stack twice. The reward of
transition n is n: its name."""

from collections import deque

import numpy as np
import pytest
import scipy
import torch
from hypothesis import given
from hypothesis import strategies as st

from cclf.data.replay import Replay

CPU = torch.device("cpu")
FRAME = (2, 3, 3)
ACTIONS = 2


def make_replay(capacity, frame_stack=3, max_episode=None, frame=FRAME, actions=ACTIONS):
    return Replay(capacity, frame, actions, frame_stack, max_episode, CPU)


class NaiveReplay:
    """Every transition ever, as stacked observation and next observation, by number."""

    def __init__(self, frame_stack):
        self.transitions = []
        self.frames = deque(maxlen=frame_stack)

    def begin_episode(self, frame):
        self.frames.extend([frame] * self.frames.maxlen)

    def add(self, action, reward, terminated, next_frame):
        observation = self.observation()
        self.frames.append(next_frame)
        self.transitions.append(
            (observation, action, reward, 0.0 if terminated else 1.0, self.observation())
        )

    def observation(self):
        return np.concatenate(self.frames)


class Player:
    """Plays the same random episodes into both replays."""

    def __init__(self, replay, seed):
        self.replay, self.naive = replay, NaiveReplay(replay.frame_stack)
        self.random = np.random.default_rng(seed)

    def frame(self):
        return self.random.integers(0, 256, self.replay.frames.shape[1:], dtype=np.uint8)

    def episode(self, length, terminated=False, check=lambda: None):
        first = self.frame()
        for replay in (self.replay, self.naive):
            replay.begin_episode(first)
        for step in range(length):
            action = self.random.uniform(-1, 1, self.replay.actions.shape[1]).astype(np.float32)
            frame, number = self.frame(), float(len(self.naive.transitions))
            for replay in (self.replay, self.naive):
                replay.add(action, number, terminated and step == length - 1, frame)
            check()


def live_slots(replay):
    return torch.from_numpy(np.flatnonzero(replay.valid))


def live_numbers(replay):
    return sorted(replay.rewards[live_slots(replay)].long().tolist())


def assert_same(batch, naive):
    for row, number in enumerate(batch.reward.long().tolist()):
        observation, action, reward, continuation, next_observation = naive.transitions[number]
        assert np.array_equal(batch.observation[row].numpy(), observation), (
            f"observation of transition {number}"
        )
        assert np.array_equal(batch.next_observation[row].numpy(), next_observation), (
            f"next observation of transition {number}"
        )
        assert np.array_equal(batch.action[row].numpy(), action), f"action of transition {number}"
        assert batch.reward[row] == reward
        assert batch.continuation[row] == continuation, f"continuation of transition {number}"


episodes = st.lists(st.tuples(st.integers(1, 9), st.booleans()), min_size=1, max_size=40)


@given(
    frame_stack=st.integers(1, 4),
    capacity=st.integers(1, 24),
    max_episode=st.sampled_from([None, 9]),
    plays=episodes,
    seed=st.integers(0, 99),
)
def test_every_live_transition_equals_the_naive_buffers(
    frame_stack, capacity, max_episode, plays, seed
):
    replay = make_replay(capacity, frame_stack, max_episode)
    player = Player(replay, seed)
    generator = torch.Generator().manual_seed(seed)

    def check():
        numbers = live_numbers(replay)
        count = len(player.naive.transitions)
        assert numbers == list(range(count - len(numbers), count)), (
            "the live ones are the newest, without a hole"
        )
        assert 1 <= len(numbers) <= capacity
        assert replay.size == len(numbers)
        assert_same(replay.gather(live_slots(replay)), player.naive)
        assert np.array_equal(replay.observation()[0].numpy(), player.naive.observation())
        drawn = replay.sample(8, generator)
        assert replay.valid[drawn.slot.numpy()].all(), "a dead transition was drawn"

    for length, terminated in plays:
        player.episode(length, terminated, check)


@pytest.mark.parametrize("frame_stack", [1, 3])
@pytest.mark.parametrize(("capacity", "length"), [(37, 10), (5, 10), (10, 1)])
def test_the_newest_capacity_transitions_are_live_when_episodes_have_full_length(
    frame_stack, capacity, length
):
    replay = make_replay(capacity, frame_stack, max_episode=length)
    player = Player(replay, seed=1)

    def check():
        count = len(player.naive.transitions)
        assert live_numbers(replay) == list(range(max(0, count - capacity), count))

    while replay.written < 4 * replay.slots:  # several times round the ring
        player.episode(length, check=check)


def test_one_endless_episode_keeps_the_whole_capacity_live():
    replay = make_replay(capacity=20, frame_stack=4)
    player = Player(replay, seed=2)
    player.episode(length=200)
    assert live_numbers(replay) == list(range(180, 200))
    assert_same(replay.gather(live_slots(replay)), player.naive)


def filled(capacity=40, count=40, seed=4):
    player = Player(make_replay(capacity), seed)
    while count > 0:
        player.episode(min(count, 10))
        count -= 10
    return player


def test_samples_are_proportional_to_priorities():
    replay = filled(count=120).replay
    slots = live_slots(replay)
    weights = (
        torch.rand(len(slots), generator=torch.Generator().manual_seed(5), dtype=torch.float64) ** 2
        + 1e-3
    )
    replay.set_priorities(slots, weights)
    draws = replay.sample(100_000, torch.Generator().manual_seed(6)).slot
    counts = torch.bincount(draws, minlength=replay.slots)
    dead = torch.from_numpy(~replay.valid)
    assert counts[dead].sum() == 0
    expected = weights / weights.sum() * len(draws)
    assert scipy.stats.chisquare(counts[slots].numpy(), expected.numpy()).pvalue > 1e-3


@given(st.lists(st.tuples(st.integers(0, 9), st.floats(0.01, 1.0)), min_size=1, max_size=60))
def test_setting_priorities_equals_setting_them_one_by_one(pairs):
    replay = filled().replay
    expected = replay.priorities.clone()
    for slot, priority in pairs:
        expected[slot] = torch.tensor(priority).double()
    replay.set_priorities(
        torch.tensor([slot for slot, _ in pairs]), torch.tensor([priority for _, priority in pairs])
    )
    assert torch.equal(replay.priorities, expected)


def test_new_transitions_have_priority_one_also_in_a_reused_slot():
    player = filled()
    replay = player.replay
    replay.set_priorities(live_slots(replay), torch.full((replay.size,), 0.25))
    for _ in range(8):  # round the ring and on
        before = len(player.naive.transitions)
        player.episode(10)
        batch = replay.gather(live_slots(replay))
        assert (batch.priority[batch.reward >= before] == 1.0).all()
    assert (replay.gather(live_slots(replay)).priority == 1.0).all()


def test_invalid_slots_have_priority_zero():
    player = filled(count=200)
    dead = torch.from_numpy(~player.replay.valid)
    assert dead.any()
    assert (player.replay.priorities[dead] == 0.0).all()


def test_entropy_share_is_one_for_uniform_replay_and_falls_with_it():
    replay = filled().replay
    assert replay.priority_entropy_share() == pytest.approx(1.0)
    slots = live_slots(replay)
    priorities = torch.full((len(slots),), 1e-12)
    priorities[:2] = 0.5
    replay.set_priorities(slots, priorities)
    assert replay.priority_entropy_share() == pytest.approx(np.log(2) / np.log(40), abs=1e-6)


@pytest.mark.parametrize("max_episode", [125, 250, 500, None])
def test_a_hundred_thousand_transitions_of_100x100_rgb_need_3_gigabytes(max_episode):
    replay = Replay(100_000, (3, 100, 100), 6, 3, max_episode, torch.device("meta"))
    assert 3.0e9 < replay.num_bytes <= 3.1e9
    assert replay.slots < 1.01 * 100_000


class Walker:
    """Plays random episodes, and knows of each start what n steps from there bring."""

    def __init__(self, n_steps, discount):
        self.n_steps, self.discount, self.starts = n_steps, discount, {}
        self.number = 0

    def episode(self, player, length, terminated):
        first = self.number
        player.episode(length, terminated)
        self.number += length
        for start in range(first, self.number):
            whole = start + self.n_steps <= self.number
            if not whole and not terminated:
                continue
            last = min(start + self.n_steps, self.number)
            total = sum(self.discount ** (k - start) * k for k in range(start, last))
            goes_on = not (terminated and last == self.number)
            self.starts[start] = (total, float(goes_on), last - 1)


@given(
    n_steps=st.integers(1, 4),
    frame_stack=st.integers(1, 4),
    capacity=st.integers(4, 24),
    plays=episodes,
    seed=st.integers(0, 99),
)
def test_n_steps_end_with_their_episode(n_steps, frame_stack, capacity, plays, seed):
    """A reward is its transition's number, so a return names the steps that are in it."""
    replay = Replay(capacity, FRAME, ACTIONS, frame_stack, None, CPU, n_steps, discount=0.9)
    player, walker = Player(replay, seed), Walker(n_steps, 0.9)
    for length, terminated in plays:
        walker.episode(player, length, terminated)
        numbers = live_numbers(replay)
        newest = sorted(walker.starts)[-len(numbers) :] if numbers else []
        assert numbers == newest, "the live ones are the newest of those that may be drawn"
        if not numbers:
            continue
        batch = replay.gather(live_slots(replay))
        for row, number in enumerate(batch.reward.long().tolist()):
            total, goes_on, last = walker.starts[number]
            assert batch.n_step_return[row] == pytest.approx(total, rel=1e-5)
            assert batch.continuation[row] == goes_on
            naive = player.naive.transitions
            assert np.array_equal(batch.observation[row].numpy(), naive[number][0])
            if goes_on:
                assert np.array_equal(batch.next_observation[row].numpy(), naive[last][4])


def assert_twins(one, two, naive):
    """The same live transitions, with the same priorities; every one as the naive buffer has it."""
    assert live_numbers(one) == live_numbers(two)
    batches = []
    for replay in (one, two):
        batch = replay.gather(live_slots(replay))
        assert_same(batch, naive)
        batches.append(batch.priority[batch.reward.argsort()])
    assert torch.equal(*batches)
    assert torch.equal(one.observation(), two.observation())


@pytest.mark.parametrize("frame_stack", [1, 3])
def test_state_round_trip_at_any_moment(frame_stack):
    """At each of 90 transitions, four times round the ring, what is loaded is what was saved."""
    replay = make_replay(capacity=16, frame_stack=frame_stack)
    player = Player(replay, seed=10)

    def check():
        slots = live_slots(replay)
        replay.set_priorities(
            slots,
            torch.rand(len(slots), generator=torch.Generator().manual_seed(replay.written)) + 0.1,
        )
        copy = make_replay(capacity=16, frame_stack=frame_stack)
        copy.load_state_dict(replay.state_dict())
        assert_twins(replay, copy, player.naive)
        draws = [r.sample(16, torch.Generator().manual_seed(11)).slot for r in (replay, copy)]
        assert torch.equal(*draws)

    for length in (1, 5, 12, 2, 40, 3, 27):
        player.episode(length, check=check)
    assert replay.written > 4 * replay.slots


@pytest.mark.quick("3")
@pytest.mark.parametrize("frame_stack", [1, 3, 4])
def test_a_larger_replay_loads_the_state_of_a_smaller_one(frame_stack):
    """A run may be given a larger budget. Saved at any moment, also when the small ring has
    wrapped."""
    small = make_replay(capacity=12, frame_stack=frame_stack)
    player = Player(small, seed=12)
    for length in (1, 4, 9, 2, 33, 3, 8, 1, 1, 20):
        player.episode(length)
        large = make_replay(capacity=60, frame_stack=frame_stack)
        large.load_state_dict(small.state_dict())
        assert_twins(small, large, player.naive)
        # It goes on, in the middle of the episode as in the next one.
        going_on = Player(large, seed=13)
        going_on.naive.transitions = list(player.naive.transitions)
        going_on.naive.frames = player.naive.frames.copy()
        first = large.size
        for step in range(100):
            frame, number = going_on.frame(), float(len(going_on.naive.transitions))
            for replay in (large, going_on.naive):
                if step in (30, 35, 36):
                    replay.begin_episode(frame)
                replay.add(np.zeros(ACTIONS, np.float32), number, False, frame)
            # Before it is full: one slot extra per short episode, of which the small one brought a
            # few.
            assert large.size >= min(first + step + 1, 60 - 20)
            if step % 5 == 0 or 28 <= step < 40:  # what is wrong stays until the ring comes round
                assert_same(large.gather(live_slots(large)), going_on.naive)


def test_a_smaller_replay_rejects_the_state_of_a_larger_one():
    player = filled(capacity=40)
    with pytest.raises(ValueError, match="at least as large"):
        make_replay(capacity=10).load_state_dict(player.replay.state_dict())


def test_a_young_replay_saves_only_what_was_written():
    replay = make_replay(capacity=1_000)
    assert len(replay.state_dict()["frames"]) == 0
    Player(replay, seed=14).episode(7)
    assert len(replay.state_dict()["frames"]) == 8
