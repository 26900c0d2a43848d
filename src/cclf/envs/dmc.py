"""DeepMind Control from pixels, straight from dm_control: one render per agent step, exact save and
restore."""

import atexit
import os
import time
import weakref
from typing import Any

import numpy as np

from cclf.config import EnvConfig
from cclf.errors import ConfigError, did_you_mean
from cclf.storage.machine import GL_HELP
from cclf.storage.safe_loading import check_data, check_same_structure
from cclf.types import EnvSpec, EnvStep, StateDict

CAMERAS = {"quadruped": 2}  # by domain, the others 0: as DrQ-v2 sees them
PICTURE_PIXELS = 256
PLANE, DECORATION = 0, 4  # MuJoCo's mjGEOM_PLANE and mjCAT_DECOR: its own names are slow to compare
# domains in which the floor's shadow falls on nothing: the same pictures without it, by Mesa and by
# NVIDIA's driver (reacher and pendulum differ by the latter)
DOMAINS_WITHOUT_FLOOR_SHADOW = ("acrobot", "ball_in_cup", "cartpole", "finger")


def _import_suite() -> Any:
    """dm_control.suite, with a headless renderer chosen before MuJoCo is imported; the user's
    MUJOCO_GL wins."""
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
    return suite


class DeepMindControl:
    def __init__(self, domain: str, task: str, frame_pixels: int, action_repeat: int, seed: int):
        suite = _import_suite()
        import mujoco

        _refuse_unknown(suite, domain, task)
        self._mujoco = mujoco
        self._env = suite.load(domain, task, task_kwargs={"random": seed % 2**32})
        self._frame_pixels, self._repeat = frame_pixels, action_repeat
        self._camera = CAMERAS.get(domain, 0)
        self._spares_the_floor = domain in DOMAINS_WITHOUT_FLOOR_SHADOW
        self._renderers: dict[int, Any] = {}
        self._finalise = weakref.finalize(self, _close_renderers, self._renderers)
        self._pristine = {name: value.copy() for name, value in _float_arrays(self._model)}
        bounds = self._env.action_spec()
        self._low, self._high = bounds.minimum.astype(np.float32), bounds.maximum.astype(np.float32)
        limit = self._env._step_limit
        steps = None if np.isinf(limit) else -(-int(limit) // action_repeat)
        self.spec = EnvSpec(
            (3, frame_pixels, frame_pixels), int(np.prod(bounds.shape)), action_repeat, steps
        )

    @property
    def _model(self) -> Any:
        return self._env.physics.model.ptr

    @property
    def _data(self) -> Any:
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
        # dm_control marks a time limit with discount 1: the episode ends, its value does not.
        terminated = bool(time_step.last() and time_step.discount == 0.0)
        return EnvStep(
            self._frame(), reward, terminated, truncated=bool(time_step.last() and not terminated)
        )

    def _control(self, action: np.ndarray) -> np.ndarray:
        """An action in [-1, 1] on the task's own scale, with the roundings of dmc2gym, the released
        code's wrapper: bounds and result are float32, what lies between is float64. Where bounds
        are -1 and 1, as in the six tasks of the paper, a float32 action comes out as it went in;
        in float32, action + 1 loses up to 6e-8.
        """
        share = (np.clip(action, -1.0, 1.0).astype(np.float64) + 1.0) / 2.0
        control: np.ndarray = (share * (self._high - self._low) + self._low).astype(np.float32)
        return control

    def render(self) -> np.ndarray:
        return self._render(PICTURE_PIXELS)

    def close(self) -> None:
        _close_renderers(self._renderers)
        self._env.close()

    def renderer(self, frames: int) -> dict[str, Any]:
        """What draws, as GL names it (llvmpipe is a CPU), and how: the same picture `frames` times,
        timed and compared."""
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
            # MuJoCo sizes its off-screen buffer once, when a renderer is made; the smallest that
            # fits is the fastest.
            self._model.vis.global_.offwidth = self._model.vis.global_.offheight = pixels
            try:
                self._renderers[pixels] = self._mujoco.Renderer(self._model, pixels, pixels)
            except Exception as error:  # each GL backend raises its own kind
                raise ConfigError(
                    f"MuJoCo cannot open a headless renderer ({error}); {GL_HELP}"
                ) from error
            # Handlers run last to first: registered after MuJoCo's own, this one closes renderers
            # while the display is open.
            atexit.register(self._finalise)
        renderer = self._renderers[pixels]
        renderer.update_scene(self._data, camera=self._camera)
        if self._spares_the_floor:
            _disable_floor_shadow(renderer.scene)
        image: np.ndarray = renderer.render()
        return image

    _STATE = property(lambda self: self._mujoco.mjtState.mjSTATE_INTEGRATION)

    def state_dict(self) -> StateDict:
        """Physics, random stream, counters, and whatever the task has changed in the model (a
        target's place, a colour)."""
        physics = np.empty(self._mujoco.mj_stateSize(self._model, self._STATE))
        self._mujoco.mj_getState(self._model, self._data, physics, self._STATE)
        changed = {
            n: v.copy()
            for n, v in _float_arrays(self._model)
            if not np.array_equal(v, self._pristine[n], equal_nan=True)
        }
        kind, keys, position, has_gauss, gauss = self._env.task.random.get_state()
        return {
            "physics": physics,
            "model": changed,
            "task": {
                k: v
                for k, v in vars(self._env.task).items()
                if isinstance(v, (bool, int, float, str, np.ndarray))
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
            value[...] = state["model"].get(name, self._pristine[name])
        for name, value in state["task"].items():
            setattr(self._env.task, name, value)
        # Derived quantities come from mj_forward, which also moves the solver's warm start: so the
        # state is set again after it.
        for _ in range(2):
            self._mujoco.mj_setState(self._model, self._data, state["physics"], self._STATE)
            self._mujoco.mj_forward(self._model, self._data)
        self._mujoco.mj_setState(self._model, self._data, state["physics"], self._STATE)
        random = state["random"]
        self._env.task._random.set_state(
            (
                random["kind"],
                random["keys"].astype(np.uint32),
                random["position"],
                random["has_gauss"],
                random["gauss"],
            )
        )
        self._env._step_count = state["step_count"]
        self._env._reset_next_step = state["reset_next_step"]
        return True

    def _check_state(self, state: StateDict) -> None:
        """Names in a state become attributes of the task: only those it has, and of their kind."""
        own, known = self.state_dict(), vars(self._env.task)
        check_same_structure(own | {"model": {}, "task": {}}, state, "env of dmc")
        check_data(np.isfinite(state["physics"]).all(), "env: physics is not finite")
        for name, value in state["model"].items():
            check_data(name in self._pristine, f"env: a model has no {name!r}")
            check_same_structure(self._pristine[name], value, f"env of dmc, model: {name}")
        for name, value in state["task"].items():
            check_data(name in known, f"env: a task has no {name!r}")
            is_plain = isinstance(value, (bool, int, float, str, np.ndarray))
            check_data(
                is_plain and np.shape(own["task"].get(name, value)) == np.shape(value),
                f"env: a task's {name} is another",
            )


def _disable_floor_shadow(scene: Any) -> None:
    """The same picture sooner: seen from the light, a floor fills MuJoCo's map of shadows, four
    million pixels. Decoration is left out of that map, and drawn as before."""
    for geom in scene.geoms[: scene.ngeom]:
        if geom.type == PLANE and geom.mat[2, 2] == 1.0:  # not a wall
            geom.category = DECORATION


def _close_renderers(renderers: dict[int, Any]) -> None:
    for renderer in renderers.values():
        renderer.close()
    renderers.clear()


def _float_arrays(model: Any) -> list[tuple[str, np.ndarray]]:
    """The arrays of numbers in a MuJoCo model, by name: what a task may change when an episode
    begins."""
    names = [name for name in dir(model) if not name.startswith("_")]
    arrays = [(name, getattr(model, name)) for name in names]
    return [
        (n, v)
        for n, v in arrays
        if isinstance(v, np.ndarray) and v.dtype.kind == "f" and v.flags.writeable
    ]


def refuse_unknown(name: str, env: EnvConfig) -> None:  # noqa: ARG001 (all sizes can be drawn)
    domain, _, task = name.partition("-")
    _refuse_unknown(_import_suite(), domain, task)


def _refuse_unknown(suite: Any, domain: str, task: str) -> None:
    known = [f"dmc/{d}-{t}" for d, t in suite.ALL_TASKS]
    if f"dmc/{domain}-{task}" not in known:
        raise ConfigError(
            f"unknown task 'dmc/{domain}-{task}'{did_you_mean(f'dmc/{domain}-{task}', known)} (see: "
            "cclf tasks)"
        )


def make(name: str, env: EnvConfig, seed: int, evaluation: bool = False) -> DeepMindControl:  # noqa: ARG001
    """A task by its name after the slash; in evaluation it is the same."""
    return make_dmc(name, env.frame_pixels, env.action_repeat, seed)


def make_dmc(name: str, frame_pixels: int, action_repeat: int, seed: int) -> DeepMindControl:
    domain, _, task = name.partition("-")
    return DeepMindControl(domain, task, frame_pixels, action_repeat, seed)
