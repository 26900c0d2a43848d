"""Replay of n-step transitions for S runs at once. Every frame is stored once; stacks and returns
are put together by index.

A slot is one agent step: the newest frame it acted on, the action, the reward, whether the episode
ended there, and its age, the steps since the episode began. Two slots belong to one episode exactly
where their ages differ as much as their places do: that single rule gives all borders. What lies
beyond one is blank: a frame of zeros, a reward of zero. Losing a life ends an episode.

All runs write in step, so the ring's position is one number. It reaches the GPU as a tensor:
sampling can live in a CUDA graph.
"""

from typing import Any

import torch
from torch import Tensor

from cclf.algorithms.rainbow import equations
from cclf.storage.safe_loading import check_data, check_lengths
from cclf.types import GameBatch

BLOCK_SIZE = 256  # whose priorities are summed up first


class NStepReplay:
    """Draws one transition from each of B equal parts of the priorities' sum; new ones enter with
    the largest priority so far."""

    def __init__(
        self,
        runs: int,
        capacity_transitions: int,
        frame_shape: tuple[int, ...],
        frame_stack: int,
        n_steps: int,
        discount: float,
        n_step_bug: bool,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
    ):
        self.frame_stack, self.n_steps, self.n_step_bug, self.device = (
            frame_stack,
            n_steps,
            n_step_bug,
            device,
        )
        self.slots = self.slots_needed(capacity_transitions, frame_stack)
        shape = (runs, self.slots)
        self.frames = torch.zeros(*shape, *frame_shape, dtype=torch.uint8, device=device)
        # the same memory, to copy faster
        self._words = self.frames.flatten(2).view(_widest_dtype(frame_shape[0] * frame_shape[1]))
        self.actions = torch.zeros(shape, dtype=torch.int64, device=device)
        self.rewards = torch.zeros(shape, dtype=dtype, device=device)
        self.ended = torch.zeros(shape, dtype=torch.bool, device=device)
        self.ages = torch.zeros(shape, dtype=torch.int64, device=device)
        # float64: in float32 a sum near 1e5 has steps of 0.008, so single priorities would be off
        # by up to a percent.
        self.priorities = torch.zeros(
            runs, _whole_blocks(self.slots), dtype=torch.float64, device=device
        )
        self.max_priority = torch.ones(runs, dtype=torch.float64, device=device)
        self.written = 0  # steps ever stored; beyond `slots` the ring has wrapped
        self._written = torch.zeros((), dtype=torch.int64, device=device)
        self._slot = torch.arange(_whole_blocks(self.slots), device=device)
        self._run = torch.arange(runs, device=device)[:, None, None]
        self._discounts = (
            discount ** torch.arange(n_steps, dtype=torch.float64, device=device)
        ).to(dtype)

    @staticmethod
    def slots_needed(capacity_transitions: int, frame_stack: int) -> int:
        """A stack's width more than can be drawn: the oldest slots lose their history to the
        newest."""
        return capacity_transitions + frame_stack

    @staticmethod
    def bytes_needed(
        capacity_transitions: int, frame_shape: tuple[int, ...], frame_stack: int
    ) -> int:
        slots = NStepReplay.slots_needed(capacity_transitions, frame_stack)
        return slots * (frame_shape[0] * frame_shape[1] + 8 + 4 + 1 + 8) + 8 * _whole_blocks(slots)

    def add(self, frame: Tensor, action: Tensor, age: Tensor) -> None:
        """One agent step of each run: the frame (S, H, W) it saw, its action (S,) and age (S,)."""
        head = self.written % self.slots
        self.frames[:, head] = frame
        self.actions[:, head] = action
        self.ages[:, head] = age
        self.priorities[:, head] = self.max_priority
        self.set_written(self.written + 1)

    def add_outcome(self, reward: Tensor, ended: Tensor) -> None:
        """What came of the newest step, (S,) each. Without the bug no transition that can be drawn
        looks at it yet."""
        head = (self.written - 1) % self.slots
        self.rewards[:, head] = reward
        self.ended[:, head] = ended

    def set_written(self, written: int) -> None:
        self.written = written
        self._written.fill_(written)

    def drawable(self) -> Tensor:
        """Priorities (S, whole blocks), zero for slots whose n steps are not known yet or whose
        stack is being overwritten."""
        steps_later = (self._written - 1 - self._slot) % self.slots  # newer slots
        kept = (steps_later >= self.n_steps) & (steps_later < self.slots - self.frame_stack)
        return self.priorities * kept

    def sample(self, uniform: Tensor) -> GameBatch:
        """Uniform numbers (S, B) in (0, 1) choose B transitions of each run, one from each B-th of
        the priorities' sum.

        First a block of slots by the blocks' sums, then a slot in it: a running sum over all slots
        is slow on a GPU. The original draws again what may not be drawn; leaving its priority out
        of the sum needs no loop.
        """
        runs, batch = uniform.shape
        blocks = self.drawable().view(runs, -1, BLOCK_SIZE)
        sums = blocks.sum(2)
        ends = sums.cumsum(1)
        draws = (torch.arange(batch, device=self.device) + uniform) / batch * ends[:, -1:]
        block = _bucket_index(ends, draws)
        into = (draws - (ends - sums).gather(1, block))[..., None]
        within = blocks.gather(1, block[..., None].expand(-1, -1, BLOCK_SIZE)).cumsum(2)
        slot = block * BLOCK_SIZE + _bucket_index(within, into).squeeze(2)
        return self.gather(slot.clamp_max(self.slots - 1))

    def gather(self, slot: Tensor) -> GameBatch:
        """The transitions that start in `slot` (S, B)."""
        stack, run = self.frame_stack, self._run
        offset = torch.arange(1 - stack, self.n_steps + 1, device=self.device)
        near = (slot[..., None] + offset) % self.slots  # (S, B, F - 1 + n + 1)
        same_episode = self.ages[run, near] == self.ages[run, slot[..., None]] + offset
        rewards = self.rewards[run, near] * same_episode
        continuation = same_episode[..., -1]
        if self.n_step_bug:
            continuation = continuation & ~self.ended[run, near[..., -1:]].squeeze(-1)
        return GameBatch(
            observation=self._stack(near[..., :stack], same_episode[..., :stack]),
            action=self.actions.gather(1, slot),
            reward=rewards[..., stack - 1],
            n_step_return=equations.n_step_return(rewards[..., stack - 1 : -1], self._discounts),
            continuation=continuation.to(rewards.dtype),
            next_observation=self._stack(near[..., -stack:], same_episode[..., -stack:]),
            priority=self.priorities.gather(1, slot).to(rewards.dtype),
            slot=slot,
        )

    def _stack(self, slot: Tensor, shown: Tensor) -> Tensor:
        """Frames (S, B, F, H, W) in `slot` (S, B, F), blank where not `shown`."""
        words = self._words[self._run, slot] * shown[..., None]
        return words.view(torch.uint8).view(*slot.shape, *self.frames.shape[2:])

    def set_priorities(self, slot: Tensor, priority: Tensor) -> None:
        """Of `slot` (S, B). Where a transition stands in the batch more than once its last place
        wins."""
        places = torch.arange(slot.shape[1], device=self.device)
        last = ((slot[:, :, None] == slot[:, None, :]) * places).amax(2, keepdim=True)
        # Not gathered by `last`: compiled for a GPU that asks of threads beyond the last one, too,
        # whether their index is valid.
        newest = torch.where(last == places, priority[:, None], 0.0).sum(2)
        self.priorities.scatter_(1, slot, newest.double())
        self.max_priority.copy_(torch.maximum(self.max_priority, priority.double().amax(1)))

    def priority_entropy_share(self, run: int) -> float:
        """Entropy of the drawing distribution over its largest value: 1 is uniform replay, 0 a
        single transition."""
        p = self.drawable()[run]
        count = int((p > 0.0).sum())
        return (
            1.0
            if count < 2
            else float(torch.special.entr(p / p.sum()).sum() / torch.tensor(float(count)).log())
        )

    _TENSORS = ("frames", "actions", "rewards", "ended", "ages", "priorities")

    def run_state(self, run: int) -> dict[str, Any]:
        """One run's part, only the slots that were ever written: a young replay costs little to
        save."""
        written = min(self.written, self.slots)
        state: dict[str, Any] = {name: getattr(self, name)[run, :written] for name in self._TENSORS}
        return state | {"max_priority": self.max_priority[run], "written": self.written}

    def load_run_state(self, run: int, state: dict[str, Any]) -> None:
        """Also takes the state of a smaller replay: a run may go on with a larger budget."""
        saved_slots, written = len(state["frames"]), int(state["written"])
        if saved_slots > self.slots:
            raise ValueError(
                f"replay state has {saved_slots} slots, this replay {self.slots}: use one at least "
                "as large"
            )
        check_lengths(state, self._TENSORS, saved_slots, "replay")
        check_data(
            written >= saved_slots,
            f"replay: written {written} is less than its {saved_slots} slots",
        )
        weights = torch.cat([state["priorities"].flatten(), state["max_priority"].flatten()])
        check_data(
            (weights >= 0.0).all() and weights.isfinite().all(), "replay: priorities are no weights"
        )
        cut = 0
        # a wrapped ring is cut open behind its newest slot to fit a larger one
        if saved_slots < min(self.slots, written):
            cut, written = written % saved_slots, saved_slots
        for name in self._TENSORS:
            getattr(self, name)[run, :saved_slots] = state[name].roll(-cut, 0).to(self.device)
        self.max_priority[run] = state["max_priority"].to(self.device)
        self.set_written(written)


def _widest_dtype(pixels: int) -> torch.dtype:
    """The widest integer of which a frame of so many bytes is made."""
    return next(
        dtype
        for dtype in (torch.int64, torch.int32, torch.int16, torch.uint8)
        if pixels % dtype.itemsize == 0
    )


def _whole_blocks(slots: int) -> int:
    return -(-slots // BLOCK_SIZE) * BLOCK_SIZE


def _bucket_index(ends: Tensor, draws: Tensor) -> Tensor:
    """Of each draw (..., B) the part it falls into, whose ends are (..., n); never past the last,
    where rounding might lead.

    >>> _bucket_index(torch.tensor([[1.0, 3.0, 3.0, 4.0]]), torch.tensor([[0.5, 1.0, 3.0, 4.0]]))
    tensor([[0, 1, 3, 3]])
    """
    return torch.searchsorted(ends, draws, right=True).clamp_max(ends.shape[-1] - 1)
