"""The agent of a run folder, for programs that step their own environment (docs/usage.md)."""

import os
from base64 import b64encode
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike

from cclf.algorithms.registry import make_agent
from cclf.console import facts_line, facts_table
from cclf.envs.frame_stack import BatchFrameStack
from cclf.errors import ConfigError, rendering_extras, require_extras, short_error
from cclf.storage.run_folder import read_config
from cclf.training import devices
from cclf.training.agent import evaluation_networks, load_agent
from cclf.training.devices import default_settings
from cclf.training.evaluation import Evaluation
from cclf.training.seeding import derive
from cclf.training.video import VIDEO_SUFFIXES, write_video
from cclf.types import Policy, SamplingPolicy
from cclf.validation import PositiveInt, Seed, to_python_number, validate_value


class Episode(NamedTuple):
    """A recorded episode. A notebook displays its video."""

    path: Path  # of the video
    total_return: float
    agent_steps: int

    def _repr_html_(self) -> str:
        content = b64encode(self.path.read_bytes()).decode()
        if self.path.suffix == ".gif":
            return f'<img alt="episode" src="data:image/gif;base64,{content}">'
        return f'<video controls autoplay loop muted src="data:video/mp4;base64,{content}"></video>'


class TrainedAgent:
    """Acts on one frame after another, or on batches of them. It keeps no environment open."""

    def __init__(self, folder: Path, device: str, seed: int, trust_imports: bool):
        self._device = devices.choose_device(device)
        with default_settings():
            agent, _, self.env_steps = load_agent(
                folder, self._device, episodes=1, trust_imports=trust_imports
            )
            agent.close()
        self.config = read_config(folder)
        self.policy: Policy | SamplingPolicy = agent.policy
        self._networks = evaluation_networks(agent.policy)
        self._random = np.random.default_rng(derive(seed, "act"))
        self._num_actions, self._frame_stack = None, None
        if agent.spec is not None:
            self._num_actions = agent.spec.num_actions
            self._frame_stack = BatchFrameStack(agent.spec, self.config.env.frame_stack)

    def reset(self, rows: ArrayLike | None = None) -> None:
        """Declare that the next frame begins an episode: in all rows of a batch, or only in `rows`,
        which are indices or one boolean for each row."""
        self._require_frame_stack().reset(rows)

    def act(self, observation: ArrayLike) -> np.ndarray | int:
        """The action for the newest frame, or one action for each row of a batch of frames.

        Continuous actions are float32, each number in [-1, 1]; a discrete action is an integer. An
        evaluation takes the same action, except where its algorithm also takes random actions in
        evaluations (`epsilon_eval`).
        """
        frame_stack, frames = self._require_frame_stack(), _to_array(observation)
        batch = frame_stack.to_batch(frames)
        with default_settings():
            actions = self._actions(frame_stack.push(batch))
        if frames.shape != frame_stack.frame_shape:
            return actions
        return actions[0] if self._num_actions is None else int(actions[0])

    def evaluate(self, episodes: int = 10, seed: int = 0) -> Evaluation:
        """Play new episodes, the same ones as `cclf evaluate` with this `seed`."""
        episodes, seed = to_python_number(episodes), to_python_number(seed)
        validate_value("episodes", episodes, PositiveInt)
        validate_value("seed", seed, Seed)
        return self._evaluate(episodes, seed)

    def play(self, out: str | os.PathLike[str] = "episode.mp4", seed: int = 0) -> Episode:
        """Record an episode, the first of `evaluate` with the same `seed`, as an .mp4 or a .gif. A
        notebook displays the returned `Episode` as a video.

        >>> cclf.load("pretrained/DoorKey-6x6").play("episode.gif").total_return  # doctest: +SKIP
        0.935
        """
        path, seed = Path(out), to_python_number(seed)
        validate_value("seed", seed, Seed)
        if path.suffix not in VIDEO_SUFFIXES or not path.parent.is_dir():
            raise ConfigError(
                f"cannot write the video {path}: name an .mp4 or a .gif in an existing folder"
            )
        require_extras("agent.play()", ["video", *rendering_extras(self.config.task)])
        episode = self._evaluate(1, seed, record=True)
        if episode.recording_error:
            raise ConfigError(f"cannot render: {episode.recording_error}")
        write_video(str(path), episode.pictures)
        return Episode(path, episode.mean, len(episode.pictures))

    def __repr__(self) -> str:
        return f"<cclf.TrainedAgent {facts_line(self._facts())}>"

    def _repr_html_(self) -> str:
        return facts_table(self._facts())

    def _facts(self) -> dict[str, str]:
        return {
            "task": self.config.task,
            "method": self.config.method_name,
            "seed": str(self.config.seed),
            "env steps": f"{self.env_steps:,}",
        }

    def _evaluate(self, episodes: int, seed: int, record: bool = False) -> Evaluation:
        config = replace(self.config, run=replace(self.config.run, eval_episodes=episodes))
        with default_settings(), closing(make_agent(config, self._device)) as agent:
            evaluation_networks(agent.policy).load_state_dict(self._networks.state_dict())
            return agent.evaluate([derive(seed, "evaluate", n) for n in range(episodes)], record)

    def _require_frame_stack(self) -> BatchFrameStack:
        if self._frame_stack is None:
            raise ConfigError(
                f"the base algorithm {self.config.base} does not say what its agent sees: give its "
                "Agent a spec (see cclf.training.agent); evaluation works without one"
            )
        return self._frame_stack

    def _actions(self, stacks: np.ndarray) -> np.ndarray:  # (N, ...) -> (N, A) or (N,)
        if not isinstance(self.policy, Policy):
            uniform = self._random.random((len(stacks), self._num_actions or 0))
            return self.policy.act(stacks, uniform)
        # Policies with discrete actions act on the CPU, whatever device trained them.
        device = self._device if self._num_actions is None else torch.device("cpu")
        # A CPU computes each action alone, as in evaluation: a batch may change the last bit.
        batches = [stacks] if device.type != "cpu" else [stack[None] for stack in stacks]
        actions = [_greedy_actions(self.policy, batch, device) for batch in batches]
        if self._num_actions is None:
            return np.concatenate(actions)
        return np.array([action.item() for action in actions])


def _greedy_actions(policy: Policy, stacks: np.ndarray, device: torch.device) -> np.ndarray:
    observations = torch.from_numpy(np.ascontiguousarray(stacks)).to(device)
    with torch.inference_mode():
        return policy.evaluation_action(observations).cpu().numpy()


def _to_array(observation: ArrayLike) -> np.ndarray:
    try:
        return np.asarray(observation)
    except Exception as error:  # the class of the observation may raise anything
        raise ConfigError(
            f"the observation cannot be read as an array: {short_error(error)}"
        ) from error
