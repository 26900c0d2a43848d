"""Frame stacks: padding, order, and resets."""

import numpy as np
import pytest

from cclf.envs.frame_stack import BatchFrameStack, FrameStack, StackedEnv
from cclf.envs.toy import Catch
from cclf.types import EnvSpec, EnvStep


def frame(number, shape=(2, 3, 3)):
    return np.full(shape, number, np.uint8)


@pytest.mark.parametrize(("pad", "before"), [("zeros", 0), ("repeat", 5)])
def test_a_stack_is_padded_before_the_first_frame_and_oldest_first(pad, before):
    stack = FrameStack(3, pad)
    for _ in range(2):
        stack.clear()
        assert stack.push(frame(5))[:, 0, 0].tolist() == [before] * 4 + [5] * 2
        second = stack.push(frame(6))
        assert second[:, 0, 0].tolist() == [before] * 2 + [5] * 2 + [6] * 2
        stack.push(frame(7))
        assert second[:, 0, 0].tolist() == [before] * 2 + [5] * 2 + [6] * 2, "a new array"
        assert stack.push(frame(8))[:, 0, 0].tolist() == [6] * 2 + [7] * 2 + [8] * 2


@pytest.mark.parametrize(("num_actions", "before"), [(None, 5), (3, 0)])
def test_rows_of_a_batch_begin_episodes_independently(num_actions, before):
    stacks = BatchFrameStack(EnvSpec((2, 3, 3), 1, 1, None, num_actions), 2)
    stacks.push(np.stack([frame(1), frame(2)]))
    stacks.reset([1])
    stacked = stacks.push(np.stack([frame(4), frame(5)]))
    assert stacked[:, ::2, 0, 0].tolist() == [[1, 4], [before, 5]]


def test_unclipped_reward_and_game_over_of_a_step():
    step = EnvStep(frame(0), 1.0, True, False)
    assert (step.unclipped_reward, step.game_over) == (1.0, True)
    lost = EnvStep(frame(0), 1.0, True, False, raw_reward=10.0, life_lost=True)
    assert (lost.unclipped_reward, lost.game_over) == (10.0, False)
    assert EnvStep(frame(0), 0.0, False, True).game_over
    assert not EnvStep(frame(0), 0.0, False, False).game_over


def test_a_reset_in_the_middle_of_a_game_clears_the_stack():
    env = StackedEnv(Catch(50, seed=0), 2)
    env.reset()
    env.step(0)
    first = env.reset()
    assert np.array_equal(env.stack, np.concatenate([np.zeros_like(first), first]))


def test_the_stack_is_part_of_the_state():
    env, other = StackedEnv(Catch(50, seed=0), 2), StackedEnv(Catch(50, seed=1), 2)
    assert not env.state_dict()["stack"].any()
    env.reset()
    for _ in range(2):
        env.step(2)
    assert other.load_state_dict(env.state_dict()) is True
    assert np.array_equal(other.stack, env.stack)
    with pytest.raises(ValueError, match="stack"):
        other.load_state_dict(env.state_dict() | {"stack": np.zeros((3, 50, 50), np.uint8)})
