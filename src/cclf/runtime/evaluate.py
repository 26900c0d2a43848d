"""Evaluation: in an environment of its own, with seeds of its own, so that it can never change training."""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from cclf.types import Env, Policy


class Evaluation(NamedTuple):
    returns: list[float]
    pictures: list[np.ndarray]  # of the first episode, when asked for

    @property
    def mean(self) -> float:
        return float(np.mean(self.returns))

    @property
    def std(self) -> float:
        return float(np.std(self.returns))


def evaluate(
    env: Env, policy: Policy, seeds: Sequence[int], frame_stack: int, device: torch.device, record: bool = False
) -> Evaluation:
    """One episode per seed with the deterministic policy."""
    returns, pictures = [], []
    for episode, seed in enumerate(seeds):
        frames = deque([env.reset(seed)] * frame_stack, maxlen=frame_stack)
        total, ended = 0.0, False
        while not ended:
            if record and episode == 0:
                pictures.append(env.picture())
            stack = torch.from_numpy(np.concatenate(frames)).to(device)
            step = env.step(policy.evaluation_action(stack[None])[0].cpu().numpy())
            frames.append(step.frame)
            total += step.reward
            ended = step.terminated or step.truncated
        returns.append(total)
    return Evaluation(returns, pictures)


def write_video(path: str, pictures: Sequence[np.ndarray], frames_per_second: int = 30) -> None:
    import imageio.v2 as imageio

    # macro_block_size=None keeps pictures whose side is no multiple of 16 as they are.
    imageio.mimwrite(path, list(pictures), fps=frames_per_second, macro_block_size=None)
