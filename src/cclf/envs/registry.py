"""Suites of tasks: those of this package, and those that other packages add by entry points.

This module holds metadata only. An environment is imported when it is made.
"""

import importlib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple, get_args

from cclf.config import EnvConfig, ObservationType, TaskKind
from cclf.envs.atari_games import ATARI_GAMES, game_name
from cclf.errors import ConfigError, did_you_mean
from cclf.plugins import load_entry_points, qualified_name

ENTRY_POINTS = "cclf.suites"  # group of entry points, each of which names a `Suite`
Overrides = dict[str, Any]  # values of fields of `EnvConfig` or `RunConfig`, by field name


@dataclass(frozen=True)
class Task:
    name: str
    summary: str
    env: Overrides = field(default_factory=dict)
    run: Overrides = field(default_factory=dict)
    kind: TaskKind | None = None
    """None means the kind of its suite."""
    repeats_actions: bool = True
    """Whether `action_repeat` has an effect."""


class EnvInfo(NamedTuple):
    """What is known of a task only once its environment is made."""

    kind: TaskKind
    note: str = ""
    """Printed after the task's name when a run begins."""
    state_note: str = ""
    """The same with `observe="state"`."""


@dataclass(frozen=True)
class Suite:
    name: str
    """The part of a task's name before the slash."""
    kind: TaskKind
    """The kind of its tasks, unless a task or `inspect_env` states another."""
    factory: str
    """`module:function` with the arguments (name, EnvConfig, seed, evaluation), which returns an
    `Env`; for grids (name, num_envs, seed), which returns a `VectorEnv`."""
    tasks: tuple[Task, ...] = ()
    naming_help: str = ""
    """How further tasks are named, if there are any."""
    package: str | None = None
    """The package that must be installed; the extra has the name of the suite."""
    env: Overrides = field(default_factory=dict)
    run: Overrides = field(default_factory=dict)
    repeats_actions: bool = True
    observations: tuple[ObservationType, ...] = ("pixels",)
    """The observation types that its tasks support, see `EnvConfig.observe`."""
    has_dict_observations: bool = False
    """Whether `EnvConfig.observe_key` can select a part of an observation."""
    canonical_name: Callable[[str], str] = str
    """Converts the part of a task's name after the slash from any accepted spelling to the one that
    is used."""
    inspect_env: str = ""
    """`module:function` that takes a name and returns an `EnvInfo`, for tasks whose kind only their
    environment knows. It makes the environment, so it runs the code that the name refers to."""

    @property
    def kinds(self) -> frozenset[TaskKind]:
        """The kinds that its tasks can have. No environment is made."""
        inspected: tuple[TaskKind, ...] = ("continuous", "discrete") if self.inspect_env else ()
        return frozenset({self.kind, *(task.kind or self.kind for task in self.tasks), *inspected})

    def call(self, path: str, *arguments: object) -> Any:
        """Import the function `module:function` of this suite and call it."""
        module, _, name = path.partition(":")
        try:
            function = getattr(importlib.import_module(module), name)
        except (ModuleNotFoundError, AttributeError) as error:
            missing = error.name if isinstance(error, ModuleNotFoundError) else module
            if missing == self.package:
                raise ConfigError(
                    f"{self.name} tasks need the package {missing}: pip install 'cclf[{self.name}]'"
                ) from error
            if missing != module:
                raise  # the missing module is another one, which this module imports
            raise ConfigError(
                f"the suite {self.name} is made by {path}, which is not there: {error}"
            ) from error
        return function(*arguments)


_TOY_ENV: Overrides = {"frame_pixels": 20, "crop_pixels": 16, "frame_stack": 1, "action_repeat": 1}
_CATCH_ENV: Overrides = {
    "frame_pixels": 50,
    "crop_pixels": 50,
    "frame_stack": 2,
    "action_repeat": 1,
}
_TOY_RUN: Overrides = {
    "env_steps": 3_000,
    "threads": 1,
    "eval_every_env_steps": 500,
    "eval_episodes": 20,
    "log_every_agent_steps": 50,
}
_LONG_RUN: Overrides = {
    "env_steps": 2_400_000,
    "eval_every_env_steps": 19_200,
    "log_every_agent_steps": 19_200,
}

_DMC = Suite(
    "dmc",
    kind="continuous",
    factory="cclf.envs.dmc:make",
    package="dm_control",
    naming_help="dmc/<domain>-<task>: any other task of the DeepMind Control suite",
    tasks=(
        Task("dmc/finger-spin", "turn the spinner", env={"action_repeat": 2}),
        Task("dmc/cartpole-swingup", "swing the pole up and balance it", env={"action_repeat": 8}),
        Task("dmc/reacher-easy", "reach the target with a two-link arm"),
        Task("dmc/cheetah-run", "run"),
        Task("dmc/walker-walk", "walk", env={"action_repeat": 2}),
        Task("dmc/ball_in_cup-catch", "catch the ball in the cup"),
    ),
)
_MINIGRID = Suite(
    "minigrid",
    kind="grid",
    factory="cclf.envs.minigrid:make",
    package="minigrid",
    naming_help="minigrid/<name>: any other MiniGrid environment, e.g. minigrid/FourRooms",
    env={"frame_pixels": 7, "crop_pixels": 7, "frame_stack": 1, "action_repeat": 1},
    run={
        "env_steps": 400_000,
        "eval_every_env_steps": 3_200,
        "eval_episodes": 100,
        "threads": 1,
        "log_every_agent_steps": 3_200,
    },
    repeats_actions=False,
    tasks=(
        Task("minigrid/Empty-16x16", "cross an empty room"),
        Task("minigrid/DoorKey-6x6", "find the key, open the door, reach the goal"),
        Task("minigrid/DoorKey-8x8", "the same in a larger room", run=_LONG_RUN),
    ),
)
_TOY = Suite(
    "toy",
    kind="continuous",
    factory="cclf.envs.toy:make",
    tasks=(
        Task(
            "toy/reach",
            "move a dot onto another, 20x20 pixels; learned in a minute on a CPU",
            _TOY_ENV,
            _TOY_RUN,
        ),
        Task(
            "toy/reach-1d",
            "the same along one line; learned in a minute on a CPU",
            _TOY_ENV,
            _TOY_RUN | {"env_steps": 1_500, "eval_every_env_steps": 250},
        ),
        Task(
            "toy/catch",
            "move a paddle under a falling ball, 50x50 pixels; learned in a minute on a CPU",
            _CATCH_ENV,
            _TOY_RUN | {"env_steps": 2_000, "final_eval_episodes": 100, "video": False},
            kind="discrete",
            repeats_actions=False,
        ),
    ),
)
_ATARI = Suite(
    "atari",
    kind="discrete",
    factory="cclf.envs.atari:make",
    package="ale-py",
    naming_help="atari/<game>: any other game of the Arcade Learning Environment, e.g. atari/SpaceInvaders",
    run={
        "env_steps": 400_000,
        "eval_every_env_steps": 40_000,
        "final_eval_episodes": 100,
        "log_every_agent_steps": 1_000,
        "video": False,
    },
    canonical_name=game_name,
    tasks=tuple(Task(f"atari/{game}", summary) for game, summary in ATARI_GAMES.items()),
)
_GYM = Suite(
    "gym",
    kind="continuous",
    factory="cclf.envs.gymnasium_env:make",
    package="gymnasium",
    naming_help="gym/<id>: any registered Gymnasium environment, from its pixels or by --observe state; "
    "gym/MODULE:FUNCTION: one that a function of yours makes",
    env={"action_repeat": 1},
    observations=("pixels", "state"),
    has_dict_observations=True,
    inspect_env="cclf.envs.gymnasium_env:inspect_env",
)
BUILT_IN = (_DMC, _MINIGRID, _TOY, _ATARI, _GYM)


@cache
def suites() -> dict[str, Suite]:
    """All suites by name."""
    by_name = {suite.name: suite for suite in BUILT_IN}
    load_entry_points(ENTRY_POINTS, Suite, by_name, _validate_suite)
    return by_name


def _validate_suite(suite: Suite) -> str:
    """What is wrong with a suite of another package, as a relative clause for
    `plugins.load_entry_points`; empty if nothing is."""
    kinds = get_args(TaskKind)
    for kind in (suite.kind, *(task.kind for task in suite.tasks if task.kind is not None)):
        if kind not in kinds:
            return f"which has tasks of the kind {kind!r}: use one of {', '.join(kinds)}"
    if not suite.tasks and not suite.naming_help:
        return "which has no task"
    if "/" in suite.name:
        return f"whose name {suite.name!r} has a slash"
    for task in suite.tasks:
        if task.name != f"{suite.name}/{suite.canonical_name(task.name.partition('/')[2])}":
            return f"whose task {task.name!r} is not called {suite.name}/..."
    for name in ("factory", "inspect_env"):
        path = getattr(suite, name)
        if (path or name == "factory") and not all(path.partition(":")):
            return f"whose {name} {path!r} is not module:function"
    return ""


def known_tasks() -> dict[str, Task]:
    return {task.name: task for suite in suites().values() for task in suite.tasks}


def to_task_name(task: object) -> str:
    """The name of a task that a program passed: the text, or gym/MODULE:FUNCTION of a function that
    makes a Gymnasium environment. Raises ConfigError for anything else."""
    if isinstance(task, str):
        return task
    kind = type(task).__name__
    if hasattr(task, "step") and not isinstance(task, type):
        spec = getattr(task, "spec", None)
        env_id = getattr(spec, "id", None)
        by_id = f", or its id: cclf.train('gym/{env_id}')" if isinstance(env_id, str) else ""
        raise ConfigError(
            f"task is an environment ({kind}), but a run makes several of them: pass the function "
            "that makes it, without arguments and defined with `def` in a module: "
            f"cclf.train(make_env){by_id}"
        )
    if not callable(task):
        raise ConfigError(f"task is {kind}, not a name such as toy/reach or a function")
    name = qualified_name("task", task)
    _reject_registered_name(name)
    return f"gym/{name}"


def _reject_registered_name(name: str) -> None:
    """Raise ConfigError if the name MODULE:FUNCTION is also that of a registered environment:
    Gymnasium would make the registered environment and never call the function."""
    from gymnasium.envs.registration import find_highest_version, registry

    function = name.partition(":")[2]
    version = find_highest_version(None, function)
    env_id = function if version is None else f"{function}-v{version}"
    if env_id in registry:
        raise ConfigError(
            f"task: {name} has the name of the registered environment {env_id}: pass its id, "
            f"'gym/{name.partition(':')[0]}:{env_id}', or rename the function"
        )


def unknown_task(name: str, known: Iterable[str]) -> ConfigError:
    hint = did_you_mean(name, known)
    if re.fullmatch(r"(?!MiniGrid-)[\w.:-]+-v\d+|[\w.]+:\w+", name):  # as Gymnasium names it
        hint = f"; did you mean {_GYM.name}/{name}?"
    return ConfigError(f"unknown task {name!r}{hint} (see: cclf tasks)")


def suite_of(task_name: str) -> Suite:
    name = task_name.partition("/")[0]
    if name not in suites():
        raise unknown_task(task_name, known_tasks())
    return suites()[name]


def find_task(name: str) -> Task:
    suite, rest = suite_of(name), name.partition("/")[2]
    name = f"{suite.name}/{suite.canonical_name(rest)}"
    known = known_tasks()
    if name in known:
        return known[name]
    # The name becomes the path of a run folder, which must stay inside the output folder.
    if suite.naming_help and rest and ".." not in rest.split("/"):
        return Task(name, suite.naming_help)
    raise unknown_task(name, known)


def task_kind(task_name: str, make_env: bool = True) -> TaskKind:
    """The kind of a task. With `make_env=False` no environment is made and no code of the user is
    imported, for names that come from a file."""
    task, suite = find_task(task_name), suite_of(task_name)
    if task.kind is None and suite.inspect_env and make_env:
        return env_info(suite, task_name).kind
    return task.kind or suite.kind


def env_info(suite: Suite, task_name: str) -> EnvInfo:
    info: EnvInfo = suite.call(suite.inspect_env, task_name.partition("/")[2])
    return info


def task_note(task_name: str, env: EnvConfig) -> str:
    """What is printed after the task's name when a run begins."""
    suite = suite_of(task_name)
    if not suite.inspect_env:
        return ""
    info = env_info(suite, task_name)
    note = info.note if env.observe == "pixels" else info.state_note
    if env.observe_key:
        note = f"learning from the observation {env.observe_key!r}"
    module, colon, _ = task_name.partition("/")[2].partition(":")
    return "; ".join(filter(None, (note, f"imports the Python module {module}" if colon else "")))


def validate_observation(task_name: str, observe: ObservationType) -> None:
    """Raise ConfigError if the suite does not support this observation type."""
    suite = suite_of(task_name)
    if observe not in suite.observations:
        raise ConfigError(
            f"observe={observe} conflicts with {task_name}: tasks of {suite.name}/ have "
            f"{' or '.join(suite.observations)}; remove it"
        )


def repeats_actions(task_name: str) -> bool:
    return find_task(task_name).repeats_actions and suite_of(task_name).repeats_actions
