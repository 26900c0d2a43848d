"""Replay that stores each frame once and gathers frame stacks by index: 3 GB instead of 18 for
100,000 transitions of 100x100 RGB.

A ring buffer of slots. A slot holds a frame and, once the next frame is known, the transition that
starts there, so an episode of T transitions fills T + 1 slots. A slot is `valid` if its transition
can be sampled: once the n-th frame after it is known, or the task has terminated.
"""

from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from cclf.data.device_transfer import to_device
from cclf.storage.safe_loading import check_data, check_lengths
from cclf.types import Batch, StateDict

MIN_DECAY_FACTOR = 0.1  # lower bound of the factor by which `priority_decay` shrinks a priority


class SequenceBatch(NamedTuple):
    """Subsequences of T steps. The steps after a termination belong to another episode."""

    observations: Tensor  # (1 + T, B, C, H, W) stacks of frames, or (1 + T, B, D) states
    action: Tensor  # (B, T, A)
    reward: Tensor  # (B, T)
    continuation: Tensor  # (B, T)  0 where the episode terminated

    def to(self, device: torch.device) -> "SequenceBatch":
        return SequenceBatch(*(tensor.to(device) for tensor in self))


class Replay:
    """Samples transitions with replacement, in proportion to their priorities."""

    def __init__(
        self,
        capacity_transitions: int,
        frame_shape: tuple[int, ...],
        action_dim: int,
        frame_stack: int,
        max_episode_agent_steps: int | None,
        device: torch.device,
        n_steps: int = 1,
        discount: float = 1.0,
        dtype: torch.dtype = torch.uint8,
        horizon_steps: int = 0,
        new_priority: Literal["one", "max"] = "one",
        priority_decay: float = 1.0,
    ):
        """`discount` applies to the rewards within the `n_steps` of a transition; `dtype` is that
        of the frames. Subsequences of `horizon_steps` can be sampled. A new transition has priority 1
        or the largest so far; with `priority_decay` priorities shrink with every added frame. On the
        device "meta" nothing is allocated."""
        self.capacity = capacity_transitions
        self.frame_stack, self.n_steps, self.discount = frame_stack, n_steps, discount
        # frames that must follow a slot before its transition can be sampled
        self.steps_after_start = max(n_steps, horizon_steps)
        # In each episode of full length the last `steps_after_start` slots are not valid, and the
        # frame stack of the oldest valid slot includes earlier slots.
        episodes = -(-capacity_transitions // (max_episode_agent_steps or capacity_transitions))
        invalid = episodes * self.steps_after_start + frame_stack + 2
        self.slots = capacity_transitions + invalid
        self.device = device
        self.frames = torch.zeros(self.slots, *frame_shape, dtype=dtype, device=device)
        self.actions = torch.zeros(self.slots, action_dim, device=device)
        self.rewards = torch.zeros(self.slots, device=device)
        self.continuations = torch.zeros(self.slots, device=device)
        self.priorities = torch.zeros(self.slots, dtype=torch.float64, device=device)
        self.new_priority, self.priority_decay = new_priority, priority_decay
        self.max_priority = torch.ones((), dtype=torch.float64, device=device)
        # agent steps since the start of the episode
        self.ages = torch.zeros(self.slots, dtype=torch.int64, device=device)
        # on the host: reading a flag from a GPU would synchronize with it
        self.valid = np.zeros(self.slots, dtype=bool)
        self.head = -1  # slot of the newest frame
        self.oldest = 0  # no slot before this one, in ring order, is valid
        self.size = 0  # valid transitions
        self.head_age = 0  # agent steps since the start of the episode at `head`
        self.written = 0  # frames written so far; more than `slots` once the ring has wrapped

    @property
    def num_bytes(self) -> int:
        return self.valid.nbytes + sum(int(getattr(self, name).nbytes) for name in self._TENSORS)

    def begin_episode(self, frame: np.ndarray) -> None:
        self._write_frame(frame, age=0)

    def add(
        self, action: np.ndarray, reward: float, terminated: bool, next_frame: np.ndarray
    ) -> None:
        """Store the step from the newest frame to `next_frame`. Where a time limit truncates the
        episode, transitions with fewer than n steps never become valid."""
        start = self.head
        self._write_frame(next_frame, age=self.head_age + 1)
        self.actions[start] = to_device(torch.as_tensor(action), self.device)
        # fill_, because item assignment synchronizes the device
        self.rewards[start].fill_(reward)
        self.continuations[start].fill_(0.0 if terminated else 1.0)
        # At a terminal state the n-step return is complete with fewer steps.
        min_steps = 1 if terminated else self.steps_after_start
        for back in range(min(self.steps_after_start, self.head_age), min_steps - 1, -1):
            self._mark_valid((self.head - back) % self.slots)

    def _mark_valid(self, slot: int) -> None:
        if self.size == self.capacity:
            self._evict_oldest()
        self.priorities[slot].copy_(self.max_priority)
        self.valid[slot] = True
        self.size += 1

    def observation(self) -> Tensor:
        """The stack of the newest frames, (1, C * stack, H, W)."""
        slots = [
            (self.head - min(back, self.head_age)) % self.slots
            for back in range(self.frame_stack - 1, -1, -1)
        ]
        # indexed by Python integers, which need no synchronization
        return torch.cat([self.frames[slot] for slot in slots])[None]

    def sample(self, batch_size: int, generator: torch.Generator) -> Batch:
        return self.gather(self._sample_index(batch_size, generator))

    def sample_sequences(
        self, batch_size: int, steps: int, generator: torch.Generator
    ) -> SequenceBatch:
        """Subsequences of `steps` steps, at most `horizon_steps`, which cross no time limit."""
        index = self._sample_index(batch_size, generator)
        frames = self._gather_frames(index, following=steps)
        stack = self.frames.shape[1] * self.frame_stack
        starts = range(0, (steps + 1) * self.frames.shape[1], self.frames.shape[1])
        later = (index[:, None] + torch.arange(steps, device=self.device)) % self.slots
        return SequenceBatch(
            torch.stack([frames[:, start : start + stack] for start in starts]),
            self.actions[later],
            self.rewards[later],
            self.continuations[later],
        )

    def mean_absolute_reward(self) -> Tensor:
        """The mean of |r| over all slots that were written."""
        return self.rewards[: min(self.written, self.slots)].abs().mean()

    def has_termination(self) -> Tensor:
        """1 if a stored transition ended its episode other than by a time limit, else 0."""
        followed = self.ages.roll(-1) == self.ages + 1
        followed[self.head].fill_(False)
        ended = followed & (self.continuations == 0.0)
        return ended[: min(self.written, self.slots)].any().to(self.rewards.dtype)

    def _sample_index(self, batch_size: int, generator: torch.Generator) -> Tensor:
        """Slots (B,), in proportion to their priorities."""
        weights = self.priorities
        if self.priority_decay < 1.0:
            frames_since = (self.head - torch.arange(self.slots, device=self.device)) % self.slots
            weights = weights * (self.priority_decay**frames_since).clamp_min(MIN_DECAY_FACTOR)
        # float64: near a sum of 1e5, float32 has steps of 0.008, almost a percent of a priority
        cumulative = weights.cumsum(0)
        uniform = torch.rand(
            batch_size, dtype=torch.float64, generator=generator, device=self.device
        )
        index = torch.searchsorted(cumulative, uniform * cumulative[-1], right=True)
        return index.clamp_max(self.slots - 1)

    def gather(self, index: Tensor) -> Batch:
        """The transitions that start in the slots `index` (B,)."""
        stacks = self._gather_frames(index, following=self.n_steps)
        channels, reward = self.frames.shape[1], self.rewards[index]
        n_step_return, continuation = reward, self.continuations[index]
        if self.n_steps > 1:
            n_step_return, continuation = self._n_step_return(index)
        return Batch(
            observation=stacks[:, : channels * self.frame_stack],
            action=self.actions[index],
            reward=reward,
            continuation=continuation,
            next_observation=stacks[:, channels * self.n_steps :],
            priority=self.priorities[index].float(),
            slot=index,
            n_step_return=n_step_return,
        )

    def _n_step_return(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """For the transitions that start in the slots `index` (B,), the discounted sum of rewards
        over n steps or until the task terminates (B,), and 1 where it has not terminated (B,)."""
        later = torch.arange(self.n_steps, device=self.device)
        steps = (index[:, None] + later) % self.slots
        after = self.continuations[steps].cumprod(1)  # (B, n)  1 while the task goes on
        before = torch.cat([torch.ones_like(after[:, :1]), after[:, :-1]], dim=1)
        return (self.rewards[steps] * before * self.discount**later).sum(1), after[:, -1]

    def set_priorities(self, index: Tensor, priority: Tensor) -> None:
        """If a transition occurs several times in a batch, its last priority is stored, as in the
        released code."""
        position = torch.arange(len(index), device=self.device)
        last = torch.full((self.slots,), -1, dtype=torch.int64, device=self.device)
        last = last.scatter_reduce(0, index, position, reduce="amax")
        self.priorities[index] = priority.double()[last[index]]
        if self.new_priority == "max":
            self.max_priority = torch.maximum(self.max_priority, priority.double().max())

    def priority_entropy_share(self) -> float:
        """Entropy of the sampling distribution divided by its maximum: 1 for uniform replay, 0 for
        a single transition."""
        if self.size < 2:
            return 1.0
        p = self.priorities / self.priorities.sum()
        return float(torch.special.entr(p).sum() / np.log(self.size))

    def _gather_frames(self, index: Tensor, following: int) -> Tensor:
        """The n = `frame_stack + following` frames from `frame_stack - 1` before each slot to
        `following` after it, (B, C * n, H, W). The first frame of an episode is repeated in place of
        those before it."""
        back = torch.arange(self.frame_stack - 1, -1 - following, -1, device=self.device)
        back = torch.minimum(back[None], self.ages[index][:, None])
        slots = (index[:, None] - back) % self.slots
        frames = self.frames.index_select(0, slots.flatten())
        return frames.view(len(index), -1, *self.frames.shape[2:])

    def _write_frame(self, frame: np.ndarray, age: int) -> None:
        self.head = (self.head + 1) % self.slots
        while self.size and (self._oldest_valid() - self.head) % self.slots < self.frame_stack:
            self._evict_oldest()  # its frame stack includes the slot that is overwritten
        self.frames[self.head] = to_device(torch.as_tensor(frame), self.device)
        self.ages[self.head].fill_(age)
        self.priorities[self.head].fill_(0.0)
        self.valid[self.head] = False
        self.head_age = age
        self.written += 1

    def _oldest_valid(self) -> int:
        while not self.valid[self.oldest]:
            self.oldest = (self.oldest + 1) % self.slots
        return self.oldest

    def _evict_oldest(self) -> None:
        slot = self._oldest_valid()
        self.valid[slot] = False
        self.priorities[slot].fill_(0.0)
        self.size -= 1

    _TENSORS = ("frames", "actions", "rewards", "continuations", "priorities", "ages")
    _COUNTERS = ("head", "oldest", "size", "head_age", "written")

    def state_dict(self) -> StateDict:
        """Only the slots that have been written."""
        written = min(self.written, self.slots)
        state = {name: getattr(self, name) for name in self._COUNTERS}
        state |= {name: getattr(self, name)[:written] for name in self._TENSORS}
        if self.new_priority == "max":
            state["max_priority"] = self.max_priority
        return state | {"live": torch.from_numpy(self.valid[:written])}

    def load_state_dict(self, state: StateDict) -> None:
        """Also loads the state of a smaller replay, since a run may continue with a larger budget."""
        saved_slots = len(state["live"])
        if saved_slots > self.slots:
            raise ValueError(
                f"replay state has {saved_slots} slots, this replay {self.slots}: use one at least "
                "as large"
            )
        self._check_counters(state, saved_slots)
        for name in self._COUNTERS:
            setattr(self, name, int(state[name]))
        if self.new_priority == "max":
            self.max_priority = state["max_priority"].to(self.device)
        shift = 0
        # A wrapped ring is rotated, so that its oldest frame comes first in a larger one.
        if saved_slots < min(self.slots, self.written):
            shift = self.head + 1
            self.oldest = (self.oldest - shift) % saved_slots
            self.head, self.written = saved_slots - 1, saved_slots
        for name in self._TENSORS:
            getattr(self, name)[:saved_slots] = state[name].roll(-shift, 0).to(self.device)
        self.valid[:saved_slots] = state["live"].roll(-shift, 0).numpy()

    def _check_counters(self, state: StateDict, saved_slots: int) -> None:
        """Raise ValueError if the counters contradict each other or the slots: they would lead to
        wrong transitions later."""
        check_lengths(state, self._TENSORS, saved_slots, "replay")
        head, oldest, size, head_age, written = (int(state[name]) for name in self._COUNTERS)
        ages, priorities = state["ages"], state["priorities"]
        check_data(
            written >= saved_slots
            and head == ((written - 1) % saved_slots if saved_slots else -1)
            and 0 <= oldest <= min(saved_slots, self.slots - 1)
            and size == int(state["live"].sum()) <= self.capacity
            and (ages >= 0).all()
            and (not saved_slots or head_age == ages[head])
            and ((priorities >= 0.0) & priorities.isfinite()).all(),
            f"replay: head {head}, oldest {oldest}, size {size}, head_age {head_age} and written "
            f"{written} contradict its {saved_slots} slots",
        )
