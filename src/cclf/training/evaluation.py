"""Evaluation: in environments of its own, with seeds of its own, so that it can never change
training."""

import errno
import shutil
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from cclf.console import warn
from cclf.data.device_transfer import AsyncHostCopy
from cclf.envs.frame_stack import FrameStack
from cclf.errors import WorkerError
from cclf.storage.atomic_files import replacing
from cclf.training.worker_process import try_render
from cclf.training.workers import MAX_RESTARTS, WORKER_LOST, EnvPool
from cclf.types import Env, OnPolicyAlgorithm, Policy, VectorEnv


class Evaluation(NamedTuple):
    returns: list[float]
    pictures: list[np.ndarray]  # of the first episode, when asked for
    no_pictures: str = ""  # why there are none, when asked for

    @property
    def mean(self) -> float:
        return float(np.mean(self.returns))

    @property
    def std(self) -> float:
        return float(np.std(self.returns))


class VideoRecorder:
    """Pictures of an episode. Once one cannot be drawn none is wanted any more, and the reason is
    kept."""

    def __init__(self, wanted: bool):
        self.wanted, self.pictures, self.reason = wanted, list[np.ndarray](), ""

    def add(self, picture: np.ndarray | str) -> None:
        if isinstance(picture, str):
            self.wanted, self.reason = False, picture
            self.pictures.clear()
        else:
            self.pictures.append(picture)


# An evaluation goes on by rounds, between which training may go on too. Each yields the pipes that
# more is awaited from.
EvaluationSteps = Generator[Sequence[Connection], None, Evaluation]


class EvaluationStoppedError(ValueError):
    """A stop was asked for before the last round."""


LONG_EPISODE_AGENT_STEPS = 100_000  # a hundred times DeepMind Control's longest


def _warn_long_episode(agent_steps: int) -> None:
    warn(
        f"an evaluation episode has {agent_steps:,} agent steps and goes on; where "
        "its task has no time limit it "
        "may never end: stop it with Ctrl-C, and give the environment a time limit "
        "(max_episode_steps)"
    )


def _never() -> bool:
    return False


def poll(rounds: EvaluationSteps, patience_seconds: float = 0.0) -> Evaluation | None:
    """One round; the result when it was the last. With patience it sleeps until a worker
    answers."""
    try:
        pipes = next(rounds)
    except StopIteration as end:
        result: Evaluation = end.value
        return result
    if pipes and patience_seconds:
        wait(pipes, patience_seconds)
    return None


def wait_for_evaluation(
    rounds: EvaluationSteps, stopped: Callable[[], bool] = _never
) -> Evaluation:
    """All rounds; given up as soon as `stopped()`."""
    while not stopped():
        result = poll(rounds, patience_seconds=0.1)
        if result is not None:
            return result
    raise EvaluationStoppedError


def evaluate(
    envs: EnvPool,
    policy: Policy,
    seeds: Sequence[int],
    frame_stack: int,
    device: torch.device,
    record: bool = False,
) -> EvaluationSteps:
    """One episode per seed with the deterministic policy. What comes of them does not depend on how
    many environments share them.

    An episode whose worker is lost begins again from its seed, and so ends as it would have.
    """
    waiting, film = deque(range(len(seeds))), VideoRecorder(record)
    returns, losses = [0.0] * len(seeds), [0] * len(seeds)
    episode_in, frames = dict[int, int](), dict[int, FrameStack]()  # by environment
    steps = dict[int, int]()  # agent steps of the episode there

    def begin(env: int) -> None:
        episode_in.pop(env, None)
        if waiting:
            episode_in[env] = episode = waiting.popleft()
            returns[episode] = 0.0
            if episode == 0:
                film.pictures.clear()
            envs.send(env, "reset", seeds[episode])

    envs.forget()
    for env in range(envs.size):
        begin(env)
    while episode_in:
        seen: dict[int, np.ndarray] = {}  # stacks to act on, by environment
        for env, command, value in envs.receive():
            if env not in episode_in:
                continue
            episode = episode_in[env]
            if command == WORKER_LOST:
                losses[episode] += 1
                if losses[episode] > MAX_RESTARTS:
                    raise WorkerError(
                        f"{value}; {losses[episode]} times in one episode of an evaluation"
                    )
                waiting.appendleft(episode)
                begin(env)
            elif command == "render":
                film.add(value)
            elif command == "reset":
                steps[env] = 0
                frames[env] = FrameStack(frame_stack, pad="repeat")
                seen[env] = frames[env].push(value)
            else:
                stack = frames[env].push(value.frame)
                returns[episode] += value.reward
                steps[env] += 1
                if steps[env] == LONG_EPISODE_AGENT_STEPS:
                    _warn_long_episode(steps[env])
                if value.terminated or value.truncated:
                    begin(env)
                else:
                    seen[env] = stack
        actions = yield from _actions(
            policy, {episode_in[env]: stack for env, stack in seen.items()}, len(seeds), device
        )
        for env in seen:
            if film.wanted and episode_in[env] == 0:
                envs.send(env, "render")
            envs.send(env, "step", actions[episode_in[env]])
        yield envs.busy()
    return Evaluation(returns, film.pictures, film.reason)


def _actions(
    policy: Policy, stacks: Mapping[int, np.ndarray], episodes: int, device: torch.device
) -> Generator[Sequence[Connection], None, dict[int, np.ndarray]]:
    """Actions by episode, equal whatever else is asked at the same time. Results may depend on a
    batch's size in the last bit, so a CPU acts one by one, and a GPU on one row per episode,
    those not asked for left blank."""
    if device.type == "cpu" or not stacks:
        return {
            n: policy.evaluation_action(torch.from_numpy(stack)[None])[0].numpy()
            for n, stack in stacks.items()
        }
    like = torch.from_numpy(next(iter(stacks.values())))
    batch = torch.zeros(episodes, *like.shape, dtype=like.dtype, pin_memory=True)
    for episode, stack in stacks.items():
        batch[episode] = torch.from_numpy(stack)
    chosen = AsyncHostCopy(policy.evaluation_action(batch.to(device, non_blocking=True)))
    while not chosen.ready():  # an update of the training may be before it on the GPU
        yield ()
    actions = chosen.numpy()
    return {episode: actions[episode] for episode in stacks}


def evaluate_vector(
    env: VectorEnv,
    algorithm: OnPolicyAlgorithm,
    seeds: Sequence[int],
    action_seed: int,
    record: bool = False,
) -> EvaluationSteps:
    """One episode in each environment with sampled actions. Later episodes of the quick ones do not
    count: they would favour short, successful episodes."""
    random = np.random.default_rng(action_seed)
    observation = env.reset(seeds)
    totals, film = np.zeros(env.num_envs), VideoRecorder(record)
    going_on = np.ones(env.num_envs, dtype=bool)
    while going_on.any():
        if film.wanted and going_on[0]:
            film.add(try_render(lambda: env.render(0)))
        actions = algorithm.act(observation, random.random((env.num_envs, env.num_actions)))
        observation, reward, terminated, truncated = env.step(actions)
        totals += reward * going_on
        going_on &= ~(terminated | truncated)
        yield ()
    return Evaluation(totals.tolist(), film.pictures, film.reason)


def evaluate_games(
    env: Env,
    policy: Policy,
    seeds: Sequence[int],
    epsilon: float,
    frame_stack: int,
    record: bool = False,
) -> EvaluationSteps:
    """One whole game per seed, an action random with probability `epsilon`. The policy sees one
    stack at a time, so that nothing depends on how many games are played side by side."""
    assert env.spec.num_actions is not None, "games have discrete actions"
    returns, film, frames = [], VideoRecorder(record), FrameStack(frame_stack, pad="zeros")
    for episode, seed in enumerate(seeds):
        frames.clear()
        stack = frames.push(env.reset(seed))
        random, total, over = np.random.default_rng([seed, 1]), 0.0, False
        while not over:
            if film.wanted and episode == 0:
                film.add(try_render(env.render))
            chance, which = random.random(2)
            action = int(policy.evaluation_action(torch.from_numpy(stack)[None]))
            step = env.step(int(which * env.spec.num_actions) if chance < epsilon else action)
            stack = frames.push(step.frame)
            total += step.reward
            over = step.terminated or step.truncated
            yield ()
        returns.append(total)
    return Evaluation(returns, film.pictures, film.reason)


def write_video(path: str, pictures: Iterable[np.ndarray], frames_per_second: int = 30) -> None:
    """An mp4, whole or not at all. A link in its place is replaced, not followed."""
    import imageio.v2 as imageio

    with replacing(Path(path)) as temporary:
        shape, count = (0, 0), 0
        try:
            # macro_block_size=None keeps pictures whose side is no multiple of 16 as they are.
            with imageio.get_writer(
                str(temporary),
                mode="I",
                fps=frames_per_second,
                macro_block_size=None,
                ffmpeg_log_level="quiet",  # it would write lines of its own to standard error
            ) as video:
                for picture in pictures:
                    shape, count = picture.shape[:2], count + 1
                    video.append_data(picture)  # type: ignore[attr-defined]
        except OSError as error:
            # That ffmpeg ended is known by a broken pipe, which comes with its whole command.
            if "FFMPEG COMMAND" not in str(error):
                raise
            whole = False
        else:
            whole = _is_whole_mp4(temporary)
        if not whole:
            free_megabytes = shutil.disk_usage(temporary.parent).free // 10**6
            raise OSError(
                errno.EIO,
                f"ffmpeg failed after {count} pictures of {shape[1]} x {shape[0]} pixels, with "
                f"{free_megabytes:,} MB of disk free",
                path,
            )


def _is_whole_mp4(path: Path) -> bool:
    """Whether its parts, each with its length before it, end where the file ends, and the one that
    ffmpeg writes last is among them: a disk that was full is not seen otherwise."""
    names, start, size_bytes = [], 0, path.stat().st_size
    with path.open("rb") as file:
        while start < size_bytes:
            file.seek(start)
            header = file.read(16)
            length = int.from_bytes(header[:4], "big")
            if length == 1:  # a long one
                length = int.from_bytes(header[8:], "big")
            if length < 8:
                return False
            names.append(header[4:8])
            start += length
    return start == size_bytes and b"moov" in names
