"""The turn of `turn.py` for runs that move in step: each has its game, all learn in one call.

Each run keeps its own game, replay and counters, and is saved and loaded by itself, into a stack of
any size or as a run alone: see `RunHandle`.
"""

from collections import deque
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import IO, Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from cclf.algorithms.rainbow.batched import BatchedRainbow, MetricSums
from cclf.algorithms.rainbow.players import GameGroup, SharedBuffer
from cclf.algorithms.rainbow.replay import NStepReplay
from cclf.algorithms.rainbow.schedule import TrainingSchedule
from cclf.algorithms.rainbow.turn import COUNTERS, refuse_unknown_actions
from cclf.data.device_transfer import AsyncHostCopy, to_device
from cclf.errors import ConfigError, WorkerError
from cclf.training.cuda_graphs import GraphedPolicy, GraphedUpdate
from cclf.training.workers import Pending, Pool
from cclf.types import EnvSpec, GameBatch, Metrics, StepResult

R = TypeVar("R")


class GameWorkers:
    """Games by number, some at each table: a pool whose environments are `GameGroup`.

    A table may stand in another process. `memory` is a file that it has by the same descriptor.
    """

    def __init__(
        self, pool: Pool[GameGroup], sizes: Sequence[int], memory: IO[bytes], frame_stack: int
    ):
        self.pool, self._memory = pool, memory
        self._failed: WorkerError | None = None
        bounds = list(pairwise(accumulate(sizes, initial=0)))
        self._seats = [slice(*bound) for bound in bounds]
        self._place = [
            (table, number - first)
            for table, (first, last) in enumerate(bounds)
            for number in range(first, last)
        ]
        groups = range(len(sizes))
        specs = self._results(lambda: [pool.submit(group, GameGroup.specs) for group in groups])
        self.specs: list[EnvSpec] = [spec for each in specs for spec in each]
        board = memory.fileno(), len(self.specs), (frame_stack, *self.specs[0].frame_shape[1:])
        self.board = SharedBuffer.in_file(*board)
        self._results(
            lambda: [
                pool.submit(n, GameGroup.sit, *board, *bound) for n, bound in enumerate(bounds)
            ]
        )

    def look(self) -> np.ndarray:
        """What to act on now, (S, F, H, W)."""
        self._results(
            lambda: [self.pool.submit(n, GameGroup.look) for n in range(len(self._seats))]
        )
        return self.board.stacks

    def play(self, actions: np.ndarray) -> SharedBuffer:
        """One action (S,) in each game; tables play at the same time. What came of it stands on
        the board until the next time."""
        self.board.actions[:] = actions
        self._results(lambda: [self.pool.notify(table) for table in range(len(self._seats))])
        return self.board

    def game_state(self, game: int) -> dict[str, Any]:
        table, seat = self._place[game]
        return self._results(lambda: [self.pool.submit(table, GameGroup.game_state, seat)])[0]

    def load_game_state(self, game: int, state: dict[str, Any]) -> bool:
        table, seat = self._place[game]
        return self._results(
            lambda: [self.pool.submit(table, GameGroup.load_game_state, seat, state)]
        )[0]

    def _results(self, submit: Callable[[], list[Pending[R]]]) -> list[R]:
        """Replay holds the actions of a step that one game could not end, and games lost with their
        process cannot be brought back, so after an error all must go on from checkpoints."""
        if self._failed is not None:
            raise self._failed
        try:
            return self.pool.wait(submit())
        except WorkerError as error:
            self._failed = error
            raise

    def close(self) -> None:
        self.pool.close()
        self._memory.close()


class GameHandle:
    """One of the games, to be saved and loaded by itself."""

    def __init__(self, tables: GameWorkers, number: int):
        self.tables, self.number, self.spec = tables, number, tables.specs[number]

    def state_dict(self) -> dict[str, Any]:
        return self.tables.game_state(self.number)

    def load_state_dict(self, state: dict[str, Any]) -> bool:
        return self.tables.load_game_state(self.number, state)

    def close(self) -> None:
        """All of them: runs of a stack end together."""
        self.tables.close()


class BatchedLearner:
    """S games, and the algorithm and replay of all of them. `runs` are what the loop drives."""

    def __init__(
        self,
        tables: GameWorkers,
        algorithm: BatchedRainbow,
        replay: NStepReplay,
        report_every_agent_steps: int,
        graphs: bool = False,
    ):
        """With `graphs`, acting and learning run in CUDA graphs.

        Metrics are handed out every so many steps, as means over the updates since.
        """
        self.tables, self.algorithm, self.replay = tables, algorithm, replay
        self.schedule = TrainingSchedule.of(algorithm.settings)
        self.report_every_agent_steps = report_every_agent_steps
        device = algorithm.device
        shape = (len(tables.specs), replay.frame_stack, *replay.frames.shape[2:])
        self._seen = torch.empty(shape, dtype=torch.uint8, pin_memory=device.type == "cuda")
        self._observation = torch.empty(shape, dtype=torch.uint8, device=device)
        self.looked = False  # whether `_seen` is what the games show
        # Clocks and schedules reach a graph as tensors: a number would be frozen in it.
        self._moment = torch.zeros((), dtype=torch.int64, device=device)
        self._env_steps, self._beta, self._epsilon = (
            torch.zeros((), dtype=torch.float64, device=device) for _ in range(3)
        )
        self._act: Callable[[Tensor], Tensor] = self._select_view
        self._learn: Callable[[], Metrics] = self._update
        if graphs:
            self._act = GraphedPolicy(self._select_view)
            self._learn = GraphedUpdate(self._update, 1, None, [])
        self.metric_names = (*algorithm.metric_names, "gradient_norm")
        sums = torch.zeros(
            len(self.metric_names), len(tables.specs), dtype=torch.float64, device=device
        )
        self.sums = MetricSums(self.metric_names, sums)
        self._reported: list[str] = []  # which of them this method has
        self.runs = [RunHandle(self, index) for index in range(len(tables.specs))]

    def step(self, env_steps: int) -> list[StepResult]:
        """One agent step of every run; `env_steps` is the clock before it."""
        step = self._next_step()
        actions = self.act(step)
        chosen = AsyncHostCopy(actions)
        self._store_actions(actions)
        # the bug looks at how the newest step ended, nothing else does
        learn_first = not self.replay.n_step_bug
        if learn_first:  # and so a GPU learns while the games are played
            self.learn(step, env_steps)
        played = self.tables.play(chosen.numpy())
        self._store_outcome(played)
        if not learn_first:
            self.learn(step, env_steps)
        if self.schedule.updates_target_at(step):
            self.algorithm.copy_target()
        metrics: list[Metrics | None] = [None] * len(self.runs)
        if step % self.report_every_agent_steps == 0 and self.schedule.updates_at(step):
            metrics = [*self._report()]
        finished = zip(played.over.tolist(), played.finished_returns.tolist(), strict=True)
        returns = [[value] if over else [] for over, value in finished]
        return [StepResult(1, *both) for both in zip(metrics, returns, strict=True)]

    def _next_step(self) -> int:
        clocks = {run.agent_steps for run in self.runs}
        if len(clocks) > 1:
            raise ConfigError(
                f"runs of a stack move in step, but these stand at agent steps {sorted(clocks)}: "
                "train them apart"
            )
        return clocks.pop() + 1

    def act(self, step: int) -> Tensor:
        """Actions (S,) for what the games show now."""
        if not self.looked:
            self._seen.copy_(torch.from_numpy(self.tables.look()))
            self.looked = True
        self._observation.copy_(self._seen, non_blocking=True)
        self._moment.fill_(step * self.schedule.updates_per_step)
        self._epsilon.fill_(self.schedule.epsilon_at(step))
        return self._act(self._observation)

    def _select_view(self, observation: Tensor) -> Tensor:
        return self.algorithm.act(observation, self._moment, self._epsilon)

    def _store_actions(self, actions: Tensor) -> None:
        """To replay, with what was acted on."""
        device = self.replay.device
        ages = to_device(torch.tensor([run.age for run in self.runs]), device)
        self.replay.add(self._observation[:, -1].to(device), actions.to(device), ages)

    def _store_outcome(self, played: SharedBuffer) -> None:
        """To replay, and to be acted on next."""
        reward, ended = to_device(
            torch.from_numpy(np.stack([played.rewards, played.ended])), self.replay.device
        )
        self.replay.add_outcome(reward, ended.bool())
        self._seen.numpy()[:] = played.stacks
        for run, over in zip(self.runs, played.ended.tolist(), strict=True):
            run.agent_steps += 1
            run.age = 0 if over else run.age + 1

    def learn(self, step: int, env_steps: int) -> None:
        for number in range(self.schedule.updates_at(step)):
            self._moment.fill_(step * self.schedule.updates_per_step + number)
            self._env_steps.fill_(env_steps)
            self._beta.fill_(self.schedule.beta_at(step))
            self._learn()
            for run in self.runs:
                run.updates += 1
                run.reported_updates += 1

    def _update(self) -> Metrics:
        """The loss alone is returned, since a graph returns something; the rest is summed up."""
        algorithm, compute = self.algorithm, self.algorithm.compute
        batch, noise = compute.prepare(algorithm, self.replay, self._moment)
        batch_there = GameBatch(*(tensor.to(algorithm.device) for tensor in batch))
        metrics, priority = algorithm.update(batch_there, noise, self._env_steps, self._beta)
        self._reported = list(metrics)
        compute.conclude(self.replay, batch.slot, priority, self.sums, metrics)
        return {"q_loss": metrics["q_loss"]}

    def _report(self) -> list[Metrics]:
        """Of each run, the means since the last report."""
        means = (self.sums.values / self.runs[0].reported_updates).unbind(1)
        self.sums.values.zero_()
        rows = [dict(zip(self.metric_names, mean.unbind(), strict=True)) for mean in means]
        for run in self.runs:
            run.reported_updates = 0
        return [{name: row[name] for name in self._reported} for row in rows]


class RunHandle:
    """One run of a stack, as the loop sees it.

    The first run to call `step` steps all of them, and the others then return their own results.
    The loop must therefore step all runs before it steps the first one again.
    """

    def __init__(self, stack: BatchedLearner, index: int):
        self.stack, self.index, self.env = stack, index, GameHandle(stack.tables, index)
        self.algorithm = stack.algorithm.runs[index]
        self.metric_names = (*stack.metric_names, "priority_entropy_share")
        self.agent_steps = 0
        self.updates = 0
        self.reported_updates = 0  # since the last report of metrics
        self.age = 0  # agent steps since the episode began
        self._done: deque[StepResult] = deque()

    def step(self, env_steps: int) -> StepResult:
        if not self._done:
            for run, result in zip(self.stack.runs, self.stack.step(env_steps), strict=True):
                run._done.append(result)
        return self._done.popleft()

    @property
    def replay(self) -> NStepReplay:
        return self.stack.replay

    def replay_metrics(self) -> dict[str, float]:
        """Statistics over the whole replay, for the log only."""
        return {"priority_entropy_share": self.replay.priority_entropy_share(self.index)}

    def close(self) -> None:
        self.env.close()

    def state_dict(self) -> dict[str, Any]:
        assert not self._done, "a run is saved between its steps"
        return {
            "env": self.env.state_dict(),
            "algorithm": self.algorithm.state_dict(),
            "replay": self.replay.run_state(self.index),
            "metric_sums": self.stack.sums.values[:, self.index],
            **{name: getattr(self, name) for name in COUNTERS},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in COUNTERS:
            setattr(self, name, state[name])
        refuse_unknown_actions(state, self.algorithm.num_actions)
        self.age = self.age if self.env.load_state_dict(state["env"]) else 0
        self.stack.looked = False
        self.algorithm.load_state_dict(state["algorithm"])
        self.replay.load_run_state(self.index, state["replay"])
        self.stack.sums.values[:, self.index] = state["metric_sums"].to(
            self.stack.sums.values.device
        )
        self._done.clear()
