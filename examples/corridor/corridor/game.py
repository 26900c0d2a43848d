import numpy as np

from cclf.types import EnvSpec, EnvStep

CELLS, TIME_LIMIT = 8, 50


class Corridor:
    """Actions: left, right. A step costs 0.1; the one into the last of eight cells pays 1."""

    def __init__(self, frame_pixels, seed):
        self.spec = EnvSpec((1, frame_pixels, frame_pixels), 1, 1, TIME_LIMIT, num_actions=2)
        self.random = np.random.default_rng(seed)
        self.cell, self.steps = 0, 0

    def reset(self, seed=None):
        if seed is not None:
            self.random = np.random.default_rng(seed)
        self.cell, self.steps = int(self.random.integers(CELLS // 2)), 0
        return self._frame()

    def step(self, action):
        self.cell = min(max(self.cell + 2 * action - 1, 0), CELLS - 1)
        self.steps += 1
        terminated = self.cell == CELLS - 1
        truncated = self.steps == TIME_LIMIT and not terminated
        return EnvStep(self._frame(), 1.0 if terminated else -0.1, terminated, truncated)

    def _frame(self):  # (1, P, P)
        frame = np.zeros(self.spec.frame_shape, np.uint8)
        width = frame.shape[2] // CELLS
        frame[:, :, self.cell * width : (self.cell + 1) * width] = 255
        return frame

    def render(self):  # an image for people, (H, W, 3)
        return np.repeat(self._frame().transpose(1, 2, 0), 3, axis=2)

    def close(self):
        pass

    def state_dict(self):
        random = self.random.bit_generator.state
        return {"cell": self.cell, "steps": self.steps, "random": random}

    def load_state_dict(self, state):
        self.cell, self.steps = state["cell"], state["steps"]
        self.random.bit_generator.state = state["random"]
        return True


def make(name, env, seed, evaluation=False):
    return Corridor(env.frame_pixels, seed)
