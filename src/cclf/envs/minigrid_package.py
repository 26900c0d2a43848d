"""MiniGrid tasks played by the minigrid package itself, and what it draws."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cclf.envs.grid_checks import (
    check_positive,
    check_same_worlds,
    check_started,
    checked_actions,
    checked_seeds,
    spaced_seeds,
)
from cclf.envs.minigrid_rules import AGENT_VIEW_X, AGENT_VIEW_Y
from cclf.types import VectorStep


class PackageMiniGrid:
    """N environments of one MiniGrid id, stepped one after the other by the minigrid package.

    The package cannot save its objects, so a state is the generator at the start of each episode
    and the actions since; loading plays them again and checks that the same observation comes out.
    """

    @staticmethod
    def picture(observation: NDArray[np.uint8]) -> NDArray[np.uint8]:
        return picture(observation)

    def __init__(self, env_id: str, num_envs: int, seed: int) -> None:
        check_positive("num_envs", num_envs)
        self.name, self.num_envs = env_id, num_envs
        try:
            self._envs = [
                gymnasium_with_minigrid().make(env_id, disable_env_checker=True)
                for _ in range(num_envs)
            ]
            self._envs[0].reset()  # seeded below: this only shows whether it can
        except FileNotFoundError as error:  # the WFC worlds: their patterns are not in the package
            raise ValueError(
                f"the minigrid package cannot make {env_id}: {error}; choose another task"
            ) from error
        self.observation_shape, self.num_actions, self.max_episode_steps = _package_spec(
            env_id, self._envs[0]
        )
        self._actions_since_start: list[list[int]] = [[] for _ in range(num_envs)]
        self._generator_at_start: list[Mapping[str, Any]] = [{} for _ in range(num_envs)]
        self._observation = np.zeros((num_envs, *self.observation_shape), dtype=np.uint8)
        self._started = False
        self._seed(spaced_seeds(seed, num_envs))

    def _seed(self, seeds: Sequence[int]) -> None:
        from gymnasium.utils.seeding import np_random

        for env, seed in zip(self._envs, seeds, strict=True):
            env.unwrapped.np_random = np_random(seed)[0]

    def reset(self, seeds: Sequence[int] | None = None) -> NDArray[np.uint8]:
        """Begin a new episode everywhere; with `seeds` (one each) the random streams restart too,
        as in gymnasium."""
        if seeds is not None:
            self._seed(checked_seeds(seeds, self.num_envs))
        for index in range(self.num_envs):
            self._begin_episode(index)
        self._started = True
        return self._observation.copy()

    def _begin_episode(self, index: int) -> None:
        env = self._envs[index]
        self._generator_at_start[index] = env.unwrapped.np_random.bit_generator.state
        self._actions_since_start[index] = []
        self._observation[index] = env.reset()[0]["image"]

    def step(self, actions: ArrayLike) -> VectorStep:
        check_started(self._started)
        action = checked_actions(actions, self.num_envs, self.num_actions)
        reward = np.zeros(self.num_envs, dtype=np.float32)
        terminated, truncated = np.zeros((2, self.num_envs), dtype=np.bool_)
        for index, chosen in enumerate(action.tolist()):
            seen, reward[index], terminated[index], truncated[index], _ = self._envs[index].step(
                chosen
            )
            self._observation[index] = seen["image"]
            self._actions_since_start[index].append(chosen)
            if terminated[index] or truncated[index]:
                self._begin_episode(index)
        return VectorStep(self._observation.copy(), reward, terminated, truncated)

    def render(self, index: int, tile_pixels: int = 16) -> NDArray[np.uint8]:
        """RGB picture of one whole world: agent, and a lighter field of view."""
        check_started(self._started)
        world: Any = self._envs[index].unwrapped
        return np.asarray(world.get_frame(highlight=True, tile_size=tile_pixels), dtype=np.uint8)

    def state_dict(self) -> dict[str, Any]:
        generator_now = [env.unwrapped.np_random.bit_generator.state for env in self._envs]
        return {
            "name": self.name,
            "num_envs": self.num_envs,
            "started": self._started,
            "generator": [
                dict(state)
                for state in (self._generator_at_start if self._started else generator_now)
            ],
            "actions_since_start": [list(actions) for actions in self._actions_since_start],
            "observation": self._observation.copy(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        check_same_worlds(state, self.name, self.num_envs)
        self._started = state["started"]
        for index, env in enumerate(self._envs):
            env.unwrapped.np_random.bit_generator.state = state["generator"][index]
            if not self._started:
                continue  # seeded, but no episode to replay yet
            self._begin_episode(index)
            for action in state["actions_since_start"][index]:
                self._observation[index] = env.step(action)[0]["image"]
            self._actions_since_start[index] = list(state["actions_since_start"][index])
        if self._started and not np.array_equal(self._observation, state["observation"]):
            raise RuntimeError(
                f"resuming {self.name}: replaying the saved actions gave other observations than "
                "those saved; "
                "use the minigrid version that wrote the state, or start a new run"
            )

    def close(self) -> None:
        for env in self._envs:
            env.close()


def _package_spec(env_id: str, env: Any) -> tuple[tuple[int, int, int], int, int]:
    """(observation shape, number of actions, episode limit), or an error that says which of them is
    missing."""
    spaces = getattr(env.observation_space, "spaces", {})
    image = spaces.get("image") if isinstance(spaces, dict) else None
    shape: tuple[int, ...] = getattr(image, "shape", None) or ()
    if len(shape) != 3 or shape[2] != 3 or getattr(image, "dtype", None) != np.uint8:
        raise ValueError(
            f"{env_id} has no (H, W, 3) uint8 'image' observation, got {env.observation_space}; "
            "choose a grid task such as FourRooms"
        )
    num_actions, max_steps = (
        getattr(env.action_space, "n", None),
        getattr(env.unwrapped, "max_steps", None),
    )
    if num_actions is None or max_steps is None:
        raise ValueError(
            f"{env_id} needs discrete actions and a max_steps attribute, got {env.action_space} "
            f"and max_steps={max_steps}; choose a grid task such as FourRooms"
        )
    return (int(shape[0]), int(shape[1]), 3), int(num_actions), int(max_steps)


def picture(observation: NDArray[np.uint8], tile_pixels: int = 12) -> NDArray[np.uint8]:
    """What one agent sees, a (7, 7, 3) observation, as RGB: it stands in the middle of the lowest
    row and looks up."""
    gymnasium_with_minigrid()
    from minigrid.core.grid import Grid

    grid, seen = Grid.decode(observation)
    drawn = grid.render(tile_pixels, (AGENT_VIEW_X, AGENT_VIEW_Y), 3, highlight_mask=seen)
    return np.asarray(drawn, dtype=np.uint8)


def gymnasium_with_minigrid() -> Any:
    """gymnasium with the MiniGrid ids registered; late, so that the batched worlds need numpy
    only."""
    try:
        import gymnasium
        import minigrid  # noqa: F401
    except ImportError as error:
        raise ImportError(
            f"this needs gymnasium and minigrid, got: {error}; pip install 'cclf[minigrid]'"
        ) from error
    return gymnasium


def package_id_by_name() -> dict[str, str]:
    ids = [
        env_id for env_id in gymnasium_with_minigrid().registry if env_id.startswith("MiniGrid-")
    ]
    return {env_id.removeprefix("MiniGrid-").removesuffix("-v0"): env_id for env_id in ids}
