"""Evaluation, which has its own environments and seeds, so that it cannot influence training. It
runs in this process, with environments in workers, or with whole episodes in workers."""

from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import torch

from cclf.console import warn
from cclf.data.device_transfer import AsyncHostCopy
from cclf.envs.frame_stack import FrameStack
from cclf.errors import WorkerError
from cclf.training.video import VideoRecorder
from cclf.training.workers import MAX_RESTARTS, Pending, Pool, WorkerLostError, WorkerPool
from cclf.types import Env, OnPolicyAlgorithm, Policy, VectorEnv

LONG_EPISODE_AGENT_STEPS = 100_000  # a hundred times the longest episode of DeepMind Control
# Timeout of an episode in a worker: an Atari game takes at most half a minute on a free core, but
# training has priority.
EPISODE_SECONDS = 3600.0

R = TypeVar("R")


class Evaluation(NamedTuple):
    returns: list[float]
    pictures: list[np.ndarray]  # rendered images of the first episode, if it was recorded
    recording_error: str = ""

    @property
    def mean(self) -> float:
        return float(np.mean(self.returns))

    @property
    def std(self) -> float:
        return float(np.std(self.returns))


class StepCounters(NamedTuple):
    env_steps: int
    agent_steps: int
    updates: int


def evaluation_row(
    counters: StepCounters, result: Evaluation, wall_seconds: float
) -> dict[str, float | str]:
    """A row of eval.csv or final.csv."""
    return counters._asdict() | {
        "return_mean": result.mean,
        "return_std": result.std,
        "episodes": len(result.returns),
        "wall_seconds": round(wall_seconds, 3),
        "returns": " ".join(f"{value:.8g}" for value in result.returns),
    }


# An evaluation in progress, as a generator. Each step does what is possible without waiting, and
# yields the pipes on which results of workers are awaited. Training can continue between two steps.
EvaluationSteps = Generator[Sequence[Connection], None, Evaluation]


class EvaluationStoppedError(ValueError):
    """A stop was requested before the evaluation was complete."""


def poll(steps: EvaluationSteps, timeout_seconds: float = 0.0) -> Evaluation | None:
    """Advance an evaluation by one step. Returns its result after the last step. Waits at most
    `timeout_seconds` for a worker."""
    try:
        connections = next(steps)
    except StopIteration as end:
        result: Evaluation = end.value
        return result
    if connections and timeout_seconds:
        wait(connections, timeout_seconds)
    return None


def wait_for_evaluation(
    steps: EvaluationSteps, stopped: Callable[[], bool] = lambda: False
) -> Evaluation:
    """Complete an evaluation. Raises EvaluationStoppedError once `stopped()` is true."""
    while not stopped():
        result = poll(steps, timeout_seconds=0.1)
        if result is not None:
            return result
    raise EvaluationStoppedError


def evaluate(
    envs: Pool[Env],
    policy: Policy,
    seeds: Sequence[int],
    frame_stack: int,
    device: torch.device,
    record: bool = False,
) -> EvaluationSteps:
    """One episode per seed with the deterministic policy. The returns do not depend on the number of
    environments. An episode whose worker is lost starts again from its seed."""
    waiting = deque(range(len(seeds)))  # indices of episodes, which are those of their seeds
    running = dict[int, tuple[int, EpisodeSteps]]()  # by index of the environment
    returns, lost_workers, video = [0.0] * len(seeds), [0] * len(seeds), VideoRecorder(record)

    def start_next(env_index: int) -> None:
        running.pop(env_index, None)
        if waiting:
            index = waiting.popleft()
            recorder = video if index == 0 else VideoRecorder(False)
            episode = _play_episode(envs, env_index, seeds[index], frame_stack, recorder)
            next(episode)
            running[env_index] = index, episode

    for env_index in range(envs.size):
        start_next(env_index)
    while running:
        envs.poll()
        # Of the episodes that need an action, by index of the episode.
        observations, ready = dict[int, np.ndarray](), dict[int, EpisodeSteps]()
        for env_index, (index, episode) in list(running.items()):
            try:
                observation = next(episode)
            except StopIteration as end:
                returns[index] = end.value
                start_next(env_index)
            except WorkerLostError as error:
                _count_lost_worker(lost_workers, index, error)
                if index == 0:
                    video.pictures.clear()
                waiting.appendleft(index)
                start_next(env_index)
            else:
                if observation is not None:
                    observations[index], ready[index] = observation, episode
        actions = yield from _actions(policy, observations, len(seeds), device)
        for index, episode in ready.items():
            episode.send(actions[index])
        yield envs.connections()
    return Evaluation(returns, video.pictures, video.error)


# A generator that plays an episode. It yields an observation and is sent the action, or yields None
# while it waits for its environment. It returns the sum of the rewards.
EpisodeSteps = Generator[np.ndarray | None, np.ndarray | None, float]


def _play_episode(
    envs: Pool[Env], env_index: int, seed: int, frame_stack: int, video: VideoRecorder
) -> EpisodeSteps:
    frames, agent_steps, total_reward = FrameStack(frame_stack, pad="repeat"), 0, 0.0
    observation = frames.push((yield from _wait_for(envs.submit(env_index, Env.reset, seed))))
    while True:
        action = yield observation
        picture = envs.submit(env_index, Env.render) if video.enabled else None
        step = yield from _wait_for(envs.submit(env_index, Env.step, action))
        if picture is not None:
            video.add(picture.result)
        observation = frames.push(step.frame)
        total_reward += step.reward
        agent_steps += 1
        if agent_steps == LONG_EPISODE_AGENT_STEPS:
            warn(
                f"an evaluation episode has reached {agent_steps:,} agent steps; without a time "
                "limit it may never end: stop it with Ctrl-C, and give the environment a time "
                "limit (max_episode_steps)"
            )
        if step.terminated or step.truncated:
            return total_reward


def _wait_for(call: Pending[R]) -> Generator[None, object, R]:
    """Wait for the result of a call. Yields None at least once, even if the result has arrived,
    because `evaluate` ignores what an episode yields when it is started or receives an action."""
    yield
    while not call.done:
        yield
    return call.result()


def _count_lost_worker(lost_workers: list[int], episode: int, error: WorkerLostError) -> None:
    """Count a worker that was lost in this episode. Raises WorkerError if there are too many."""
    lost_workers[episode] += 1
    if lost_workers[episode] > MAX_RESTARTS:
        raise WorkerError(
            f"{error}; {lost_workers[episode]} times in one episode of an evaluation"
        ) from error


def _actions(
    policy: Policy, observations: Mapping[int, np.ndarray], episodes: int, device: torch.device
) -> Generator[Sequence[Connection], None, dict[int, np.ndarray]]:
    """The action for each observation, by index of the episode. It does not depend on which other
    episodes need one: results may depend on the batch size in the last bit, so a CPU computes each
    action alone, and a GPU computes a batch with a row for each of the `episodes`."""
    if device.type == "cpu" or not observations:
        return {
            episode: policy.evaluation_action(torch.from_numpy(observation)[None])[0].numpy()
            for episode, observation in observations.items()
        }
    like = torch.from_numpy(next(iter(observations.values())))
    batch = torch.zeros(episodes, *like.shape, dtype=like.dtype, pin_memory=True)
    for episode, observation in observations.items():
        batch[episode] = torch.from_numpy(observation)
    chosen = AsyncHostCopy(policy.evaluation_action(batch.to(device, non_blocking=True)))
    while not chosen.ready():  # the GPU may still compute an update of the training
        yield ()
    actions = chosen.numpy()
    return {episode: actions[episode] for episode in observations}


def evaluate_vector(
    env: VectorEnv,
    algorithm: OnPolicyAlgorithm,
    seeds: Sequence[int],
    action_seed: int,
    record: bool = False,
) -> EvaluationSteps:
    """The first episode in each environment, with sampled actions. Later episodes do not count: that
    would favour short, successful episodes."""
    random = np.random.default_rng(action_seed)
    observation = env.reset(seeds)
    returns, video = np.zeros(env.num_envs), VideoRecorder(record)
    active = np.ones(env.num_envs, dtype=bool)
    while active.any():
        if video.enabled and active[0]:
            video.add(partial(env.render, 0))
        actions = algorithm.act(observation, random.random((env.num_envs, env.num_actions)))
        observation, reward, terminated, truncated = env.step(actions)
        returns += reward * active
        active &= ~(terminated | truncated)
        yield ()
    return Evaluation(returns.tolist(), video.pictures, video.error)


def evaluate_games(
    env: Env,
    policy: Policy,
    seeds: Sequence[int],
    epsilon: float,
    frame_stack: int,
    record: bool = False,
) -> EvaluationSteps:
    """One game per seed, until it is over. An action is random with probability `epsilon`."""
    assert env.spec.num_actions is not None, "games have discrete actions"
    returns, video = [], VideoRecorder(record)
    frames = FrameStack(frame_stack, pad="zeros")
    for episode, seed in enumerate(seeds):
        frames.clear()
        stack = frames.push(env.reset(seed))
        random, total_reward, ended = np.random.default_rng([seed, 1]), 0.0, False
        while not ended:
            if video.enabled and episode == 0:
                video.add(env.render)
            explore, choice = random.random(2)
            action = int(policy.evaluation_action(torch.from_numpy(stack)[None]))
            step = env.step(int(choice * env.spec.num_actions) if explore < epsilon else action)
            stack = frames.push(step.frame)
            total_reward += step.reward
            ended = step.terminated or step.truncated
            yield ()
        returns.append(total_reward)
    return Evaluation(returns, video.pictures, video.error)


class EpisodePlayer(Protocol):
    """The object that an evaluation worker holds."""

    def play(self, *policy_and_seed: Any) -> float: ...  # the return of one episode
    def close(self) -> None: ...


class EvaluationWorkers:
    """Worker processes that play whole episodes, each with a copy of the policy. All runs of a process
    share them."""

    def __init__(
        self, factory: Callable[[], Any], workers: int, timeout_seconds: float = EPISODE_SECONDS
    ):
        """`factory` makes an `EpisodePlayer`."""
        factories = [factory] * workers
        self._pool = WorkerPool[EpisodePlayer](factories, "the evaluation", timeout_seconds)
        self._last_calls = [Pending[float](done=True) for _ in range(workers)]  # by worker

    def evaluate_async(self, policy: tuple[object, ...], seeds: Sequence[int]) -> EvaluationSteps:
        """One episode per seed, played by `play(*policy, seed)`. An episode whose worker is lost is
        played again, with the same result."""
        waiting = deque(range(len(seeds)))  # indices of episodes, which are those of their seeds
        running = dict[int, Pending[float]]()  # by index of the episode
        returns, lost_workers = [0.0] * len(seeds), [0] * len(seeds)
        while waiting or running:
            self._pool.poll()
            for index, call in list(running.items()):
                if call.done:
                    del running[index]
                    try:
                        returns[index] = call.result()
                    except WorkerLostError as error:
                        _count_lost_worker(lost_workers, index, error)
                        waiting.appendleft(index)
            for worker, last_call in enumerate(self._last_calls):
                if waiting and last_call.done:
                    index = waiting.popleft()
                    call = self._pool.submit(worker, EpisodePlayer.play, *policy, seeds[index])
                    running[index] = self._last_calls[worker] = call
            yield self._pool.connections()
        return Evaluation(returns, [])

    def close(self) -> None:
        self._pool.close()
