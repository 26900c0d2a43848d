"""Records and protocols that the subpackages share: batches, steps, environments, policies, learners.

torch is imported only for type checkers, because worker processes of environments must not use a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from cclf.config import Config

Metrics = dict[str, "Tensor"]

# A value of a state dict: a tensor, an array, a bool, int, float or str, None, a list of such
# values, or a state dict. It is Any for type checkers, as in PyTorch: readers index nested state
# dicts, and `safe_loading.check_same_structure` compares what a file holds with the object's own
# state before it is loaded.
StateValue: TypeAlias = Any
StateDict: TypeAlias = dict[str, StateValue]


class Batch(NamedTuple):
    """n-step transitions sampled from the replay; n is 1 unless a base algorithm sets it. Observations are
    stacks of uint8 frames, channels first, or of float32 state vectors."""

    observation: Tensor  # (B, C, H, W)
    action: Tensor  # (B, A)
    reward: Tensor  # (B,)  of the first step
    # (B,)  0 where the episode terminated; 1 at a time limit, which still bootstraps
    continuation: Tensor
    next_observation: Tensor  # (B, C, H, W)  n steps later
    priority: Tensor  # (B,)  sampling weights
    slot: Tensor  # (B,)  indices in the replay
    n_step_return: Tensor  # (B,)  discounted rewards of the n steps until termination

    def to(self, device: torch.device) -> Batch:
        return Batch(*(tensor.to(device) for tensor in self))


class GameBatch(NamedTuple):
    """n-step transitions with discrete actions, sampled from the replay of one run. For S runs each field
    has a leading dimension S."""

    observation: Tensor  # (B, F, H, W) uint8
    action: Tensor  # (B,) int64
    reward: Tensor  # (B,)  of the first step
    n_step_return: Tensor  # (B,)  of the n steps until the end of the episode
    continuation: Tensor  # (B,)  0 where the episode ended within them
    # (B, F, H, W) uint8  n steps later; blank from the end of the episode on
    next_observation: Tensor
    priority: Tensor  # (B,)
    slot: Tensor  # (B,) int64


class EnvSpec(NamedTuple):
    frame_shape: tuple[int, ...]  # (C, H, W) of pixels, (D,) of state
    action_dim: int  # continuous, each in [-1, 1]; 1 where actions are discrete
    action_repeat: int
    max_episode_agent_steps: int | None
    num_actions: int | None = None  # discrete: an action is an integer below this

    @property
    def state_dim(self) -> int:
        """The length of a state vector; 0 for pixels."""
        return self.frame_shape[0] if len(self.frame_shape) == 1 else 0

    @property
    def frame_dtype(self) -> str:
        return "float32" if self.state_dim else "uint8"


# An action: float32 (A,), each in [-1, 1], where actions are continuous; else an integer.
Action: TypeAlias = Any


class EnvStep(NamedTuple):
    # (C, H, W), or (D,) of state: the newest frame; at the end of an episode the final one, not the
    # first of the next episode
    frame: np.ndarray
    reward: float
    terminated: bool
    truncated: bool
    raw_reward: float | None = None  # before clipping; None where `reward` is not clipped
    life_lost: bool = False  # whether a lost life ended the episode while its game continues

    @property
    def unclipped_reward(self) -> float:
        return self.reward if self.raw_reward is None else self.raw_reward

    @property
    def game_over(self) -> bool:
        """Whether the episode ended for another reason than a lost life."""
        return (self.terminated or self.truncated) and not self.life_lost


class VectorStep(NamedTuple):
    observation: np.ndarray  # (N, ...)  where an episode ended: the first of the next one
    reward: np.ndarray  # (N,)
    terminated: np.ndarray  # (N,)
    truncated: np.ndarray  # (N,)


class HasState(Protocol):
    """An object whose whole state can be saved and restored."""

    def state_dict(self) -> StateDict: ...
    def load_state_dict(self, state: StateDict) -> object: ...


@runtime_checkable
class HasNetworks(Protocol):
    """An algorithm or a policy that evaluation can copy by copying only its networks."""

    @property
    def networks(self) -> nn.Module: ...


class Env(HasState, Protocol):
    """One environment. An agent step repeats the action and renders once."""

    spec: EnvSpec

    def reset(self, seed: int | None = None) -> np.ndarray:
        """Begin an episode and return its first frame. `seed` also restarts the random stream."""
        ...

    def step(self, action: Action) -> EnvStep: ...

    def render(self) -> np.ndarray:
        """An image for display, (H, W, 3) uint8."""
        ...

    def close(self) -> None: ...

    def load_state_dict(self, state: StateDict) -> bool:
        """Returns False if the environment cannot be restored and must be reset."""
        ...


class VectorEnv(HasState, Protocol):
    """Several environments stepped as one. Each is reset when its episode ends."""

    num_envs: int
    num_actions: int
    observation_shape: tuple[int, int, int]  # of one environment

    def reset(self, seeds: Sequence[int] | None = None) -> np.ndarray: ...  # (N, ...)
    def step(self, actions: np.ndarray) -> VectorStep: ...
    def render(self, index: int) -> np.ndarray: ...  # (H, W, 3) uint8
    def render_observation(self, observation: np.ndarray) -> np.ndarray: ...  # (H, W, 3) uint8
    def close(self) -> None: ...


class EnvFactory(Protocol):
    """Makes the environments of a run. A suite may use other rules for evaluation, e.g. not clip
    rewards."""

    def __call__(self, config: Config, seed: int, evaluation: bool = False) -> Env: ...
    def vector(self, config: Config, num_envs: int, seed: int) -> VectorEnv: ...


@runtime_checkable
class Policy(Protocol):
    """What evaluation needs: the deterministic action for one stack of frames."""

    def evaluation_action(self, observation: Tensor) -> Tensor: ...


class SamplingPolicy(Protocol):
    """A policy that samples its actions, in evaluation too."""

    # (N, ...) and uniform random numbers (N, num_actions) -> (N,)
    def act(self, observation: np.ndarray, uniform: np.ndarray) -> np.ndarray: ...


class ExportedPolicy(NamedTuple):
    """A policy as a module that other programs can run, and the outputs of the original policy for some
    observations."""

    module: nn.Module
    observations: np.ndarray  # (n, ...) uint8
    outputs: np.ndarray  # (n, ...)
    name: str  # what the outputs are: action, logits or q_values


class UpdateResult(NamedTuple):
    metrics: Metrics
    priority: Tensor | None  # (B,)  new replay weights, None where replay is uniform


class OffPolicyAlgorithm(Policy, HasNetworks, HasState, Protocol):
    """A base algorithm that learns from replayed batches. `noise` holds every random number of one
    update."""

    metric_names: tuple[str, ...]
    updates: int  # made so far

    def draw_noise(
        self, batch_size: int, augment_generator: torch.Generator, policy_generator: torch.Generator
    ) -> Any: ...
    def update(self, batch: Batch, noise: Any, env_steps: Tensor) -> UpdateResult: ...
    def collection_action(
        self,
        observation: Tensor,
        env_steps: Tensor,
        augment_generator: torch.Generator,
        policy_generator: torch.Generator,
    ) -> Tensor: ...


class Rollout(NamedTuple):
    """T steps of N environments. `observation` also has the one after the last step."""

    observation: np.ndarray  # (T + 1, N, ...)
    action: np.ndarray  # (T, N) int64
    reward: np.ndarray  # (T, N) float32
    ended: np.ndarray  # (T, N) bool  terminated or truncated


class OnPolicyAlgorithm(SamplingPolicy, HasNetworks, HasState, Protocol):
    """A base algorithm that learns from the rollouts of its current policy."""

    metric_names: tuple[str, ...]

    def update(self, rollout: Rollout, env_steps: Tensor) -> Metrics: ...


class StepResult(NamedTuple):
    """What one step of a learner returns."""

    agent_steps: int  # taken by this step: 1, or the length of a rollout
    metrics: Metrics | None  # of the updates in this step; None where there was none
    finished_returns: list[float]  # of the training episodes that ended in this step


class Learner(HasState, Protocol):
    """Acts in its training environment and learns. The training loop calls `step` until the budget
    is spent.

    Its state holds everything that changes, including the environment and the random generators, as
    tensors, arrays, numbers, text, lists and dicts. It contains the keys `algorithm` and `updates`.
    """

    metric_names: tuple[str, ...]  # columns of train.csv, including those of `replay_metrics`

    @property
    def algorithm(self) -> HasState: ...  # evaluation copies it, or its networks (`HasNetworks`)
    @property
    def updates(self) -> int: ...  # made so far
    def step(self, env_steps: int) -> StepResult: ...  # `env_steps` before this step
    def replay_metrics(self) -> dict[str, float]: ...  # called once for each row of train.csv
    def close(self) -> None: ...
