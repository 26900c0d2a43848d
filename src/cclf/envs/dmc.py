"""DeepMind Control from pixels by dm_control. A frame is rendered once per agent step, and the state
can be saved and restored exactly."""

import atexit
import os
import time
import weakref
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np

from cclf.config import EnvConfig
from cclf.envs.registry import unknown_task
from cclf.errors import ConfigError
from cclf.storage.machine import GL_HELP
from cclf.storage.safe_loading import check_data, check_same_structure
from cclf.types import EnvSpec, EnvStep, StateDict

CAMERAS = {"quadruped": 2}  # camera ids by domain, 0 for the others, as in DrQ-v2
RENDER_PIXELS = 256
# MuJoCo's mjGEOM_PLANE and mjCAT_DECOR, as integers: its enums are slow to compare.
PLANE, DECORATION = 0, 4
# Domains whose images do not change if the floor casts no shadow (checked with Mesa and NVIDIA's
# driver; images of reacher and pendulum change with the latter).
DOMAINS_WITHOUT_FLOOR_SHADOW = ("acrobot", "ball_in_cup", "cartpole", "finger")

MujocoObject: TypeAlias = Any  # MuJoCo has no types
# An attribute of a task is saved with its state if it has one of these types.
PLAIN_TYPES = (bool, int, float, str, np.ndarray)


def _import_suite() -> ModuleType:
    """Import and return dm_control.suite. The renderer must be chosen before MuJoCo is imported; it is
    EGL unless the user set MUJOCO_GL."""
    os.environ.setdefault("MUJOCO_GL", "egl")
    if os.environ["MUJOCO_GL"] == "egl":
        os.environ.setdefault("PYOPENGL_PLATFORM", "egl")
    try:
        from dm_control import suite
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"dmc tasks need the package {error.name}: pip install 'cclf[dmc]'"
        ) from error
    except (ImportError, RuntimeError, AttributeError) as error:
        raise ConfigError(
            f"MuJoCo cannot render with MUJOCO_GL={os.environ['MUJOCO_GL']}: its GL libraries are "
            f"missing; {GL_HELP} ({error})"
        ) from error
    module: ModuleType = suite
    return module


class DeepMindControl:
    def __init__(self, name: str, frame_pixels: int, action_repeat: int, seed: int):
        suite = _import_suite()
        import mujoco

        known = {f"dmc/{domain}-{task}": (domain, task) for domain, task in suite.ALL_TASKS}
        if f"dmc/{name}" not in known:
            raise unknown_task(f"dmc/{name}", known)
        domain, task = known[f"dmc/{name}"]
        self._mujoco = mujoco
        self._env = suite.load(domain, task, task_kwargs={"random": seed % 2**32})
        self._frame_pixels, self._repeat = frame_pixels, action_repeat
        self._camera = CAMERAS.get(domain, 0)
        self._skip_floor_shadow = domain in DOMAINS_WITHOUT_FLOOR_SHADOW
        self._renderers: dict[int, MujocoObject] = {}  # by the side of their images in pixels
        self._finalise = weakref.finalize(self, _close_renderers, self._renderers)
        self._initial_arrays = {name: value.copy() for name, value in _float_arrays(self._model)}
        bounds = self._env.action_spec()
        self._low, self._high = bounds.minimum.astype(np.float32), bounds.maximum.astype(np.float32)
        limit = self._env._step_limit
        steps = None if np.isinf(limit) else -(-int(limit) // action_repeat)
        self.spec = EnvSpec(
            (3, frame_pixels, frame_pixels), int(np.prod(bounds.shape)), action_repeat, steps
        )

    @property
    def _model(self) -> MujocoObject:
        return self._env.physics.model.ptr

    @property
    def _data(self) -> MujocoObject:
        return self._env.physics.data.ptr

    def reset(self, seed: int | None = None) -> np.ndarray:
        if seed is not None:
            self._env.task._random = np.random.RandomState(seed % 2**32)
        self._env.reset()
        return self._frame()

    def step(self, action: np.ndarray) -> EnvStep:
        control = self._control(action)
        reward = 0.0
        for _ in range(self._repeat):
            time_step = self._env.step(control)
            reward += time_step.reward or 0.0
            if time_step.last():
                break
        # dm_control marks a time limit with discount 1.
        terminated = bool(time_step.last() and time_step.discount == 0.0)
        truncated = bool(time_step.last() and not terminated)
        return EnvStep(self._frame(), reward, terminated, truncated)

    def _control(self, action: np.ndarray) -> np.ndarray:
        """Rescale an action in [-1, 1] to the bounds of the task, with the rounding of dmc2gym, the
        wrapper of the released code: float32 bounds and result, float64 in between. With bounds of
        -1 and 1, as in the six tasks of the paper, a float32 action is returned unchanged; in
        float32, action + 1 would lose up to 6e-8.
        """
        fraction = (np.clip(action, -1.0, 1.0).astype(np.float64) + 1.0) / 2.0
        control: np.ndarray = (fraction * (self._high - self._low) + self._low).astype(np.float32)
        return control

    def render(self) -> np.ndarray:
        return self._render(RENDER_PIXELS)

    def close(self) -> None:
        _close_renderers(self._renderers)
        self._env.close()

    def renderer_facts(self, frames: int) -> dict[str, Any]:
        """The names that OpenGL reports (the renderer llvmpipe runs on the CPU), and the results of
        rendering the same frame `frames` times: the time of each and how many images differ."""
        from OpenGL import GL

        first, milliseconds, differing = self._frame(), [], 0
        for _ in range(frames):
            start = time.perf_counter()
            again = self._frame()
            milliseconds.append(1e3 * (time.perf_counter() - start))
            differing += not np.array_equal(again, first)
        names = {"renderer": GL.GL_RENDERER, "vendor": GL.GL_VENDOR, "gl_version": GL.GL_VERSION}
        return {
            **{key: (GL.glGetString(name) or b"unknown").decode() for key, name in names.items()},
            "backend": os.environ["MUJOCO_GL"],
            "ms_per_frame": round(float(np.median(milliseconds)), 3),
            "blank": bool(first.min() == first.max()),
            "differing_frames": differing,
        }

    def _frame(self) -> np.ndarray:
        return np.ascontiguousarray(self._render(self._frame_pixels).transpose(2, 0, 1))

    def _render(self, pixels: int) -> np.ndarray:
        if pixels not in self._renderers:
            # MuJoCo allocates its off-screen buffer when a renderer is made; the smallest one that
            # fits is the fastest.
            self._model.vis.global_.offwidth = self._model.vis.global_.offheight = pixels
            try:
                self._renderers[pixels] = self._mujoco.Renderer(self._model, pixels, pixels)
            except Exception as error:  # each GL backend raises exceptions of its own class
                raise ConfigError(
                    f"MuJoCo cannot open a headless renderer ({error}); {GL_HELP}"
                ) from error
            # Exit handlers run in reverse order: this one is registered after MuJoCo's own and
            # closes the renderers while the display is still open.
            atexit.register(self._finalise)
        renderer = self._renderers[pixels]
        renderer.update_scene(self._data, camera=self._camera)
        if self._skip_floor_shadow:
            _disable_floor_shadow(renderer.scene)
        image: np.ndarray = renderer.render()
        return image

    # the quantities of the simulation that are saved: all inputs of mj_step
    _STATE_SPEC = property(lambda self: self._mujoco.mjtState.mjSTATE_INTEGRATION)

    def state_dict(self) -> StateDict:
        """Physics, random stream, counters, and what the task has changed in the model, for example
        the position of a target."""
        physics = np.empty(self._mujoco.mj_stateSize(self._model, self._STATE_SPEC))
        self._mujoco.mj_getState(self._model, self._data, physics, self._STATE_SPEC)
        changed = {
            name: value.copy()
            for name, value in _float_arrays(self._model)
            if not np.array_equal(value, self._initial_arrays[name], equal_nan=True)
        }
        kind, keys, position, has_gauss, gauss = self._env.task.random.get_state()
        return {
            "physics": physics,
            "model": changed,
            "task": {
                name: value
                for name, value in vars(self._env.task).items()
                if isinstance(value, PLAIN_TYPES)
            },
            "random": {
                "kind": kind,
                "keys": keys.astype(np.int64),
                "position": position,
                "has_gauss": has_gauss,
                "gauss": gauss,
            },
            "step_count": self._env._step_count,
            "reset_next_step": self._env._reset_next_step,
        }

    def load_state_dict(self, state: StateDict) -> bool:
        self._env.reset()
        self._check_state(state)
        for name, value in _float_arrays(self._model):
            value[...] = state["model"].get(name, self._initial_arrays[name])
        for name, value in state["task"].items():
            setattr(self._env.task, name, value)
        # mj_forward computes derived quantities, but also changes the warm start of the solver, so
        # the state is set again after it.
        for _ in range(2):
            self._mujoco.mj_setState(self._model, self._data, state["physics"], self._STATE_SPEC)
            self._mujoco.mj_forward(self._model, self._data)
        self._mujoco.mj_setState(self._model, self._data, state["physics"], self._STATE_SPEC)
        random = state["random"]
        keys = random["keys"].astype(np.uint32)
        self._env.task._random.set_state(
            (random["kind"], keys, random["position"], random["has_gauss"], random["gauss"])
        )
        self._env._step_count = state["step_count"]
        self._env._reset_next_step = state["reset_next_step"]
        return True

    def _check_state(self, state: StateDict) -> None:
        """Raise ValueError unless the state fits this task. Names in the state become attributes of
        the task, so only the names of existing attributes are accepted."""
        check_same_structure(self.state_dict() | {"model": {}, "task": {}}, state, "env of dmc")
        for name, value in state["model"].items():
            check_data(name in self._initial_arrays, f"env: a model has no {name!r}")
            check_same_structure(self._initial_arrays[name], value, f"env of dmc, model: {name}")
        attributes = vars(self._env.task)
        for name, value in state["task"].items():
            fits = name in attributes and isinstance(value, PLAIN_TYPES)
            fits = fits and np.shape(value) == np.shape(attributes[name])
            check_data(fits, f"env: the task has no attribute {name!r} of this shape")


def _disable_floor_shadow(scene: MujocoObject) -> None:
    """Mark the floor as decoration, which is rendered but casts no shadow. The image is the same and
    is rendered faster: the floor fills the light's shadow map, which has four million pixels."""
    for geom in scene.geoms[: scene.ngeom]:
        if geom.type == PLANE and geom.mat[2, 2] == 1.0:  # not a wall
            geom.category = DECORATION


def _close_renderers(renderers: dict[int, MujocoObject]) -> None:
    for renderer in renderers.values():
        renderer.close()
    renderers.clear()


def _float_arrays(model: MujocoObject) -> list[tuple[str, np.ndarray]]:
    """The writable float arrays of a MuJoCo model by name, which a task may change when an episode
    begins."""
    arrays = [(name, getattr(model, name)) for name in dir(model) if not name.startswith("_")]
    return [
        (name, value)
        for name, value in arrays
        if isinstance(value, np.ndarray) and value.dtype.kind == "f" and value.flags.writeable
    ]


def make(name: str, env: EnvConfig, seed: int, evaluation: bool = False) -> DeepMindControl:  # noqa: ARG001
    return DeepMindControl(name, env.frame_pixels, env.action_repeat, seed)
