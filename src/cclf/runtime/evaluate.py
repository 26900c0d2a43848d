"""Evaluation: in environments of its own, with seeds of its own, so that it can never change training."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch

from cclf.types import Env, Game, OnPolicyAlgorithm, Policy, VectorEnv


class Evaluation(NamedTuple):
    returns: list[float]
    pictures: list[np.ndarray]  # of the first episode, when asked for

    @property
    def mean(self) -> float:
        return float(np.mean(self.returns))

    @property
    def std(self) -> float:
        return float(np.std(self.returns))


class EvaluationStoppedError(ValueError):
    """A stop was asked for meanwhile: what was seen so far is thrown away."""


def _never() -> bool:
    return False


def evaluate(
    env: Env,
    policy: Policy,
    seeds: Sequence[int],
    frame_stack: int,
    device: torch.device,
    record: bool = False,
    stopped: Callable[[], bool] = _never,
) -> Evaluation:
    """One episode per seed with the deterministic policy; given up as soon as `stopped()`."""
    returns, pictures = [], []
    for episode, seed in enumerate(seeds):
        frames = deque([env.reset(seed)] * frame_stack, maxlen=frame_stack)
        total, ended = 0.0, False
        while not ended:
            if stopped():
                raise EvaluationStoppedError
            if record and episode == 0:
                pictures.append(env.picture())
            stack = torch.from_numpy(np.concatenate(frames)).to(device)
            step = env.step(policy.evaluation_action(stack[None])[0].cpu().numpy())
            frames.append(step.frame)
            total += step.reward
            ended = step.terminated or step.truncated
        returns.append(total)
    return Evaluation(returns, pictures)


def evaluate_vector(
    env: VectorEnv,
    algorithm: OnPolicyAlgorithm,
    seeds: Sequence[int],
    action_seed: int,
    record: bool = False,
    stopped: Callable[[], bool] = _never,
) -> Evaluation:
    """One episode in each environment with sampled actions; given up as soon as `stopped()`. Later episodes of the quick ones do
    not count: they would favour short, successful episodes."""
    random = np.random.default_rng(action_seed)
    observation = env.reset(seeds)
    totals, pictures = np.zeros(env.num_envs), []
    going_on = np.ones(env.num_envs, dtype=bool)
    while going_on.any():
        if stopped():
            raise EvaluationStoppedError
        if record and going_on[0]:
            pictures.append(env.render(0))
        actions = algorithm.act(observation, random.random((env.num_envs, env.num_actions)))
        observation, reward, terminated, truncated = env.step(actions)
        totals += reward * going_on
        going_on &= ~(terminated | truncated)
    return Evaluation(totals.tolist(), pictures)


def evaluate_games(
    games: Sequence[Game],
    policy: Policy,
    seeds: Sequence[int],
    epsilon: float,
    device: torch.device,
    record: bool = False,
    stopped: Callable[[], bool] = _never,
) -> Evaluation:
    """One whole game per seed, several side by side, an action random with probability `epsilon`; given up when `stopped()`."""
    returns, pictures = [0.0] * len(seeds), []
    waiting = deque(range(len(seeds)))
    playing: dict[int, int] = {}  # game -> episode
    randoms = [np.random.default_rng([seed, 1]) for seed in seeds]  # of its own for each episode: company changes nothing
    while waiting or playing:
        if stopped():
            raise EvaluationStoppedError
        for number, game in enumerate(games):
            if number not in playing and waiting:
                playing[number] = waiting.popleft()
                game.reset(seeds[playing[number]])
        if record and 0 in playing.values():
            pictures.append(next(games[number] for number, episode in playing.items() if episode == 0).picture())
        observation = torch.from_numpy(np.stack([games[number].stack for number in playing])).to(device)
        for (number, episode), action in zip(list(playing.items()), policy.evaluation_action(observation).tolist(), strict=True):
            game, random = games[number], randoms[episode]
            chance, which = random.random(2)
            assert game.spec.num_actions is not None, "games have discrete actions"
            step = game.step(int(which * game.spec.num_actions) if chance < epsilon else action)
            returns[episode] += step.reward
            if step.terminated or step.truncated:
                del playing[number]
    return Evaluation(returns, pictures)


def write_video(path: str, pictures: Iterable[np.ndarray], frames_per_second: int = 30) -> None:
    import imageio.v2 as imageio

    # macro_block_size=None keeps pictures whose side is no multiple of 16 as they are.
    with imageio.get_writer(path, mode="I", fps=frames_per_second, macro_block_size=None) as video:
        for picture in pictures:
            video.append_data(picture)  # type: ignore[attr-defined]
