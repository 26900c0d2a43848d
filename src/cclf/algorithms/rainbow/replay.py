"""Replay of n-step transitions for S runs. Each frame is stored once; frame stacks and returns are
assembled by index when a batch is sampled.

A slot of the ring buffer is one agent step: the newest frame of the observation, the action, the
reward, whether the episode ended there, and its age (the steps since the episode began). Two slots
belong to the same episode if and only if the difference of their ages equals the difference of
their indices. Frames and rewards before the first or after the last step of an episode are zero. A
lost life ends an episode.

All runs store their steps at the same time, so they share one position in the ring buffer. A tensor
holds a copy of the position, so that sampling can be part of a CUDA graph.
"""

import torch
from torch import Tensor

from cclf.storage.safe_loading import check_data, check_lengths
from cclf.types import GameBatch, StateDict

BLOCK_SIZE = 256  # slots of a block: sampling selects a block by its sum, then a slot in it


class NStepReplay:
    """Prioritized replay: the sum of the priorities is divided into B equal intervals, and one
    transition is sampled from each. A new transition has the largest priority so far."""

    def __init__(
        self,
        runs: int,
        capacity_transitions: int,
        observation_shape: tuple[int, int, int],
        n_steps: int,
        discount: float,
        n_step_bug: bool,
        device: torch.device,
    ):
        """`observation_shape` is (F, H, W)."""
        self.observation_shape, self.n_steps = observation_shape, n_steps
        self.n_step_bug, self.device = n_step_bug, device
        self.frame_stack, *frame_shape = observation_shape
        self.slots = capacity_transitions + self.frame_stack
        shape = (runs, self.slots)
        self.frames = torch.zeros(*shape, *frame_shape, dtype=torch.uint8, device=device)
        # The same memory as wider integers, which copies faster.
        self._words = self.frames.flatten(2).view(_widest_dtype(frame_shape[0] * frame_shape[1]))
        self.actions = torch.zeros(shape, dtype=torch.int64, device=device)
        self.rewards = torch.zeros(shape, device=device)
        self.ended = torch.zeros(shape, dtype=torch.bool, device=device)
        self.ages = torch.zeros(shape, dtype=torch.int64, device=device)
        # float64: a float32 sum near 1e5 is rounded to multiples of 0.008, an error of up to one
        # percent of a priority.
        padded = _round_up_to_blocks(self.slots)
        self.priorities = torch.zeros(runs, padded, dtype=torch.float64, device=device)
        self.max_priority = torch.ones(runs, dtype=torch.float64, device=device)
        self.written = 0  # steps ever stored; the buffer has wrapped if it exceeds `slots`
        self._written = torch.zeros((), dtype=torch.int64, device=device)
        self._slot = torch.arange(padded, device=device)
        self._run = torch.arange(runs, device=device)[:, None, None]
        powers = torch.arange(n_steps, dtype=torch.float64, device=device)
        self._discounts = (discount**powers).float()

    @staticmethod
    def bytes_needed(capacity_transitions: int, observation_shape: tuple[int, int, int]) -> int:
        """Bytes for one run. There are more slots than transitions that can be sampled, because the
        newest steps overwrite frames of the oldest transitions' stacks."""
        frame_stack, height, width = observation_shape
        slots = capacity_transitions + frame_stack
        return slots * (height * width + 8 + 4 + 1 + 8) + 8 * _round_up_to_blocks(slots)

    def add(self, frame: Tensor, action: Tensor, age: Tensor) -> None:
        """Store one agent step of each run: the newest frame (S, H, W), action (S,) and age (S,)."""
        head = self.written % self.slots
        self.frames[:, head] = frame
        self.actions[:, head] = action
        self.ages[:, head] = age
        self.priorities[:, head] = self.max_priority
        self.set_written(self.written + 1)

    def add_reward(self, reward: Tensor, ended: Tensor) -> None:
        """Store the result of the newest step, (S,) each. Unless `n_step_bug` is set, it is not yet part of
        any transition that can be sampled."""
        head = (self.written - 1) % self.slots
        self.rewards[:, head] = reward
        self.ended[:, head] = ended

    def set_written(self, written: int) -> None:
        self.written = written
        self._written.fill_(written)

    def sampling_weights(self) -> Tensor:
        """Priorities (S, slots rounded up to blocks), zero for slots whose n steps are not complete or
        whose frame stack is being overwritten."""
        newer = (self._written - 1 - self._slot) % self.slots  # slots written after each slot
        complete = (newer >= self.n_steps) & (newer < self.slots - self.frame_stack)
        return self.priorities * complete

    def sample(self, uniform: Tensor) -> GameBatch:
        """B transitions of each run from uniform numbers (S, B) in (0, 1).

        A cumulative sum over all slots is slow on a GPU, so a block of slots is sampled by the sums
        of the blocks, and then a slot within it. CURL's code samples again where a transition is not
        complete; here the sampling weight of such a transition is zero.
        """
        runs, batch = uniform.shape
        blocks = self.sampling_weights().view(runs, -1, BLOCK_SIZE)
        sums = blocks.sum(2)
        ends = sums.cumsum(1)
        targets = (torch.arange(batch, device=self.device) + uniform) / batch * ends[:, -1:]
        block = _interval_index(ends, targets)
        remainder = (targets - (ends - sums).gather(1, block))[..., None]
        within = blocks.gather(1, block[..., None].expand(-1, -1, BLOCK_SIZE)).cumsum(2)
        slot = block * BLOCK_SIZE + _interval_index(within, remainder).squeeze(2)
        return self.gather(slot.clamp_max(self.slots - 1))

    def gather(self, slot: Tensor) -> GameBatch:
        """The transitions that start in `slot` (S, B)."""
        stack, run = self.frame_stack, self._run
        offset = torch.arange(1 - stack, self.n_steps + 1, device=self.device)
        nearby = (slot[..., None] + offset) % self.slots  # (S, B, F - 1 + n + 1)
        same_episode = self.ages[run, nearby] == self.ages[run, slot[..., None]] + offset
        rewards = self.rewards[run, nearby] * same_episode  # 0 beyond the end of an episode
        continuation = same_episode[..., -1]
        if self.n_step_bug:
            continuation = continuation & ~self.ended[run, nearby[..., -1:]].squeeze(-1)
        return GameBatch(
            observation=self._stack(nearby[..., :stack], same_episode[..., :stack]),
            action=self.actions.gather(1, slot),
            reward=rewards[..., stack - 1],
            n_step_return=(rewards[..., stack - 1 : -1] * self._discounts).sum(-1),
            continuation=continuation.to(rewards.dtype),
            next_observation=self._stack(nearby[..., -stack:], same_episode[..., -stack:]),
            priority=self.priorities.gather(1, slot).to(rewards.dtype),
            slot=slot,
        )

    def _stack(self, slot: Tensor, valid: Tensor) -> Tensor:
        """Frames (S, B, F, H, W) in `slot` (S, B, F), zero where not `valid`."""
        words = self._words[self._run, slot] * valid[..., None]
        return words.view(torch.uint8).view(*slot.shape, *self.frames.shape[2:])

    def set_priorities(self, slot: Tensor, priority: Tensor) -> None:
        """Set the priorities of `slot` (S, B). If a slot occurs more than once, it gets the last of its
        values."""
        positions = torch.arange(slot.shape[1], device=self.device)
        last = ((slot[:, :, None] == slot[:, None, :]) * positions).amax(2, keepdim=True)
        # Not a gather by `last`: compiled for a GPU, its bounds check would also apply to threads
        # beyond the last element.
        newest = torch.where(last == positions, priority[:, None], 0.0).sum(2)
        self.priorities.scatter_(1, slot, newest.double())
        self.max_priority.copy_(torch.maximum(self.max_priority, priority.double().amax(1)))

    def priority_entropy_share(self, run: int) -> float:
        """Entropy of the sampling distribution relative to its maximum: 1 for uniform replay, 0 if
        only one transition is ever sampled."""
        weights = self.sampling_weights()[run]
        count = int((weights > 0.0).sum())
        if count < 2:
            return 1.0
        entropy = torch.special.entr(weights / weights.sum()).sum()
        return float(entropy / torch.tensor(float(count)).log())

    def _tensors(self) -> dict[str, Tensor]:
        """The tensors of a checkpoint with one entry per slot, (S, slots, ...)."""
        return {
            "frames": self.frames,
            "actions": self.actions,
            "rewards": self.rewards,
            "ended": self.ended,
            "ages": self.ages,
            "priorities": self.priorities,
        }

    def run_state(self, run: int) -> StateDict:
        """The state of one run: only the slots that have been written."""
        written = min(self.written, self.slots)
        state: StateDict = {name: t[run, :written] for name, t in self._tensors().items()}
        return state | {"max_priority": self.max_priority[run], "written": self.written}

    def load_run_state(self, run: int, state: StateDict) -> None:
        """Load the state of one run. It may come from a smaller replay, because a run can be resumed
        with a larger budget."""
        tensors, saved_slots, written = self._tensors(), len(state["frames"]), state["written"]
        if saved_slots > self.slots:
            raise ValueError(
                f"replay state has {saved_slots} slots, this replay {self.slots}: use one at least "
                "as large"
            )
        check_lengths(state, tensors, saved_slots, "replay")
        check_data((state["priorities"] >= 0.0).all(), "replay: a priority is negative")
        oldest = 0
        # A wrapped ring buffer is rotated, oldest slot first, to fit into a larger one.
        if saved_slots < min(self.slots, written):
            oldest, written = written % saved_slots, saved_slots
        for name, each in tensors.items():
            each[run, :saved_slots] = state[name].roll(-oldest, 0)
        self.max_priority[run] = state["max_priority"]
        self.set_written(written)


def _widest_dtype(num_bytes: int) -> torch.dtype:
    """The widest integer type whose size divides `num_bytes`."""
    return next(
        dtype
        for dtype in (torch.int64, torch.int32, torch.int16, torch.uint8)
        if num_bytes % dtype.itemsize == 0
    )


def _round_up_to_blocks(slots: int) -> int:
    return -(-slots // BLOCK_SIZE) * BLOCK_SIZE


def _interval_index(ends: Tensor, values: Tensor) -> Tensor:
    """The interval of each value (..., B), from the ends (..., n) of the intervals. Rounding cannot
    lead beyond the last one.

    >>> _interval_index(torch.tensor([[1.0, 3.0, 3.0, 4.0]]), torch.tensor([[0.5, 1.0, 3.0, 4.0]]))
    tensor([[0, 1, 3, 3]])
    """
    return torch.searchsorted(ends, values, right=True).clamp_max(ends.shape[-1] - 1)
