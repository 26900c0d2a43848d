"""Training a batch of S runs: each run has its own game, and all share one update. A single run is a
batch of one."""

import os
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from cclf.algorithms.base import ReplaySize
from cclf.algorithms.rainbow.batched import BatchedRainbow
from cclf.algorithms.rainbow.config import RainbowConfig
from cclf.algorithms.rainbow.game_workers import GameFactory, GameWorkers
from cclf.algorithms.rainbow.rainbow import RainbowNoise
from cclf.algorithms.rainbow.replay import NStepReplay
from cclf.config import Config
from cclf.data.device_transfer import AsyncHostCopy, to_device
from cclf.errors import ConfigError
from cclf.storage.safe_loading import check_data
from cclf.training.cuda_graphs import Compiler, GraphedPolicy, GraphedUpdate, compiled, uncompiled
from cclf.training.devices import choose_replay_device
from cclf.training.seeding import derive
from cclf.types import EnvFactory, EnvSpec, GameBatch, Metrics, StateDict, StepResult


def make_learners(
    configs: Sequence[Config[RainbowConfig]],
    device: torch.device,
    make_env: EnvFactory,
    resume_steps: Sequence[int | None],
) -> list["RunHandle"]:
    """The learners of several runs. Those that resume from the same step are one batch."""
    learners: dict[int, RunHandle] = {}
    for step in dict.fromkeys(resume_steps):
        indices = [index for index, each in enumerate(resume_steps) if each == step]
        batch = [configs[index] for index in indices]
        games = [partial(make_env, config, derive(config.seed, "env")) for config in batch]
        # Worker processes step the games only if there are several, and if the CPU does not also
        # compute the updates.
        workers = 0
        if len(batch) > 1 and device.type == "cuda":
            workers = min(len(batch), len(os.sched_getaffinity(0)))
        learner = make_batched_learner(batch, device, games, workers)
        learners |= dict(zip(indices, learner.runs, strict=True))
    return [learners[index] for index in range(len(configs))]


def make_batched_learner(
    configs: Sequence[Config[RainbowConfig]],
    device: torch.device,
    games: Sequence[GameFactory],
    workers: int = 0,
) -> "BatchedLearner":
    """The learner of runs that differ in task and seed alone. `games` make one game for each run, in
    `workers` processes or in this one."""
    config = configs[0]
    replay_bytes = replay_size(config).num_bytes * len(configs)
    replay_device = choose_replay_device(config.algorithm.replay_device, device, replay_bytes)
    replay = make_replay(config, len(configs), replay_device)

    game_workers = GameWorkers(games, observation_shape(config), workers, config.task)
    action_counts = [num_actions(game.spec) for game in game_workers.games]
    on_gpu = device.type == "cuda"
    compiler = compiled if on_gpu and config.run.compile else uncompiled
    rainbow = BatchedRainbow(configs, action_counts, device, compiler=compiler)

    log_every = config.run.log_every_agent_steps
    if replay.device != device:  # only what is on one device can be compiled or captured
        return BatchedLearner(game_workers, rainbow, replay, log_every)
    cuda_graphs = on_gpu and config.run.cuda_graphs
    return BatchedLearner(game_workers, rainbow, replay, log_every, cuda_graphs, compiler)


def make_replay(config: Config[RainbowConfig], runs: int, device: torch.device) -> NStepReplay:
    settings = config.algorithm
    return NStepReplay(
        runs,
        replay_size(config).transitions,
        observation_shape(config),
        settings.n_steps,
        settings.discount,
        settings.n_step_bug,
        device,
    )


def replay_size(config: Config[RainbowConfig]) -> ReplaySize:
    """The size of the replay of one run. A short run does not allocate the whole capacity."""
    capacity = config.algorithm.replay_capacity_transitions
    transitions = min(capacity, max(1, config.planned_agent_steps))
    return ReplaySize(transitions, NStepReplay.bytes_needed(transitions, observation_shape(config)))


def observation_shape(config: Config[RainbowConfig]) -> tuple[int, int, int]:
    """(F, H, W)"""
    return config.env.frame_stack, config.env.frame_pixels, config.env.frame_pixels


def num_actions(spec: EnvSpec) -> int:
    if spec.num_actions is None:
        raise ConfigError(
            "Rainbow chooses among discrete actions, and this task has continuous ones: use "
            "another --base"
        )
    return spec.num_actions


class BatchedLearner:
    """S games, and the algorithm and replay of all of them. The training loop uses its `runs`."""

    def __init__(
        self,
        games: GameWorkers,
        rainbow: BatchedRainbow,
        replay: NStepReplay,
        log_every_agent_steps: int,
        cuda_graphs: bool = False,
        compiler: Compiler = uncompiled,
    ):
        """Metrics are returned every `log_every_agent_steps`, as means over the updates since the
        last time. With `cuda_graphs`, acting and learning run in CUDA graphs. `compiler` compiles
        the functions that read or write the replay."""
        self.games, self.algorithm, self.replay = games, rainbow, replay
        self.settings, self.log_every_agent_steps = rainbow.settings, log_every_agent_steps
        device, runs = rainbow.device, len(games.games)
        self.agent_steps = self.updates = 0
        self.unreported_updates = 0  # since the last report of metrics
        self.ages = np.zeros(runs, np.int64)  # agent steps since the episode of each run began
        shape = (runs, *replay.observation_shape)
        self._next_observation = torch.empty(
            shape, dtype=torch.uint8, pin_memory=device.type == "cuda"
        )
        self.observations_valid = False  # whether `_next_observation` is up to date
        self._observation = torch.empty(shape, dtype=torch.uint8, device=device)
        # Tensors, because a CUDA graph would not see Python numbers change.
        self._update_index = torch.zeros((), dtype=torch.int64, device=device)
        self._env_steps, self._beta, self._epsilon = (
            torch.zeros((), dtype=torch.float64, device=device) for _ in range(3)
        )
        self._sample_batch, self._write_back = compiler(sample_batch), compiler(write_back)
        self._act: Callable[[Tensor], Tensor] = self._select_actions
        self._learn: Callable[[], Metrics] = self._update
        if cuda_graphs:
            self._act = GraphedPolicy(self._select_actions)
            self._learn = GraphedUpdate(self._update, period=1, counter=None, generators=[])
        self.metric_sums = torch.zeros(
            len(rainbow.metric_names), runs, dtype=torch.float64, device=device
        )  # since the last report
        self._returned_metrics: list[str] = []  # those of `metric_names` that the method computes
        self.runs = [RunHandle(self, index) for index in range(runs)]

    def step(self, env_steps: int) -> list[StepResult]:
        """One agent step of every run; `env_steps` is the number before it."""
        self.agent_steps += 1
        actions = self.act()
        actions_on_host = AsyncHostCopy(actions)
        self._store_actions(actions)
        # A transition can be sampled n steps after it was collected at the earliest, so the update
        # can run before the games return, and on a GPU while they run. Only with `n_step_bug`, a bug
        # of CURL's code, does it read whether the newest step ended an episode.
        if not self.replay.n_step_bug:
            self.learn(env_steps)
        results = self.games.step(actions_on_host.numpy())
        self._store_results(results)
        if self.replay.n_step_bug:
            self.learn(env_steps)
        if self.settings.updates_target_at(self.agent_steps):
            self.algorithm.update_target()
        finished = zip(results["game_over"].tolist(), results["game_return"].tolist(), strict=True)
        returns = [[value] if game_over else [] for game_over, value in finished]
        return [StepResult(1, *result) for result in zip(self._report(), returns, strict=True)]

    def act(self) -> Tensor:
        """Actions (S,) for the current observations of the games."""
        if not self.observations_valid:
            self._next_observation.copy_(torch.from_numpy(self.games.observations()))
            self.observations_valid = True
        self._observation.copy_(self._next_observation, non_blocking=True)
        self._update_index.fill_(self.settings.update_index(self.agent_steps))
        self._epsilon.fill_(self.settings.epsilon_at(self.agent_steps))
        return self._act(self._observation)

    def _select_actions(self, observation: Tensor) -> Tensor:
        return self.algorithm.act(observation, self._update_index, self._epsilon)

    def _store_actions(self, actions: Tensor) -> None:
        device = self.replay.device
        ages = to_device(torch.from_numpy(self.ages), device)
        self.replay.add(self._observation[:, -1].to(device), actions.to(device), ages)

    def _store_results(self, results: np.ndarray) -> None:
        reward, ended = to_device(
            torch.from_numpy(np.stack([results["reward"], results["ended"]])), self.replay.device
        )
        self.replay.add_reward(reward, ended.bool())
        self._next_observation.numpy()[:] = results["observation"]
        self.ages = np.where(results["ended"], 0, self.ages + 1)

    def learn(self, env_steps: int) -> None:
        """The updates of this agent step."""
        for update in range(self.settings.updates_in_step(self.agent_steps)):
            self._update_index.fill_(self.settings.update_index(self.agent_steps, update))
            self._env_steps.fill_(env_steps)
            self._beta.fill_(self.settings.beta_at(self.agent_steps))
            self._learn()
            self.updates += 1
            self.unreported_updates += 1

    def _update(self) -> Metrics:
        """One update. Metrics are added up on the device; one is returned because a CUDA graph needs
        an output."""
        rainbow = self.algorithm
        sampled, noise = self._sample_batch(rainbow, self.replay, self._update_index)
        batch = GameBatch(*(tensor.to(rainbow.device) for tensor in sampled))
        metrics, priority = rainbow.update(batch, noise, self._env_steps, self._beta)
        self._returned_metrics = list(metrics)
        self._write_back(rainbow, self.replay, sampled.slot, priority, metrics, self.metric_sums)
        return {"q_loss": metrics["q_loss"]}

    def _report(self) -> Sequence[Metrics | None]:
        """The means of each run since the last report; None at steps without a report."""
        step = self.agent_steps
        if step % self.log_every_agent_steps or not self.settings.updates_in_step(step):
            return [None] * len(self.runs)
        means = self.metric_sums / self.unreported_updates
        self.metric_sums.zero_()
        self.unreported_updates = 0
        rows = dict(zip(self.algorithm.metric_names, means, strict=True))
        return [
            {name: rows[name][run.index] for name in self._returned_metrics} for run in self.runs
        ]


def sample_batch(
    rainbow: BatchedRainbow, replay: NStepReplay, update_index: Tensor
) -> tuple[GameBatch, RainbowNoise]:
    """A batch from replay, and all random numbers of the update."""
    uniform, noise = rainbow.noise.sample(update_index)
    return replay.sample(uniform["replay"].to(replay.device)), noise


def write_back(
    rainbow: BatchedRainbow,
    replay: NStepReplay,
    slot: Tensor,
    priority: Tensor,
    metrics: Metrics,
    metric_sums: Tensor,
) -> None:
    """Set the priorities of the batch, and add the metrics to their sums (names, S)."""
    replay.set_priorities(slot, priority.to(replay.device))
    zero = torch.zeros_like(priority[:, 0])
    metric_sums.add_(torch.stack([metrics.get(name, zero) for name in rainbow.metric_names]))


class RunHandle:
    """One run of a batch, as a learner.

    The first call of `step` in a round steps all runs; the other runs return their cached results.
    The training loop must therefore step all runs before it steps the first one again.
    """

    def __init__(self, batch: BatchedLearner, index: int):
        self.batch, self.index = batch, index
        self.env = batch.games.games[index]
        self.algorithm = batch.algorithm.runs[index]
        self.replay = batch.replay
        self.metric_names = (*batch.algorithm.metric_names, "priority_entropy_share")
        self._results: deque[StepResult] = deque()

    @property
    def updates(self) -> int:
        return self.batch.updates

    def step(self, env_steps: int) -> StepResult:
        if not self._results:
            for run, result in zip(self.batch.runs, self.batch.step(env_steps), strict=True):
                run._results.append(result)
        return self._results.popleft()

    def replay_metrics(self) -> dict[str, float]:
        return {"priority_entropy_share": self.replay.priority_entropy_share(self.index)}

    def close(self) -> None:
        self.batch.games.close()

    def state_dict(self) -> StateDict:
        assert not self._results, "a run is saved between its steps"
        batch = self.batch
        return {
            "env": self.env.state_dict(),
            "algorithm": self.algorithm.state_dict(),
            "replay": self.replay.run_state(self.index),
            "metric_sums": batch.metric_sums[:, self.index],
            "agent_steps": batch.agent_steps,
            "updates": batch.updates,
            "reported_updates": batch.unreported_updates,  # existing checkpoints have this key
            "age": int(batch.ages[self.index]),
        }

    def load_state_dict(self, state: StateDict) -> None:
        """The other runs of the batch must be loaded from the same agent step."""
        # An action indexes the outputs of the network, so it is checked before it is used.
        actions, count = state["replay"]["actions"], num_actions(self.env.spec)
        are_valid = ((actions >= 0) & (actions < count)).all()
        check_data(are_valid, f"replay: an action is not one of the {count} actions of the game")
        batch = self.batch
        batch.agent_steps, batch.updates = state["agent_steps"], state["updates"]
        batch.unreported_updates = state["reported_updates"]
        is_restored = self.env.load_state_dict(state["env"])  # otherwise a new episode begins
        batch.ages[self.index] = state["age"] if is_restored else 0
        batch.observations_valid = False
        self.algorithm.load_state_dict(state["algorithm"])
        self.replay.load_run_state(self.index, state["replay"])
        batch.metric_sums[:, self.index] = state["metric_sums"]
        self._results.clear()
