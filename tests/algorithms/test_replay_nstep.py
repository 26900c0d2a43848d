"""n-step replay against a plain list of steps: borders of episodes, returns, which transitions are
sampled and how often, and saving."""

import numpy as np
import pytest
import torch

from cclf.algorithms.rainbow.replay import NStepReplay

CPU = torch.device("cpu")
STACK, N, DISCOUNT = 4, 3, 0.5


def make(runs=1, capacity=50, n=N, bug=False):
    return NStepReplay(runs, capacity, (STACK, 2, 2), n, DISCOUNT, bug, CPU)


def step(replay, number, reward=0.0, ended=False, age=0, action=0):
    """Store frame `number`, filled with number + 1, so that 0 marks an empty frame."""
    runs = len(replay.max_priority)
    frame = torch.full((runs, 2, 2), (number + 1) % 256, dtype=torch.uint8)
    replay.add(frame, torch.full((runs,), action), torch.full((runs,), age))
    replay.add_reward(torch.full((runs,), reward), torch.full((runs,), ended))


def play(replay, lengths, reward=lambda number: float(number)):
    """Store episodes of these lengths; the last one has not ended."""
    number = 0
    for which, length in enumerate(lengths):
        for age in range(length):
            step(
                replay,
                number,
                reward(number),
                ended=age == length - 1 and which < len(lengths) - 1,
                age=age,
                action=number % 5,
            )
            number += 1


def frames_of(stack):
    return stack[..., 0, 0].tolist()


def at(replay, slot):
    return type(batch := replay.gather(torch.tensor([[slot]])))(*(part[0, 0] for part in batch))


@pytest.mark.parametrize("bug", [False, True])
def test_frames_and_rewards_after_the_end_are_zero(bug):
    """An episode of six steps: it ends within three steps of slots 3, 4 and 5; with the bug slot 2 has no
    bootstrap either."""
    replay = make(bug=bug)
    play(replay, [6, 10])
    found = [at(replay, slot) for slot in range(6)]
    assert [one.continuation.item() for one in found] == [1, 1, 0 if bug else 1, 0, 0, 0]
    assert found[2].n_step_return.item() == 2 + 1.5 + 1.0
    assert found[3].n_step_return.item() == 3 + 2 + 1.25
    assert found[4].n_step_return.item() == 4 + 2.5
    assert found[5].n_step_return.item() == 5.0
    assert frames_of(found[2].next_observation) == [3, 4, 5, 6]
    assert [frames_of(late.next_observation) for late in found[3:]] == [
        [4, 5, 6, 0],
        [5, 6, 0, 0],
        [6, 0, 0, 0],
    ]


class Model:
    """The same replay as a list of steps."""

    def __init__(self, lengths, n):
        self.steps, self.n = [], n
        for which, length in enumerate(lengths):
            for age in range(length):
                number = len(self.steps)
                self.steps.append(
                    (
                        number + 1,
                        float(number % 7),
                        age == length - 1 and which < len(lengths) - 1,
                        age,
                    )
                )

    def transition(self, t):
        history, reaching = [], True
        for back in range(STACK):  # backwards, until the episode's first step
            history.insert(0, self.steps[t - back][0] if reaching else 0)
            reaching = reaching and self.steps[t - back][3] > 0
        window, going = {}, True
        total = 0.0
        for k in range(self.n):
            if going:
                total += DISCOUNT**k * self.steps[t + k][1]
                going = not self.steps[t + k][2]
        for back in range(STACK):
            at = t + self.n - back  # zero unless it belongs to the episode of step t
            window[back] = (
                self.steps[at][0]
                if at >= 0 and self.steps[at][3] == self.steps[t][3] + self.n - back
                else 0
            )
        return history, total, going, [window.get(back, 0) for back in range(STACK - 1, -1, -1)]


@pytest.mark.parametrize("n", [1, 3, 6])
def test_transitions_equal_those_of_the_model(n):
    lengths = [int(length) for length in np.random.default_rng(n).integers(1, 9, 18)] + [20]
    model, replay = Model(lengths, n), make(capacity=200, n=n)
    play(replay, lengths, reward=lambda number: float(number % 7))
    for t in range(len(model.steps) - n):
        history, total, going, following = model.transition(t)
        found = at(replay, t)
        assert frames_of(found.observation) == history, t
        assert found.n_step_return.item() == pytest.approx(total)
        assert bool(found.continuation) == going
        assert frames_of(found.next_observation) == following, t


def sampled_slots(replay, count=4000):
    uniform = (torch.arange(count)[None] * 0.618034 + 0.5) % 1.0
    return replay.sample(uniform.double()).slot[0]


def test_wrapped_buffer_samples_no_overwritten_history():
    replay = make(capacity=20)
    play(replay, [7] * 9 + [4])  # 67 steps in 24 slots
    newest = 66
    numbers = {
        newest - (replay.written - 1 - slot) % replay.slots
        for slot in sampled_slots(replay).tolist()
    }
    assert numbers == set(range(newest - 19, newest - N + 1))
    model = Model([7] * 9 + [4], N)
    for number in numbers:
        found = at(replay, number % replay.slots)
        history, _total, going, following = model.transition(number)
        assert frames_of(found.observation) == history
        assert frames_of(found.next_observation) == following
        assert bool(found.continuation) == going


def test_samples_are_stratified_and_proportional_to_priority():
    replay = make()
    play(replay, [11])
    replay.priorities[0, :8] = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 0.0, 1.0, 4.0])
    counts = torch.bincount(sampled_slots(replay, 20_000), minlength=8).double() / 20_000
    torch.testing.assert_close(counts, replay.priorities[0, :8] / 20.0, atol=1e-3, rtol=0)
    # Twenty intervals of equal weight: for any uniform numbers, each transition is sampled once for
    # each of its intervals.
    for seed in range(5):
        uniform = (
            torch.rand(1, 20, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
            * 0.999
        )
        assert torch.bincount(replay.sample(uniform).slot[0], minlength=8).tolist() == [
            1,
            2,
            3,
            4,
            5,
            0,
            1,
            4,
        ]


def test_sampling_by_blocks_equals_one_cumulative_sum():
    """One block has no weight, the last one is incomplete, and the buffer has wrapped."""
    replay = make(runs=2, capacity=1000)
    play(replay, [50] * 25)
    random = torch.Generator().manual_seed(0)
    weights = torch.rand(2, replay.slots, dtype=torch.float64, generator=random)
    weights[0, 256:512] = 0.0
    replay.priorities[:, : replay.slots] = weights * (weights > 0.3)
    uniform = torch.rand(2, 5_000, dtype=torch.float64, generator=random)
    ends = replay.sampling_weights().cumsum(1)
    targets = (torch.arange(5_000) + uniform) / 5_000 * ends[:, -1:]
    expected = torch.searchsorted(ends, targets, right=True)
    assert (expected // 256).unique().tolist() == [0, 1, 2, 3]
    assert torch.equal(replay.sample(uniform).slot, expected)


def test_new_steps_have_the_largest_priority_so_far():
    replay = make(runs=2)
    step(replay, 0)
    assert replay.priorities[:, 0].tolist() == [1.0, 1.0]
    replay.set_priorities(torch.tensor([[0], [0]]), torch.tensor([[3.0], [0.25]]))
    step(replay, 1, age=1)
    assert replay.priorities[:, :2].tolist() == [[3.0, 3.0], [0.25, 1.0]]
    replay.set_priorities(torch.tensor([[0], [0]]), torch.tensor([[0.5], [0.5]]))
    step(replay, 2, age=2)
    assert replay.priorities[:, 2].tolist() == [3.0, 1.0], "the maximum does not decrease"


def test_last_priority_of_a_duplicate_slot_counts():
    replay = make(runs=2)
    play(replay, [10])
    replay.set_priorities(
        torch.tensor([[2, 5, 2, 2], [1, 1, 3, 4]]),
        torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.5, 0.6, 0.7, 0.8]]),
    )
    assert replay.priorities[0, [2, 5]].tolist() == pytest.approx([0.4, 0.2])
    assert replay.priorities[1, [1, 3, 4]].tolist() == pytest.approx([0.6, 0.7, 0.8])


@pytest.mark.parametrize("bug", [False, True])
def test_sampled_transitions_do_not_depend_on_the_newest_result(bug):
    """Therefore an update can run before the games return. With the n-step bug they do depend on
    it: the bug reads the step after the n-th."""
    replay = make(capacity=20, bug=bug)
    play(replay, [6, 40])  # the buffer has wrapped
    replay.add(torch.full((1, 2, 2), 9, dtype=torch.uint8), torch.tensor([1]), torch.tensor([40]))
    slots = replay.sampling_weights()[0].nonzero().T
    answers = []
    for reward, ended in ((3.0, False), (-7.0, True)):
        replay.add_reward(torch.tensor([reward]), torch.tensor([ended]))
        answers.append(replay.gather(slots))
    assert 15 < slots.numel() <= 20
    differing = [
        name
        for name, one, two in zip(answers[0]._fields, *answers, strict=True)
        if not torch.equal(one, two)
    ]
    assert differing == (["continuation"] if bug else [])


@pytest.mark.parametrize("steps", [15, 67])
@pytest.mark.parametrize("larger", [0, 30])
def test_one_run_is_saved_and_loaded(steps, larger):
    """Load into another index of another batch, and into a larger buffer, also after the ring
    buffer has wrapped."""
    old = make(runs=3, capacity=20)
    play(old, [7] * (steps // 7) + [steps % 7])
    old.set_priorities(
        torch.tensor([[3, 4]] * 3), torch.tensor([[2.0, 0.5], [3.0, 0.1], [4.0, 0.2]])
    )
    new = make(runs=2, capacity=20 + larger)
    new.load_run_state(
        1,
        {
            name: value.clone() if hasattr(value, "shape") else value
            for name, value in old.run_state(2).items()
        },
    )
    assert new.max_priority[1] == old.max_priority[2] == 4.0

    def transitions_of(replay, run):
        found = {}
        for slot in replay.sampling_weights()[run].nonzero().flatten().tolist():
            one = replay.gather(torch.full((len(replay.max_priority), 1), slot))
            parts = (part[run, 0] for part in one[:-1])
            found[int(one.observation[run, 0, -1, 0, 0])] = [part.tolist() for part in parts]
        return found

    if larger and steps > 24:
        assert transitions_of(old, 2).items() <= transitions_of(new, 1).items(), (
            "and the oldest, because their history is not overwritten"
        )
    else:
        assert transitions_of(old, 2) == transitions_of(new, 1)
    for replay in (old, new):
        step(replay, steps, age=steps % 7)
    assert len(set(transitions_of(old, 2)) - set(transitions_of(new, 1))) == 0


def test_a_smaller_replay_refuses_a_larger_state():
    old = make(capacity=50)
    play(old, [40])
    with pytest.raises(ValueError, match="40 slots"):
        make(capacity=20).load_run_state(0, old.run_state(0))


def test_bytes_needed_equals_the_allocated_memory():
    replay = make(capacity=30)
    tensors = (
        replay.frames,
        replay.actions,
        replay.rewards,
        replay.ended,
        replay.ages,
        replay.priorities,
    )
    assert sum(t.numel() * t.element_size() for t in tensors) == NStepReplay.bytes_needed(
        30, (STACK, 2, 2)
    )
    assert NStepReplay.bytes_needed(100_000, (4, 84, 84)) == pytest.approx(0.71e9, rel=0.01)
