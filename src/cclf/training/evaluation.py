"""Evaluation in environments and with seeds of its own, so that it cannot influence training."""

from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import NamedTuple

import numpy as np
import torch

from cclf.console import warn
from cclf.data.device_transfer import AsyncHostCopy
from cclf.envs.frame_stack import FrameStack
from cclf.errors import WorkerError
from cclf.training.worker_process import error_message
from cclf.training.workers import MAX_RESTARTS, Pending, Pool, WorkerLostError
from cclf.types import Env, EnvStep, OnPolicyAlgorithm, Policy, VectorEnv

LONG_EPISODE_AGENT_STEPS = 100_000  # a hundred times the longest episode of DeepMind Control


class Evaluation(NamedTuple):
    returns: list[float]
    pictures: list[np.ndarray]  # of the first episode, if it was recorded
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


# An evaluation in progress. Each step does what is possible without waiting, and yields the pipes on
# which results of workers are awaited. Training can continue between two steps.
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


class VideoRecorder:
    """The pictures of an episode. After the first error there are none, since a video must not end a
    run, whatever a renderer raises."""

    def __init__(self, enabled: bool):
        self.enabled, self.pictures, self.error = enabled, list[np.ndarray](), ""

    def add(self, render: Callable[[], np.ndarray]) -> None:
        try:
            self.pictures.append(render())
        except Exception as error:
            self.enabled, self.error = False, error_message(error)
            self.pictures.clear()


@dataclass
class _Episode:
    """An episode in progress in one environment of a pool."""

    index: int  # of its seed
    reset: Pending[np.ndarray]
    frames: FrameStack
    step: Pending[EnvStep] | None = None
    picture: Pending[np.ndarray] | None = None
    observation: np.ndarray | None = None  # the stack of frames to act on
    agent_steps: int = 0
    total_reward: float = 0.0
    ended: bool = False

    def receive(self, video: VideoRecorder) -> bool:
        """Returns whether the result of the last call has arrived."""
        if self.step is None:
            if self.reset.done:
                self.observation = self.frames.push(self.reset.result())
            return self.reset.done
        if self.step.done:
            step = self.step.result()
            if self.picture is not None:
                video.add(self.picture.result)
            self.observation = self.frames.push(step.frame)
            self.total_reward += step.reward
            self.agent_steps += 1
            self.ended = step.terminated or step.truncated
            if self.agent_steps == LONG_EPISODE_AGENT_STEPS:
                warn(
                    f"an evaluation episode has reached {self.agent_steps:,} agent steps; without a "
                    "time limit it may never end: stop it with Ctrl-C, and give the environment a "
                    "time limit (max_episode_steps)"
                )
        return self.step.done


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
    waiting, running = deque(range(len(seeds))), dict[int, _Episode]()  # running: by environment
    returns, losses, video = [0.0] * len(seeds), [0] * len(seeds), VideoRecorder(record)

    def start_next(env: int) -> None:
        running.pop(env, None)
        if waiting:
            index = waiting.popleft()
            reset = envs.submit(env, Env.reset, seeds[index])
            running[env] = _Episode(index, reset, FrameStack(frame_stack, pad="repeat"))

    for env in range(envs.size):
        start_next(env)
    while running:
        envs.poll()
        ready = dict[int, _Episode]()  # by environment: those that need an action
        for env, episode in list(running.items()):
            try:
                received = episode.receive(video)
            except WorkerLostError as error:
                losses[episode.index] += 1
                if losses[episode.index] > MAX_RESTARTS:
                    raise too_many_losses(error, losses[episode.index]) from error
                if episode.index == 0:
                    video.pictures.clear()
                waiting.appendleft(episode.index)
                start_next(env)
                continue
            if episode.ended:
                returns[episode.index] = episode.total_reward
                start_next(env)
            elif received:
                ready[env] = episode
        observations = {
            each.index: each.observation for each in ready.values() if each.observation is not None
        }
        actions = yield from _actions(policy, observations, len(seeds), device)
        for env, episode in ready.items():
            if video.enabled and episode.index == 0:
                episode.picture = envs.submit(env, Env.render)
            episode.step = envs.submit(env, Env.step, actions[episode.index])
        yield envs.connections()
    return Evaluation(returns, video.pictures, video.error)


def too_many_losses(error: WorkerLostError, losses: int) -> WorkerError:
    return WorkerError(f"{error}; {losses} times in one episode of an evaluation")


def _actions(
    policy: Policy, observations: Mapping[int, np.ndarray], episodes: int, device: torch.device
) -> Generator[Sequence[Connection], None, dict[int, np.ndarray]]:
    """Actions by episode. They do not depend on which other episodes need one: results may depend on
    the batch size in the last bit, so a CPU computes each one alone, and a GPU computes a batch with
    a row for every episode."""
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
